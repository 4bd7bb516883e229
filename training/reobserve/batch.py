"""Many views at once: which origins, seen by which surveys, how often.

Every class is seen by every survey in the same proportion, so that the survey does not tell the class; origins are
drawn evenly over the sources of a class first, so that one large simulation does not drown the real objects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.taxonomy import ELASTICC
from training.reobserve.origins import Colours, Event, event_of, no_templates, read_colours
from training.reobserve.patterns import ONE_BAND, Library, build_library
from training.reobserve.pulses import PERIODIC, Flare, Pulse, made_up_pulses, pulse_of, read_flares
from training.reobserve.templates import template_objects
from training.reobserve.views import Rules, view
from training.sky.load import part_of
from training.sky.record import PARTS, Sky, SkyObject, collect, join
from training.sky.surveys import MEASURE_ONLY

Origin = Event | Pulse | Flare

SHARES: Final[Mapping[str, float]] = {
    "Ia": 8.0, "II": 7.0, "Ib/c": 6.5, "SLSN": 5.0, "TDE": 5.5, "AGN": 7.0, "RR Lyrae": 4.0, "Cepheid": 3.0,
    "Delta Scuti": 3.0, "EB": 3.0, "Dwarf Novae": 4.0, "uLens": 4.0, "M-dwarf Flare": 2.5, "91bg": 2.5, "Iax": 1.5,
    "SN-like/Other": 3.0, "KN": 1.0, "ILOT": 0.5, "CART": 0.5, "PISN": 0.5,
}  # fmt: skip
"""How many views of each class, relative to each other: neither nature's shares nor equal ones, which would let rare
neighbours swallow Ia."""
OF_A_SOURCE: Final = 900
"""Origins of one class and source are at most so many."""
LABELS_TO_MEASURE: Final = frozenset({"rubin"})
"""Sources that lend patterns but no origins: their few labels are for measuring."""
TRIES: Final = 6
POOR: Final = frozenset({"gaia_alerts", "eros1"})


@dataclass(frozen=True, slots=True, eq=False)
class Origins:
    """Origins by class index and source, with what their views inherit.

    An origin that is no object of ``sky`` has a negative row, and its source, name and part stand in ``stars``.
    """

    sky: Sky
    by_class: dict[int, dict[str, list[Origin]]]
    stars: dict[int, tuple[str, str, int]]

    def count(self) -> dict[str, int]:
        """Origins of each class."""
        return {ELASTICC.names[label]: sum(map(len, found.values())) for label, found in self.by_class.items()}

    def draw(self, label: int, rng: np.random.Generator) -> Origin:
        """Draw an origin of a class: its source by the square root of their numbers, then one of it."""
        sources = self.by_class[label]
        names = list(sources)
        weight = np.sqrt([len(sources[name]) for name in names])
        chosen = sources[names[rng.choice(len(names), p=weight / weight.sum())]]
        return chosen[int(rng.integers(len(chosen)))]


def find_origins(sky: Sky, part: int, *, seed: int = 0, flares: Path | None = None, most: int = OF_A_SOURCE) -> Origins:
    """Fit every object of a part that has a class and enough points.

    Parameters
    ----------
    part : index into `PARTS`. flares : file of M-dwarf flares. most : of one class and source.
    """
    rng = np.random.default_rng(seed)
    wanted = (sky.label >= 0) & (sky.part == part) & ~np.isin(sky.source, sorted(MEASURE_ONLY | LABELS_TO_MEASURE))
    found: dict[int, dict[str, list[Origin]]] = {}
    for label in np.unique(sky.label[wanted]):
        for source in np.unique(sky.source[wanted & (sky.label == label)]):
            rows = np.flatnonzero(wanted & (sky.label == label) & (sky.source == source))
            fitted = _fitted(sky, rng.permutation(rows), int(label), most, rng)
            if fitted:
                found.setdefault(int(label), {})[str(source)] = fitted
    stars: dict[int, tuple[str, str, int]] = {}
    for name, flare in read_flares(flares) if flares is not None else []:
        if part_of(name) == part:
            stars[flare.row] = "lclib_mdwarf", name, part
            found.setdefault(flare.label, {}).setdefault("lclib_mdwarf", []).append(flare)
    return Origins(sky, found, stars)


def add_made_up(origins: Origins, part: int, number: int, *, seed: int = 0) -> None:
    """Give classes of periodic variables that have no origin so many that are made up."""
    rng = np.random.default_rng(seed)
    for label in sorted(PERIODIC - set(origins.by_class)):
        for pulse in made_up_pulses(label, number, rng):
            row = -1_000_000 - len(origins.stars)
            origins.stars[row] = "made up", f"{ELASTICC.names[label]}-{-row}", part
            origins.by_class.setdefault(label, {}).setdefault("made up", []).append(replace(pulse, row=row))


def _fitted(sky: Sky, rows: NDArray[np.intp], label: int, most: int, rng: np.random.Generator) -> list[Origin]:
    fitted: list[Origin] = []
    for row in rows[: 4 * most]:
        origin = pulse_of(sky, int(row), rng) if label in PERIODIC else event_of(sky, int(row))
        if origin is not None:
            fitted.append(origin)
        if len(fitted) >= most:
            break
    return fitted


def survey_weights(library: Library) -> dict[str, float]:
    """Weights by which surveys are looked through: those of many bands evenly, Rubin more, poor ones less."""
    own = {"rubin": 2.0} | dict.fromkeys(ONE_BAND | POOR, 0.4)
    return {name: own.get(name, 1.0) for name in library.surveys}


def make_views(
    origins: Origins,
    library: Library,
    number: int,
    *,
    seed: int = 0,
    colours: Colours | None = None,
    surveys: Mapping[str, float] | None = None,
    shares: Mapping[str, float] = SHARES,
    rules: Rules | None = None,
) -> Sky:
    """About ``number`` views of ``origins`` through the patterns of ``library``.

    Parameters
    ----------
    surveys : weights of the surveys to look through; default `survey_weights`. shares : of the classes.

    Notes
    -----
    A view that shows too little is drawn again with another origin, `TRIES` times, through the same survey; a class
    that a survey can hardly see therefore has fewer views there.
    """
    rng = np.random.default_rng(seed)
    colours, rules = colours or no_templates(), rules or Rules()
    weights = surveys or survey_weights(library)
    names = [name for name in weights if name in library.rows]
    p = np.array([weights[name] for name in names])
    present = {label: shares.get(ELASTICC.names[label], 0.0) for label in origins.by_class}
    total = sum(present.values())
    made: list[SkyObject] = []
    groups: list[str] = []
    parts: list[int] = []
    for label, share in present.items():
        for count in range(round(number * share / total)):
            survey = names[int(rng.choice(len(names), p=p / p.sum()))]
            found = _one(origins, library, label, survey, colours, rules, rng)
            if found is not None:
                row, group, part = found
                row.object_id = f"{row.object_id}~{seed}.{count}"
                made.append(row)
                groups.append(group)
                parts.append(part)
    return collect(made, groups, parts)


def _one(
    origins: Origins,
    library: Library,
    label: int,
    survey: str,
    colours: Colours,
    rules: Rules,
    rng: np.random.Generator,
) -> tuple[SkyObject, str, int] | None:
    """Return a view with the name of its origin, its group and part."""
    for _ in range(TRIES):
        origin = origins.draw(label, rng)
        found = view(origin, library.draw(survey, rng), library, colours, rules, rng)
        if found is None:
            continue
        sky, row = origins.sky, origin.row
        if row < 0:
            source, name, part = origins.stars[row]
            found.object_id, found.raw_label, group = name, source, name
        else:
            found.object_id, found.raw_label = str(sky.object_id[row]), str(sky.source[row])
            group, part = str(sky.group[row]), int(sky.part[row])
            found.period, found.mwebv = float(sky.period[row]), float(sky.mwebv[row])
        return found, group, part
    return None


def views_of(
    sky: Sky,
    part: str,
    number: int,
    *,
    seed: int = 0,
    data: Path | None = None,
    through: Sequence[str] = (),
    classes: Sequence[str] = (),
    copies: int = 0,
) -> Sky:
    """Return views of one part through its own patterns; templates and flares are taken from the folder ``data``.

    Parameters
    ----------
    through : the surveys to look through, evenly; default: all, by `survey_weights`. classes : those to look at;
    default: all. copies : origins made of every published fit (`training.reobserve.templates`), beside the real ones.
    """
    flares = None if data is None else data / "real" / "lclib_mdwarf.parquet"
    templates = None if data is None else data / "real" / "templates"
    side = PARTS.index(part)
    library = build_library(sky, sky.part == side)
    if templates is not None and copies:
        sky = join([sky, template_objects(templates, side, copies, seed=seed)])
    origins = find_origins(sky, side, seed=seed, flares=flares)
    surveys = dict.fromkeys(through, 1.0) if through else None
    shares = {name: share for name, share in SHARES.items() if name in classes} if classes else SHARES
    return make_views(
        origins, library, number, seed=seed, colours=read_colours(templates), surveys=surveys, shares=shares
    )
