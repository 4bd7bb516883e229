"""Helpers that every package uses: atomic file writes, Markdown tables, valid text, processor, extras."""

import os
import platform
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def how_to_install(extra: str) -> str:
    """Return how to install an extra of this package, which is on no package index."""
    return f"pip install '.[{extra}]' in a clone of Nightjar, or pip install 'WHEEL[{extra}]' with its wheel"


@contextmanager
def interruptible_imports(command: str) -> Iterator[None]:
    """End the process with one line and status 130 on Ctrl-C while a command imports its modules.

    This takes a second or more, before the command can handle the interrupt itself. The handler ends the process at
    once, because extension modules turn an exception during their initialization into an ImportError.
    """

    def stop(*_: object) -> None:
        os.write(2, f"{command}: interrupted\n".encode())
        os._exit(130)  # 128 + SIGINT, as shells do

    in_main_thread = threading.current_thread() is threading.main_thread()  # others must not set handlers
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def replacing(path: Path, suffix: str = "", *, shared: bool = False) -> Iterator[Path]:
    """Yield the path of a partial file that replaces ``path`` when the block ends; after an error it is removed.

    Readers see the old file or the new one, never a part of it, even if the process is killed. A partial file left by a
    killed process is overwritten by the next writer, unless the file is ``shared``.

    Parameters
    ----------
    suffix : appended to the name of the partial file, for writers that add a suffix themselves.
    shared : whether other processes and threads may write the same file at the same time; each then writes its own
        hidden partial file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f"{path.name}.partial"
    if shared:  # a name of a file has at most 255 bytes, and a character up to four
        name = f".{path.name[:30]}.{os.getpid()}.{threading.get_ident()}"
    partial = path.with_name(name + suffix)
    try:
        yield partial
        with partial.open("rb") as file:  # a rename may reach the disk before the content does
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # a failed write does not name its file
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes, *, shared: bool = False) -> None:
    """Replace a file's content atomically: readers see the old file or the new one."""
    with replacing(path, shared=shared) as partial:
        partial.write_bytes(content)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """Return a Markdown table without a final line break; ``numbers`` right-aligns all columns but the first."""
    rule = ["---"] + ["---:" if numbers else "---"] * (len(head) - 1)
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in (head, rule, *rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def without_surrogates(text: str) -> str:
    """Return text whose unpaired surrogates, which UTF-8 cannot encode, are escaped, such as ``\\ud800``."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def processor_name() -> str:
    """Return the processor name that Linux reports; on other systems the architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
