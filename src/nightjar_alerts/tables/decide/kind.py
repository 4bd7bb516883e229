"""Whether the brightness is that of difference images or of the whole source."""

from collections.abc import Mapping
from typing import Final, Literal

from nightjar_alerts.tables.options import Choice, FluxKind, Guess, TableOptions, TableQuestion
from nightjar_alerts.tables.roles import Decision, Roles
from nightjar_alerts.tables.vocabulary import DIFFERENCE, TOTAL, last_part, plain

KIND_TEXTS: Final = {
    "difference": "the brightness is that of difference images",
    "total": "the brightness is that of the whole source: the median of each filter is subtracted",
}
MAX_MINORITY: Final = 0.1
"""Largest fraction of objects that may look like the other kind without a question."""


def decide_kind(roles: Roles, options: TableOptions) -> Decision[FluxKind | Literal[""]]:
    """Decide by options, the name of the column, or the survey; empty if the light curves have to show it."""
    if options.flux_kind:
        return Decision(options.flux_kind)
    field = last_part(roles.columns.get("flux") or roles.columns.get("mag") or "").lower()
    name, is_of_ztf = plain(field), field == "magpsf"  # other surveys name their total magnitudes mag_psf
    kind = "total" if name in TOTAL else "difference" if name in DIFFERENCE or is_of_ztf else roles.survey.kind
    if not kind:
        return Decision("")
    return Decision(kind, (Guess("flux_kind", kind, KIND_TEXTS[kind]),))


def kind_of_light_curves(kinds: Mapping[str, int], usual: FluxKind | Literal[""], survey: str) -> Decision[FluxKind]:
    """Decide by the kinds that light curves show. Raises TableQuestion if they contradict each other.

    Parameters
    ----------
    kinds : number of light curves of each kind, ``total``, ``difference`` or undecided.
    usual : usual kind of the survey, empty if there is none. survey : its name.
    """
    total, difference = kinds.get("total", 0), kinds.get("difference", 0)
    meanings = (total, "whole sources, such as variable stars"), (difference, "difference fluxes of transients")
    found = " and ".join(
        f"{count} of {sum(kinds.values())} objects look like {text}" for count, text in meanings if count
    )
    if min(total, difference) > MAX_MINORITY * (total + difference):
        raise TableQuestion(
            f"Is the brightness that of the whole source or of difference images? {found}.",
            "flux_kind",
            [Choice("difference", KIND_TEXTS["difference"]), Choice("total", KIND_TEXTS["total"])],
        )
    if total != difference:
        kind: FluxKind = "total" if total > difference else "difference"
        return Decision(kind, (Guess("flux_kind", kind, f"{KIND_TEXTS[kind]}: {found}"),))
    if usual:
        text = f"assumed: {usual} flux, the usual kind of {survey}; neither columns nor light curves show it"
        return Decision(usual, (Guess("flux_kind", usual, text),))
    text = "assumed: difference flux; neither columns nor light curves show it"
    return Decision("difference", (Guess("flux_kind", "difference", text),))
