"""One broker for all tests that break none: the cluster that NIGHTJAR_TEST_KAFKA names, or one of our own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from support.kafka_brokers import NONE_FOUND, Brokers, brokers, home, named_cluster
from support.kafka_trial import Trial, trial


@pytest.fixture(scope="session")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A broker that stays whole, of our own."""
    if home() is None:
        pytest.skip(NONE_FOUND)
    with brokers(tmp_path_factory.mktemp("kafka"), broker_session_timeout_ms=120_000) as cluster:  # a busy one stays
        yield cluster


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> str:
    """Bootstrap servers of a cluster that stays whole."""
    named = named_cluster()
    if named is not None:
        return named
    cluster: Brokers = request.getfixturevalue("one_broker")
    return cluster.hosts()


@pytest.fixture(params=["at least once", "exactly once"])
def both(request: pytest.FixtureRequest, hosts: str, tmp_path: Path) -> Iterator[Trial]:
    """A trial, once for each promise."""
    with trial(hosts, tmp_path, exactly_once=request.param == "exactly once") as one:
        yield one


@pytest.fixture
def plain(hosts: str, tmp_path: Path) -> Iterator[Trial]:
    """A trial at least once."""
    with trial(hosts, tmp_path) as one:
        yield one
