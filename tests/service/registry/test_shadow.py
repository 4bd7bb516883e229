"""A shadow sees what the live model saw, is compared with it, and can do it no harm."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.bundle import Bundle, Task
from nightjar_alerts.service.dataplane import InferOptions
from nightjar_alerts.service.engine.batch import Arrays
from nightjar_alerts.service.engine.load import LoadedModel
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.observe.tracing import Tracer
from nightjar_alerts.service.registry.load import Refused, load_one
from nightjar_alerts.service.registry.names import Reference
from nightjar_alerts.service.registry.repository import ModelRepository
from nightjar_alerts.service.registry.shadow import MOST_WAITING, Shadow
from nightjar_alerts.service.settings import CommonSettings
from support.edge import QUICK, Network, loader, settings
from support.graph_bundles import forecaster_bundle
from support.graphs import curve, echo_manifest, poison
from support.repository import version

SHADOW = Reference("echo", "0.0.2")


class Turning(Network):
    """A network that can change its mind about every class."""

    turned = False

    def __call__(self, inputs: Arrays) -> Arrays:
        outputs = super().__call__(inputs)
        return outputs | {"probabilities": outputs["probabilities"][:, ::-1]} if self.turned else outputs


class Both:
    """A live network and a shadow, each of which a test can hold or poison."""

    def __init__(self, root: Path) -> None:
        self.live, self.shadow, self.metrics = Network(), Turning(), Metrics()
        self.reasons: list[str] = []
        self.root = root
        chosen = settings(repository=root, drain_timeout=1, max_queued_seconds=1000)
        self.models = ModelRepository(
            chosen, self.metrics, Tracer(), self.reasons.append, loader(self.live), self._other
        )

    def _other(self, chosen: CommonSettings, path: Path, task: Task) -> LoadedModel:
        real = load_one(chosen, path, task)
        if real.bundle.manifest.name != "echo":
            return real
        manifest = echo_manifest().model_copy(update={"version": real.bundle.manifest.version})
        return LoadedModel(Bundle(path, manifest, real.bundle.sha256), "cpu", self.shadow, QUICK, 0.0, 0.0)

    @property
    def shadowing(self) -> Shadow:
        return self.models.live.shadows["echo"]

    async def ask(self, *markers: float) -> None:
        with self.models.classifier("echo@0.0.1") as lease:
            outcomes = await lease.infer([curve(marker) for marker in markers], InferOptions())
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
    await pair.models.trials.set_shadow("echo", SHADOW, 1.0)
    yield pair
    pair.live.release()
    pair.shadow.release()
    await pair.models.stop()


async def test_agreement_is_counted(both: Both) -> None:
    await both.ask(1, 2, 3)
    seen = both.shadowing.agreement
    await both.until(lambda: seen.compared == 3)
    assert (seen.agreed, seen.distance, both.shadow.seen) == (3, 0.0, [1, 2, 3])
    assert both.metrics.registry.get_sample_value("nightjar_shadow_curves_total", {"outcome": "agreed"}) == 3
    assert both.metrics.registry.get_sample_value("nightjar_shadow_distance_count") == 3
    assert both.metrics.registry.get_sample_value("nightjar_shadow_seconds_count") == 3
    assert both.metrics.registry.get_sample_value("nightjar_predicted_class_total", {"class": "Ia"}) is not None


async def test_disagreement_is_measured(both: Both) -> None:
    both.shadow.turned = True
    await both.ask(1)
    seen = both.shadowing.agreement
    await both.until(lambda: seen.compared == 1)
    high, low = np.exp(2.0), np.exp(-2.0)
    assert seen.agreed == 0
    assert seen.distance == pytest.approx((high - low) / (high + 19 * low), rel=1e-5)


async def test_a_shadow_that_fails_only_fails_itself(both: Both) -> None:
    both.shadow.on_marker[2.0] = poison
    await both.ask(1, 2, 3)
    seen = both.shadowing.agreement
    await both.until(lambda: seen.compared + seen.failed == 3)
    assert (seen.compared, seen.failed) == (2, 1)


async def test_a_shadow_that_dies_is_dropped_and_nothing_else(both: Both) -> None:
    both.shadow.on_marker[2.0] = sys.exit
    await both.ask(1, 2, 3)
    await both.until(lambda: not both.models.live.shadows)
    assert both.reasons == []
    await both.ask(1, 2, 3)


async def test_a_shadow_that_hangs_gets_no_more_than_it_may_hold(both: Both) -> None:
    both.shadow.hold()
    for _ in range(2 * MOST_WAITING // 8):
        await both.ask(*range(8))
    seen = both.shadowing.agreement
    assert seen.dropped == MOST_WAITING
    assert len(both.live.seen) == 2 * MOST_WAITING


async def test_nothing_is_copied_while_the_live_model_is_busy(both: Both) -> None:
    both.live.hold()
    waiting = [asyncio.create_task(both.ask(*range(100))) for _ in range(40)]
    await asyncio.to_thread(both.live.started.acquire, True, 5)
    both.live.release()
    await asyncio.gather(*waiting)
    assert both.shadowing.agreement.dropped > 0


async def test_a_share_is_a_share(both: Both) -> None:
    await both.models.trials.set_shadow("echo", SHADOW, 0.25)
    for i in range(400):
        await both.ask(i % 7)
        await asyncio.sleep(0)
    seen = both.shadowing.agreement
    await both.until(lambda: seen.compared + seen.dropped > 50)
    await asyncio.sleep(0.2)
    assert seen.compared + seen.dropped < 160


async def test_shadows_that_cannot_be_compared_are_refused(both: Both) -> None:
    forecaster_bundle(both.root / "ruler", name="ruler", version="1.0.0")
    with pytest.raises(Refused, match="other classes"):
        await both.models.trials.set_shadow("echo", Reference("ruler", "1.0.0"), 1.0)
    await both.models.trials.end_shadow("echo")
    assert both.models.live.shadows == {}


async def test_only_the_version_that_answers_for_the_name_is_compared(both: Both) -> None:
    """Another one may know other classes."""
    version(both.root, "0.0.3", name="echo")
    await both.models.trials.set_canary("echo", "0.0.3", 50.0)
    leases = [both.models.classifier("echo", key=str(i)) for i in range(20)]
    assert {lease.role for lease in leases} == {"", "canary"}
    assert [lease._copies is None for lease in leases] == [lease.role == "canary" for lease in leases]
