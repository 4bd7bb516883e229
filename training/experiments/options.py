"""Options that every trained experiment has on its command line, and the command that its record names.

Kept apart from :mod:`training.experiments.runs` because it needs no torch: ``--help`` answers at once.
"""

import shlex
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from training.experiments.results import RECORDS

PLACES = frozenset({"records", "runs", "cache", "max_minutes"})  # decide where and when, not what


class Options(BaseModel):
    """Base of the experiments' commands."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: ClassVar[str]  # the sub-command's name

    seed: int = Field(default=0, ge=0, description="of the weights and of the order of the batches")
    steps: int | None = Field(default=None, ge=1, description="instead of the published number; the schedule shrinks")
    threads: int = Field(default=1, ge=1, description="torch threads; on few cores one process a core is fastest")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="where to train")
    max_minutes: float | None = Field(default=None, gt=0, description="save and stop after this long; run again")
    records: Path = Field(default=RECORDS, description="folder of the JSON records")
    runs: Path = Field(default=Path("runs/experiments"), description="folder of checkpoints and logs")

    def settings(self) -> dict[str, Any]:
        """Every option that decides the result."""
        return self.model_dump(mode="json", exclude=set(PLACES))

    def command(self) -> str:
        """Shell command that repeats the run: the options that differ from their defaults."""
        words = ["python", "-m", "training", "experiment", self.experiment]
        for name, value in self.model_dump(mode="json", exclude=set(PLACES), exclude_defaults=True).items():
            words += [f"--{name.replace('_', '-')}", str(value).lower() if isinstance(value, bool) else str(value)]
        return shlex.join(words)
