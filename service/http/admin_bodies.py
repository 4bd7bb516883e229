"""Bodies of requests to the admin interface, and of its replies, as models; and what is served, listed in them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from models.bundle import Task
from service.answers.replies import Reply
from service.registry.live import Served, Shelf
from service.registry.names import MOST_CHARACTERS, PATTERN, VERSION_PATTERN
from service.registry.repository import ModelRepository
from service.registry.shadow import Shadow

Version = Annotated[str, Field(pattern=VERSION_PATTERN, max_length=MOST_CHARACTERS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Nothing(_Strict):
    """No members."""


class WhichVersion(_Strict):
    """A version of the model in the address."""

    version: Version | None = Field(None, description="without one: the newest to load, all of them to unload")


class AliasTarget(_Strict):
    """Target of an alias."""

    model: str = Field(pattern=PATTERN, max_length=MOST_CHARACTERS, description="`name`, or `name@1.2.3` to pin it")


class CanaryTerms(_Strict):
    """A version on trial."""

    version: Version
    percent: float = Field(gt=0, lt=100, description="of requests that it answers")


class ShadowTerms(_Strict):
    """A model to be compared."""

    model: str = Field(pattern=PATTERN, max_length=MOST_CHARACTERS, description="`name@1.2.3`")
    share: float = Field(1.0, gt=0, le=1, description="of requests that are copied to it")


class Model(Reply):
    """A model that is loaded.

    ``answers_for_name`` is whether requests for the name alone come here; ``leaving`` models answer only what they were
    asked before they were replaced.
    """

    name: str
    version: str
    task: Task
    sha256: str
    path: str
    provider: str
    state: Literal["serving", "leaving"]
    answers_for_name: bool
    aliases: list[str]
    requests: int = Field(description="being answered now")
    load_seconds: float


class Available(Reply):
    """A bundle in the folders that is not loaded."""

    name: str
    version: str
    task: Task
    path: str


class FailedBundle(Reply):
    """A bundle that cannot be served."""

    path: str
    name: str | None
    version: str | None
    reason: str
    since: float = Field(description="seconds since 1970")


class CanaryState(Reply):
    """A version that answers a share."""

    version: str
    percent: float


class ShadowState(Reply):
    """A comparison: of so many light curves compared, how many got the same class, and means."""

    model: str
    share: float
    compared: int
    agreement: float | None
    mean_distance: float | None
    mean_seconds: float | None
    failed: int
    dropped: int


class Listing(Reply):
    """Models, bundles that could be loaded, failures, aliases, canaries and shadows."""

    models: list[Model]
    available: list[Available]
    failures: list[FailedBundle]
    aliases: dict[str, str]
    canaries: dict[str, CanaryState]
    shadows: dict[str, ShadowState]


class IndexRequest(_Strict):
    """Request of Triton's clients for the index."""

    ready: bool = False


class LoadParameters(_Strict):
    """Parameters of loading: a model comes from the repository, never out of the request."""


class LoadRequest(_Strict):
    """Request of Triton's clients to load a model."""

    parameters: LoadParameters = LoadParameters()


class UnloadParameters(_Strict):
    """Parameters of unloading; there are no dependents."""

    unload_dependents: bool = False


class UnloadRequest(_Strict):
    """Request of Triton's clients to unload a model."""

    parameters: UnloadParameters = UnloadParameters()


class IndexEntry(Reply):
    """A version of a model as Triton's index has it."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


def listing(repository: ModelRepository) -> Listing:
    """List all that the repository serves, could serve and failed to load."""
    shelf, intake = repository.shelf, repository.intake
    absent = [found for reference, found in intake.contents.bundles.items() if reference not in shelf.served]
    return Listing(
        models=[
            *(_listed_model(shelf, served) for served in shelf.served.values()),
            *(_listed_model(shelf, s) for s in shelf.leaving),
        ],
        available=[
            Available(name=found.reference.name, version=found.reference.version, task=found.task, path=str(found.path))
            for found in absent
        ],
        failures=[
            FailedBundle(
                path=str(failure.path),
                name=failure.reference.name if failure.reference else None,
                version=failure.reference.version if failure.reference else None,
                reason=failure.reason,
                since=failure.since,
            )
            for failure in intake.failures.values()
        ],
        aliases={alias: str(target) for alias, target in sorted(shelf.routes.aliases.items())},
        canaries={name: CanaryState(version=c.version, percent=c.percent) for name, c in shelf.routes.canaries.items()},
        shadows={name: _listed_shadow(shadow) for name, shadow in shelf.shadows.items()},
    )


def _listed_model(shelf: Shelf, served: Served[Any]) -> Model:
    reference, leaving = served.reference, served in shelf.leaving
    return Model(
        name=reference.name,
        version=reference.version,
        task=served.task,
        sha256=served.bundle.sha256,
        path=str(served.bundle.path),
        provider=served.provider,
        state="leaving" if leaving else "serving",
        answers_for_name=served is shelf.answering(reference.name),
        aliases=[] if leaving else shelf.routes.aliases_of(reference),
        requests=served.leases,
        load_seconds=served.loaded.load_seconds,
    )


def _listed_shadow(shadow: Shadow) -> ShadowState:
    seen = shadow.agreement
    return ShadowState(
        model=str(shadow.reference),
        share=shadow.share,
        compared=seen.compared,
        agreement=seen.agreed / seen.compared if seen.compared else None,
        mean_distance=seen.distance / seen.compared if seen.compared else None,
        mean_seconds=seen.seconds / seen.compared if seen.compared else None,
        failed=seen.failed,
        dropped=seen.dropped,
    )


def index(repository: ModelRepository, ready: bool) -> list[IndexEntry]:
    """Return the listing as Triton has it."""
    all_of_it = listing(repository)
    entries = [IndexEntry(name=m.name, version=m.version, state="READY", reason="") for m in all_of_it.models]
    if ready:
        return entries
    reasons = {(failed.name, failed.version): failed.reason for failed in all_of_it.failures}
    return entries + [
        IndexEntry(
            name=found.name,
            version=found.version,
            state="UNAVAILABLE",
            reason=reasons.get((found.name, found.version), "unloaded"),
        )
        for found in all_of_it.available
    ]
