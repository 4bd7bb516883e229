"""From lines of JSON to lines of results: what a stream does with each group of light curves."""

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic

from fastapi import Request

from models.lightcurve import LightCurve
from service.dataplane import FAILURE_REASONS, AskOptions, Outcome
from service.http.curves import INLINE_BYTES, classified
from service.http.fields import FieldError
from service.http.formats.jsontext import parse, write_lines
from service.http.forms import Options
from service.http.lifecycle import service_of
from service.http.requests import InvalidCurve, read_curves
from service.http.terms import terms_of
from service.http.timing import Stopwatch
from service.http.writers import class_writer
from service.inference.failures import DeadlineExceeded, Overloaded
from service.repository.served import Lease

Item = LightCurve | InvalidCurve


class LineAnswerer:
    """Answers the lines of one stream."""

    def __init__(self, request: Request, lease: Lease[LightCurve], options: Options) -> None:
        self._request, self._service = request, service_of(request)
        self._lease, self._options = lease, options
        self._replies = class_writer(lease)
        self._terms()  # a deadline in a header may be none

    @property
    def model_name(self) -> str:
        """Which network answers, as a header says it."""
        told = "{name}/{version}; sha256={sha256}".format_map(self._replies.provenance)
        return f"{told}; role={self._lease.role}" if self._lease.role else told

    async def answer(self, lines: Sequence[bytes], patient: bool) -> bytes:
        """One line for each, in order.

        Parameters
        ----------
        patient : wait while the engine is full instead of raising Overloaded.
        """
        terms = self._terms()
        stopwatch = Stopwatch(self._service.metrics)
        read = partial(self._read, lines, stopwatch)
        items = read() if sum(map(len, lines)) <= INLINE_BYTES else await self._service.off_loop(read)
        outcomes = await self._ask(items, terms, patient)
        stopwatch.restart()
        written = write_lines(classified(self._replies, items, outcomes, self._options))
        stopwatch.lap("encode")
        stopwatch.tell(self._lease.served.plane.statistics)
        return written

    def _terms(self) -> AskOptions:
        """Terms of light curves that come now."""
        return terms_of(self._request, self._service.settings, monotonic(), self._options.deadline_ms)

    def _read(self, lines: Sequence[bytes], stopwatch: Stopwatch) -> list[Item]:
        documents = [_parsed(line) for line in lines]
        stopwatch.lap("decode")
        sound = [document for document in documents if not isinstance(document, InvalidCurve)]
        curves = iter(read_curves(sound, [""] * len(sound), self._service.settings))
        items = [document if isinstance(document, InvalidCurve) else next(curves) for document in documents]
        stopwatch.lap("validate")
        return items

    async def _ask(self, items: Sequence[Item], terms: AskOptions, patient: bool) -> list[Outcome]:
        while True:
            try:
                return await self._lease.ask(items, terms)
            except DeadlineExceeded as late:
                return await self._too_late(items, late)
            except Overloaded as full:
                if not patient:
                    raise
                if (left := (terms.deadline or 0.0) - monotonic()) <= 0:
                    return await self._too_late(items, DeadlineExceeded())
                await asyncio.sleep(min(full.retry_after, left))

    async def _too_late(self, items: Sequence[Item], late: DeadlineExceeded) -> list[Outcome]:
        """What becomes of light curves when their time has passed; bad ones are told what is wrong all the same."""
        failed = Outcome("failed", reason=FAILURE_REASONS[DeadlineExceeded], detail=str(late))
        bad = iter(await self._lease.ask([item for item in items if isinstance(item, InvalidCurve)]))
        return [next(bad) if isinstance(item, InvalidCurve) else failed for item in items]


def _parsed(line: bytes) -> object:
    try:
        return parse(line)
    except ValueError as error:
        return InvalidCurve([FieldError(pointer="", reason="malformed", detail=f"the line is {error}")])
