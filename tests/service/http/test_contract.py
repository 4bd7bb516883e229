"""The OpenAPI document matches the service: schemathesis generates valid and invalid requests and checks responses.

Besides what it expects, good data may get 422, since no JSON schema can say that columns have equal lengths or that no
two observations share time and band, 415, since none can say what is text in no other format (a table), and 504 when
it asks for an answer within a millisecond; too many curves get 413.
"""

from collections.abc import Iterator
from typing import Any

import hypothesis
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig

from nightjar_alerts.service.http import formats
from nightjar_alerts.service.http.formats import ARROW_TYPE, NDJSON_TYPE
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.http.openapi import PACKET_TYPES
from nightjar_alerts.service.http.server import create_app
from support.edge import HOST, Network, curve, live, loader, settings
from support.wire import arrow_stream, arrow_table, lines_body, msgpack_body, packed

pytestmark = pytest.mark.slow

EXAMPLES = 15


def config() -> SchemathesisConfig:
    chosen = SchemathesisConfig(seed=1)
    checks = chosen.projects.default.checks
    for check, status in (
        (checks.positive_data_acceptance, "422"),
        (checks.positive_data_acceptance, "415"),
        (checks.negative_data_rejection, "413"),
        (checks.not_a_server_error, "504"),
    ):
        check.expected_statuses = [*check.expected_statuses, status]
    return chosen


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live(loader(Network())) as edge:
        yield f"http://{HOST}:{edge.port}"


schemathesis.serializer.alias(list(PACKET_TYPES[1:]), PACKET_TYPES[0])
# Bytes made up at random are in no format at all; what values do is tried in JSON, to which all formats lead.
CURVES = [curve(), curve(3)]
schemathesis.openapi.media_type(ARROW_TYPE, st.just(arrow_stream(arrow_table(CURVES))))
schemathesis.openapi.media_type(NDJSON_TYPE, st.just(lines_body([*CURVES, "no curve"])))
for name in formats.MSGPACK_TYPES:
    schemathesis.openapi.media_type(name, st.sampled_from([msgpack_body(CURVES), msgpack_body([packed(curve()), {}])]))


@schemathesis.deserializer(*formats.MSGPACK_TYPES)
def from_msgpack(_: schemathesis.DeserializationContext, response: schemathesis.Response) -> Any:
    return msgspec.to_builtins(msgspec.msgpack.decode(response.content))  # bytes become text, as the schema has them


@schemathesis.deserializer(ARROW_TYPE, NDJSON_TYPE)
def as_text(_: schemathesis.DeserializationContext, response: schemathesis.Response) -> str:
    return response.content.decode("latin-1")


schema = schemathesis.openapi.from_dict(create_app(Service(settings())).openapi(), config=config())


@schema.parametrize()
@hypothesis.settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_openapi_random_requests_conform_to_the_document(case: schemathesis.Case[Any], url: str) -> None:
    case.call_and_validate(base_url=url)
