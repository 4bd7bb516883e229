"""The OpenAPI document against the running service: schemathesis makes up requests, good and bad, and checks replies.

One status is added to what it expects for good data: 422, since no JSON schema can say that columns have equal lengths
or that no two observations share time and band.
"""

from collections.abc import Iterator

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.config import SchemathesisConfig

from service.app import create_app
from service.lifecycle import Service
from support.edge import HOST, Network, live, loader, settings

EXAMPLES = 25


def config() -> SchemathesisConfig:
    chosen = SchemathesisConfig(seed=1)
    accepted = chosen.projects.default.checks.positive_data_acceptance
    accepted.expected_statuses = [*accepted.expected_statuses, "422"]
    return chosen


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live(loader(Network())) as edge:
        yield f"http://{HOST}:{edge.port}"


schema = schemathesis.openapi.from_dict(create_app(Service(settings())).openapi(), config=config())


@schema.parametrize()
@hypothesis.settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_service_keeps_its_contract(case: schemathesis.Case, url: str) -> None:
    case.call_and_validate(base_url=url)
