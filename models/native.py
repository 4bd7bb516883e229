"""Kernels of our own for onnxruntime, in C++: optional, and faster than the standard operators they stand for.

    python -m nightjar_alerts.models.native            build them, with the first C++ compiler that is found
    python -m nightjar_alerts.models.native --check    say whether there are any for this machine

The library is built from the sources in ``kernels/``, found again, and refused where it is anything else. The graphs of
bundles hold the same numbers as a function of standard operators, which runs wherever there are no kernels.

Notable:

- it is built for the processor that builds it, since that is the one that runs it: products of matrices as wide as its
  vectors are most of the gain. Its name is a digest of the sources, the compiler's options and what the processor can
  do, so one from an older release or another machine is not found;
- it lies in the package's own folder, where whoever may write could as well change this module. It is refused where
  others than its owner may write, where it belongs to somebody else, and where it is not what the compiler wrote;
- nothing is ever downloaded.
"""

import argparse
import hashlib
import json
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import onnxruntime as ort

Native = Literal["auto", "off", "on"]

DOMAIN: Final = "nightjar"
"""Domain of the operators that the kernels compute; graphs list theirs in metadata of this name."""
SOURCES: Final = Path(__file__).parent / "kernels"
BUILT: Final = SOURCES / "built"
FLAGS: Final = (
    *("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fvisibility=hidden"),
    # A product of time and frequency is rounded before anything is added to it, as in the graph.
    "-ffp-contract=off",
    *("-fno-math-errno", "-fno-trapping-math"),
)
COMPILERS: Final = ("c++", "g++", "clang++")
_SECONDS: Final = 600.0


class NativeError(RuntimeError):
    """There are no kernels for this machine, or they cannot be trusted; the text says why."""


def compiler() -> list[str]:
    """Return the command of a C++ compiler: ``CXX``, one of the usual names, or that of the package ziglang."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in COMPILERS:
        if path := shutil.which(name):
            return [path]
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++"]
    raise NativeError("no C++ compiler: install one (g++, clang++), or `pip install 'nightjar-alerts[native]'`")


def build(folder: Path | None = None) -> Path:
    """Compile the kernels for this machine, and see that onnxruntime takes them.

    Raises
    ------
    NativeError
        When there is no compiler, or it fails.
    """
    command, folder = compiler(), folder or BUILT
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        library = Path(scratch) / "library.so"
        _compile([*command, *FLAGS, "-o", str(library), str(SOURCES / "library.cc")])
        library.chmod(0o644)
        ort.SessionOptions().register_custom_ops_library(str(library))
        path = folder / f"{key()}.so"
        note = {"sha256": _digest(library), "compiler": " ".join(command), "flags": list(FLAGS)}
        path.with_suffix(".json").write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
        library.replace(path)
    return find(folder)


def _compile(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except OSError as error:
        raise NativeError(f"the compiler does not start: {error}") from error
    if done.returncode:
        raise NativeError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


def find(folder: Path | None = None) -> Path:
    """Return the library for this machine and these sources.

    Raises
    ------
    NativeError
        When there is none, or one that cannot be trusted.
    """
    folder = folder or BUILT
    path = folder / f"{key()}.so"
    note = path.with_suffix(".json")
    if not path.is_file() or not note.is_file():
        stale = any(folder.glob("*.so"))
        others = "; what is there was built from other sources or for another processor" if stale else ""
        raise NativeError(
            f"no kernels are built for this machine{others}: run `python -m nightjar_alerts.models.native`"
        )
    for trusted in (folder, path, note):
        _check_owner(trusted)
    try:
        expected = json.loads(note.read_bytes())["sha256"]
    except (ValueError, TypeError, KeyError) as error:
        raise NativeError(f"{note} does not say what was built: {error}") from error
    if _digest(path) != expected:
        raise NativeError(f"{path} is not what the compiler wrote; build it again")
    return path


def _check_owner(path: Path) -> None:
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise NativeError(f"{path} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NativeError(f"{path} may be written by others than its owner")


def chosen(native: Native, provider: str = "cpu") -> Path | None:
    """Return the library that sessions shall register; None: the standard operators run.

    Raises
    ------
    NativeError
        When kernels are required (``on``) and there are none, or the provider is not the CPU.
    """
    if native == "off" or (native == "auto" and provider != "cpu"):
        return None
    if provider != "cpu":
        raise NativeError(f"kernels of our own run on the CPU, not on {provider}")
    try:
        return find()
    except NativeError:
        if native == "on":
            raise
        return None


def held_by(session: ort.InferenceSession) -> tuple[str, ...]:
    """Return the operators of a session's graph that kernels of our own can take over."""
    return tuple(session.get_modelmeta().custom_metadata_map.get(DOMAIN, "").split())


def key() -> str:
    """Digest of all that decides about the machine code: sources, options, processor."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.*")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    digest.update("\0".join([*FLAGS, sys.platform, *_processor()]).encode())
    return digest.hexdigest()[:32]


def _processor(system: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the processor's architecture, name and abilities."""
    names = ("model name", "flags", "CPU part", "Features")
    value_by_name: dict[str, str] = {}
    if system.is_file():
        for line in system.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            value_by_name.setdefault(name.strip(), " ".join(sorted(value.split())))
    return [platform.machine(), platform.processor(), *(value_by_name.get(name, "") for name in names)]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    """Build the kernels, or say whether there are any; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m nightjar_alerts.models.native", description="Kernels of our own in C++."
    )
    parser.add_argument("--check", action="store_true", help="build nothing, say whether there are kernels")
    options = parser.parse_args()
    try:
        if not options.check:
            sys.stderr.write(f"compiling with {' '.join(compiler())}: some seconds, or a minute with ziglang\n")
        sys.stdout.write(f"{find() if options.check else build()}\n")
    except NativeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
