"""The command ``nightjar classify FILE...``, which classifies files of light curves and alerts.

Files are read one after the other, and their light curves and alerts are classified in this process or by a service
(``--url``). A file that cannot be read is reported and does not end the run. With ``--output``, results are collected
in ``OUTPUT.partial`` until the run is complete, so that an interrupted run can be resumed.
"""

import argparse
import io
import json
import os
import re
import shlex
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol, TextIO

from pydantic import ValidationError

from nightjar_alerts.client_settings import ClientSettings, ClientSettingsError
from nightjar_alerts.core.errors import located
from nightjar_alerts.core.request import Options
from nightjar_alerts.follow_up_list import FollowUpList, SelectionError, Stated
from nightjar_alerts.inputs import (
    File,
    Input,
    NamedInput,
    UnreadFile,
    call_options,
    check_table_options,
    files_in,
    inputs_of_file,
)
from nightjar_alerts.models.bundle import BundleError
from nightjar_alerts.models.follow_up import FollowUp
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.names import file_key, file_name, printable
from nightjar_alerts.outputs import COMPRESSED, SUFFIXES, OutputError, check_path, encode_line
from nightjar_alerts.partial import PartialRun
from nightjar_alerts.report import SHOWN, RunReport
from nightjar_alerts.results import Result
from nightjar_alerts.tables import (
    FILE_BOUNDS,
    Bounds,
    Guess,
    TableError,
    TableOptions,
    TableQuestion,
    read_object_metadata,
)

CHUNK: Final = 256
"""Number of inputs after which outputs are flushed and progress is updated."""
USAGE_ERROR, FAILED, INTERRUPTED = 2, 1, 130
NOT_FOUND: Final = 404
"""Status of a reply of a service that does not have the model."""
STANDARD_OUTPUT: Final = Path("-")


class UsageError(Exception):
    """Invalid or inconsistent options."""


