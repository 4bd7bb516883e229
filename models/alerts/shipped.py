"""Schemas at hand for packets that do not bring their own: those shipped here and, optionally, a folder of more.

A schema's name is ``<survey>/<version>`` and its file ``<survey>/<version>.avsc``. The shipped files hold record names,
field names, order and types, which is all that decoding needs. Rubin frames its messages with the id
``major * 100 + minor``, so LSST 12.1 becomes readable by placing its schema (one ordinary Avro JSON file with every
record inline) as ``lsst/12.1.avsc`` in the extra folder. Files are read once per process; an extra file never replaces
a shipped one.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Final

from models.alerts import avro, schema_safety
from models.alerts.packet import PacketError, RejectReason
from models.alerts.surveys import NAMED, SURVEYS

FOLDER: Final = Path(__file__).parent / "schemas"
_NAME: Final = re.compile(rf"({'|'.join(map(re.escape, NAMED))})/\d{{1,3}}(\.\d{{1,3}}){{1,2}}")
_FRAMED: Final = next(survey.name for survey in SURVEYS if survey.framed)


def schema_names() -> tuple[str, ...]:
    """Names of the shipped schemas."""
    return tuple(sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.avsc")))


def confluent_name(schema_id: int) -> str:
    """Name of the LSST schema with a Confluent id: 704 is ``lsst/7.4``."""
    return f"{_FRAMED}/{schema_id // 100}.{schema_id % 100}"


def exists(name: str, extra: Path | None = None) -> bool:
    """Return whether :func:`load` would find a file."""
    return _path(name, extra) is not None


@lru_cache(maxsize=64)
def load(name: str, extra: Path | None = None) -> avro.Schema:
    """Return a schema by name.

    Raises
    ------
    PacketError
        ``unknown_schema`` when there is none, ``unsafe_schema`` when an extra file is not fit for use.
    """
    path = _path(name, extra)
    if path is None:
        raise PacketError(RejectReason.UNKNOWN_SCHEMA, f"no schema {name[:40]!r}; at hand: {', '.join(schema_names())}")
    return schema_safety.parse(path.read_bytes())


def _path(name: str, extra: Path | None) -> Path | None:
    if not _NAME.fullmatch(name):  # names come from clients: nothing but digits and dots may reach the file system
        return None
    folders = (FOLDER,) if extra is None else (FOLDER, extra)
    return next((path for folder in folders if (path := folder / f"{name}.avsc").is_file()), None)
