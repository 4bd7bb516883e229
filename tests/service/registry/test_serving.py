"""Starting the engine of a loaded model: settings and the defaults of the provider."""

import threading
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.load import LoadedModel
from nightjar_alerts.core.machine import usable_cores
from nightjar_alerts.core.policy import BatchLimits
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.runtime import Provider
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.inference import INLINE_CURVES
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry import serving
from nightjar_alerts.service.registry.serving import ServedModel
from nightjar_alerts.service.settings import Settings
from support.graphs import EchoGraph, curve, echo_manifest

COST = CostModel(1e-3, 1e-6, 0.0)


class Recorded(Engine):
    """Records its options."""

    seen: EngineOptions

    def __init__(self, *given: Any, **named: Any) -> None:
        (Recorded.seen,) = (value for value in (*given, *named.values()) if isinstance(value, EngineOptions))
        super().__init__(*given, **named)


def loaded(provider: Provider = "cpu") -> LoadedModel:
    return LoadedModel(Bundle(Path("echo"), echo_manifest(), "0" * 64), provider, EchoGraph(), COST, 0.0, 0.0)


@pytest.mark.parametrize(
    ("provider", "changes", "workers", "limits"),
    [
        ("cpu", {}, usable_cores(), BatchLimits(1024, 32)),
        ("cpu", {"workers": 3, "max_batch_tokens": 8192}, 3, BatchLimits(8192, 128)),
        ("cuda", {}, 2, BatchLimits(32768, 128)),
        ("cuda", {"workers": 1, "max_batch_tokens": 512}, 1, BatchLimits(512, 32)),
    ],
)
async def test_served_model_start_takes_the_settings_or_the_defaults_of_the_provider(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, changes: dict[str, Any], workers: int, limits: BatchLimits
) -> None:
    monkeypatch.setattr(serving, "Engine", Recorded)
    model = await ServedModel.start(loaded(provider), Settings(**changes), Metrics(), None, print)
    await model.stop(5)
    assert (Recorded.seen.workers, Recorded.seen.limits) == (workers, limits)


async def test_served_model_stopped_has_no_featurising_thread() -> None:
    earlier = set(threading.enumerate())  # tests before this one may have left threads
    model = await ServedModel.start(loaded(), Settings(), Metrics(), None, print)
    await model.predictor.infer([curve(1)] * (INLINE_CURVES + 1))
    own = [thread for thread in set(threading.enumerate()) - earlier if thread.name.startswith("featurise")]
    assert own
    await model.stop(5)
    for thread in own:
        thread.join(20)
        assert not thread.is_alive()
