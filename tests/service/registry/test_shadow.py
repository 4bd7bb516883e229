"""Shadow models: what they receive, how they are compared, and that they cannot harm the served model."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.core.adapter import Arrays
from nightjar_alerts.core.load import LoadedModel
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.service.inference import InferOptions
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry.loader import load_one
from nightjar_alerts.service.registry.manager import ModelManager
from nightjar_alerts.service.registry.names import Reference
from nightjar_alerts.service.registry.serving import acquired
from nightjar_alerts.service.registry.shadow import MAX_QUEUED, Shadow
from nightjar_alerts.service.settings import CommonSettings
from support.edge import QUICK, Network, loader, settings
from support.graphs import curve, echo_manifest, poison
from support.repository import version

SHADOW = Reference("echo", "0.0.2")


class Turning(Network):
    """A network whose probabilities can be reversed."""

    turned = False

    def __call__(self, inputs: Arrays) -> Arrays:
        outputs = super().__call__(inputs)
        return outputs | {"probabilities": outputs["probabilities"][:, ::-1]} if self.turned else outputs


class Both:
    """A served network and a shadow, each of which can be blocked or made to fail."""

    def __init__(self, root: Path) -> None:
        self.live, self.shadow, self.metrics = Network(), Turning(), Metrics()
        self.reasons: list[str] = []
        self.root = root
        root.mkdir()
        chosen = settings(repository=root, drain_timeout=1, max_queued_seconds=1000)
        self.models = ModelManager(chosen, self.metrics, self.reasons.append, self._load)

    def _load(self, chosen: CommonSettings, path: Path) -> LoadedModel:
        if path == chosen.bundle:
            return loader(self.live)(chosen, path)
        real = load_one(chosen, path)
        if real.bundle.manifest.name != "echo":
            return real
        manifest = echo_manifest().model_copy(update={"version": real.bundle.manifest.version})
        return LoadedModel(Bundle(path, manifest, real.bundle.sha256), "cpu", self.shadow, QUICK, 0.0, 0.0)

    @property
    def shadowing(self) -> Shadow:
        return self.models.router.shadows["echo"]

    async def ask(self, *markers: float) -> None:
        handle = self.models.router.select("echo@0.0.1")
        with acquired([handle]):
            outcomes = await handle.infer([curve(marker) for marker in markers], InferOptions())
        assert [outcome.status for outcome in outcomes] == ["classified"] * len(markers)

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(1000):
            if holds():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("waited in vain")


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Both]:
    pair = Both(tmp_path / "bundles")
    await pair.models.start()
    version(pair.root, "0.0.2", name="echo")  # put there after the start, so that it does not take over
    await pair.models.set_shadow("echo", SHADOW, 1.0)
    yield pair
    pair.live.release()
    pair.shadow.release()
    await pair.models.stop()


async def test_shadow_equal_results_count_as_agreed(both: Both) -> None:
    await both.ask(1, 2, 3)
    seen = both.shadowing.stats
    await both.until(lambda: seen.compared == 3)
    assert (seen.agreed, seen.distance, both.shadow.seen) == (3, 0.0, [1, 2, 3])
    assert both.metrics.registry.get_sample_value("nightjar_shadow_curves_total", {"outcome": "agreed"}) == 3
    assert both.metrics.registry.get_sample_value("nightjar_shadow_distance_count") == 3
    assert both.metrics.registry.get_sample_value("nightjar_shadow_seconds_count") == 3
    assert both.metrics.registry.get_sample_value("nightjar_predicted_class_total", {"class": "Ia"}) is not None


async def test_shadow_different_results_have_a_distance(both: Both) -> None:
    both.shadow.turned = True
    await both.ask(1)
    seen = both.shadowing.stats
    await both.until(lambda: seen.compared == 1)
    high, low = np.exp(2.0), np.exp(-2.0)
    assert seen.agreed == 0
    assert seen.distance == pytest.approx((high - low) / (high + 19 * low), rel=1e-5)


async def test_shadow_failing_run_is_counted(both: Both) -> None:
    both.shadow.on_marker[2.0] = poison
    await both.ask(1, 2, 3)
    seen = both.shadowing.stats
    await both.until(lambda: seen.compared + seen.failed == 3)
    assert (seen.compared, seen.failed) == (2, 1)


async def test_shadow_death_ends_the_comparison_only(both: Both) -> None:
    both.shadow.on_marker[2.0] = sys.exit
    await both.ask(1, 2, 3)
    await both.until(lambda: not both.models.router.shadows)
    assert both.reasons == []
    await both.ask(1, 2, 3)


async def test_shadow_hung_drops_copies_beyond_its_limit(both: Both) -> None:
    both.shadow.hold()
    for _ in range(2 * MAX_QUEUED // 8):
        await both.ask(*range(8))
    seen = both.shadowing.stats
    assert seen.dropped == MAX_QUEUED
    assert len(both.live.seen) == 2 * MAX_QUEUED


async def test_shadow_busy_served_model_drops_copies(both: Both) -> None:
    both.live.hold()
    waiting = [asyncio.create_task(both.ask(*range(100))) for _ in range(40)]
    await asyncio.to_thread(both.live.started.acquire, True, 5)
    both.live.release()
    await asyncio.gather(*waiting)
    assert both.shadowing.stats.dropped > 0


async def test_shadow_share_of_requests_is_copied(both: Both) -> None:
    await both.models.set_shadow("echo", SHADOW, 0.25)
    for i in range(400):
        await both.ask(i % 7)
        await asyncio.sleep(0)
    seen = both.shadowing.stats
    await both.until(lambda: seen.compared + seen.dropped > 50)
    await asyncio.sleep(0.2)
    assert seen.compared + seen.dropped < 160


async def test_select_canary_has_no_shadow(both: Both) -> None:
    """A canary may have the classes in another order."""
    version(both.root, "0.0.3", name="echo")
    await both.models.set_canary("echo", "0.0.3", 50.0)
    handles = [both.models.router.select("echo", routing_key=str(i)) for i in range(20)]
    assert {handle.role for handle in handles} == {"", "canary"}
    assert [handle.shadow is None for handle in handles] == [handle.role == "canary" for handle in handles]
