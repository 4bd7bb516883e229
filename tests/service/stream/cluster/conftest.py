"""One broker for all tests that do not break it: the cluster in NIGHTJAR_TEST_KAFKA, or a new one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from support.kafka_brokers import NONE_FOUND, Brokers, brokers, home, named_cluster
from support.kafka_trial import Trial, trial

FOLDER = Path(__file__).parent
# `make test` runs these, a few minutes in one process; `make nightly` runs all.
SHORT = (
    "test_group.py::test_kafka_group_classifies_and_counts_all_alerts",
    "test_group.py::test_kafka_restarted_worker_repeats_nothing",
    "test_group.py::test_kafka_suspended_worker_continues[exactly once-40]",
    "test_group.py::test_kafka_static_members_keep_their_partitions",
    "test_start_positions.py::test_worker_with_a_pending_offset_publishes_nothing[aborted]",
    "test_start_positions.py::test_auto_offset_reset_applies_only_to_groups_without_offsets",
    "test_topics.py::test_kafka_missing_topic_is_waited_for",
    "test_topics.py::test_kafka_recreated_topic_is_read_from_its_start[at least once]",
    "test_topics.py::test_kafka_dead_letter_above_the_topic_limit_is_shortened[at least once]",
    "test_destinations.py::test_missing_sink_topic_is_named_and_waited_for[at least once]",
    "test_destinations.py::test_worker_with_a_missing_sink_topic_stops_within_its_time",
    "test_replay.py::test_replay_by_time_reads_the_range_of_each_partition[?since=2026-11-22-read0-0-ranges0]",
    "test_access.py::test_kafka_password_over_tls_is_accepted[SCRAM-SHA-512]",
    "test_access.py::test_kafka_wrong_password_exits_with_a_message",
    "test_broken_brokers.py::test_kafka_outage_of_the_only_broker_loses_no_alert[dead-at rest-exactly once]",
    "test_both_brokers.py::test_redis_and_kafka_tolerate_the_same_faults[redis-absent at the start]",
    "test_both_brokers.py::test_redis_and_kafka_tolerate_the_same_faults[redis-killed]",
    "test_both_brokers.py::test_redis_and_kafka_tolerate_the_same_faults[redis-silent]",
    "test_both_brokers.py::test_redis_and_kafka_tolerate_the_same_faults[redis-made again]",
)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder as slow, and those that are not in :data:`SHORT` as nightly."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if not item.nodeid.rpartition("/")[2].startswith(SHORT):  # a test without parameters means all of them
                item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Yield a new broker that tests do not break."""
    if home() is None:
        pytest.skip(NONE_FOUND)
    with brokers(tmp_path_factory.mktemp("kafka"), broker_session_timeout_ms=120_000) as cluster:  # a busy one stays
        yield cluster


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Yield a broker that tests break and repair."""
    if home() is None:
        pytest.skip(NONE_FOUND)
    with brokers(tmp_path_factory.mktemp("single")) as cluster:
        yield cluster


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> str:
    """Return the bootstrap servers of a cluster that tests do not break."""
    named = named_cluster()
    if named is not None:
        return named
    cluster: Brokers = request.getfixturevalue("one_broker")
    return cluster.hosts()


@pytest.fixture(params=["at least once", "exactly once"])
def both(request: pytest.FixtureRequest, hosts: str, tmp_path: Path) -> Iterator[Trial]:
    """Return a trial, for each delivery guarantee."""
    with trial(hosts, tmp_path, exactly_once=request.param == "exactly once") as one:
        yield one


@pytest.fixture
def plain(hosts: str, tmp_path: Path) -> Iterator[Trial]:
    """Return a trial with at-least-once delivery."""
    with trial(hosts, tmp_path) as one:
        yield one
