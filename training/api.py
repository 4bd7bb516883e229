"""Python API of training: fine-tune on a labelled table, fit a recipe, evaluate and export.

``finetune`` and ``evaluate`` are also names of :mod:`nightjar_alerts.training`; ``fit`` and ``export`` are packages
there.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from nightjar_alerts.tables import TableOptions
from nightjar_alerts.training.export.bundle import export_run as export
from nightjar_alerts.training.export.weights import initial_weights
from nightjar_alerts.training.finetuning.run import FinetuneResult, finetune
from nightjar_alerts.training.fit.loop import FitResult
from nightjar_alerts.training.fit.train import train
from nightjar_alerts.training.recipes.resolve import resolve
from nightjar_alerts.training.score.labelled import evaluate_table

__all__ = ["FinetuneResult", "FitResult", "evaluate", "export", "finetune", "fit"]


def fit(
    recipe: str | PathLike[str],
    data: str | PathLike[str],
    run: str | PathLike[str],
    *,
    settings: Sequence[str] = (),
    pretrained: str | PathLike[str] | None = None,
    max_minutes: float | None = None,
    progress: bool = False,
) -> FitResult:
    """Train a recipe on a data file; the same call again continues an interrupted run.

    Parameters
    ----------
    recipe : name of a shipped recipe, or TOML file.
    data : Parquet file of ``nightjar-train import`` or ``simulate``, or JSON of a mixture.
    run : folder of the run.
    settings : changes of fields of the recipe, such as ``"optimizer.lr=3e-4"``.
    pretrained : run folder, folder of a bundle or name of a shipped bundle whose weights are the start.
    max_minutes : save a checkpoint and return after this time.
    progress : write progress to stderr.

    Raises
    ------
    RecipeError, RunError, DatasetError, FloatingPointError, ValueError
        As :func:`training.recipes.resolve.resolve` and :func:`training.fit.train.train`.
    """
    weights = None if pretrained is None else initial_weights(str(pretrained))
    resolved = resolve(str(recipe), settings)
    return train(resolved, Path(data), Path(run), pretrained=weights, max_minutes=max_minutes, progress=progress)


def evaluate(
    models: str | PathLike[str] | Sequence[str | PathLike[str]],
    table: Any,
    *,
    label: str = "",
    classes_of: Mapping[str, str] | None = None,
    options: TableOptions | None = None,
) -> dict[str, Any]:
    """Score bundles, or files of stored results, on a labelled table, and return the report as plain data.

    Parameters are those of :func:`training.score.labelled.evaluate_table`; ``models`` may be a single one.
    """
    several = [models] if isinstance(models, str | PathLike) else models
    data = Path(table) if isinstance(table, str | PathLike) else table
    return evaluate_table(
        [str(model) for model in several], data, label=label, classes_of=classes_of or {}, options=options
    ).values
