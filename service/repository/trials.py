"""Versions on trial: a canary answers a share of what is asked of a name, a shadow is asked the same and compared."""

from collections.abc import Callable, Sequence

import structlog

from service.inference.loaded import LoadedModel
from service.metrics import Metrics
from service.repository.intake import Refused
from service.repository.references import Reference
from service.repository.routing import Canary, UnknownModel
from service.repository.shadow import Shadow
from service.repository.steps import Steps

log = structlog.get_logger(__name__)


class Trials:
    """Begins and ends them, one after the other with all other changes."""

    def __init__(self, steps: Steps, metrics: Metrics) -> None:
        self._steps, self._metrics = steps, metrics
        self._shelf, self._intake = steps.shelf, steps.intake

    async def set_canary(self, name: str, version: str, percent: float) -> None:
        """Let a version answer a percentage of what is asked of a name. Raises UnknownModel, Refused, LoadFailed."""
        async with self._steps.one_at_a_time:
            live, wanted = self._steps.answering(name), Reference(name, version)
            if wanted == live.reference:
                raise Refused(f"{wanted} answers for {name} already")
            served = await self._steps.served(wanted)
            if _classes(served.loaded) != _classes(live.loaded):
                await self._shelf.tidy()
                raise Refused(f"{wanted} has other classes than {live.reference}: one name cannot mean both")
            self._shelf.routes.canaries[name] = Canary(version, percent)
            await self._shelf.tidy()

    async def end_canary(self, name: str) -> None:
        """Let one version answer everything again. Raises UnknownModel when there is no canary."""
        async with self._steps.one_at_a_time:
            if self._shelf.routes.canaries.pop(name, None) is None:
                raise UnknownModel(f"canary of {name}")
            await self._shelf.tidy()

    async def set_shadow(self, name: str, wanted: Reference, share: float) -> None:
        """Ask another classifier a share of what is asked of a name. Raises UnknownModel, Refused, LoadFailed."""
        async with self._steps.one_at_a_time:
            live = self._steps.answering(name)
            if live.task != "classification":
                raise Refused("only classifiers can be compared")
            served = self._shelf.served.get(wanted)
            loaded = served.loaded if served else await self._intake.load(await self._intake.find(wanted))
            if set(_classes(loaded)) != set(_classes(live.loaded)):
                raise Refused(f"{wanted} has other classes than {live.reference}: there is nothing to compare")
            await self._shelf.drop_shadow(name)
            shadow = Shadow(loaded, _classes(live.loaded), share, self._metrics, self._on_shadow_death(name))
            await shadow.start()
            self._shelf.shadows[name] = shadow

    async def end_shadow(self, name: str) -> None:
        """Compare a model with nothing any more. Raises UnknownModel when it has no shadow."""
        async with self._steps.one_at_a_time:
            if not await self._shelf.drop_shadow(name):
                raise UnknownModel(f"shadow of {name}")

    def _on_shadow_death(self, name: str) -> Callable[[BaseException], None]:
        def drop(error: BaseException) -> None:
            log.error("the shadow died", model=name, exc_info=error)
            self._shelf.forget_shadow(name)

        return drop


def _classes(loaded: LoadedModel) -> Sequence[str]:
    taxonomy = loaded.bundle.manifest.taxonomy
    return () if taxonomy is None else taxonomy.names
