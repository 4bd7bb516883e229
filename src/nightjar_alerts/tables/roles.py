"""Which column of a table is what.

:class:`Roles` is immutable; each function that finds a column returns a new one. Columns that have a role are not
looked at again, so the order of the functions matters; :mod:`tables.layout` states it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from nightjar_alerts.tables.columns import Lists
from nightjar_alerts.tables.evidence import Evidence
from nightjar_alerts.tables.options import Choice, Guess, TableError, TableOptions, TableQuestion
from nightjar_alerts.tables.vocabulary import (
    NO_LAYOUT,
    RANKS,
    SurveyLayout,
    filter_and_role,
    find_survey,
    last_part,
    plain,
)

T = TypeVar("T")

_ROLE_TEXTS: Final = {
    "object_id": "the object",
    "time": "the time",
    "band": "the filter",
    "flux_err": "the error of the flux",
    "mag": "the magnitude",
    "mag_err": "the error of the magnitude",
    "limit": "the limiting magnitude",
    "upper_limit": "the flag of upper limits",
    "detected": "the flag of detections",
    "sign": "the sign of the difference",
    "snr": "the signal-to-noise ratio",
    "zero_point": "the zero point of the flux",
    "mag_system": "the magnitude system",
}


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """A decided value, and the guesses that it rests on. Each guess names the option that overrides it."""

    value: T
    guesses: tuple[Guess, ...] = ()


@dataclass(frozen=True, slots=True)
class Roles:
    """Columns by role.

    Attributes
    ----------
    columns : column of each role.
    wide : filters and their own columns by role, if the table has a set of columns for each filter.
    points : columns with one value for each point: in a nested table the lists that belong together.
    nested : whether a row holds all points of an object, or of an object in one filter, as lists.
    band : filter of all points, in a table without a column of filters.
    survey : what is known of tables with these columns.
    reference_mag : column of magnitudes that may show the zero point of the fluxes.
    """

    columns: Mapping[str, str]
    points: tuple[str, ...] = ()
    nested: bool = False
    wide: tuple[tuple[str, Mapping[str, str]], ...] = ()
    band: str = ""
    survey: SurveyLayout = NO_LAYOUT
    reference_mag: str = ""
    guesses: tuple[Guess, ...] = ()

    def sets(self) -> list[tuple[str, Mapping[str, str]]]:
        """Return the filter, and the columns by role, of each set of points: one, or one for each filter."""
        return [(name, {**self.columns, **own}) for name, own in self.wide] or [(self.band, self.columns)]

    def all(self, role: str) -> list[str]:
        """Return the columns of a role: none, one, or one for each filter."""
        return list(dict.fromkeys(columns[role] for _, columns in self.sets() if role in columns))

    def guess(self, option: str, value: object, text: str) -> "Roles":
        """Return the roles with one more guess."""
        return replace(self, guesses=(*self.guesses, Guess(option, str(value), text)))

    def taking(self, evidence: Evidence, options: TableOptions, role: str, name: str) -> "Roles":
        """Return the roles with a column in a role. Raises TableQuestion if another column has the same name."""
        for other in (f"{name} (2)", f"{name}.1"):  # as this reader and pandas name the second one
            if options.columns.get(role) is None and other in evidence.sample and not evidence.are_same(name, other):
                choices = [Choice(name, "the first"), Choice(other, "the second")]
                raise TableQuestion(f"Which of the columns named {name!r} is to be read?", f"columns.{role}", choices)
        roles = replace(self, columns={**self.columns, role: name})
        if options.columns.get(role) == name or plain(name) == role.replace("_", ""):
            return roles
        return roles.guess(f"columns.{role}", name, f"{_ROLE_TEXTS.get(role, role)} is column {name!r}")

    def without(self, *names: str) -> "Roles":
        """Return the roles without the columns of some."""
        return replace(self, columns={role: name for role, name in self.columns.items() if role not in names})


def roles_of_options(evidence: Evidence, options: TableOptions) -> Roles:
    """Return the columns that the options name. Raises TableError for one that does not exist."""
    roles = Roles({role: name for role, name in options.columns.items() if name})
    named = {f"columns.{role}": name for role, name in roles.columns.items()}
    named |= {f"metadata[{meaning!r}]": name for meaning, name in (options.metadata or {}).items()}
    for option, name in named.items():
        if name not in evidence.sample:
            raise TableError(f"{option} is {name!r}, which the table does not have; it has {evidence.listed()}")
    return roles


def question(
    evidence: Evidence, text: str, option: str, choices: Sequence[Choice] = (), hint: str = ""
) -> TableQuestion:
    """Return a question that lists the columns of the table."""
    return TableQuestion(f"{text} The table has {evidence.listed()}.{hint}", option, choices)


def free(roles: Roles, pool: Iterable[str] | None = None, test: Callable[[str], bool] | None = None) -> list[str]:
    """Return the columns without a role that pass a test, of the points unless others are named."""
    taken = {name for _, columns in roles.sets() for name in columns.values()}
    pool = roles.points if pool is None else pool
    return [name for name in dict.fromkeys(pool) if name not in taken and (test is None or test(name))]


def candidates(
    evidence: Evidence,
    roles: Roles,
    role: str,
    pool: Iterable[str] | None = None,
    test: Callable[[str], bool] | None = None,
) -> list[str]:
    """Return candidate columns for a role, best match first."""
    ranks = RANKS[role]
    named = [name for name in free(roles, pool) if evidence.keys[name] & ranks.keys()]
    named.sort(key=lambda name: min(ranks[key] for key in evidence.keys[name] if key in ranks))
    return [name for name in named if test is None or test(name)]


def find(
    evidence: Evidence,
    roles: Roles,
    options: TableOptions,
    role: str,
    pool: Iterable[str],
    test: Callable[[str], bool] | None = None,
) -> Roles:
    """Find the column of a role: that of the options, of the survey's layout, or the best match that passes a test."""
    if role in options.columns:
        return roles
    if role in roles.survey.roles:
        known = [name for name in free(roles, pool) if roles.survey.roles[role] in evidence.keys[name]]
        return roles.taking(evidence, options, role, known[0]) if known else roles
    found = candidates(evidence, roles, role, pool, test)
    return roles.taking(evidence, options, role, found[0]) if found else roles


