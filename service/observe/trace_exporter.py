"""Export of spans to an OpenTelemetry collector by OTLP over HTTP. Importing this module needs the ``otel`` extra.

The batch processor of the SDK sends spans from its own thread and drops spans when its queue is full, so that an
unresponsive collector does not delay requests. No global provider is set. Headers for the collector, service name,
resource attributes and batch size are configured by the standard ``OTEL_`` variables.
"""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

NAME = "nightjar"


def exporting_provider(endpoint: str, ratio: float, version: str) -> TracerProvider:
    """Return a provider of tracers that export spans; its shutdown sends the remaining ones.

    Parameters
    ----------
    endpoint : full URL of the collector for traces.
    ratio : fraction of traces started here that are sampled; a trace of a caller has the caller's decision.
    version : version of the service.
    """
    named = Resource({"service.name": NAME, "service.version": version})
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(ratio),
        resource=named.merge(OTELResourceDetector().detect()),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return provider
