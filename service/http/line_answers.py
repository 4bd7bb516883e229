"""From lines of JSON to lines of results: what a stream does with each group of light curves."""

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic

from models.lightcurve import LightCurve
from service.dataplane import FAILURE_REASONS, AskOptions, Outcome
from service.http.curves import INLINE_BYTES, SURVEY, classified
from service.http.fields import FieldError
from service.http.formats.jsontext import parse, write_lines
from service.http.forms import Options
from service.http.lifecycle import Service
from service.http.requests import InvalidCurve, read_curves
from service.http.timing import Stopwatch
from service.inference.failures import DeadlineExceeded, Overloaded

Item = LightCurve | InvalidCurve


class LineAnswerer:
    """Answers the lines of one stream."""

    def __init__(self, service: Service, options: Options) -> None:
        self._service, self._model, self._options = service, service.classifier, options
        self._milliseconds = options.deadline_ms or service.settings.default_deadline_ms

    @property
    def model_name(self) -> str:
        """Which network answers, as a header says it."""
        return "{name}/{version}; sha256={sha256}".format_map(self._model.replies.provenance)

    async def answer(self, lines: Sequence[bytes], patient: bool) -> bytes:
        """One line for each, in order.

        Parameters
        ----------
        patient : wait while the engine is full instead of raising Overloaded.
        """
        deadline = monotonic() + self._milliseconds / 1000
        stopwatch = Stopwatch(self._service.metrics)
        read = partial(self._read, lines, stopwatch)
        items = read() if sum(map(len, lines)) <= INLINE_BYTES else await self._service.off_loop(read)
        outcomes = await self._ask(items, deadline, patient)
        stopwatch.restart()
        written = write_lines(classified(self._model.replies, items, outcomes, self._options))
        stopwatch.lap("encode")
        return written

    def _read(self, lines: Sequence[bytes], stopwatch: Stopwatch) -> list[Item]:
        documents = [_parsed(line) for line in lines]
        stopwatch.lap("decode")
        sound = [document for document in documents if not isinstance(document, InvalidCurve)]
        curves = iter(read_curves(sound, [""] * len(sound), self._service.settings))
        items = [document if isinstance(document, InvalidCurve) else next(curves) for document in documents]
        stopwatch.lap("validate")
        return items

    async def _ask(self, items: Sequence[Item], deadline: float, patient: bool) -> list[Outcome]:
        while True:
            try:
                return await self._model.plane.ask(items, AskOptions(deadline, SURVEY))
            except DeadlineExceeded as late:
                return await self._too_late(items, late)
            except Overloaded as full:
                if not patient:
                    raise
                if (left := deadline - monotonic()) <= 0:
                    return await self._too_late(items, DeadlineExceeded())
                await asyncio.sleep(min(full.retry_after, left))

    async def _too_late(self, items: Sequence[Item], late: DeadlineExceeded) -> list[Outcome]:
        """What becomes of light curves when their time has passed; bad ones are told what is wrong all the same."""
        failed = Outcome("failed", reason=FAILURE_REASONS[DeadlineExceeded], detail=str(late))
        bad = iter(await self._model.plane.ask([item for item in items if isinstance(item, InvalidCurve)]))
        return [next(bad) if isinstance(item, InvalidCurve) else failed for item in items]


def _parsed(line: bytes) -> object:
    try:
        return parse(line)
    except ValueError as error:
        return InvalidCurve([FieldError(pointer="", reason="malformed", detail=f"the line is {error}")])
