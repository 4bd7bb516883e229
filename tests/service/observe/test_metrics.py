"""Metrics: their values and naming rules."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from nightjar_alerts.core.adapter import Adapter, Row
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.failures import ErrorKind, InferenceFailed
from nightjar_alerts.core.items import Prediction
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.posterior import Novelty
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.service.engine.batch import QueueEntry, RunReport
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.observe.metrics import STAGES, Metrics
from support.graphs import EchoGraph, echo_manifest, model_input

CLASSES = ELASTICC.model_copy(update={"classes": (ELASTICC.classes[11], ELASTICC.classes[13])})


def bundle(version: str) -> Bundle:
    changes = {"taxonomy": CLASSES, "version": version}
    return Bundle(Path("echo"), echo_manifest().model_copy(update=changes), "ab" * 32)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def engine() -> Engine:
    return Engine(EchoGraph(), Adapter(echo_manifest()), CostModel(1.0, 0.0, 0.0), EngineOptions(workers=1))


def report() -> RunReport:
    outputs = {"probabilities": np.array([0.2, 0.8], np.float32), "embedding": np.zeros(4, np.float32)}
    prediction = Prediction(outputs, 2, 1e-3, 2e-4, 3e-3)
    loop = asyncio.new_event_loop()
    entries = [QueueEntry(length, 0.0, None, model_input(1, length), loop.create_future(), 1e-3) for length in (10, 6)]
    loop.close()
    return RunReport(
        entries=entries,
        results=[prediction, InferenceFailed()],
        tokens=16,
        length=10,
        started=0.0,
        assemble_seconds=2e-4,
        run_seconds=3e-3,
        split_seconds=1e-5,
        work_seconds=3e-3,
        expert_load={"input_expert_load": np.array([[10, 6]]), "expert_load": np.array([[4, 12], [16, 0]])},
    )


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_record_run_updates_all_metrics(metrics: Metrics) -> None:
    metrics.model(bundle("1.0.0")).record_run(report(), 2e-3)
    expected = {
        ("nightjar_batch_size_sum",): 2,
        ("nightjar_batch_tokens_sum",): 20,
        ("nightjar_batch_padding_ratio_sum",): 20 / 16,
        ("nightjar_cost_model_error_ratio_sum",): 1.5,
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


def test_router_entropy_is_the_mean_of_a_run_by_model_and_layer(metrics: Metrics) -> None:
    one, other, second, without = (report() for _ in range(4))
    outputs_of(one)["router_entropy"] = np.array([0.5, 0.5])
    outputs_of(other)["router_entropy"] = np.array([1.5, 0.5])
    outputs_of(second)["router_entropy"] = np.array([2.0, 0.25])
    first = replace(one, results=[one.results[0], other.results[0]])
    model = metrics.model(bundle("1.0.0"))
    for run in (first, second, without):
        model.record_run(run, 2e-3)
    for layer, total in (("0", 3.0), ("1", 0.75)):
        assert value(metrics, "nightjar_router_entropy_count", model="echo", layer=layer) == 2
        assert value(metrics, "nightjar_router_entropy_sum", model="echo", layer=layer) == total


def outputs_of(run: RunReport) -> Row:
    classified = run.results[0]
    assert isinstance(classified, Prediction)
    return classified.outputs


@pytest.mark.parametrize(("novelty", "unusual"), [(0.3, 0), (0.6, 1)])
def test_unusual_light_curves_are_counted_by_the_threshold_of_their_detections(
    metrics: Metrics, novelty: float, unusual: int
) -> None:
    rule = Novelty(
        threshold=0.1, thresholds_by_detections={10: 0.5, 11: 0.9}, false_alarm_rate=0.05, split="none",
        objects=1, reference_objects=1,
    )  # fmt: skip
    with_rule = replace(bundle("1.0.0"), manifest=bundle("1.0.0").manifest.model_copy(update={"novelty": rule}))
    run = report()
    outputs_of(run)["novelty"] = np.array(novelty, np.float32)
    metrics.model(with_rule).record_run(run, 2e-3)
    assert value(metrics, "nightjar_unusual_total") == unusual


def test_unusual_light_curves_are_not_counted_without_a_rule(metrics: Metrics) -> None:
    metrics.model(bundle("1.0.0")).record_run(report(), 2e-3)
    assert value(metrics, "nightjar_unusual_total") == 0


@pytest.mark.parametrize(("layer", "expert", "load"), [("input", "1", 6), ("0", "1", 12), ("1", "0", 16)])
def test_expert_load_is_counted_by_layer(metrics: Metrics, layer: str, expert: str, load: float) -> None:
    for _ in range(2):
        metrics.model(bundle("1.0.0")).record_run(report(), 2e-3)
    assert value(metrics, "nightjar_expert_load_total", layer=layer, expert=expert) == 2 * load


async def test_queue_gauges_are_read_at_the_scrape(metrics: Metrics) -> None:
    graph, cost = EchoGraph(), CostModel(1.0, 0.0, 0.0)
    engine = Engine(graph, Adapter(echo_manifest()), cost, EngineOptions(workers=1))
    metrics.model(bundle("1.0.0")).serve(engine, "cpu", 0.5)
    graph.hold()
    await engine.start()
    entries = engine.enqueue([model_input(0)])
    assert await asyncio.to_thread(graph.started.acquire, True, 5)
    entries += engine.enqueue([model_input(1), model_input(2)])
    assert value(metrics, "nightjar_queue_depth") == 2
    assert value(metrics, "nightjar_queue_work_seconds") == 2
    assert (value(metrics, "nightjar_oldest_run_seconds") or 0) > 0
    graph.release()
    await asyncio.gather(*(entry.future for entry in entries))
    assert value(metrics, "nightjar_queue_depth") == 0
    await engine.stop()


def versions(metrics: Metrics) -> set[str]:
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {item.labels["version"] for item in samples if item.name == "nightjar_model_info"}


def test_models_are_named_while_they_are_served(metrics: Metrics) -> None:
    served = [metrics.model(bundle(version)) for version in ("1.0.0", "1.0.1", "1.0.0")]  # the last by a second engine
    for model in served:
        model.serve(engine(), "cpu", load_seconds=0.5)
    for model, left in zip(served, ({"1.0.0", "1.0.1"}, {"1.0.0"}, set[str]()), strict=True):
        model.close()
        assert versions(metrics) == left


def test_engine_errors_exist_at_zero_before_the_first(metrics: Metrics) -> None:
    model = metrics.model(bundle("1.0.0"))
    model.serve(engine(), "cpu", 0.5)
    labels = {"fault": "out_of_memory", "outcome": "recovered"}
    assert value(metrics, "nightjar_engine_faults_total", **labels) == 0
    model.record_error(ErrorKind.OUT_OF_MEMORY, recovered=True)
    assert value(metrics, "nightjar_engine_faults_total", **labels) == 1


@pytest.mark.parametrize(
    ("name", "label"),
    [("substitutes", "role"), ("model_loads", "outcome"), ("cache_answers", "found"), ("shadow_curves", "outcome")],
)
def test_counters_with_known_labels_exist_at_zero(metrics: Metrics, name: str, label: str) -> None:
    (family,) = (family for family in metrics.registry.collect() if family.name == f"nightjar_{name}")
    samples = [sample for sample in family.samples if sample.name.endswith("_total")]
    assert samples
    assert all(sample.value == 0 and sample.labels[label] for sample in samples)


def test_record_stage_of_several_light_curves_shares_the_time(metrics: Metrics) -> None:
    metrics.record_stage("featurise", 1.0, 3.0, light_curves=4)
    assert value(metrics, "nightjar_stage_duration_seconds_count", stage="featurise") == 4
    assert value(metrics, "nightjar_stage_duration_seconds_sum", stage="featurise") == pytest.approx(2.0)


def test_scraped_metrics_parse_and_keep_to_the_naming_rules(metrics: Metrics) -> None:
    metrics.model(bundle("1.0.0")).record_run(report(), 2e-3)
    families = list(text_string_to_metric_families(metrics.render().decode()))
    ours = [family for family in families if family.name.startswith("nightjar_")]
    assert len(ours) > 20
    for family in ours:
        assert re.fullmatch(r"nightjar_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|us|milliseconds|microseconds|kb|mb)$", family.name)
    assert any(family.name == "process_resident_memory_bytes" for family in families)
    assert {"python_info", "python_gc_collections"} <= {family.name for family in families}


def test_stage_metrics_exist_before_the_first_request(metrics: Metrics) -> None:
    """A dashboard shows a stage at zero rather than no data."""
    for stage in STAGES:
        assert value(metrics, "nightjar_stage_duration_seconds_count", stage=stage) == 0


def test_two_services_in_one_process_do_not_share_numbers(metrics: Metrics) -> None:
    other = Metrics()
    other.requests.labels("/v1/classify", "200").inc()
    assert value(metrics, "nightjar_requests_total", route="/v1/classify", code="200") is None


async def test_busy_event_loop_is_recorded_as_lag(metrics: Metrics) -> None:
    sampler = asyncio.create_task(metrics.sample_loop_lag(interval=0.01))
    await asyncio.sleep(0.015)
    await asyncio.sleep(0)
    blocker = asyncio.get_running_loop().time() + 0.05
    while asyncio.get_running_loop().time() < blocker:
        pass
    await asyncio.sleep(0.02)
    sampler.cancel()
    assert (value(metrics, "nightjar_event_loop_lag_seconds_sum") or 0) > 0.02
