"""The command ``nightjar catalog INPUT OUTPUT``, which classifies archives partition by partition."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nightjar_alerts.classify_command import (
    FAILED,
    INTERRUPTED,
    USAGE_ERROR,
    UsageError,
    add_result_options,
    add_table_options,
    shell_text,
    size,
    table_options,
)
from nightjar_alerts.inputs import call_options
from nightjar_alerts.models.bundle import BundleError
from nightjar_alerts.models.common import how_to_install
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.names import printable
from nightjar_alerts.report import warning_lines
from nightjar_alerts.results import summary_of
from nightjar_alerts.tables import FILE_BOUNDS, Bounds, Guess, TableError

if TYPE_CHECKING:
    from nightjar_alerts.catalog.partition import Written
    from nightjar_alerts.catalog.partitions import Partition
    from nightjar_alerts.catalog.run import Summary

MAX_FAILED: Final = 20
"""Failed partitions that are named."""
_EXTRA = f"{how_to_install('onnxruntime,tables')}; [onnxruntime,catalog] is for HATS and Dask"


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status (docs/catalogs.md)."""
    try:
        options = _parser().parse_args(arguments)
        return _run(options)
    except (UsageError, TypeError, ValueError) as error:
        text = shell_text(error) if isinstance(error, TableError) else str(error)
        print(f"nightjar: {printable(text)}", file=sys.stderr)
        return USAGE_ERROR if isinstance(error, UsageError) else FAILED
    except KeyboardInterrupt:
        print("nightjar: interrupted; the same command continues", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nightjar catalog",
        description="Classify an archive partition by partition. The same command continues an interrupted run.",
        epilog="Example: nightjar catalog dia_object_collection classes --workers 8. "
        "Exit status: 0 the catalogue is complete; 1 it is not; 2 wrong usage.",
    )
    parser.add_argument(
        "input", metavar="INPUT", help="HATS catalogue or collection, folder of Parquet, or folder of packets and tars"
    )
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder of the catalogue of classes")
    add_result_options(parser)
    parser.add_argument("--embedding", action="store_true", help="add a column with the embedding of the network")
    parser.add_argument(
        "--join-bands", type=_radius, default=0.0, metavar="ARCSEC",
        help="join rows of one object that have one band each, within this radius",
    )  # fmt: skip
    parser.add_argument(
        "--since", type=Path, metavar="OUTPUT", help="copy what has not changed from the catalogue of an earlier run"
    )
    parser.add_argument(
        "--reclassify", action="store_true", help="with --since: classify everything if the model or options differ"
    )
    parser.add_argument(
        "--flat", type=Path, metavar="FILE", help="also write one flat table, .parquet or .csv (TOPCAT)"
    )
    parser.add_argument("--workers", type=_count, default=1, help="processes, which share the cores (%(default)s)")
    parser.add_argument("--scheduler", default="", metavar="ADDRESS", help="scheduler of a cluster of dask.distributed")
    parser.add_argument(
        "--max-size", type=size, default=FILE_BOUNDS.max_bytes, metavar="SIZE",
        help="largest table once decompressed, such as 256GiB; default 64GiB",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print no progress and no guesses about tables")
    add_table_options(parser.add_argument_group("tables", "what the columns mean, where the names do not say"))
    return parser


def _radius(text: str) -> float:
    value = float(text)
    if not 0 < value <= 60:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 60 arcseconds")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _run(options: argparse.Namespace) -> int:
    try:
        from nightjar_alerts.catalog.run import CatalogError, Request, run
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed: {_EXTRA}") from error
    if options.reclassify and options.since is None:
        raise UsageError("--reclassify needs --since")
    if options.scheduler and options.workers > 1:
        raise UsageError("--workers starts processes here; a scheduler has its own workers")
    bounds = Bounds(max_bytes=options.max_size)
    request = Request(
        options.input,
        options.output,
        options.model or None,
        call_options({}, embedding=options.embedding, prior=options.prior, coverage=options.coverage),
        table_options(options, bounds),
        bounds,
        options.join_bands,
        options.since,
        options.reclassify,
        options.flat,
        options.workers,
        options.scheduler,
    )
    progress = ProgressBar(options.quiet)
    try:
        summary = run(request, progress)
    except (BundleError, CatalogError, ImportError, OSError, PriorError, TableError) as error:
        text = shell_text(error) if isinstance(error, TableError) else str(error)
        print(f"nightjar: {printable(text)}", file=sys.stderr)
        return FAILED
    finally:
        progress.close()
    for line in _lines(summary, options):
        print(printable(line))
    for line in summary.failed[:MAX_FAILED]:
        print(f"nightjar: {printable(line)}", file=sys.stderr)
    if (more := len(summary.failed) - MAX_FAILED) > 0:
        print(f"nightjar: and {more:,} more partitions", file=sys.stderr)
    return FAILED if summary.failed else 0


def _lines(summary: "Summary", options: argparse.Namespace) -> list[str]:
    if summary.was_finished:
        lines = [f"{options.output} is finished: {summary.rows:,} rows"]
        return [*lines, f"written to {options.flat}"] if options.flat else lines
    counts: Any = summary.counts
    lines = [f"{_partitions(summary.partitions)}: {summary_of(counts)}"]
    lines += warning_lines(summary.warnings, counts.total())
    if summary.earlier:
        lines.append(f"finished before: {_partitions(summary.earlier)}")
    if options.join_bands:
        lines.append(f"{summary.joined:,} rows were joined to {summary.objects_joined:,} objects")
    if options.since is not None and not summary.earlier:  # else some were counted by the run before
        gone = "" if summary.gone is None else f", {summary.gone:,} are no longer there"
        lines.append(f"{summary.unchanged:,} rows are unchanged{gone}")
    if summary.repeated:
        lines.append(
            f"{summary.repeated:,} objects have observations in several files, and a row for each file: sort the table "
            "by object before it is divided"
        )
    if summary.failed:
        lines.append(f"failed: {_partitions(len(summary.failed))}; the same command tries again")
        return lines
    lines.append(f"{summary.rows:,} rows written to {options.output}")
    return [*lines, f"written to {options.flat}"] if options.flat else lines


def _partitions(count: int) -> str:
    return f"{count:,} partition{'s' * (count != 1)}"


class ProgressBar:
    """Progress bar on standard error, if it is a terminal: fraction of the bytes, rows, rate and time left."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._shows = not quiet and sys.stderr.isatty()
        self._bar: Any = None
        self._rows = self._of_partition = 0
        self._bytes_per_row = 0.0
        self._finished_bytes = 0

    def start(self, partitions: int, done: int, size: int, done_size: int) -> None:
        """Begin with the bytes of the partitions that are finished."""
        self._finished_bytes = 0
        if self._shows:
            from tqdm import tqdm

            text = "{percentage:3.0f}%|{bar:30}| {desc}, {elapsed} elapsed, {remaining} left"
            self._bar = tqdm(
                desc="0 rows", total=size, initial=done_size, file=sys.stderr, leave=False, bar_format=text
            )

    def rows(self, count: int) -> None:
        """Show rows of a partition that is not finished; its bytes are estimated from those before."""
        self._of_partition += count
        self._show(self._of_partition * self._bytes_per_row)

    def finish(self, partition: "Partition", written: "Written") -> None:
        """Show a finished partition."""
        self._rows += written.rows
        self._of_partition = 0
        self._finished_bytes += partition.bytes
        self._bytes_per_row = self._finished_bytes / max(1, self._rows)
        self._show(0.0)

    def _show(self, more: float) -> None:
        if self._bar is None:
            return
        count = self._rows + self._of_partition
        rate = count / max(1e-3, self._bar.format_dict["elapsed"])
        self._bar.n = min(self._bar.total, self._bar.initial + self._finished_bytes + more)
        self._bar.set_description_str(f"{count:,} rows, {rate:,.0f}/s", refresh=True)

    def note(self, line: Guess | str) -> None:
        """Print a sentence above the bar."""
        if self._quiet:
            return
        text = printable(shell_text(line))
        if self._bar is None:
            print(text, file=sys.stderr)
        else:
            self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
