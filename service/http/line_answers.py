"""From lines of JSON to lines of results: what a stream does with each group of light curves."""

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic

from fastapi import Request

from models.lightcurve import LightCurve
from service.answers.fields import FieldError
from service.dataplane import FAILURE_REASONS, AskOptions, Outcome, Refusal
from service.engine.batch import DeadlineExceeded, Overloaded
from service.http.body.formats.jsontext import parse, write_lines
from service.http.body.forms import ClassifyQuery
from service.http.body.requests import InvalidCurve, read_curves
from service.http.curves import checked_prior, classified
from service.http.edge.timing import Stopwatch
from service.http.endpoint import INLINE_BYTES
from service.http.lifecycle import service_of
from service.http.terms import key_of, terms_of
from service.registry.leading import refused_outside
from service.registry.live import Lease

Item = LightCurve | InvalidCurve


class LineAnswerer:
    """Answers the lines of one stream."""

    def __init__(self, request: Request, lease: Lease[LightCurve], options: ClassifyQuery) -> None:
        self._request, self._service = request, service_of(request)
        self._lease, self._options = lease, options
        self._replies = checked_prior(lease, options.prior, self._service.settings.prior)
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
        await self._service.quotas.pace(key_of(self._request))
        await self._service.quotas.charge(key_of(self._request), len(lines))
        terms = self._terms()
        stopwatch = Stopwatch(self._service.metrics)
        read = partial(self._read, lines, stopwatch)
        items = read() if sum(map(len, lines)) <= INLINE_BYTES else await self._service.off_loop(read)
        outcomes = await self._ask(items, terms, patient)
        stopwatch.restart()
        written = write_lines(classified([self._replies] * len(items), items, outcomes, self._options))
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
                return await self._lease.ask([self._asked(item) for item in items], terms)
            except DeadlineExceeded as late:
                return await self._too_late(items, late)
            except Overloaded as full:
                if not patient:
                    raise
                if (left := (terms.deadline or 0.0) - monotonic()) <= 0:
                    return await self._too_late(items, DeadlineExceeded())
                await asyncio.sleep(min(full.retry_after, left))

    def _asked(self, item: Item) -> Item | Refusal:
        """What the model is asked: a stream has one model, so what lies outside its domain is not led to another."""
        if self._options.model or not isinstance(item, LightCurve):
            return item
        return refused_outside(item, self._lease.bundle.manifest) or item

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
