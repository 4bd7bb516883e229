"""Spans to an OpenTelemetry collector by OTLP over HTTP. Importing this module needs the ``otel`` extra.

The SDK's batch processor sends spans from a thread of its own. It drops spans when its queue is full, and a collector
that does not answer delays no request. No global provider is set. Headers for the collector, the name of the service,
attributes of the resource and the size of batches come from the standard ``OTEL_`` variables.
"""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from nightjar_alerts.service.observe.tracing import Tracing

NAME = "nightjar"


def exporting(endpoint: str, ratio: float, version: str) -> Tracing:
    """Return tracing that exports spans.

    Parameters
    ----------
    endpoint : full address of the collector for traces.
    ratio : share of the traces begun here that are sampled; a caller's decision stands for its trace.
    version : of the service.
    """
    named = Resource({"service.name": NAME, "service.version": version})
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(ratio),
        resource=named.merge(OTELResourceDetector().detect()),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return Tracing(provider.get_tracer(NAME, version), provider.shutdown)
