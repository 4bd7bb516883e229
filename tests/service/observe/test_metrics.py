"""Metrics: what is counted where, and the rules their names keep to."""

import asyncio
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import Histogram
from prometheus_client.parser import text_string_to_metric_families

from nightjar_alerts.models.bundle import Bundle, Task
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.service.engine.batch import Classification, InferenceFailed, Prediction, RunReport
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.policy import CostModel
from nightjar_alerts.service.observe.metrics import MOST_NOTED, MOST_RUNS, SECONDS, STAGES, Metrics
from support.graphs import EchoGraph, echo_manifest, question

TASK: Task = "classification"
CLASSES = ELASTICC.model_copy(update={"classes": (ELASTICC.classes[11], ELASTICC.classes[13])})


def bundle(version: str) -> Bundle:
    changes = {"taxonomy": CLASSES, "version": version}
    return Bundle(Path("echo"), echo_manifest().model_copy(update=changes), "ab" * 32)


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics()
    metrics.set_model(bundle("1.0.0"), "cpu", load_seconds=0.5)
    return metrics


def report() -> RunReport:
    outputs = {"probabilities": np.array([0.2, 0.8], np.float32), "embedding": np.zeros(4, np.float32)}
    prediction = Prediction(outputs, 2, 1e-3, 2e-4, 3e-3)
    return RunReport(
        questions=[question(1, 10), question(2, 6)],
        answers=[prediction, InferenceFailed()],
        tokens=16,
        length=10,
        assemble_seconds=2e-4,
        run_seconds=3e-3,
        expert_load={"input_expert_load": np.array([[10, 6]]), "expert_load": np.array([[4, 12], [16, 0]])},
    )


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_run_is_counted_in_full(metrics: Metrics) -> None:
    metrics.notes(TASK, CLASSES.names).record_run(report(), 2e-3)
    expected = {
        ("nightjar_batch_size_sum", "task", TASK): 2,
        ("nightjar_batch_tokens_sum", "task", TASK): 20,
        ("nightjar_batch_padding_ratio_sum", "task", TASK): 20 / 16,
        ("nightjar_cost_model_error_ratio_sum", "task", TASK): 1.5,
        ("nightjar_missing_metadata_total",): 128,
        ("nightjar_truncated_total",): 0,
        ("nightjar_observations_total", "band", "u"): 16,
        ("nightjar_observations_total", "band", "g"): 0,
        ("nightjar_predicted_class_total", "class", "Ia"): 1,
        ("nightjar_predicted_class_total", "class", "SLSN"): 0,
        ("nightjar_confidence_count",): 1,
        ("nightjar_stage_duration_seconds_count", "stage", "run"): 1,
    }
    for (name, *label), number in expected.items():
        assert value(metrics, name, **dict([label] if label else [])) == pytest.approx(number), (name, label)


