"""Files of runs that can be interrupted at any moment, and continued.

``nightjar classify`` and ``nightjar catalog`` share three rules. A file appears under its final name only when it is
complete (:func:`published`). An interrupted run is continued only with the same inputs, options and model, and
:func:`differences` names what has changed. And only one process writes an output (:func:`lock`).
"""

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final
from uuid import uuid4

from nightjar_alerts.models.common import replacing

if sys.platform != "win32":
    import fcntl

UNFINISHED: Final = ".part"
"""Part of the names of hidden files that are being written. HATS, pyarrow and ``nightjar`` do not read such files."""

LONGEST_ENDING: Final = 10
"""Characters of an ending such as ``.parquet``; what is longer belongs to the name."""


@contextmanager
def published(path: Path) -> Iterator[Path]:
    """Yield the path of a hidden file that replaces ``path`` when the block ends without an error.

    Its name is unique on all machines, because a scheduler may run the same task on two workers at once.
    """
    endings = [each for each in path.suffixes[-2:] if len(each) <= LONGEST_ENDING]
    suffix = f".{uuid4().hex[:12]}{UNFINISHED}{''.join(endings)}"
    with replacing(path, suffix, shared=True) as partial:
        yield partial
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk, where the system can do that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def lock(file: IO[bytes]) -> bool:
    """Lock an open file until it is closed; return False if another process has done so.

    A system or file system without locks grants all of them.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files that killed processes have left in a folder and its subfolders."""
    for path in folder.rglob(f".*{UNFINISHED}*"):
        path.unlink(missing_ok=True)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each argument of a run that has changed; empty if it can be continued."""
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return [f"{name} was {_shown(before.get(name))} and is now {_shown(now.get(name))}" for name in changed]


def _shown(value: object) -> str:
    """Return an argument for a message; the default is ``not given``."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not given" if value in (None, "", {}) else str(value)