def groups_of_points(evidence: Evidence, options: TableOptions) -> list[tuple[str, ...]]:
    """Return the columns of lists that belong together, the main ones first; empty if rows hold no lists.

    Lists with the name of forced photometry come after those of detections.
    """
    lists = [name for name in evidence.header if evidence.is_list(name)]
    chosen = options.columns.get("time")
    if chosen:
        times = [name for name in lists if name == chosen]
    else:
        ranks = RANKS["time"].keys()
        times = [name for name in lists if evidence.keys[name] & ranks and evidence.holds_times(name)]
    times = times or [name for name in lists if last_part(name).startswith(("mjd_", "time_"))]
    groups: dict[tuple[str, bytes], list[str]] = {}
    for name in lists:
        column = evidence.sample[name]
        assert isinstance(column, Lists)
        groups.setdefault((name.rpartition(".")[0], column.offsets.tobytes()), []).append(name)
    usable = [group for group in groups.values() if any(name in times for name in group)]
    usable.sort(key=lambda group: (is_forced(group), -len(group)))
    survey = find_survey(evidence.header, evidence.all_keys)
    if len(times) > 1 and (all(map(filter_and_role, times)) or survey.wide):
        return [tuple(name for group in usable for name in group)]  # each filter has times of its own
    return list(map(tuple, usable))


def is_forced(names: Sequence[str]) -> bool:
    """Return whether columns are those of forced photometry, by the list that they are fields of, if there is one."""
    prefix = names[0].rpartition(".")[0]
    named = [prefix] if prefix else [name for name in names if "flag" not in name.lower()]
    return any(re.search(r"forced|fp_hist", name.lower()) for name in named)


def prefix_of(names: Sequence[str]) -> str:
    """Return the name of the list of objects, such as ``prvDiaSources``, whose fields columns are."""
    return names[0].rpartition(".")[0] or names[0]
