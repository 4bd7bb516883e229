"""The sub-commands of ``python -m training experiment``: one for each reproduced experiment, and ``table``.

    python -m training experiment position --width 432 --seed 41
    python -m training experiment table position

Each trained experiment is a class of options in its own module, which imports torch only when it runs.
"""

import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import CliApp, CliPositionalArg, CliSubCommand

from training.experiments.astro_moe import AstroMoEArm
from training.experiments.attention import AttentionExperiment
from training.experiments.encodings import Encodings
from training.experiments.interpolation import Interpolation
from training.experiments.pendulum import Pendulum
from training.experiments.position import Position
from training.experiments.results import RECORDS, read_records, table
from training.experiments.spirals import SpiralsExperiment
from training.experiments.uea import UEA


class Table(BaseModel):
    """Print the records of an experiment as a Markdown table: mean and spread over the seeds of each variant."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: CliPositionalArg[str] = Field(description="name of the experiment")
    records: Path = Field(default=RECORDS, description="folder of the JSON records")

    def cli_cmd(self) -> None:
        """Read and print."""
        sys.stdout.write(table(read_records(self.experiment, self.records)))


class Experiments(BaseModel):
    """Run a published experiment, or tabulate its runs."""

    model_config = ConfigDict(extra="forbid")

    position: CliSubCommand[Position]
    interpolation: CliSubCommand[Interpolation]
    spirals: CliSubCommand[SpiralsExperiment]
    pendulum: CliSubCommand[Pendulum]
    uea: CliSubCommand[UEA]
    encodings: CliSubCommand[Encodings]
    astro_moe: CliSubCommand[AstroMoEArm]
    attention: CliSubCommand[AttentionExperiment]
    table: CliSubCommand[Table]

    def cli_cmd(self) -> None:
        """Run the chosen sub-command."""
        CliApp.run_subcommand(self)
