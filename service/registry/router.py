"""Routing of requests to models by name, version, alias, survey, domain and canary.

A request that names a model (``name``, ``name@1.2.3`` or an alias) uses that model. Otherwise :mod:`routing`
chooses a model among the aliases for each light curve. A light curve outside every domain is ``abstained``, with a
reason that names the model to request.

A canary serves a percentage of the requests for a name. Only the routing key (the object, else the client) decides, so
an object always gets the same version, and an object that gets the canary at 5 % still gets it at 20 %.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

from nightjar_alerts.core.classify import within_domain
from nightjar_alerts.core.items import Item
from nightjar_alerts.core.serializer import Role
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.routing import DEFAULT, ROUTED_ALIASES, route
from nightjar_alerts.service.registry.names import NotReady, Reference, UnknownModel
from nightjar_alerts.service.registry.serving import ModelHandle, ServedModel
from nightjar_alerts.service.registry.shadow import Shadow


class Canary(NamedTuple):
    """Canary version, and the percentage of requests that it serves."""

    version: str
    percent: float


def route_item(
    item: Item,
    find: Callable[[str], ModelHandle | None],
    default: Callable[[], ModelHandle],
    survey: str = "",
    substitute: bool = True,
) -> tuple[ModelHandle, Item]:
    """Return the model for an item, and the item, or a :class:`Skipped` if it is outside every domain.

    Parameters are those of :func:`routing.route`.
    """
    curve = item if isinstance(item, LightCurve) else None
    chosen = route(curve, survey, find, default, substitute)
    handle = replace(chosen.model, subtypes=chosen.subtypes) if chosen.subtypes else chosen.model
    return handle, within_domain(item, chosen.outside)


@dataclass(slots=True)
class ModelRouter:
    """Routing table of a process. Call every method on the event loop.

    Attributes
    ----------
    ready : False until the models of the settings are loaded.
    models : served models, by name and version.
    versions : current version of each name.
    aliases : targets of aliases; a target without a version means the current version.
    canaries, shadows : canary and shadow by model name.
    """

    ready: bool = False
    models: dict[Reference, ServedModel] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, Reference] = field(default_factory=dict)
    canaries: dict[str, Canary] = field(default_factory=dict)
    shadows: dict[str, Shadow] = field(default_factory=dict)

    def select(self, name: str = "", *, routing_key: str = "") -> ModelHandle:
        """Return a handle of the model for a request.

        Parameters
        ----------
        name : ``name``, ``name@version`` or an alias; empty for the default.
        routing_key : object, else client; decides whether the canary is used.

        Raises
        ------
        UnknownModel, NotReady
            If no model is served under the name, or no models are loaded yet.
        """
        if not self.ready:
            raise NotReady
        name = name or DEFAULT
        reference, role = self.resolve(name, routing_key)
        model = self.models.get(reference)
        if model is None:
            raise UnknownModel(name)
        # Only the current version has a shadow, as other versions may have other classes.
        is_current = self.versions.get(reference.name) == reference.version
        return ModelHandle(model, role, self.shadows.get(reference.name) if is_current else None)

    def route(
        self, item: Item, name: str = "", *, survey: str = "", routing_key: str = "", substitute: bool = True
    ) -> tuple[ModelHandle, Item]:
        """Return the model for an item, and the item, or a :class:`Skipped` if it is outside every domain.

        Parameters
        ----------
        name : model named in the request, used whatever its domain; empty to choose one.
        survey : survey of the item, unless the light curve has one.
        substitute : if False, use no other model for light curves outside the domain of the first, or for subtypes.
        """
        if name:
            return self.select(name, routing_key=routing_key), item

        def find(alias: str) -> ModelHandle | None:
            return self.select(alias, routing_key=routing_key) if alias in self.aliases else None

        return route_item(item, find, lambda: self.select(routing_key=routing_key), survey, substitute)

    def select_routed(self, *, routing_key: str = "") -> dict[str, ModelHandle]:
        """Return the model of each alias that light curves are routed to, and ``default``; raises as :meth:`select`."""
        default = {DEFAULT: self.select(routing_key=routing_key)}
        aliases = (alias for alias in ROUTED_ALIASES if alias in self.aliases)
        return default | {alias: self.select(alias, routing_key=routing_key) for alias in aliases}

    def resolve(self, name: str, routing_key: str = "") -> tuple[Reference, Role]:
        """Return the version to use for a name, and its role.

        An exact version has no canary, and it is not checked that it is served. Raises UnknownModel for an unknown
        name, and for an alias with a version that it does not lead to.
        """
        alias, _, version = name.partition("@")
        if version and alias in self.aliases:
            return self._aliased_version(alias, version), ""
        reference = self.target(name)
        if reference.version:
            return reference, ""
        if reference.name not in self.versions:
            raise UnknownModel(name)
        canary = self.canaries.get(reference.name)
        if canary is not None and key_fraction(reference.name, routing_key) * 100 < canary.percent:
            return Reference(reference.name, canary.version), "canary"
        return Reference(reference.name, self.versions[reference.name]), ""

    def _aliased_version(self, alias: str, version: str) -> Reference:
        """Return a version that an alias leads to: its own, or the current one or the canary of its model."""
        target = self.aliases[alias]
        canary = self.canaries.get(target.name)
        versions = {target.version} if target.version else {self.versions.get(target.name), canary and canary.version}
        if version not in versions:
            raise UnknownModel(f"{alias}@{version}")
        return Reference(target.name, version)

    def target(self, name: str) -> Reference:
        """Resolve an alias, or parse a name. Raises UnknownModel."""
        if name in self.aliases:
            return self.aliases[name]
        try:
            return Reference.parse(name)
        except ValueError:
            raise UnknownModel(name) from None

    def current(self, name: str) -> ServedModel | None:
        """Return the current version of a model; None if there is none. ``name`` is not resolved as an alias."""
        return self.models.get(Reference(name, self.versions.get(name, "")))

    def required(self) -> set[Reference]:
        """Return the versions that are used by names, aliases or canaries."""
        references = {Reference(name, version) for name, version in self.versions.items()}
        references |= {reference for reference in self.aliases.values() if reference.version}
        return references | {Reference(name, canary.version) for name, canary in self.canaries.items()}

    def is_canary(self, reference: Reference) -> bool:
        """Return True if a version is a canary."""
        canary = self.canaries.get(reference.name)
        return canary is not None and canary.version == reference.version

    def aliases_of(self, reference: Reference) -> list[str]:
        """Return the aliases of a version, sorted."""
        return sorted(
            alias
            for alias, target in self.aliases.items()
            if target.name == reference.name and (target.version or self.versions.get(target.name)) == reference.version
        )


def key_fraction(name: str, routing_key: str) -> float:
    """Hash a routing key to a uniform number in [0, 1), independently for every name."""
    # Clients choose the keys, and an unpaired surrogate must not raise.
    digest = blake2b(f"{name}\n{routing_key}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
