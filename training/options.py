"""Options and output that the commands of ``nightjar-train`` have in common."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nightjar_alerts.classify_command import UsageError, add_table_options, shell_text, table_options
from nightjar_alerts.tables import FILE_BOUNDS, TableError, TableOptions

if TYPE_CHECKING:
    from nightjar_alerts.training.fit.train import Pretrained
    from nightjar_alerts.training.recipes.schema import Recipe

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = Any


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    """Add a command and return its parser; ``text`` is its help."""
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
    parser.set_defaults(run_command=run)
    return parser


def at_least(minimum: int) -> Callable[[str], int]:
    """Return a type of options: an integer of at least ``minimum``."""

    def integer(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, not {value}")
        return value

    return integer


def share(text: str) -> float:
    """Return a number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, not {value}")
    return value


RECIPE_OPTIONS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "seed": ("seed", {"type": at_least(0), "help": "seed of weights, sampling and views; default: the recipe's"}),
    "steps": ("schedule.steps", {"type": at_least(1), "help": "number of steps; default: the recipe's"}),
    "threads": ("threads", {"type": at_least(1), "help": "torch threads; default: the recipe's, or torch's choice"}),
    "device": ("device", {"choices": ("cpu", "cuda"), "help": "device to train on; default: the recipe's"}),
}
"""Options for single fields of a recipe: the field, and the arguments of `argparse`."""


def add_recipe(parser: argparse.ArgumentParser, *fields: str, optional: bool = False) -> None:
    """Add the recipe, the option that changes any of its fields, and some of `RECIPE_OPTIONS`."""
    text = "name of a recipe or TOML file; " + ("default: list the names" if optional else "see `describe`")
    parser.add_argument("recipe", nargs="?" if optional else None, help=text)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change of a field of the recipe, such as optimizer.lr=3e-4; repeatable",
    )
    for name in fields:
        parser.add_argument(f"--{name}", **RECIPE_OPTIONS[name][1])


def named_recipe(name: str, settings: Sequence[str] = ()) -> "Recipe":
    """Return the recipe of a name or TOML file, with changes of its fields."""
    from nightjar_alerts.training.recipes.resolve import resolve

    return resolve(name, settings)


def chosen_recipe(options: argparse.Namespace) -> "Recipe":
    """Return the recipe of :func:`add_recipe` with the changes of ``--set`` and of the options for single fields."""
    given = {field: getattr(options, name, None) for name, (field, _) in RECIPE_OPTIONS.items()}
    settings = [f"{field}={value}" for field, value in given.items() if value is not None]
    return named_recipe(options.recipe, [*options.set, *settings])


def add_pretrained(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the initial weights."""
    text = "initial weights: a run folder, a bundle's folder or the name of a shipped bundle; default: random ones"
    parser.add_argument("--pretrained", metavar="WEIGHTS", help=text)


def chosen_weights(options: argparse.Namespace) -> "Pretrained | None":
    """Return the weights of :func:`add_pretrained`."""
    from nightjar_alerts.training.export.weights import initial_weights

    return None if options.pretrained is None else initial_weights(options.pretrained)


def add_tables(parser: argparse.ArgumentParser) -> None:
    """Add the options of tables, those of ``nightjar classify``."""
    add_table_options(parser.add_argument_group("tables", "what the columns mean, where the names do not say"))


def chosen_tables(options: argparse.Namespace) -> TableOptions:
    """Return the options of :func:`add_tables`."""
    try:
        return table_options(options, FILE_BOUNDS)
    except UsageError as error:
        raise ValueError(str(error)) from None


@contextmanager
def shell_names() -> Iterator[None]:
    """Raise the errors of the reader of tables with the names of options on the command line."""
    try:
        yield
    except TableError as error:
        raise ValueError(shell_text(error)) from error


def means_of(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the mean of every score in every view of a report."""
    return {view: {name: score["mean"] for name, score in scores.items()} for view, scores in report["views"].items()}


def write_json(path: Path, report: Any, indent: int | None = 1) -> None:
    """Write a report; without an indent as small as possible."""
    separators = (",", ":") if indent is None else None
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=indent, separators=separators, ensure_ascii=indent is not None)
    path.write_text(text + "\n", encoding="utf-8")


def print_json(value: Any) -> None:
    """Print a result for people and programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def progress(text: str) -> None:
    """Print a progress message to the standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
