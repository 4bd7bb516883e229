"""Native C++ kernels for onnxruntime, which are faster than the standard operators they replace.

    python -m nightjar_alerts.models.native            build them for this machine's architecture
    python -m nightjar_alerts.models.native --check    print the library that this machine uses

Wheels contain one library for each microarchitecture level of their architecture (x86-64-v2, v3 and v4), and
:func:`find` returns the highest level that the processor supports. In a clone the editable install builds them; run the
command above to rebuild them after changes of their sources. The graphs of bundles contain the same operations as
functions of standard operators, which run if there is no library.

The compiler is Zig's clang, from the PyPI package ``ziglang``: it is the same on every machine and links against an old
glibc. This module downloads nothing.

It imports the standard library only, because the package's build hook runs it, too.
"""

import argparse
import hashlib
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    import onnxruntime as ort

Native = Literal["auto", "off", "on"]

DOMAIN: Final = "nightjar"
"""Domain of the kernels' operators, and name of the metadata entry in which graphs list their operators."""
SOURCES: Final = Path(__file__).parent / "kernels"
BUILT: Final = SOURCES / "built"
GLIBC: Final = "2.28"
"""Oldest glibc that the libraries support, which determines the ``manylinux`` tag of wheels."""
FLAGS: Final = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fvisibility-global-new-delete=force-hidden"),
    # No fused multiply-add: a product of time and frequency is rounded before an addition, as in the graph.
    "-ffp-contract=off",
    *("-fno-math-errno", "-fno-trapping-math"),
    # Without exceptions the library needs no C++ runtime except for the few functions in runtime.cc.
    *("-fno-exceptions", "-fno-rtti", "-D_LIBCPP_VERBOSE_ABORT(...)=__builtin_abort()"),
)
HOW_TO_BUILD: Final = "build them with `pip install ziglang` and `python -m nightjar_alerts.models.native`"
_TIMEOUT_SECONDS: Final = 600.0


class CpuLevel(NamedTuple):
    """Microarchitecture level that a library is built for."""

    name: str
    cpu: str
    """Name of the level for the compiler's ``-mcpu``."""
    features: frozenset[str]
    """Flags in ``/proc/cpuinfo`` that the level requires."""


_V2: Final = frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])
_V3: Final = _V2 | frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"])
_V4: Final = _V3 | frozenset(["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"])
LEVELS: Final = {
    "x86_64": (
        CpuLevel("x86-64-v4", "x86_64_v4", _V4),
        CpuLevel("x86-64-v3", "x86_64_v3", _V3),
        CpuLevel("x86-64-v2", "x86_64_v2", _V2),
    ),
    "aarch64": (CpuLevel("aarch64", "generic", frozenset()),),
}
"""Levels by architecture (``platform.machine()``), the highest first."""


class NativeError(RuntimeError):
    """The kernels cannot be built, or there are none for this machine."""


def build(folder: Path = BUILT, machine: str | None = None) -> list[Path]:
    """Compile the kernels for every level of an architecture and return the libraries.

    Parameters
    ----------
    machine : architecture, a key of :data:`LEVELS`; default: this machine's.

    Raises
    ------
    NativeError
        If the package ziglang is not installed, the architecture is unknown, or the compiler fails.
    """
    machine = machine or platform.machine()
    if machine not in LEVELS:
        raise NativeError(f"there are no kernels for {machine}: known are {', '.join(LEVELS)}")
    if find_spec("ziglang") is None:
        raise NativeError(f"the package ziglang is not installed: {HOW_TO_BUILD}")
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:  # compiling a level uses one core
        return list(pool.map(partial(_build_level, folder, f"{machine}-linux-gnu.{GLIBC}"), LEVELS[machine]))


def _build_level(folder: Path, target: str, level: CpuLevel) -> Path:
    path = folder / _name(level)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        objects = []
        for source in sorted(SOURCES.glob("*.cc")):
            objects.append(str(Path(scratch, f"{source.stem}.o")))
            _zig("c++", "-target", target, f"-mcpu={level.cpu}", *FLAGS, "-c", "-o", objects[-1], str(source))
        # Linked as C, because linking as C++ would first build libc++, which takes long.
        library = Path(scratch, path.name)
        _zig("cc", "-target", target, "-shared", "-s", "-o", str(library), *objects, "-lm")
        library.chmod(0o755)
        library.replace(path)
    return path


def _zig(*arguments: str) -> None:
    command = [sys.executable, "-m", "ziglang", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise NativeError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


def _name(level: CpuLevel) -> str:
    """Return the file name of a library, which contains a hash of the sources and compiler options."""
    digest = hashlib.sha256("\0".join([*FLAGS, GLIBC]).encode())
    for source in sorted(SOURCES.glob("*.*")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return f"{level.name}-{digest.hexdigest()[:12]}.so"


def find(folder: Path | None = None) -> Path:
    """Return the library of the highest level that this machine's processor supports.

    Raises
    ------
    NativeError
        If there is none.
    """
    folder = folder or BUILT
    machine = platform.machine() if sys.platform == "linux" else sys.platform
    features = _features()
    for level in LEVELS.get(machine, ()):
        path = folder / _name(level)
        if level.features <= features and path.is_file():
            return path
    stale = "; those in it were built from other sources" if any(folder.glob("*.so")) else ""
    raise NativeError(f"no native kernels for this machine ({machine}) in {folder}{stale}: {HOW_TO_BUILD}")


def _features(system: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the CPU flags of this machine's first processor."""
    if system.is_file():
        for line in system.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(value.split())
    return frozenset()


def select_library(native: Native, provider: str = "cpu") -> Path | None:
    """Return the library that sessions register, or None to use the standard operators.

    Raises
    ------
    NativeError
        If kernels are required (``on``) and there are none, or the provider is not the CPU.
    """
    if native == "off" or (native == "auto" and provider != "cpu"):
        return None
    if provider != "cpu":
        raise NativeError(f"the native kernels run on the CPU, not on {provider}")
    try:
        return find()
    except NativeError:
        if native == "on":
            raise
        return None


def native_operators(session: "ort.InferenceSession") -> tuple[str, ...]:
    """Return the operators of a session's graph that native kernels can replace."""
    return tuple(session.get_modelmeta().custom_metadata_map.get(DOMAIN, "").split())


def main() -> int:
    """Build the kernels, or print the library that this machine uses; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m nightjar_alerts.models.native", description="Native C++ kernels.")
    parser.add_argument("--check", action="store_true", help="build nothing, print the library that this machine uses")
    options = parser.parse_args()
    try:
        paths = [find()] if options.check else build()
    except NativeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
