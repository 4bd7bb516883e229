"""Partial results of a run, from which an interrupted run can be resumed.

``OUTPUT.partial`` is a JSON Lines file that begins with the arguments of the run. The results of each chunk and the
report so far are appended in one write. An interrupted run is resumed after the last complete report.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec
import orjson

from nightjar_alerts.core.result import ResultFields
from nightjar_alerts.core.serializer import encode_json
from nightjar_alerts.outputs import OutputError, encode_line, open_output
from nightjar_alerts.report import RunReport
from nightjar_alerts.results import Result
from nightjar_alerts.resumable import differences, published

if TYPE_CHECKING:
    from nightjar_alerts.inputs import NamedInput

CHUNK: Final = 1000
_ARGUMENTS, _REPORT = b'{"run":', b'{"report":'
_DECODER: Final[msgspec.json.Decoder[ResultFields]] = msgspec.json.Decoder(ResultFields)


def is_complete(output: Path) -> bool:
    """Return whether the run that writes ``output`` has ended."""
    return output.exists() and not _path(output).exists()


def _path(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial")


class PartialRun:
    """Results of a run until it is complete.

    Parameters
    ----------
    output : path of the complete table.
    arguments : arguments of the run; a run with other arguments cannot be resumed.
    report : updated by :meth:`resume`.
    """

    def __init__(self, output: Path, arguments: Mapping[str, Any], report: RunReport) -> None:
        self.report = report
        self._output, self._arguments = output, dict(arguments)
        self._path = _path(output)
        self._lines: list[bytes] = []
        self._file: IO[bytes] | None = None

    def existing(self) -> Path | None:
        """Return the path of the partial results or the output, whichever exists; None if neither does."""
        return next((path for path in (self._path, self._output) if path.exists()), None)

    def start(self) -> None:
        """Start a new run."""
        self._file = self._path.open("wb")
        self._file.write(_ARGUMENTS + encode_json(self._arguments) + b"}\n")
        self._file.flush()

    def resume(self) -> None:
        """Continue the interrupted run; start a new one if there is none.

        Raises
        ------
        OutputError
            If the run had other arguments.
        """
        if not self._path.exists():
            self.start()
            return
        end = position = 0
        with self._path.open("rb") as file:
            for line in file:
                position += len(line)
                if not line.endswith(b"\n"):
                    break
                if end == 0:
                    self._check(line)
                elif line.startswith(_REPORT):
                    self.report.update(orjson.loads(line)["report"])
                else:
                    continue
                end = position
        if end == 0:  # stopped before the arguments were written
            self.start()
            return
        self._file = self._path.open("r+b")
        self._file.truncate(end)
        self._file.seek(end)

    def _check(self, line: bytes) -> None:
        if not line.startswith(_ARGUMENTS):
            raise OutputError(f"{self._path} is no file of partial results: --overwrite replaces it")
        before = orjson.loads(line)["run"]
        now = orjson.loads(encode_json(self._arguments))
        if changed := differences(before, now):
            raise OutputError(f"{self._path} is of another run ({'; '.join(changed)}): --overwrite replaces it")

    def add(self, named: "NamedInput", results: Sequence[Result]) -> None:
        """Add the results of one input."""
        self._lines += [encode_line(result) for result in results]

    def flush(self) -> None:
        """Write the added results and the report."""
        assert self._file is not None
        report = _REPORT + encode_json(self.report.to_dict()) + b"}\n"
        self._file.write(b"".join([*self._lines, report]))
        self._file.flush()
        self._lines = []

    def close(self) -> None:
        """Close the file and keep it for :meth:`resume`."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def complete(self, probabilities: bool) -> None:
        """Write the complete table to a temporary file, rename it to the output, and remove the partial results."""
        classes: dict[str, None] = {}
        if probabilities:
            for result in self._results():
                classes |= dict.fromkeys(result.probabilities)
        results = self._results()
        with published(self._output) as whole, open_output(whole, list(classes)) as output:
            while chunk := list(islice(results, CHUNK)):
                output.write(chunk)
        self._path.unlink()

    def _results(self) -> Iterator[Result]:
        with self._path.open("rb") as file:
            for line in file:
                if not line.startswith((_ARGUMENTS, _REPORT)):
                    fields = _DECODER.decode(line)
                    assert fields.model is not None  # every line names its model
                    yield Result(fields, fields.model)