def test_values_are_counted_once_however_many_threads_note_and_read_them(metrics: Metrics) -> None:
    plain = Histogram("plain", "As the library counts.", buckets=SECONDS, registry=None)
    values = [float(place % 70) / 1000 for place in range(3 * MOST_NOTED + 7)]

    def note() -> None:
        for number in values:
            metrics.stage("run", number)

    threads = [threading.Thread(target=note) for _ in range(3)] + [threading.Thread(target=metrics.render)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in values * 3:
        plain.observe(number)
    ours = [family for family in metrics.registry.collect() if family.name == "nightjar_stage_duration_seconds"]
    found = {(s.name, s.labels.get("le")): s.value for s in ours[0].samples if s.labels["stage"] == "run"}
    for sample in next(iter(plain.collect())).samples:
        if not sample.name.endswith("_created"):
            key = (sample.name.replace("plain", "nightjar_stage_duration_seconds"), sample.labels.get("le"))
            assert found[key] == pytest.approx(sample.value), key


def test_work_of_a_model_is_counted_without_being_asked_for_when_there_is_much(metrics: Metrics) -> None:
    notes = metrics.notes(TASK, CLASSES.names)
    for _ in range(MOST_RUNS):
        notes.record_run(report(), 2e-3)
    assert notes._runs == []
    assert value(metrics, "nightjar_batch_size_count", task=TASK) == MOST_RUNS
    assert notes.statistics.totals().ran.count == MOST_RUNS


@pytest.mark.parametrize(("layer", "expert", "load"), [("input", "1", 6), ("0", "1", 12), ("1", "0", 16)])
def test_expert_load_is_counted_by_layer(metrics: Metrics, layer: str, expert: str, load: float) -> None:
    for _ in range(2):
        metrics.notes(TASK, CLASSES.names).record_run(report(), 2e-3)
    assert value(metrics, "nightjar_expert_load_total", layer=layer, expert=expert) == 2 * load


async def test_the_queue_is_read_when_it_is_scraped(metrics: Metrics) -> None:
    graph = EchoGraph()
    engine = Engine(graph, Classification(echo_manifest()), CostModel(1.0, 0.0, 0.0), EngineOptions(workers=1))
    metrics.watch(TASK, engine)
    graph.hold()
    await engine.start()
    entries = engine.enqueue([question(0)])
    assert await asyncio.to_thread(graph.started.acquire, True, 5)
    entries += engine.enqueue([question(1), question(2)])
    assert value(metrics, "nightjar_queue_depth", task=TASK) == 2
    assert value(metrics, "nightjar_queue_work_seconds", task=TASK) == 2
    assert (value(metrics, "nightjar_oldest_run_seconds", task=TASK) or 0) > 0
    graph.release()
    await asyncio.gather(*(entry.future for entry in entries))
    assert value(metrics, "nightjar_queue_depth", task=TASK) == 0
    await engine.stop()


def versions(metrics: Metrics) -> set[str]:
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {item.labels["version"] for item in samples if item.name == "nightjar_model_info"}


def test_models_are_named_while_they_are_served(metrics: Metrics) -> None:
    metrics.set_model(bundle("1.0.1"), "cpu", load_seconds=0.5)
    assert versions(metrics) == {"1.0.0", "1.0.1"}
    metrics.set_model(bundle("1.0.0"), "cpu", load_seconds=0.5)  # by a second engine
    for left in ({"1.0.0", "1.0.1"}, {"1.0.1"}):
        metrics.unset_model(bundle("1.0.0"), "cpu")
        assert versions(metrics) == left


def test_scraped_metrics_parse_and_keep_to_the_naming_rules(metrics: Metrics) -> None:
    metrics.notes(TASK, CLASSES.names).record_run(report(), 2e-3)
    families = list(text_string_to_metric_families(metrics.render().decode()))
    ours = [family for family in families if family.name.startswith("nightjar_")]
    assert len(ours) > 20
    for family in ours:
        assert re.fullmatch(r"nightjar_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|us|milliseconds|microseconds|kb|mb)$", family.name)
    assert any(family.name == "process_resident_memory_bytes" for family in families)
    assert {"python_info", "python_gc_collections"} <= {family.name for family in families}


def test_every_stage_exists_before_it_is_seen(metrics: Metrics) -> None:
    """A dashboard shows a stage at zero rather than no data."""
    for stage in STAGES:
        assert value(metrics, "nightjar_stage_duration_seconds_count", stage=stage) == 0


def test_two_services_in_one_process_do_not_share_numbers(metrics: Metrics) -> None:
    other = Metrics()
    other.requests.labels("/v1/classify", "200").inc()
    assert value(metrics, "nightjar_requests_total", route="/v1/classify", code="200") is None


async def test_a_busy_event_loop_shows_as_lag(metrics: Metrics) -> None:
    sampler = asyncio.create_task(metrics.sample_loop_lag(interval=0.01))
    await asyncio.sleep(0.015)
    await asyncio.sleep(0)
    blocker = asyncio.get_running_loop().time() + 0.05
    while asyncio.get_running_loop().time() < blocker:
        pass
    await asyncio.sleep(0.02)
    sampler.cancel()
    assert (value(metrics, "nightjar_event_loop_lag_seconds_sum") or 0) > 0.02
