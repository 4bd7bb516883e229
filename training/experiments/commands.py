"""The sub-commands of ``python -m training experiment``: one for each reproduced experiment, and ``table``.

    python -m training experiment position --width 432 --seed 41
    python -m training experiment table position

Each experiment is a class of options in a module without torch, so that ``--help`` answers at once; what trains is
imported by :func:`run_experiment`, when it is chosen. So no module of options imports its runner back.
"""

import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import CliPositionalArg, CliSubCommand, get_subcommand

from training.experiments.interpolation import Interpolation
from training.experiments.options import (
    RECORDS,
    UEA,
    AstroMoEArm,
    AttentionExperiment,
    Encodings,
    Pendulum,
    Position,
    read_records,
    table,
)
from training.experiments.spirals import SpiralsExperiment


class RecordsTable(BaseModel):
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
    table: CliSubCommand[RecordsTable]

    def cli_cmd(self) -> None:
        """Run the chosen sub-command."""
        chosen = get_subcommand(self)
        if isinstance(chosen, RecordsTable):
            chosen.cli_cmd()
        else:
            run_experiment(chosen)


def run_experiment(options: object) -> None:
    """Train and measure what the options say, and write the records.

    Raises
    ------
    TypeError
        For options of no experiment.
    """
    from training.experiments.runs import run

    match options:
        case AstroMoEArm():
            from training.experiments.arms import run_arm

            run_arm(options)
        case AttentionExperiment():
            from training.experiments.attention import report

            report(options)
        case Encodings():
            from training.experiments.encoding_runs import classify, pretrain

            if (pretrained := pretrain(options)) is not None:
                classify(options, pretrained)
        case Interpolation():
            from training.experiments.reconstruction import interpolation_plan

            run(options, interpolation_plan(options))
        case SpiralsExperiment():
            from training.experiments.reconstruction import spirals_plan

            run(options, spirals_plan(options))
        case Pendulum():
            from training.experiments.regression import pendulum_plan

            run(options, pendulum_plan(options))
        case Position():
            from training.experiments.regression import position_plan

            run(options, position_plan(options))
        case UEA():
            from training.experiments.series import series_plan

            run(options, series_plan(options))
        case _:
            raise TypeError(f"no experiment: {options!r}")
