"""Opening a loaded model for answers: what was measured decides, but settings come first."""

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
from nightjar_alerts.service.registry import repository
from nightjar_alerts.service.registry.repository import ModelOpener
from nightjar_alerts.service.settings import Settings
from support.graphs import EchoGraph, echo_manifest, question

COST = CostModel(1e-3, 1e-6, 0.0)


class Recorded(Engine):
    """Notes how it was set up."""

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
async def test_the_engine_is_set_up_as_measured_unless_told(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], workers: int, batches: int, limits: BatchLimits
) -> None:
    monkeypatch.setattr(repository, "Engine", Recorded)
    opener = ModelOpener(Settings(**changes), Metrics(), Tracer(), None, print)
    await opener.close(await opener.open(measured([])), 5)
    seen = Recorded.seen
    assert (seen.workers, seen.batches, seen.limits) == (workers, batches, limits)


async def test_learned_costs_are_kept_when_a_model_goes() -> None:
    kept = list[Sequence[RunSample]]()
    opener = ModelOpener(Settings(), Metrics(), Tracer(), None, print)
    served = await opener.open(measured(kept))
    await served.engine.submit(question(1, 30))
    await opener.close(served, 5)
    [[run]] = kept
    assert (run.batch, run.length, run.tokens) == (1, 30, 30)
