"""Tiers of the tests, declared in one place, so that one sees at a glance what `make fast` leaves out.

- *fast*: everything that is not listed here; `make fast` runs it within four minutes.
- *slow*: exports or trains networks, starts brokers, services or benchmarks. `make test` runs it beside the fast ones,
  in two processes.
- *alone*: measures time, or needs both cores for itself, and is wrong beside anything else. `make test` runs it last,
  in one process.
- *soak*: tests on a real Kafka that take long, or depend on how busy the machine is. `make soak` runs them, with
  NIGHTJAR_SOAK in the environment; `make test` runs those of :data:`KAFKA` alone.

A file or test that is not listed but uses a fixture of :data:`SLOW_FIXTURES` is slow as well.
"""

import os

import pytest

# The longest first: one that begins last would keep one process busy alone.
SLOW = (
    "training/test_every_architecture.py",  # exports every architecture
    "training/export/test_export.py",
    "test_docs.py::test_page",  # the code blocks of all pages
    "test_docs.py::test_readme_shows",  # a service, and the demonstration, which starts another
    "test_docs.py::test_sets_of_the_sample_packets",
    "test_docs.py::test_the_variable_star",
    "test_quality.py::test_the_tree_passes",  # `make lint` does the same
    "training/export/test_weights.py::test_a_bundle_exported_again_answers_alike",
    "training/export/test_functions.py",
    "service/engine/test_native.py",
    "models/test_kernels.py::test_a_sanitizer_finds_no_fault",
    "models/test_kernels.py::test_statistics_are_those_of_the_network",
    "models/test_kernels.py::test_frequencies_are_those_of_the_network",
    "training/export/test_quantize.py",
    "training/sky/test_six.py::test_a_prepared_folder_ships",
    "training/sky/test_load.py::test_real_sets_are_read_whole",
    "deploy/test_hostile_bench.py",
    "deploy/test_makefile.py::test_the_demonstration",
    "service/observe/test_tracing.py::test_a_collector_that_is_not_there",
    "service/stream/test_cluster_monitor.py::test_ends_of_all_partitions",
    "networks/test_statistics_branch.py::test_graph_and_network_agree",
    "networks/test_astro_moe_export.py",
    "networks/test_astromer_export.py",
    "networks/test_attention_export.py",
    "networks/test_informer_forecast.py::test_exported_graph_is_the_network",
    "networks/test_informer.py::test_exported_graph_is_the_network",
    "networks/test_romae.py::test_exported_graph_is_the_network",
    "networks/test_recurrent.py::test_layers_export_as_one_operator_each",
    "networks/test_trees.py::test_both_graphs_give_the_same_leaves",
    "training/sky/test_heads.py::test_a_bundle_is_shipped",
    "networks/test_period_search.py::test_finds_what_astropy_finds",
    "training/reobserve/test_adapt.py",
    "training/sky/test_measure.py",
    "training/fit/test_train.py",
    "training/score/test_baseline.py",
    "deploy/test_service_process.py",
    "service/test_cli.py",
    "service/stream/test_kafka.py",
    "service/stream/test_faults.py",
    "service/stream/test_exactly_once.py",
    "service/stream/test_redis_streams.py",
    "service/stream/test_accounting.py",
    "service/stream/test_poison.py::test_any_message_comes_to_an_end",
    "service/stream/cluster",
    "service/http/test_contract.py",
    "service/http/test_supervision.py",
    "service/http/test_hostile.py::test_a_client_that_never_reads",
    "contract/test_contract.py",
    "deploy/test_bench.py",
    "deploy/test_soak.py",
    "deploy/test_engine_bench.py",
    "deploy/test_peers.py",
    "deploy/test_prometheus.py",
    "training/fit/test_distributed.py",
    "training/score/test_page.py",
    "training/score/test_folds.py",
    "training/export/test_confidence.py",
    "training/experiments/test_encodings.py",
)
ALONE = (
    "service/registry/test_loading.py::test_a_loading_thread_stands_back",  # whether other threads get the processor
    "service/http/test_reload_under_load.py",  # latency under load
    "deploy/simulation/test_replay.py",  # measured beside simulated times
)
SLOW_FIXTURES = frozenset({"pipeline", "confident_bundle"})  # trains, or exports a network with all that it may state
CLUSTER = "service/stream/cluster/"
# A minute and a half in one process. Each has passed many times in a row, on a busy machine too: see docs/stream.md.
KAFKA = (
    "test_group.py::test_everything_is_answered_and_counted",
    "test_group.py::test_a_worker_that_starts_anew_repeats_nothing",
    "test_group.py::test_a_worker_that_was_suspended_goes_on[exactly once-40]",
    "test_group.py::test_static_members_come_back_to_their_partitions",
    "test_topics.py::test_a_topic_that_does_not_exist_yet_is_waited_for",
    "test_topics.py::test_a_topic_made_again_begins_anew[at least once]",
    "test_topics.py::test_a_dead_letter_beyond_the_limit_of_its_topic_is_shortened[at least once]",
    "test_access.py::test_a_password_over_tls[SCRAM-SHA-512]",
    "test_access.py::test_a_wrong_password_ends_the_start_with_a_sentence",
    "test_broken_brokers.py::test_the_only_broker_goes_and_comes_back[dead-at rest-exactly once]",
    "test_both_brokers.py::test_both_bear_the_same[redis-absent at the start]",
    "test_both_brokers.py::test_both_bear_the_same[redis-killed]",
    "test_both_brokers.py::test_both_bear_the_same[redis-silent]",
    "test_both_brokers.py::test_both_bear_the_same[redis-made again]",
)


def mark(item: pytest.Item) -> None:
    """Add the markers of a test's tier."""
    if any(entry in item.nodeid for entry in ALONE):
        item.add_marker(pytest.mark.alone)
    if place(item) < len(SLOW):
        item.add_marker(pytest.mark.slow)
    quick = CLUSTER not in item.nodeid or any(CLUSTER + entry in item.nodeid for entry in KAFKA)
    if not quick and "NIGHTJAR_SOAK" not in os.environ:
        item.add_marker(pytest.mark.skip(reason="takes long on a real Kafka: make soak, or set NIGHTJAR_SOAK"))


def place(item: pytest.Item) -> int:
    """Return a test's place in :data:`SLOW`; those that are slow for a fixture come last, fast ones after them."""
    for index, entry in enumerate(SLOW):
        if entry in item.nodeid:
            return index
    uses = set(getattr(item, "fixturenames", ()))
    return len(SLOW) - 1 if uses & SLOW_FIXTURES else len(SLOW)
