"""The sub-commands of ``nightjar-train experiment``: one for each reproduced experiment, and ``table``.

    nightjar-train experiment position --width 432 --seed 41
    nightjar-train experiment table position

Each experiment is a class of options in a module without torch, so that ``--help`` answers at once; what trains is
imported by :func:`run_experiment`, when it is chosen. So no module of options imports its runner back.
"""

import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import CliPositionalArg, CliSubCommand, get_subcommand

from nightjar_alerts.training.experiments.interpolation import Interpolation
from nightjar_alerts.training.experiments.options import (
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
from nightjar_alerts.training.experiments.spirals import SpiralsExperiment


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
    from nightjar_alerts.training.experiments.runs import run

    match options:
        case AstroMoEArm():
            from nightjar_alerts.training.experiments.arms import run_arm

            run_arm(options)
        case AttentionExperiment():
            from nightjar_alerts.training.experiments.attention import report

            report(options)
        case Encodings():
            from nightjar_alerts.training.experiments.encoding_runs import classify, pretrain

            if (pretrained := pretrain(options)) is not None:
                classify(options, pretrained)
        case Interpolation():
            from nightjar_alerts.training.experiments.reconstruction import interpolation_plan

            run(options, interpolation_plan(options))
        case SpiralsExperiment():
            from nightjar_alerts.training.experiments.reconstruction import spirals_plan

            run(options, spirals_plan(options))
        case Pendulum():
            from nightjar_alerts.training.experiments.regression import pendulum_plan

            run(options, pendulum_plan(options))
        case Position():
            from nightjar_alerts.training.experiments.regression import position_plan

            run(options, position_plan(options))
        case UEA():
            from nightjar_alerts.training.experiments.series import series_plan

            run(options, series_plan(options))
        case _:
            raise TypeError(f"no experiment: {options!r}")