class InputClassifier(Protocol):
    """Interface shared by :class:`nightjar_alerts.Classifier` and :class:`nightjar_alerts.Client`."""

    def classify_each(self, inputs: Iterable[Input], options: Options) -> Iterator[list[Result]]:
        """Yield the results of each input."""

    def close(self) -> None:
        """Close threads or connections."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status (docs/first-table.md)."""
    options = argparse.Namespace(output=None, model=None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names may have characters that the terminal does not have
            stream.reconfigure(errors="backslashreplace")
    try:
        settings = ClientSettings.from_environment(os.environ)
        options = _parser(settings).parse_args(arguments)
        for name in ("api_key", "timeout"):
            if getattr(options, name) is None:
                setattr(options, name, getattr(settings, name))
            elif not options.url:
                raise UsageError(f"{_flag(name)} is given and changes nothing without --url: leave it out")
        return run(options)
    except (UsageError, ClientSettingsError, PriorError) as error:
        _print(f"nightjar: {error}", sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:  # such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not isinstance(error, (OutputError, TableError, FileNotFoundError, ImportError, *_engine_errors())):
            raise
        _print(f"nightjar: {error}", sys.stderr)
        is_unknown_model = getattr(error, "status", None) == NOT_FOUND and options.model
        return USAGE_ERROR if is_unknown_model else FAILED
    except KeyboardInterrupt:
        how = "; continue with --resume" if options.output else ""
        print(f"nightjar: interrupted{how}", file=sys.stderr)
        return INTERRUPTED


def _print(line: str, file: TextIO | None = None) -> None:
    """Print a line, whose names may come from files, without anything that a terminal would obey."""
    print(printable(line), file=file)


def _engine_errors() -> tuple[type[Exception], ...]:
    from nightjar_alerts.core.failures import ModelFailedError

    found: list[type[Exception]] = [BundleError, ModelFailedError]
    for module, name in (
        ("nightjar_alerts.client", "ClientError"),
        ("nightjar_alerts.models.runtime", "ProviderError"),
    ):
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)


def _parser(settings: ClientSettings) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nightjar classify",
        description="Classify light curves and alerts, in this process or by a running service.",
        epilog="Example: nightjar classify photometry.csv -o results.csv --plot pictures. "
        "Exit status: 0 everything was read; 3 something could not be read; 1 nothing was read; 2 wrong usage.",
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="FILE",
        help="tables (CSV, ECSV, FITS, VOTable, Parquet), light curves in JSON, alert packets, tar archives or folders "
        "of these; - is standard input",
    )
    parser.add_argument("--url", default=settings.url, help="address of a service; default: in this process")
    parser.add_argument("--api-key", help="key that the service asks for")
    parser.add_argument("--timeout", type=float, help=f"seconds to wait for a reply ({settings.timeout})")
    add_result_options(parser)
    endings = ", ".join((*SUFFIXES, *COMPRESSED))
    help_of_output = f"write a table: {endings}; - is JSON Lines on standard output"
    parser.add_argument("-o", "--output", type=Path, metavar="PATH", help=help_of_output)
    parser.add_argument("--probabilities", action="store_true", help="add a column per class to the output")
    parser.add_argument(
        "--select",
        metavar="CLASS",
        help="print a ranked list of the objects of a class instead, with the number of true ones to expect",
    )
    parser.add_argument("--purity", type=_fraction, help="purity of that list, such as 0.8, for the shares of --prior")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write a picture (SVG) per object into this folder")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run with the same output")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that exists")
    parser.add_argument(
        "--max-size",
        type=size,
        default=FILE_BOUNDS.max_bytes,
        metavar="SIZE",
        help="largest table once decompressed, such as 256GiB; default 64GiB. Bounds on lines, columns, documents and "
        "memory are fractions of it",
    )
    parser.add_argument("--quiet", action="store_true", help="print no progress and no guesses about tables")
    add_table_options(parser.add_argument_group("tables", "what the columns mean, where the names do not say"))
    return parser


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``classify`` and ``catalog`` share, except those of tables."""
    parser.add_argument("--model", default="", help="model that classifies everything: a name or the path of a bundle")
    parser.add_argument(
        "--prior",
        type=_prior,
        help="class shares that the results assume: a name, such as lsst-alerts, or weights in JSON",
    )
    parser.add_argument("--coverage", type=_fraction, help="coverage of the prediction sets, such as 0.95")


def add_table_options(group: Any) -> None:
    """Add an option for each field of :class:`TableOptions`."""
    one = partial(group.add_argument, metavar="VALUE")
    many = partial(group.add_argument, action="append", default=[], metavar="NAME=VALUE")
    one("--format", help="csv, jsonl, json, ecsv, fits, votable, parquet or hats")
    many(
        "--columns",
        help="column of the table, such as time=t, band=f, mag=m, mag_err=e, flux=f, flux_err=df, object_id=name; "
        "may be repeated",
    )
    one("--object-id", help="name of the one object of a table")
    one("--band", help="the one filter of a table")
    many(
        "--filters",
        help="filter of a name in the table: a known filter or a wavelength in nm, such as F606W=590/230; "
        "may be repeated",
    )
    one("--filter-numbers", help="survey whose numbers of filters the table has: ztf, lsst or ps1")
    one("--time-format", help="mjd, jd, iso, unix, unix_ms or year")
    one("--time-offset", type=float, help="days to add to the times")
    one("--flux-unit", help="nJy, uJy, mJy, Jy, FLUXCAL or mag")
    one("--zero-point", type=float, help="AB zero point of the flux in mag")
    one(
        "--flux-kind",
        help="difference (from a template image) or total (of the whole source); default: what columns or light curves "
        "show, else difference",
    )
    one(
        "--mag-system",
        help="AB, Vega or mixed: Vega for U B V R I, G BP RP and unfiltered, AB for the others",
    )
    one("--mag-err", type=float, help="error in mag of every magnitude that has none")
    one(
        "--signed-magnitudes",
        type=_boolean,
        metavar="true|false",
        help="true if a negative magnitude stands for a negative flux",
    )
    one("--upper-limits", help="drop (default), or use as flux 0 with the error of the limit")
    one("--limit-sigma", type=float, help="significance of upper limits, default 5")
    many(
        "--bad-flags",
        help="column of flags and the bits that make a row unusable, such as catflags=32768; may be repeated",
    )
    many("--minimum", help="column and its smallest value in usable rows; may be repeated")
    many("--metadata", help="metadata and its column, such as zspec=z; may be repeated")
    one(
        "--object-metadata",
        metavar="FILE",
        help="table of metadata such as redshifts with one row per object, joined by the name of the object",
    )
    one("--survey", help="survey of the photometry, such as ztf")


_NUMBERS: Final[Mapping[str, type[int] | type[float]]] = {"bad_flags": int, "minimum": float}
"""Type of the values of options with numeric values."""


def _number(option: str, name: str, text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        what = "an integer" if kind is int else "a number"
        raise UsageError(f"{_flag(option)} {name}={text}: {text!r} is not {what}") from None


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"


_UNITS: Final = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def size(text: str) -> int:
    """Return the bytes of a size such as ``256GiB``."""
    number, unit = text[:-3], text[-3:].upper()
    if unit not in _UNITS or not number.isdecimal() or not 0 < int(number[:9]) * _UNITS[unit] < 1 << 62:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 256GiB, with KiB, MiB, GiB or TiB")
    return int(number[:9]) * _UNITS[unit]


def _prior(text: str) -> str | dict[str, float]:
    if not text.lstrip().startswith("{"):
        return text
    try:
        weights: dict[str, float] = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text} is not valid JSON: {error}") from None
    return weights


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0 and below 1")
    return value


def table_options(options: argparse.Namespace, bounds: Bounds) -> TableOptions:
    """Return the options of tables. Raises UsageError."""
    values: dict[str, Any] = {}
    for each in fields(TableOptions):
        value = getattr(options, each.name)
        if isinstance(value, list):
            if wrong := [text for text in value if "=" not in text]:
                raise UsageError(f"{_flag(each.name)} {wrong[0]}: must be NAME=VALUE")
            value = dict(text.split("=", 1) for text in value)
            if (number := _NUMBERS.get(each.name)) is not None:
                value = {name: _number(each.name, name, text, number) for name, text in value.items()}
        if value not in (None, {}):
            values[each.name] = value
    try:
        if "object_metadata" in values:
            values["object_metadata"] = read_object_metadata(values["object_metadata"], bounds)
        return TableOptions(**values)
    except TableError as error:
        raise UsageError(shell_text(error)) from error


_NAMES: Final = "|".join(TableOptions.option_names())
_FIRST: Final = re.compile(rf"^({_NAMES})(?=\[| is | are | has | must | and )")
_UNDERSCORED: Final = "|".join(name for name in TableOptions.option_names() if "_" in name)
_NAMED: Final = re.compile(
    rf"\b(?:(?<=the option )({_NAMES})|(?<=set |and )({_UNDERSCORED})|(?<=or )({_UNDERSCORED}))\b"
)


def shell_text(found: TableError | Guess | str) -> str:
    """Return a sentence of the reader of tables with the options of this command, as which users give them."""
    if isinstance(found, Guess):
        return found.text + (f" ({_argument(found.option, found.value)})" if found.value else "")
    if isinstance(found, TableQuestion):
        return f"{shell_text(found.question)} Use {_answers(found)}"
    text = re.sub(r"\bcolumns\.(\w+)", r"--columns \1=COLUMN", str(found))
    text = _FIRST.sub(lambda match: _flag(match[1]), text)
    return _NAMED.sub(lambda match: _flag(match[0]), text)


def _answers(question: TableQuestion) -> str:
    """Return the arguments that answer a question."""
    option, choices = question.option, question.choices
    if not any(choice.meaning for choice in choices):
        value = "COLUMN" if option.startswith("columns") else "VALUE"
        listed = f", where {value} is {', '.join(choice.value for choice in choices)}" if choices else ""
        return f"{_argument(option, value)}{listed}"
    return " or ".join(f"{_argument(option, choice.value)} ({choice.meaning})" for choice in choices)


def _flag(option: str) -> str:
    """Return the argument of an option of tables: ``--flux-unit``."""
    return f"--{option.replace('_', '-')}"


def _argument(option: str, value: str) -> str:
    """Return an option of tables and its value as a shell argument: ``--columns 'time=Obs date'``."""
    name, _, key = option.partition(".")
    values = value.split(",") if name == "filters" and not key else [f"{key}={value}" if key else value]
    return " ".join(f"{_flag(name)} {shlex.quote(each)}" for each in values)


def run(options: argparse.Namespace) -> int:
    """Classify the files of the options; return the exit status."""
    bounds = Bounds(max_bytes=options.max_size)
    of_tables = table_options(options, bounds)
    with ExitStack() as stack:
        stdin = stack.enter_context(_standard_input(bounds)) if "-" in options.paths else Path()
        paths = [stdin if path == "-" else Path(path) for path in options.paths]
        if not any(path.exists() for path in paths):
            raise FileNotFoundError(f"{' and '.join(options.paths)} do{'es' * (len(paths) == 1)} not exist")
        # A missing file is reported as one that cannot be read, and does not end the run.
        found = [
            file._replace(name="-") if file.path == stdin else file
            for path in paths
            for file in (files_in(path) if path.exists() else [File(path, str(path), named=True)])
        ]
        by_path: dict[Path, list[File]] = {}
        for file in found:
            by_path.setdefault(file.path.resolve(), []).append(file)
        files = [max(same, key=lambda file: file.named) for same in by_path.values()]
        try:
            check_table_options(files, of_tables)
        except TableError as error:
            raise UsageError(shell_text(error)) from error
        _check_output(options)
        _check_selection(options)
        engine = stack.enter_context(_engine(options))
        selection = None if options.select is None else _Selection(options, engine)
        unfinished = _open_partial(stack, options, engine)
        if unfinished is not None and unfinished.is_complete:
            _print(f"{options.output} is complete: there is nothing to resume")
            return 0
        report = RunReport() if unfinished is None else unfinished.report
        progress = stack.enter_context(_Progress(files, options.quiet))
        if (repeated := [same[0].name for same in by_path.values() if len(same) > 1]) and not options.quiet:
            progress.note(f"named more than once, and classified once: {', '.join(repeated[:SHOWN])}")
        for path in paths:
            if path.is_dir() and not any(file.path.is_relative_to(path) for file in found):
                report.empty.append(str(path))
        reader = _Reader(files, of_tables, bounds, progress, options.quiet)
        printer: ResultOutput | None = None if options.output or selection else _Printer()
        if options.output == STANDARD_OUTPUT:
            printer = _LinePrinter()
        pictures = None if options.plot is None else _Pictures(options.plot, progress, keep=options.resume)
        outputs = [output for output in (unfinished, printer, pictures, selection) if output is not None]
        try:
            _classify(reader, engine, options, report, outputs)
        except Exception:
            if unfinished is not None:
                unfinished.discard()
            raise
        if pictures is not None:
            pictures.end()
        if unfinished is not None:
            unfinished.complete(options.probabilities)
    if selection is not None:
        for line in selection.list.lines():
            _print(line)
    to_stdout = options.output == STANDARD_OUTPUT
    for line in report.lines():
        _print(line, sys.stderr if to_stdout else None)
    if options.output and not to_stdout:
        _print(f"written to {options.output}")
    return report.status


_OF_RESULTS: Final = (
    "model", "prior", "coverage", "probabilities", "plot", "max_size", *(each.name for each in fields(TableOptions)),
)  # fmt: skip
"""Options that change results; a run is resumed only with the same ones."""


def _check_output(options: argparse.Namespace) -> None:
    """Raise UsageError or OutputError if the output cannot be written, before models are loaded."""
    if options.output is None or options.output == STANDARD_OUTPUT:
        if options.resume or options.overwrite:
            raise UsageError("--resume and --overwrite need --output with the name of a file")
        return
    if options.resume and options.overwrite:
        raise UsageError("--resume keeps the results that exist and --overwrite replaces them: give one of them")
    try:
        check_path(options.output)
    except OutputError as error:
        if isinstance(error.__cause__, ImportError):
            raise
        raise UsageError(str(error)) from error


def _check_selection(options: argparse.Namespace) -> None:
    """Raise UsageError for options that do not go with a list."""
    if (options.select is None) != (options.purity is None):
        raise UsageError("--select CLASS and --purity P belong together")
    if options.select is None:
        return
    if options.resume:
        raise UsageError("--select ranks all results of a run, so it does not go with --resume")
    if options.output == STANDARD_OUTPUT:
        raise UsageError("--select prints its list on standard output: name a file with --output")
    if isinstance(options.prior, dict):
        raise UsageError("--select needs class shares by name: purity is not stated for weights")


def _stated(options: argparse.Namespace, engine: InputClassifier) -> Stated:
    """Return what the models state about lists for follow-up."""
    if not options.url:
        from nightjar_alerts.classifier import Classifier

        assert isinstance(engine, Classifier)
        return {one.sha256: one.manifest.follow_up for one in engine.bundles.values()}
    from nightjar_alerts.client import Client, ClientError

    assert isinstance(engine, Client)
    try:
        described = {str(one["sha256"]): one.get("follow_up", {}) for one in engine.models()}
        return {
            model: {name: FollowUp.model_validate(lists) for name, lists in stated.items()}
            for model, stated in described.items()
        }
    except (KeyError, AttributeError, ValidationError) as error:
        raise ClientError(f"{options.url} describes its models in an unknown way: {error}") from None


class _Selection:
    """The list of ``--select`` as an output."""

    def __init__(self, options: argparse.Namespace, engine: InputClassifier) -> None:
        try:
            self.list = FollowUpList(_stated(options, engine), options.select, options.purity, options.prior or "")
        except SelectionError as error:
            raise UsageError(f"--select: {error}") from error

    def add(self, named: NamedInput, results: Sequence[Result]) -> None:
        """Add the results to the list."""
        self.list.add(results, named.name)

    def flush(self) -> None:
        """Do nothing: the list is printed at the end."""


def _open_partial(stack: ExitStack, options: argparse.Namespace, engine: InputClassifier) -> "PartialRun | None":
    if options.output is None or options.output == STANDARD_OUTPUT:
        return None
    arguments = {
        "files": [str(Path(path).absolute()) if path != "-" else path for path in options.paths],
        "classifier": repr(engine),  # model and version in this process; the address of a service
        **{_flag(name): getattr(options, name) for name in _OF_RESULTS},
        "--plot": None if options.plot is None else str(options.plot.absolute()),
    }
    unfinished = PartialRun(options.output, arguments, RunReport())
    stack.callback(unfinished.close)
    if not options.resume and not options.overwrite and (found := unfinished.existing()):
        raise UsageError(f"{found} exists: --resume continues an interrupted run, --overwrite replaces it")
    try:
        unfinished.resume() if options.resume else unfinished.start()
    except OutputError as error:
        raise UsageError(str(error)) from error
    return unfinished


@contextmanager
def _standard_input(bounds: Bounds) -> Iterator[Path]:
    """Yield the path of a file with the content of standard input. Raises UsageError for more than the bound."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "stdin")
        with path.open("wb") as file:
            while data := sys.stdin.buffer.read(_COPIED_BYTES):
                file.write(data)
                if file.tell() > bounds.max_bytes:
                    raise UsageError(f"standard input has more than {bounds.max_bytes} bytes; --max-size raises this")
        yield path


