"""Decides what the columns of a table mean, from their names, their units and the values of the first rows.

The deciders run in a stated order, since each sees only the columns that have no role yet. Every decision that the
caller did not make is a :class:`Guess`. Where two readings are possible and the wrong one would change the answer (the
unit of the flux, which filter a number means), it is a :class:`TableQuestion`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nightjar_alerts.models.filters import known_filter
from nightjar_alerts.tables.columns import Batch
from nightjar_alerts.tables.decide.bands import decide_filters, find_band, survey_of
from nightjar_alerts.tables.decide.brightness import decide_magnitude_system, decide_signs, find_brightness
from nightjar_alerts.tables.decide.kind import decide_kind
from nightjar_alerts.tables.decide.metadata import decide_flags, decide_metadata, list_unused, metadata_columns
from nightjar_alerts.tables.decide.objects import find_names, find_objects
from nightjar_alerts.tables.decide.times import TimeScale, decide_time, find_time
from nightjar_alerts.tables.decide.unit import Scale, decide_error_units, decide_unit
from nightjar_alerts.tables.evidence import Evidence
from nightjar_alerts.tables.options import FluxKind, Guess, TableError, TableOptions
from nightjar_alerts.tables.roles import Roles, find, find_points, roles_of_options
from nightjar_alerts.tables.vocabulary import find_survey


@dataclass(frozen=True, slots=True)
class Layout:
    """Meaning of a table's columns.

    Attributes
    ----------
    roles : column of each role. columns, wide, nested, band : as in :class:`Roles`.
    filters : meaning of the names in the column of filters.
    time, scale : format and zero of times, unit of fluxes.
    error_scales : nJy, or mag, of one unit of a column of errors that has a unit of its own.
    flux_kind : empty if neither names nor survey show it. usual_kind : kind if the values do not show it either.
    signed : whether a negative magnitude stands for a negative flux.
    """

    roles: Roles
    filters: Mapping[str, str | None]
    time: TimeScale
    scale: Scale
    error_scales: Mapping[str, float]
    mag_system: str
    signed: bool
    flux_kind: str
    usual_kind: FluxKind
    survey: str
    bad_flags: Mapping[str, int]
    metadata: Mapping[str, str]
    guesses: tuple[Guess, ...]

    def names(self) -> tuple[str, ...]:
        """Return every column that is read."""
        measured = [name for _, columns in self.roles.sets() for name in columns.values()]
        return tuple(dict.fromkeys([*measured, *self.bad_flags, *self.metadata.values()]))

    def filter(self, name: str) -> str | None:
        """Return the filter of a name: :data:`NO_FILTER` to leave its rows out, None if it is unknown."""
        return self.filters[name] if name in self.filters else known_filter(name)


def guess_layout(
    header: Sequence[str],
    units: Mapping[str, str],
    sample: Batch,
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
        When an option names a column that does not exist.
    """
    evidence = Evidence.of(header, units, sample, options.filters, checkpoint)
    roles = _find_roles(evidence, options, name)
    flags = decide_flags(evidence, roles, options)
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
    error_scales = decide_error_units(evidence, roles, scale.value, options)
    kind = decide_kind(roles, options)
    metadata = decide_metadata(evidence, roles, options)
    _check_columns(evidence, roles, options)
    decisions = (flags, time, filters, system, signed, scale, error_scales, kind, metadata)
    layout = Layout(
        roles,
        filters.value,
        time.value,
        scale.value,
        error_scales.value,
        system.value,
        signed.value,
        kind.value,
        roles.survey.usual_kind or "difference",
        survey_of(roles, options),
        flags.value,
        metadata.value,
        (*roles.guesses, *(guess for decision in decisions for guess in decision.guesses)),
    )
    unused = list_unused(evidence, set(layout.names()), options)
    return replace(layout, guesses=(*layout.guesses, *unused))


def _find_roles(evidence: Evidence, options: TableOptions, name: str) -> Roles:
    """Find the column of each role. ``name`` is that of the file."""
    roles = find_points(evidence, roles_of_options(evidence, options), options)
    is_positional = evidence.is_positional and not any(map(evidence.is_all_filters, roles.points))
    survey = find_survey(evidence.header, evidence.all_keys, f"{name} {options.survey}" if is_positional else "")
    roles = replace(roles, survey=survey)
    if survey.name:
        roles = roles.guess("", "", f"the columns are those of {survey.name}")
    roles = find_time(evidence, roles, options)
    roles = find_band(evidence, roles, options)
    if not roles.wide:
        roles = find_brightness(evidence, roles, options)
    roles = find_objects(evidence, roles, options)
    roles = find(evidence, roles, options, "limit", roles.points, evidence.looks_like_magnitudes)
    for role in ("upper_limit", "detected", "sign"):
        roles = find(evidence, roles, options, role, roles.points)
    pool = (*roles.points, *evidence.header)
    if roles.all("flux"):
        roles = find(evidence, roles, options, "zero_point", pool, evidence.looks_like_zero_point)
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


def guess_object_columns(header: Sequence[str], sample: Batch) -> tuple[str, dict[str, str]]:
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
