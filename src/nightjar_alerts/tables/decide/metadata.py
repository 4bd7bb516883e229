"""Columns of metadata, of flags, and those that are not used."""

import re
from functools import reduce
from operator import or_
from typing import Final

from nightjar_alerts.models.metadata import REDSHIFT_RANGE, REDSHIFTS
from nightjar_alerts.tables.evidence import Evidence
from nightjar_alerts.tables.options import Guess, TableError, TableOptions
from nightjar_alerts.tables.roles import Decision, Roles, free
from nightjar_alerts.tables.vocabulary import (
    BAD_FLAGS,
    FLAGS,
    GOOD_FLAGS,
    METADATA,
    MOVING,
    POSITIONS,
    Flag,
    last_part,
    plain,
)

LISTED_COLUMNS: Final = 12
LISTED_METADATA: Final = 8
MAX_FLAGS: Final = 6
"""Maximum number of distinct values of a column of flags that a message lists."""
_NUMBERS: Final = re.compile(r"[0-9]{1,18}")
GOOD_WORDS: Final = frozenset({"good", "ok", "okay", "valid", "clean", "accepted", "accept", "usable", "reliable"})
BAD_WORDS: Final = frozenset(
    {"bad", "poor", "invalid", "rejected", "reject", "unusable", "unreliable", "badquality", "bad quality", "flagged"}
)
_YES_OR_NO: Final = frozenset({"true", "false", "t", "f", "yes", "no", "y", "n"})
YES: Final = frozenset({"true", "t", "yes", "y", "1"})
NO: Final = frozenset({"false", "f", "no", "n", "0"})
_FLAGS: Final = re.compile(r"flag|qual|valid|reject|bad|status|good|satur|mask|outlier")


def metadata_columns(evidence: Evidence, roles: Roles) -> dict[str, str]:
    """Return the columns that have the names of metadata, where a row or an object has one value."""
    found: dict[str, str] = {}
    for name in free(roles, [*evidence.scalars, *evidence.lists_of_metadata], evidence.is_numeric):
        wanted = METADATA.get(last_part(name).lower(), "") or METADATA.get(name.lower(), "")
        is_velocity = wanted in REDSHIFTS and (evidence.finite(name) > REDSHIFT_RANGE[1]).any()
        if wanted and not is_velocity:
            found.setdefault(wanted, name)
    return found


def decide_metadata(evidence: Evidence, roles: Roles, options: TableOptions) -> Decision[dict[str, str]]:
    """Decide which columns are metadata for the model."""
    if options.metadata is not None:
        return Decision(dict(options.metadata))
    columns, guesses = metadata_columns(evidence, roles), list[Guess]()
    if columns:
        found = sorted(columns.values())
        listed = ", ".join(found[:LISTED_METADATA]) + (" ..." if len(found) > LISTED_METADATA else "")
        guesses.append(Guess("metadata", "", f"metadata for the model: {listed}"))
    if given := roles.columns.get("redshift"):  # imports keep it beside the metadata: it may be a simulation's truth
        guesses.append(Guess("metadata", f"zspec={given}", f"the redshift in {given!r} is not given to the model"))
    return Decision(columns, tuple(guesses))


def decide_flags(evidence: Evidence, roles: Roles, options: TableOptions) -> Decision[dict[str, Flag]]:
    """Decide by which columns rows are unusable. Raises TableError for an option without a column."""
    for name in options.minimum:
        if name not in evidence.sample:
            raise TableError(f"minimum names {name!r}, which the table does not have; it has {evidence.listed()}")
    if options.bad_flags is None:
        return _known_flags(evidence, roles)
    flags = dict[str, Flag]()
    for name, bits in options.bad_flags.items():
        found = [column for column in roles.points if name in (column, plain(last_part(column)))]
        if not found:
            raise TableError(f"bad_flags names {name!r}, which the table does not have; it has {evidence.listed()}")
        flags[found[0]] = bits
    return Decision(flags)


