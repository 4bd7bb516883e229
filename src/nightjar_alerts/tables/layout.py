"""Decides what the columns of a table mean, from their names, their units and the values of the first rows.

The deciders run in a stated order, since each sees only the columns that have no role yet. Every decision that the
caller did not make is a :class:`Guess`. Where two readings are possible and the wrong one would change the answer (the
unit of the flux, which filter a number means), it is a :class:`TableQuestion`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from nightjar_alerts.models.filters import known_filter
from nightjar_alerts.tables.columns import TableColumns
from nightjar_alerts.tables.decide.bands import decide_filters, find_band, survey_of
from nightjar_alerts.tables.decide.brightness import decide_magnitude_system, decide_signs, find_brightness
from nightjar_alerts.tables.decide.given import check_options
from nightjar_alerts.tables.decide.kind import decide_kind
from nightjar_alerts.tables.decide.metadata import (
    decide_flags,
    decide_metadata,
    decide_moving,
    list_unused,
    metadata_columns,
)
from nightjar_alerts.tables.decide.objects import check_objects, find_names, find_objects, position_columns
from nightjar_alerts.tables.decide.times import TimeScale, decide_time, find_time
from nightjar_alerts.tables.decide.unit import ErrorScale, Scale, decide_error_units, decide_unit, find_zero_point
from nightjar_alerts.tables.evidence import Evidence
from nightjar_alerts.tables.options import FluxKind, Guess, TableError, TableOptions
from nightjar_alerts.tables.roles import Roles, find, free, groups_of_points, is_forced, prefix_of, roles_of_options
from nightjar_alerts.tables.vocabulary import Flag, find_survey


@dataclass(frozen=True, slots=True)
class Layout:
    """Meaning of a table's columns.

    Attributes
    ----------
    roles : column of each role.
    filters : meaning of the names in the column of filters.
    time, scale : format and zero of times, unit of fluxes.
    errors : scale of each column of errors that has a unit of its own.
    flux_kind : empty if neither names nor survey show it. usual_kind : kind if the values do not show it either.
    signed : whether a negative magnitude stands for a negative flux.
    flags : rules for columns of flags. sentinels : numbers that are missing values, by column.
    detected : whether the points are detections; None if unknown.
    others : layouts of other lists in a row, such as forced photometry, whose points are joined with these.
    """

    roles: Roles
    filters: Mapping[str, str | None]
    time: TimeScale
    scale: Scale
    errors: Mapping[str, ErrorScale]
    mag_system: str
    signed: bool
    flux_kind: FluxKind | Literal[""]
    usual_kind: FluxKind | Literal[""]
    survey: str
    flags: Mapping[str, Flag]
    metadata: Mapping[str, str]
    position: tuple[str, ...]
    moving: Mapping[str, str]
    sentinels: Mapping[str, tuple[float, ...]]
    guesses: tuple[Guess, ...]
    detected: bool | None = None
    others: tuple["Layout", ...] = ()

    @property
    def parts(self) -> tuple["Layout", ...]:
        """Layouts of all lists, this one first."""
        return self, *self.others

    def names(self) -> tuple[str, ...]:
        """Return every column that is read."""
        measured = [name for _, columns in self.roles.sets() for name in columns.values()]
        own = [*measured, *self.flags, *self.metadata.values(), *self.position, *self.moving]
        return tuple(dict.fromkeys([*own, *(name for other in self.others for name in other.names())]))

    def filter(self, name: str) -> str | None:
        """Return the filter of a name: :data:`NO_FILTER` to leave its rows out, None if it is unknown."""
        return self.filters[name] if name in self.filters else known_filter(name)


def guess_layout(
    header: Sequence[str],
    units: Mapping[str, str],
    sample: TableColumns,
    options: TableOptions,
    name: str = "",
    checkpoint: Callable[[], None] = lambda: None,
) -> Layout:
    """Decide what a table's columns mean.

    Parameters
    ----------
    header : names of the columns. units : those that the table states, by column.
    sample : all columns of the first rows.
    name : of the file. checkpoint : called before each look at a column; may raise.

    Raises
    ------
    TableQuestion
        When two readings are possible, or a column cannot be found.
    TableError
        When an option names a column that does not exist, or changes nothing.
    """
    evidence = Evidence.of(header, units, sample, options.filters, checkpoint)
    groups = groups_of_points(evidence, options)
    if not groups:
        layout = _layout_of(evidence, options, name, tuple(evidence.scalars), nested=False)
    else:
        layout = _layout_of_lists(evidence, options, name, groups)
    used = set(layout.names())
    conflicts = check_objects(evidence, layout.roles, options)
    return replace(layout, guesses=(*layout.guesses, *conflicts, *list_unused(evidence, used, options)))


def _layout_of_lists(evidence: Evidence, options: TableOptions, name: str, groups: Sequence[tuple[str, ...]]) -> Layout:
    """Return the layout of the first lists that can be read, with those of others, which are joined with them."""
    found: list[Layout] = []
    first: TableError | None = None
    left_out: list[Guess] = []
    for group in groups:
        try:
            columns = (*evidence.scalars, *group, *evidence.lists_of_metadata)
            part = _layout_of(evidence.of_columns(columns), _with_band(group, options), name, group)
        except TableError as error:
            first = first or error
            prefix, reason = prefix_of(group), getattr(error, "question", str(error)).partition(" The table has ")[0]
            left_out.append(Guess("", "", f"lists of {prefix!r} are not read: {reason}"))
        else:
            found.append(part)
    if not found:
        assert first is not None
        raise first
    if len(found) > 1:  # a point of forced photometry stands for the detection of the same exposure
        found = [replace(part, detected=not is_forced(part.roles.points)) for part in found]
    layout, *others = found
    kinds = {part.flux_kind for part in found if part.flux_kind}
    if len(kinds) > 1:
        others = [part for part in others if part.flux_kind == layout.flux_kind]
    guesses = [*layout.guesses]
    if others:
        listed = " and ".join(repr(prefix_of(part.roles.points)) for part in (layout, *others))
        guesses.append(Guess("columns.time", layout.roles.columns["time"], f"points are in the lists of {listed}"))
        known = {guess.text for guess in guesses}
        for part in others:
            own = [
                guess
                for guess in part.guesses
                if guess.text not in known and guess.option.partition(".")[0] != "columns"
            ]
            prefix = prefix_of(part.roles.points)
            guesses += [replace(guess, text=f"{prefix}: {guess.text}") for guess in own if guess.option]
    return replace(layout, others=tuple(others), guesses=(*guesses, *left_out))


def _with_band(group: Sequence[str], options: TableOptions) -> TableOptions:
    """Return the options for lists whose name is that of their filter."""
    prefix = group[0].rpartition(".")[0]
    band = known_filter(prefix) if prefix and not options.band else None
    return replace(options, band=band) if band else options


def _layout_of(
    evidence: Evidence, options: TableOptions, name: str, points: tuple[str, ...], *, nested: bool = True
) -> Layout:
    """Decide what the columns of points, and those of their objects, mean."""
    roles = replace(roles_of_options(evidence, options), points=points, nested=nested)
    roles = _find_roles(evidence, roles, options, name)
    flags = decide_flags(evidence, roles, options)
    moving = decide_moving(evidence, roles)
    time = decide_time(evidence, roles, options)
    filters = decide_filters(evidence, roles, options)
    system = decide_magnitude_system(evidence, roles, filters.value, options)
    if options.mag_system:
        roles = roles.without("mag_system")
    signed = decide_signs(evidence, roles, filters.value, options)
    scale = decide_unit(evidence, roles, filters.value, options)
    if not scale.value.has_flux:
        roles = roles.without("flux", "flux_err")
    if not scale.value.has_unit_column:
        roles = roles.without("flux_unit")
    errors = decide_error_units(evidence, roles, scale.value, options)
    kind = decide_kind(roles, options)
    metadata = decide_metadata(evidence, roles, options)
    _check_columns(evidence, roles, options)
    check_options(roles, options)
    decisions = (flags, moving, time, filters, system, signed, scale, errors, kind, metadata)
    is_alert = HISTORIES.get(prefix_of(points)) if nested else prefix_of(roles.all("time")) in HISTORIES.values()
    survey = roles.survey
    return Layout(
        roles,
        filters.value,
        time.value,
        scale.value,
        errors.value,
        system.value,
        signed.value,
        kind.value,
        survey.usual_kind,
        survey_of(roles, options),
        flags.value,
        metadata.value,
        position_columns(evidence, roles) or (),
        moving.value,
        {column: survey.sentinels[key] for column in points for key in evidence.keys[column] & survey.sentinels.keys()},
        (*roles.guesses, *(guess for decision in decisions for guess in decision.guesses)),
        detected=not (nested and is_forced(points)) if is_alert else None,
    )


HISTORIES: Final[Mapping[str, str]] = {
    "prv_candidates": "candidate",
    "prvDiaSources": "diaSource",
    "prvDiaForcedSources": "diaSource",
    "fp_hists": "candidate",
}
"""History of an alert -> the triggering detection; both have the same fields."""


def _find_roles(evidence: Evidence, roles: Roles, options: TableOptions, name: str) -> Roles:
    """Find the column of each role. ``name`` is that of the file."""
    is_positional = evidence.is_positional and not any(map(evidence.is_all_filters, roles.points))
    file = f"{name} {options.survey}" if is_positional else ""
    survey = find_survey(evidence.header, evidence.all_keys, file, evidence.distinct_of_key)
    roles = replace(roles, survey=survey)
    if survey.name:
        roles = roles.guess("", "", f"the columns are those of {survey.name}")
    roles = find_time(evidence, roles, options)
    roles = find_band(evidence, roles, options)
    if not roles.wide:
        roles = find_brightness(evidence, roles, options)
    roles = find_objects(evidence, roles, options)
    roles = find(evidence, roles, options, "limit", roles.points, evidence.looks_like_magnitudes)
    marks = {f"l_{name}" for name in (*roles.all("mag"), *roles.all("flux"))}  # of VizieR
    if "upper_limit" not in options.columns and (marked := free(roles, test=marks.__contains__)):
        roles = roles.taking(evidence, options, "upper_limit", marked[0])
    for role in ("upper_limit", "detected", "sign"):
        if role in roles.columns:
            continue
        roles = find(evidence, roles, options, role, roles.points)
    if not roles.nested and "detected" not in {**options.columns, **roles.columns}:
        named = free(roles, test=lambda name: survey.detection_id in evidence.keys[name]) if survey.detection_id else []
        if named:
            roles = replace(roles, columns={**roles.columns, "detection_id": named[0]})
            roles = roles.guess("", "", f"rows with a number in {named[0]!r} are detections")
    pool = (*roles.points, *evidence.header)
    if roles.all("flux"):
        roles = find_zero_point(evidence, roles, options)
    roles = find(evidence, roles, options, "flux_unit", pool)
    return find(evidence, roles, options, "mag_system", pool, evidence.names_systems)


def _check_columns(evidence: Evidence, roles: Roles, options: TableOptions) -> None:
    """Raise TableError if the columns do not fit each other or do not hold numbers."""
    for role in ("flux", "flux_err", "mag", "mag_err"):
        name = roles.columns.get(role)
        if name is None:
            continue
        if evidence.is_list(name) != roles.nested:
            kind = "is not a column of lists" if roles.nested else "is a column of lists"
            raise TableError(f"columns do not fit each other: {name!r} {kind}, unlike the times")
        if options.columns.get(role) and not evidence.may_hold_magnitudes(name):
            raise TableError(f"column {name!r} does not hold numbers")
    name = roles.columns.get("object_id", "")
    if name and evidence.values(name).dtype.kind == "f" and not evidence.is_whole(name, 2**53):
        raise TableError(f"column {name!r} holds floating-point numbers instead of a name or an integer")


def guess_object_columns(header: Sequence[str], sample: TableColumns) -> tuple[str, dict[str, str]]:
    """Return the column of object names of a table with one row per object, and that of each metadata name.

    Raises
    ------
    TableError
        When there is none of either.
    """
    evidence = Evidence.of(header, {}, sample)
    roles = find_names(evidence, Roles({}, nested=True), TableOptions())  # names need not repeat
    if "object_id" not in roles.columns:
        raise TableError(f"no column has names of objects, such as object_id; it has {evidence.listed()}")
    if not (metadata := metadata_columns(evidence, roles)):
        raise TableError(f"no column has metadata, such as redshift or mwebv; it has {evidence.listed()}")
    return roles.columns["object_id"], metadata
