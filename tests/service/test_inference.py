"""Predictor with a real engine: one outcome per item, rejected requests, no leftover work."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.items import OUTSIDE_DOMAIN, Item, Outcome, Skipped
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.drift import LIMITS, WINDOW
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError, Limits
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.errors import DeadlineExceeded, EngineClosed, EngineDead, Overloaded
from nightjar_alerts.service.inference import InferOptions, Predictor
from nightjar_alerts.service.observe.metrics import Metrics
from support.graphs import EchoGraph, curve, echo_manifest, model_input, poison
from support.statistics import survey_statistics

MANIFEST = echo_manifest(Limits(max_points_per_band=20))
STATISTICS = {name: survey_statistics(MANIFEST) for name in ("lsst", "ztf")}
BUNDLE = Bundle(Path("echo"), MANIFEST.model_copy(update={"survey_statistics": STATISTICS}), "0" * 64)


@dataclass
class Service:
    graph: EchoGraph
    engine: Engine
    predictor: Predictor
    metrics: Metrics

    def outcomes(self, survey: str, status: str, reason: str = "") -> float:
        labels = {"survey": survey, "status": status, "reason": reason}
        return self.metrics.registry.get_sample_value("nightjar_outcomes_total", labels) or 0

    def drift(self, survey: str, kind: str) -> float:
        value = self.metrics.registry.get_sample_value("nightjar_input_drift", {"survey": survey, "kind": kind})
        assert value is not None
        return value

    def windows(self, survey: str) -> float | None:
        return self.metrics.registry.get_sample_value("nightjar_input_windows_total", {"survey": survey})

    def total(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(name) or 0

    async def occupied(self) -> None:
        """Block the worker in a run, so that later light curves stay queued."""
        self.graph.hold()
        self.engine.enqueue([model_input(0)])
        assert await asyncio.to_thread(self.graph.started.acquire, True, 5)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    graph, metrics, adapter = EchoGraph(), Metrics(), Adapter(BUNDLE.manifest)
    model_metrics, options = metrics.model(BUNDLE), EngineOptions(workers=1, max_queued_seconds=0.05)
    engine = Engine(graph, adapter, CostModel(1e-3, 1e-6, 0.0), options, listener=model_metrics.record_run)
    await engine.start()
    yield Service(graph, engine, Predictor(engine, adapter, model_metrics), metrics)
    graph.release()
    await engine.stop()


def markers(outcomes: list[Outcome]) -> list[float | None]:
    predictions = [item.prediction for item in outcomes]
    return [None if found is None else float(found.outputs["probabilities"][0]) for found in predictions]


async def test_infer_returns_one_outcome_per_item_in_order(service: Service) -> None:
    items: list[LightCurve | LightCurveError | Skipped] = [
        curve(1),
        LightCurveError("/flux/3", "not_finite", "flux must be finite"),
        curve(2, length=15, metadata={"mwebv": 0.1}),
        Skipped("abstained", "solar_system_object", "a moving object has no light curve"),
        Skipped("rejected", "unknown_schema"),
        curve(3),
    ]
    outcomes = await service.predictor.infer(items, InferOptions(surveys="lsst"))
    assert markers(outcomes) == [1, None, 2, None, None, 3]
    assert [(item.status, item.reason) for item in outcomes] == [
        ("classified", ""),
        ("rejected", "not_finite"),
        ("classified", ""),
        ("abstained", "solar_system_object"),
        ("rejected", "unknown_schema"),
        ("classified", ""),
    ]
    assert outcomes[1].pointer == "/flux/3"
    assert outcomes[1].detail == "flux must be finite"
    assert outcomes[2].points_per_band == (0, 0, 15, 0, 0, 0)
    assert outcomes[2].missing_metadata == 63
    assert outcomes[0].missing_metadata == 64
    assert service.outcomes("lsst", "classified") == 3
    assert service.outcomes("lsst", "abstained", "solar_system_object") == 1


async def test_infer_without_light_curves_does_not_use_the_engine(service: Service) -> None:
    await service.engine.drain(1)
    assert await service.predictor.infer([]) == []
    [outcome] = await service.predictor.infer([Skipped("abstained", "no_points")])
    assert outcome.status == "abstained"


async def test_long_histories_are_cut_and_say_so(service: Service) -> None:
    [outcome] = await service.predictor.infer([curve(1, length=50)])
    assert outcome.truncated
    assert outcome.points_per_band[2] == 20
    await service.engine.drain(5)  # what a worker counts, it counts once the answers are out
    assert service.total("nightjar_truncated_total") == 1


async def test_surveys_are_counted_apart(service: Service) -> None:
    await service.predictor.infer([curve(1), curve(2)], InferOptions(surveys=["ztf", "lsst"]))
    assert service.outcomes("ztf", "classified") == service.outcomes("lsst", "classified") == 1


async def test_window_of_a_survey_is_compared_with_the_training_data(service: Service) -> None:
    async def send(items: Sequence[Item], times: int, surveys: str, *, is_history: bool = False) -> None:
        for _ in range(times):  # fewer than the queue takes
            await service.predictor.infer(items, InferOptions(surveys=surveys, is_history=is_history))

    usual, invalid = curve(10.0), LightCurveError("/flux", "empty", "")
    skipped = Skipped("abstained", OUTSIDE_DOMAIN, curve=usual)
    mixed = 5 * list[Item]([usual, skipped]) + list[Item]([replace(usual, survey="ztf"), invalid])
    await send(mixed, WINDOW // 10 - 1, "lsst")
    await send(mixed, WINDOW // 10, "lsst", is_history=True)
    await send([usual], WINDOW, "none")
    assert (service.windows("lsst"), service.windows("ztf"), service.windows("none")) == (0, 0, None)
    await send(mixed, 1, "lsst")
    assert (service.windows("lsst"), service.windows("ztf")) == (1, 0)
    found = [service.drift("lsst", kind) for kind in LIMITS if kind != "total_flux"]
    assert found == pytest.approx([0.0] * len(found), abs=1e-9)
    assert np.isnan(service.drift("lsst", "total_flux")), "the light curves are too short to show it"
    scaled = replace(usual, flux=usual.flux * 36, flux_err=usual.flux_err * 36)
    await send([scaled] * 10, WINDOW // 10, "lsst")
    assert service.drift("lsst", "flux_scale") == pytest.approx(np.log10(36) / LIMITS["flux_scale"])
    assert service.windows("lsst") == 2


async def test_large_requests_are_featurised_off_the_event_loop(service: Service) -> None:
    rng = np.random.default_rng(0)
    curves = [
        LightCurve.from_columns(
            60_000 + rng.permutation(2000) / 7, np.full(2000, float(marker)), np.ones(2000), rng.integers(0, 6, 2000)
        )
        for marker in range(200)
    ]
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticker = asyncio.create_task(tick())
    outcomes = await service.predictor.infer(curves)
    ticker.cancel()
    assert markers(outcomes) == list(range(200))
    assert ticks > 5


async def test_infer_overload_rejects_the_whole_request_early(service: Service) -> None:
    await service.occupied()
    waiting = asyncio.create_task(service.predictor.infer([curve(1)]))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await service.predictor.infer([curve(marker) for marker in range(100)])
    assert (
        service.metrics.registry.get_sample_value("nightjar_stage_duration_seconds_count", {"stage": "featurise"}) == 1
    )
    service.graph.release()
    assert markers(await waiting) == [1]


async def test_infer_deadline_missed_by_all_raises(service: Service) -> None:
    await service.occupied()
    with pytest.raises(DeadlineExceeded):
        await service.predictor.infer([curve(1), curve(2)], InferOptions(deadline=monotonic() + 0.03))
    assert service.engine.running == 1  # the worker is still held
    service.graph.release()
    assert await service.engine.drain(5)
    assert service.graph.seen == [0]


async def test_infer_deadline_missed_by_some_fails_these(service: Service) -> None:
    [first] = await service.predictor.infer([curve(1)])
    assert first.status == "classified"
    service.graph.on_marker[2.0] = service.graph.hold  # the run after the one that holds marker 2 does not end
    curves = [curve(2)] + [curve(marker, length=20) for marker in range(3, 40)]
    outcomes = await service.predictor.infer(curves, InferOptions(deadline=monotonic() + 0.2))
    statuses = {item.status for item in outcomes}
    assert outcomes[0].status == "classified"
    assert statuses == {"classified", "failed"}
    assert {item.reason for item in outcomes if item.status == "failed"} == {"deadline_exceeded"}


async def test_infer_past_deadline_is_not_run(service: Service) -> None:
    with pytest.raises(DeadlineExceeded):
        await service.predictor.infer([curve(1)], InferOptions(deadline=monotonic() - 1))
    assert service.graph.seen == []


async def test_infer_failing_light_curve_fails_alone(service: Service) -> None:
    service.graph.on_marker[2.0] = poison
    outcomes = await service.predictor.infer([curve(marker) for marker in (1, 2, 3)])
    assert markers(outcomes) == [1, None, 3]
    assert (outcomes[1].status, outcomes[1].reason) == ("failed", "inference_failed")
    assert service.outcomes("none", "failed", "inference_failed") == 1


async def test_infer_cancelled_request_withdraws_its_light_curves(service: Service) -> None:
    await service.occupied()
    gone = asyncio.create_task(service.predictor.infer([curve(marker) for marker in range(5)]))
    stays = asyncio.create_task(service.predictor.infer([curve(9)]))
    await asyncio.sleep(0)
    assert service.engine.depth == 6
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert service.total("nightjar_withdrawn_total") == 5
    service.graph.release()
    assert markers(await stays) == [9]
    assert service.graph.seen == [0, 9]


async def test_infer_dead_engine_raises(service: Service) -> None:
    service.graph.on_marker[2.0] = sys.exit
    with pytest.raises(EngineDead):
        await service.predictor.infer([curve(1), curve(2)])
    with pytest.raises(EngineDead):
        await service.predictor.infer([curve(3)])


async def test_infer_draining_engine_raises(service: Service) -> None:
    await service.engine.drain(1)
    with pytest.raises(EngineClosed):
        await service.predictor.infer([curve(1)])
