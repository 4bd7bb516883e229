"""Partial results of a run, from which an interrupted run can be resumed.

``OUTPUT.partial`` is a JSON Lines file that begins with the arguments of the run. The results of each chunk and the
report so far are appended in one write. An interrupted run is resumed after the last complete report. The file is
locked while a run writes it. ``OUTPUT.run`` has the arguments of the run that made a complete output.
"""

import os
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
from nightjar_alerts.resumable import differences, lock, published

if TYPE_CHECKING:
    from nightjar_alerts.inputs import NamedInput

CHUNK: Final = 1000
_ARGUMENTS, _REPORT = b'{"run":', b'{"report":'
_DECODER: Final[msgspec.json.Decoder[ResultFields]] = msgspec.json.Decoder(ResultFields)


class _Input(msgspec.Struct):
    input: str = ""


_INPUT_DECODER: Final = msgspec.json.Decoder(_Input)


class PartialRun:
    """Results of a run until it is complete.

    Parameters
    ----------
    output : path of the complete table.
    arguments : arguments of the run; a run with other arguments cannot be resumed.
    report : updated by :meth:`resume`.

    Attributes
    ----------
    is_complete : whether :meth:`resume` found that an earlier run with the same arguments has ended.
    """

    def __init__(self, output: Path, arguments: Mapping[str, Any], report: RunReport) -> None:
        self.report = report
        self._output, self._arguments = output, dict(arguments)
        self._path = output.with_name(f"{output.name}.partial")
        self._record = output.with_name(f"{output.name}.run")
        self.is_complete = False
        self._is_new = False
        self._lines: list[bytes] = []
        self._file: IO[bytes] | None = None

    def existing(self) -> Path | None:
        """Return the path of the partial results or the output, whichever exists; None if neither does."""
        return next((path for path in (self._path, self._output) if path.exists()), None)

    def start(self) -> None:
        """Start a new run. Raises OutputError if another run writes the same output."""
        self._begin(self._open())

    def _begin(self, file: IO[bytes]) -> None:
        file.truncate(0)
        file.write(_ARGUMENTS + encode_json(self._arguments) + b"}\n")
        file.flush()
        self._is_new = True

    def resume(self) -> None:
        """Continue the interrupted run; start a new one if there is none.

        Raises
        ------
        OutputError
            If the run, or the complete output, had other arguments, or another run writes the same output.
        """
        if not self._path.exists():
            if self._output.exists():
                self._check_output()
                self.is_complete = True
            else:
                self.start()
            return
        file = self._open()
        end = position = 0
        file.seek(0)
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
            self._begin(file)
        else:
            file.truncate(end)

    def _open(self) -> IO[bytes]:
        """Open the partial results, which are created if there are none, and lock them. Raises OutputError."""
        self._file = file = self._path.open("a+b")
        if not lock(file):
            raise OutputError(f"{self._path} is being written by another run: wait until that ends")
        if not self._path.exists() or not os.path.samestat(os.fstat(file.fileno()), self._path.stat()):
            raise OutputError(f"{self._output} was just completed by another run")
        return file

    def _check_output(self) -> None:
        if not self._record.exists():
            raise OutputError(
                f"{self._output} exists, and there is no {self._record.name} that says how it was made: "
                "--overwrite replaces it"
            )
        self._compare(orjson.loads(self._record.read_bytes()), self._output)

    def _check(self, line: bytes) -> None:
        if not line.startswith(_ARGUMENTS):
            raise OutputError(f"{self._path} is no file of partial results: --overwrite replaces it")
        self._compare(orjson.loads(line)["run"], self._path)

    def _compare(self, before: Mapping[str, Any], path: Path) -> None:
        """Raise OutputError, which names the differences, if a file was made with other arguments."""
        now = orjson.loads(encode_json(self._arguments))
        if changed := differences(before, now):
            raise OutputError(f"{path} is of another run ({'; '.join(changed)}): --overwrite replaces it")

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
        self._is_new = False

    def close(self) -> None:
        """Close the file and keep it for :meth:`resume`."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Remove the file of a new run without results."""
        if self._is_new:
            self._path.unlink()
            self.close()

    def complete(self, probabilities: bool) -> None:
        """Write the complete table to a temporary file, rename it to the output, and remove the partial results."""
        classes: dict[str, None] = {}
        if probabilities:
            for result in self._results():
                classes |= dict.fromkeys(result.probabilities)
        results = self._results()
        with published(self._output) as whole:
            with open_output(whole, list(classes)) as output:
                while chunk := list(islice(results, CHUNK)):
                    output.write(chunk)
            with published(self._record) as record:
                record.write_bytes(encode_json(self._arguments))
        self._path.unlink()
        self.close()

    def _results(self) -> Iterator[Result]:
        with self._path.open("rb") as file:
            for line in file:
                if not line.startswith((_ARGUMENTS, _REPORT)):
                    fields = _DECODER.decode(line)
                    assert fields.model is not None  # every line names its model
                    yield Result(fields, fields.model, input=_INPUT_DECODER.decode(line).input)