_COPIED_BYTES: Final = 1 << 20


@contextmanager
def _engine(options: argparse.Namespace) -> Iterator[InputClassifier]:
    engine: InputClassifier
    if options.url:
        from nightjar_alerts.client import Client, ClientError

        try:
            engine = Client(options.url, api_key=options.api_key, timeout=options.timeout, model=options.model)
        except ClientError as error:
            raise UsageError(f"--url: {error}") from error
    else:
        from nightjar_alerts.classifier import Classifier

        try:
            engine = Classifier(options.model or None)
        except BundleError as error:
            if options.model:
                raise UsageError(f"--model: {error}") from error
            raise
    try:
        yield engine
    finally:
        engine.close()


class ResultOutput(Protocol):
    """Destination of results."""

    def add(self, named: NamedInput, results: Sequence[Result]) -> None:
        """Add the results of one input."""

    def flush(self) -> None:
        """Write the added results."""


def _classify(
    reader: "_Reader",
    engine: InputClassifier,
    options: argparse.Namespace,
    report: RunReport,
    outputs: Sequence[ResultOutput],
) -> None:
    read: deque[NamedInput | UnreadFile] = deque()

    def inputs() -> Iterator[Input]:
        for item in reader.items(skip=report.inputs):
            read.append(item)
            if isinstance(item, NamedInput):
                yield item.input

    def flush() -> None:
        for output in outputs:
            output.flush()
        skipped = report.counts.total() - report.read + report.unread
        reader.progress.update(report.counts.total(), skipped)

    def add_unread() -> None:
        while read and isinstance(item := read[0], UnreadFile):
            report.add_unread(item)
            report.inputs += 1
            read.popleft()

    wanted = call_options({}, prior=options.prior, coverage=options.coverage)
    for number, results in enumerate(engine.classify_each(inputs(), wanted), start=1):
        add_unread()
        named = read.popleft()
        assert isinstance(named, NamedInput)
        report.add_results(named.name, results)
        report.inputs += 1
        for result in results:
            result.input = named.name
        for output in outputs:
            output.add(named, results)
        if number % CHUNK == 0:
            flush()
    add_unread()
    flush()


