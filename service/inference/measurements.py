"""What was measured of a bundle on this machine, kept between starts.

A file for each combination of what the measurements depend on: the machine (processor, usable cores), onnxruntime, the
provider, the bundle, and what the settings ask of the layout. It is written whole or not at all. What cannot be
read, or written, is measured again, at every start if need be: nothing but seconds of warm-up is lost.
"""

import os
import platform
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import onnxruntime as ort
import structlog
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from service.inference.scheduling import Sample

FORMAT = 1  # of the file; a change of the shapes that are measured counts as well

log = structlog.get_logger(__name__)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Circumstances(_Frozen):
    """What measurements depend on."""

    format: int = FORMAT
    processor: str
    cores: int
    onnxruntime: str = ort.__version__
    provider: str
    bundle: str
    wish: tuple[int, int, int]


_Layout = tuple[PositiveInt, PositiveInt, PositiveInt]
_Run = tuple[PositiveInt, PositiveInt, PositiveInt, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
"""A :class:`Sample`, as a file has it."""


class Measured(_Frozen):
    """What was measured.

    Attributes
    ----------
    runs : and what each took; the cost model is fitted to them.
    max_tokens : padded observations of the widest batch that is worth it.
    layout : how the machine is used.
    tuned : whether other layouts were tried.
    """

    runs: tuple[_Run, ...] = Field(min_length=1)
    max_tokens: PositiveInt
    layout: _Layout
    tuned: bool

    @property
    def samples(self) -> list[Sample]:
        """The runs, as the cost model is fitted to them."""
        return [Sample(*run) for run in self.runs]


class _File(_Frozen):
    circumstances: Circumstances
    measured: Measured


class Measurements:
    """What is known under some circumstances; ``folder`` None remembers nothing."""

    def __init__(self, folder: Path | None, circumstances: Circumstances) -> None:
        self._circumstances = circumstances
        name = sha256(circumstances.model_dump_json().encode()).hexdigest()[:32]
        self._path = None if folder is None else folder / f"costs-{name}.json"

    def recall(self) -> Measured | None:
        """What was measured before, if it was, and can be read."""
        if self._path is None:
            return None
        try:
            found = _File.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = str(error).partition("\n")[0]
            log.warning("measurements of an earlier start cannot be used", path=str(self._path), reason=reason)
            return None
        return found.measured if found.circumstances == self._circumstances else None

    def keep(self, measured: Measured) -> None:
        """Remember for the next start."""
        if self._path is None:
            return
        text = _File(circumstances=self._circumstances, measured=measured).model_dump_json(indent=1)
        try:
            _replace(self._path, text)
        except OSError as error:
            log.info("measurements cannot be kept for the next start", path=str(self._path), reason=str(error))


def usual_folder() -> Path | None:
    """Where the system keeps what can be made again: ``$XDG_CACHE_HOME/nightjar``, or ``~/.cache/nightjar``."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "nightjar"
    except RuntimeError:  # nobody's home
        return None


def processor(system: Path = Path("/proc")) -> str:
    """What processor and, where there are any, NVIDIA devices call themselves; elsewhere (not Linux) the architecture.

    Parameters
    ----------
    system : folder in which Linux tells.
    """
    devices = [
        name for file in sorted(system.glob("driver/nvidia/gpus/*/information")) for name in _told(file, "Model")
    ]
    names = [*_told(system / "cpuinfo", "model name")[:1], *devices]
    return ", ".join(names) or platform.processor() or platform.machine()


def _told(file: Path, wanted: str) -> list[str]:
    """Values of a name in a file of lines ``name: value``."""
    try:
        lines = [line.partition(":") for line in file.read_text().splitlines()]
    except OSError:
        return []
    return [value.strip() for name, _, value in lines if name.strip() == wanted]


def _replace(path: Path, text: str) -> None:
    """Write a file so that whoever reads it finds the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".costs-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
