"""What is served and what is not, for whoever administers it."""

from typing import Any

from service.http.admin.forms import (
    Available,
    CanaryState,
    FailedBundle,
    IndexEntry,
    Listing,
    Model,
    ShadowState,
)
from service.registry.live import Served, Shelf
from service.registry.repository import ModelRepository
from service.registry.shadow import Shadow


def listing(repository: ModelRepository) -> Listing:
    """Everything there is."""
    shelf, intake = repository.shelf, repository.intake
    absent = [found for reference, found in intake.contents.bundles.items() if reference not in shelf.served]
    return Listing(
        models=[
            *(_model(shelf, served) for served in shelf.served.values()),
            *(_model(shelf, s) for s in shelf.leaving),
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
        shadows={name: _shadow(shadow) for name, shadow in shelf.shadows.items()},
    )


def _model(shelf: Shelf, served: Served[Any]) -> Model:
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


def _shadow(shadow: Shadow) -> ShadowState:
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
    """The same as Triton has it."""
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
