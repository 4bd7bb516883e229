"""Which column names the objects."""

import re
from typing import Final

import numpy as np

from nightjar_alerts.tables.columns import texts
from nightjar_alerts.tables.evidence import Evidence
from nightjar_alerts.tables.options import Choice, TableOptions, TableQuestion
from nightjar_alerts.tables.roles import Roles, candidates, find, free
from nightjar_alerts.tables.vocabulary import NOT_OBJECTS, POSITIONS, STRONG_IDS, last_part, plain

MAX_SPREAD_DEGREES: Final = 0.01
"""Rows farther apart than this, in declination or right ascension, belong to different objects."""
_OBJECT_NAME: Final = re.compile(r"(name|id|object|obj|source|src|target|star|sn|transient)$")
_OTHER_NAME: Final = re.compile(r"(inst|tel|obs|filter|band|exp|image|visit)")


def find_objects(evidence: Evidence, roles: Roles, options: TableOptions) -> Roles:
    """Find the column of object names. Raises TableQuestion if objects might be mixed or split."""
    scalars = evidence.scalars
    if options.object_id:
        return roles
    roles = find_names(evidence, roles, options)
    if "object_id" in roles.columns:
        return roles
    if "object_id" not in options.columns:
        named = free(roles, scalars, lambda name: _is_named_like_objects(evidence, roles, name))
        if len(named) == 1:
            return roles.taking(evidence, options, "object_id", named[0])
    if roles.nested:
        return roles
    if "object_id" not in options.columns:
        _ask(evidence, roles)
    return roles.guess("object_id", "", "the table holds one object, because it has no column of object names")


def find_names(evidence: Evidence, roles: Roles, options: TableOptions) -> Roles:
    """Find the column of object names among those with a usual name."""
    return find(
        evidence, roles, options, "object_id", evidence.scalars, lambda name: _holds_names(evidence, roles, name)
    )


def _holds_names(evidence: Evidence, roles: Roles, name: str) -> bool:
    """Return whether a column may hold names of objects: they repeat, unless the column's name shows what they are."""
    if evidence.values(name).dtype.kind == "f" and not evidence.is_whole(name):
        return False
    names = texts(evidence.values(name))
    present = [text for text in names if text]
    is_row_number = not roles.nested and len(present) > 3 and len(set(present)) == len(present)
    if is_row_number and not evidence.keys[name] & STRONG_IDS:
        return False
    return len(present) > 0.5 * len(names)


def _is_named_like_objects(evidence: Evidence, roles: Roles, name: str) -> bool:
    """Return True for names that repeat, in a column such as ``source_name`` or ``sn_id``."""
    fits = _OBJECT_NAME.search(plain(last_part(name))) and not _OTHER_NAME.search(plain(name))
    return bool(fits and _holds_names(evidence, roles, name))


def _ask(evidence: Evidence, roles: Roles) -> None:
    """Raise TableQuestion if a column may name the objects, or positions show several."""
    scalars = evidence.scalars
    for name in free(roles, scalars, lambda name: _may_name_objects(evidence, name)):
        raise TableQuestion(
            f"Does column {name!r} name the objects? Otherwise the table is one object.",
            "columns.object_id",
            [Choice(name, "the objects"), Choice("", "the table is one object")],
        )
    for name in candidates(evidence, roles, "object_id", scalars, lambda name: _is_unique_text(evidence, name)):
        raise TableQuestion(
            f"Does column {name!r} name the objects? Every row has another name.",
            "columns.object_id",
            [Choice(name, "every row is an object"), Choice("", "the table is one object")],
        )
    for name in free(roles, scalars, evidence.is_numeric):
        if not evidence.keys[name] & POSITIONS or not (values := evidence.finite(name)).size:
            continue
        if (spread := np.ptp(values)) > MAX_SPREAD_DEGREES:
            text = (
                f"The rows have no name of an object, and {name!r} differs by {spread:.3g} degrees. Add a column of "
                "names."
            )
            raise TableQuestion(text, "columns.object_id", [Choice("", "the table is one object")])


def _is_unique_text(evidence: Evidence, name: str) -> bool:
    """Return whether the column is unique text (a label, not a row number)."""
    return not evidence.is_numeric(name) and all(texts(evidence.values(name)))


def _may_name_objects(evidence: Evidence, name: str) -> bool:
    """Return True for text that may name several objects, which would be mixed otherwise."""
    if NOT_OBJECTS.search(plain(name)) or evidence.is_numeric(name):
        return False
    names = [text for text in texts(evidence.values(name)) if text]
    return 1 < len(set(names)) <= len(names) / 3 and len(names) > 0.9 * len(evidence.values(name))
