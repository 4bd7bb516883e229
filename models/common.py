"""Helpers that every package uses: atomic file writes, Markdown tables, the name of the processor."""

import os
import platform
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, suffix: str = "", *, shared: bool = False) -> Iterator[Path]:
    """Path of a partial file that takes the place of ``path`` when the block ends; after an error it is removed.

    A reader, or a kill, sees the old file or the new one, never a part of it. What a kill leaves of a partial file is
    written over by the next to write it, unless the file is ``shared``.

    Parameters
    ----------
    suffix : of the partial file, for writers that add one of their own.
    shared : whether other processes and threads may write the same file meanwhile; each then has a partial file of its
        own, which is hidden.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f".{path.name}.{os.getpid()}.{threading.get_ident()}" if shared else f"{path.name}.partial"
    partial = path.with_name(name + suffix)
    try:
        yield partial
        with partial.open("rb") as file:  # a rename may reach the disk before the content does
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes, *, shared: bool = False) -> None:
    """Replace a file's content so that a reader, or a kill, sees the old file or the new one."""
    with replacing(path, shared=shared) as partial:
        partial.write_bytes(content)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """Markdown table without a final line break; with ``numbers`` all columns but the first are set to the right."""
    rule = ["---"] + ["---:" if numbers else "---"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def processor_name() -> str:
    """Name of the processor as Linux reports it; elsewhere the architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