class _Reader:
    """Reads files one after the other and reports the progress."""

    def __init__(
        self, files: Sequence[File], options: TableOptions, bounds: Bounds, progress: "_Progress", quiet: bool
    ) -> None:
        self._files, self._options, self._bounds, self._quiet = files, options, bounds, quiet
        self._guesses: set[tuple[str, ...]] = set()
        self._alike = 0
        self.progress = progress

    def items(self, skip: int) -> Iterator[NamedInput | UnreadFile]:
        """Yield the inputs.

        Parameters
        ----------
        skip : number of inputs at the beginning that an interrupted run has already classified.
        """
        read = 0
        for file in self._files:
            for item in inputs_of_file(file, self._options, self._on_notes, self._bounds):
                read += 1
                if isinstance(item, NamedInput):
                    self.progress.advance(file.path, item.share)
                else:
                    item = replace(item, detail=shell_text(item.question or item.detail))
                if read > skip:
                    yield item
            self.progress.finish(file.path)
        if self._alike and not self._quiet:
            tables = "1 more table was" if self._alike == 1 else f"{self._alike:,} more tables were"
            self.progress.note(f"{tables} understood in the same way as one of these")

    def _on_notes(self, name: str, found: Sequence[Guess | str], are_guesses: bool) -> None:
        if self._quiet:
            return
        lines = list(map(shell_text, found))
        if are_guesses and tuple(lines) in self._guesses:
            self._alike += 1
            return
        if are_guesses:
            self._guesses.add(tuple(lines))
        for line in lines:
            self.progress.note(f"{name}: {line}")


