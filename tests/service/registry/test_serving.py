"""Opening the engine of a loaded model: settings override what was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.load import LoadedModel
from nightjar_alerts.service.engine.machine import CoreLayout
from nightjar_alerts.service.engine.policy import BatchLimits, CostModel, RunSample
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.observe.tracing import Tracer
from nightjar_alerts.service.registry import serving
from nightjar_alerts.service.registry.serving import ModelFactory
from nightjar_alerts.service.settings import Settings
from support.graphs import EchoGraph, echo_manifest, question

COST = CostModel(1e-3, 1e-6, 0.0)


class Recorded(Engine):
    """Records its options."""

    seen: EngineOptions

    def __init__(self, *given: Any, **named: Any) -> None:
        (Recorded.seen,) = (value for value in (*given, *named.values()) if isinstance(value, EngineOptions))
        super().__init__(*given, **named)


def measured(kept: list[Sequence[RunSample]]) -> LoadedModel:
    bundle = Bundle(Path("echo"), echo_manifest(), "0" * 64)
    layout = CoreLayout(runs=3, threads=1, batches=5)
    return LoadedModel(bundle, "cpu", EchoGraph(), COST, 0.0, 0.0, max_tokens=4096, layout=layout, keep=kept.append)


@pytest.mark.parametrize(
    ("changes", "workers", "batches", "limits"),
    [
        ({}, 3, 5, BatchLimits(4096, 128)),
        ({"workers": 1, "groups_in_flight": 2, "max_batch_tokens": 512}, 1, 2, BatchLimits(512, 32)),
        ({"max_delay_ms": 2.5}, 3, 5, BatchLimits(4096, 128, max_delay=0.0025)),
    ],
)
async def test_factory_open_settings_override_measured_options(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], workers: int, batches: int, limits: BatchLimits
) -> None:
    monkeypatch.setattr(serving, "Engine", Recorded)
    factory = ModelFactory(Settings(**changes), Metrics(), Tracer(), None, print)
    await factory.close(await factory.open(measured([])), 5)
    seen = Recorded.seen
    assert (seen.workers, seen.batches, seen.limits) == (workers, batches, limits)


async def test_factory_close_learned_costs_are_kept() -> None:
    kept = list[Sequence[RunSample]]()
    factory = ModelFactory(Settings(), Metrics(), Tracer(), None, print)
    served = await factory.open(measured(kept))
    await served.engine.submit(question(1, 30))
    await factory.close(served, 5)
    [[run]] = kept
    assert (run.batch, run.length, run.tokens) == (1, 30, 30)