def _known_flags(evidence: Evidence, roles: Roles) -> Decision[dict[str, Flag]]:
    flags = dict[str, Flag]()
    for column in free(roles):
        rule = _rule_of(column, evidence, roles)
        if rule is not None and (not isinstance(rule, int) or evidence.is_numeric(column)):
            flags[column] = rule
    guesses = [
        Guess("bad_flags", f"{column}={rule}", f"rows are left out where the survey flags them as bad in {column!r}")
        for column, rule in flags.items()
        if isinstance(rule, int)
    ]
    if others := [column for column, rule in flags.items() if not isinstance(rule, int)]:
        listed = ", ".join(others[:LISTED_COLUMNS]) + (" ..." if len(others) > LISTED_COLUMNS else "")
        guesses.append(Guess("bad_flags", "", f"rows are left out where they are flagged as bad in {listed}"))
    return Decision(flags, tuple(guesses))


def _rule_of(column: str, evidence: Evidence, roles: Roles) -> Flag | None:
    """Return the rule of the survey for a column of flags, or that of words such as ``good`` and ``bad``."""
    for key in evidence.keys[column]:
        for rules in (roles.survey.flags, FLAGS):
            for name, rule in rules.items():
                if key == name or (name.endswith("*") and key.startswith(name[:-1])):
                    return rule or None
    if (named := _rule_of_name(column, evidence)) is not None:
        return named
    if not _FLAGS.search(plain(column)):
        return None
    words = words_of(evidence, column)
    good, bad = words & GOOD_WORDS, words & BAD_WORDS
    return tuple(sorted(good)) or ("",) if bad and words <= GOOD_WORDS | BAD_WORDS else None


def _rule_of_name(column: str, evidence: Evidence) -> Flag | None:
    """Return the rule of a column such as ``is_valid`` or ``saturated``, unless it would leave out every row."""
    keys, words = evidence.keys[column], words_of(evidence, column)
    if words <= YES | NO and keys & GOOD_FLAGS and words & YES:
        return tuple(sorted(YES))
    return "true" if words <= YES | NO and keys & BAD_FLAGS and words & NO else None


def words_of(evidence: Evidence, column: str) -> set[str]:
    """Return the different values of a column in small letters; whole numbers without a decimal point."""
    return {word.lower().removesuffix(".0") for word in evidence.distinct(column)}


def decide_moving(evidence: Evidence, roles: Roles) -> Decision[dict[str, str]]:
    """Decide by which columns rows belong to Solar System objects."""
    pool = [*roles.points, *evidence.scalars]
    found = {name: MOVING[key] for name in free(roles, pool) for key in evidence.keys[name] & MOVING.keys()}
    if not found:
        return Decision(found)
    return Decision(found, (Guess("", "", f"rows of Solar System objects are left out, by {', '.join(found)}"),))


def list_unused(evidence: Evidence, used: set[str], options: TableOptions) -> tuple[Guess, ...]:
    """State which columns are not read, flags and qualities first."""
    used = used | set(options.minimum)
    unused = [name for name in evidence.header if name not in used and not evidence.keys[name] & POSITIONS]
    unused.sort(key=lambda name: not _FLAGS.search(plain(name)))
    guesses = [
        Guess("", "", f"no rows are left out because of {name!r}: {remedy}")
        for name in (unused if options.bad_flags is None and not options.minimum else ())
        if (remedy := _remedy_for_flags(evidence, name))
    ]
    if unused:
        more = len(unused) - LISTED_COLUMNS
        listed = ", ".join(unused[:LISTED_COLUMNS]) + (f" and {more} more" if more > 0 else "")
        guesses.append(Guess("", "", f"columns not used: {listed}"))
    return tuple(guesses)


def _remedy_for_flags(evidence: Evidence, name: str) -> str:
    """Return how to leave out rows by a column of flags or qualities, empty for other columns."""
    values = evidence.distinct(name)
    if not _FLAGS.search(plain(name)) or len(values) < 2:
        return ""
    least = f"minimum (--minimum '{name}=VALUE') leaves out those below a value"
    if all(map(_NUMBERS.fullmatch, values)) and len(values) <= MAX_FLAGS:
        bits = reduce(or_, map(int, values))
        return f"bad_flags (--bad-flags '{name}={bits}') leaves out those with a flag, {least}"
    if evidence.is_numeric(name):
        return least
    if {value.lower() for value in values} <= _YES_OR_NO:
        return f"bad_flags (--bad-flags '{name}=1') leaves out the true ones, {least.replace('VALUE', '1')}"
    return f"filter the table first to use it ({', '.join(values)})" if len(values) <= MAX_FLAGS else ""