class _Progress:
    """Progress bar on standard error, if it is a terminal: fraction of the bytes of all files, rate and time left."""

    def __init__(self, files: Sequence[File], quiet: bool) -> None:
        self._sizes = {file.path: float(file.path.stat().st_size or 1) for file in files if file.path.exists()}
        self._done = dict.fromkeys(self._sizes, 0.0)
        self._hidden = quiet or not sys.stderr.isatty()
        self._bar: Any = None
        self._last = 0

    def __enter__(self) -> "_Progress":
        if not self._hidden:
            from tqdm import tqdm

            self._bar = tqdm(
                total=sum(self._sizes.values()), file=sys.stderr, leave=False,
                bar_format="{percentage:3.0f}%|{bar:30}| {postfix}, {elapsed} elapsed, {remaining} left",
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, path: Path, share: float) -> None:
        """Count a fraction of a file as read."""
        self._done[path] = min(self._sizes[path], self._done[path] + share * self._sizes[path])

    def finish(self, path: Path) -> None:
        """Count a file as read."""
        self._done[path] = self._sizes.get(path, 0.0)

    def update(self, results: int, skipped: int) -> None:
        """Update the bar."""
        if self._bar is None:
            return
        rate = results / max(1e-3, self._bar.format_dict["elapsed"])
        self._bar.n = sum(self._done.values())
        skips = f", {skipped:,} skipped" if skipped else ""
        self._bar.set_postfix_str(f"{results:,} light curves, {rate:,.0f}/s{skips}", refresh=True)

    def note(self, line: str) -> None:
        """Print a line above the bar."""
        if self._bar is None:
            _print(line, sys.stderr)
        else:
            self._bar.write(printable(line), file=sys.stderr)


class _Printer:
    """Human-readable table on standard output."""

    _WIDTHS: Final = (24, 16, 6)

    def __init__(self) -> None:
        self._is_started = False

    def add(self, named: NamedInput, results: Sequence[Result]) -> None:
        """Print a line for each result."""
        for result in results:
            if not self._is_started:
                print(self._line("object", "class", "prob.", "prediction set, or why there is none"))
                self._is_started = True
            print(self._row(named.name, result))

    def flush(self) -> None:
        """Flush standard output."""
        sys.stdout.flush()

    def _row(self, name: str, result: Result) -> str:
        object_id = result.object_id or name
        if not result.classified:
            detail = located(result.errors[0]) if result.errors else result.detail
            return self._line(object_id, "-", "", f"{result.status}: {result.reason}: {detail}")
        members = result.prediction_set
        note = "unusual: unlike the training set" if result.unusual else "no set is stated"
        return self._line(
            object_id,
            str(result.class_name),
            f"{result.confidence:.2f}",
            ", ".join(members) if members else note,
        )

    def _line(self, *cells: str) -> str:
        cells = tuple(map(printable, cells))
        padded = [_fit(cell, width) for cell, width in zip(cells, self._WIDTHS, strict=False)]
        return "  ".join([*padded, cells[-1]]).rstrip()


def _fit(text: str, width: int) -> str:
    return f"{text[: width - 1]}…" if len(text) > width else text.ljust(width)


class _LinePrinter:
    """Results as JSON Lines on standard output."""

    def add(self, named: NamedInput, results: Sequence[Result]) -> None:
        """Print a line for each result."""
        for result in results:
            sys.stdout.write(encode_line(result).decode())

    def flush(self) -> None:
        """Flush standard output."""
        sys.stdout.flush()


class _Pictures:
    """Writes a picture per result, named after the object, into a folder.

    Parameters
    ----------
    keep : whether pictures that are in the folder are of other objects, as when an interrupted run is resumed.
    """

    def __init__(self, folder: Path, progress: "_Progress", keep: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._progress = folder, progress
        self._taken = {file_key(path.stem): "" for path in folder.glob("*.svg")} if keep else dict[str, str]()
        self._failed = 0

    def add(self, named: NamedInput, results: Sequence[Result]) -> None:
        """Write the pictures of the results. One that cannot be drawn is named and does not end the run."""
        for result in results:
            about = result.object_id or named.name
            name = file_name(about, self._taken)
            self._taken[file_key(name)] = about
            try:
                picture = result.to_svg()
            except Exception as error:
                self._failed += 1
                if self._failed <= SHOWN:
                    self._progress.note(f"no picture of {about}: {type(error).__name__}: {error}")
                continue
            (self._folder / f"{name}.svg").write_text(picture, encoding="utf-8")

    def flush(self) -> None:
        """Do nothing: pictures are written immediately."""

    def end(self) -> None:
        """Print the number of pictures that could not be drawn."""
        if self._failed > SHOWN:
            self._progress.note(f"no picture of {self._failed - SHOWN:,} more objects")
