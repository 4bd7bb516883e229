"""``POST /v1/tables``: classify the objects of a table, with one line of NDJSON per object.

The first line describes how the table was read, the last one counts the rows that were not used. An ambiguous table is
a problem whose ``question`` names the option to set.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from time import monotonic
from typing import Any, Final, get_type_hints

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Send

from nightjar_alerts.core.decoding import find_error
from nightjar_alerts.core.errors import FieldError, InvalidLightCurve
from nightjar_alerts.core.serializer import add_light_curve, encode_json
from nightjar_alerts.core.validation import table_light_curve
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.deadlines import check_deadline
from nightjar_alerts.service.http.edge.body import cancel_on_disconnect
from nightjar_alerts.service.http.edge.budget import Reservation
from nightjar_alerts.service.http.edge.errors import INVALID, TOO_LARGE, UNSUPPORTED, ProblemError, invalid_field
from nightjar_alerts.service.http.endpoint import (
    get_client_id,
    read_body,
    requested_deadline_ms,
    route_docs,
)
from nightjar_alerts.service.http.formats import encode_ndjson
from nightjar_alerts.service.http.lifecycle import LARGE_BYTES, get_service
from nightjar_alerts.service.http.query import QUERY_READER, TableQuery, decode_json, read_query
from nightjar_alerts.service.http.routes.ndjson import LineClassifier, StreamedResponse, body_message
from nightjar_alerts.service.http.table_formats import COMMAND, MULTIPART, check_text, unsupported
from nightjar_alerts.service.http.turns import SlicedWork
from nightjar_alerts.service.inference import InferOptions
from nightjar_alerts.service.settings import Settings
from nightjar_alerts.tables import (
    TEXT_FORMATS,
    Bounds,
    TableError,
    TableObject,
    TableOptions,
    TableQuestion,
    TableTooLarge,
    UnsupportedFormat,
    read_table,
)
from nightjar_alerts.tables.sniff import is_binary

GROUP_OBJECTS: Final = 64
"""Number of objects that are classified together."""
HELD_FACTOR: Final = 8
"""Memory that a table needs while it is read, as a multiple of its size; at most half of the budget is charged."""
BYTES_PER_LINE: Final = 20
"""Maximum number of lines of a table: one for this many bytes of the largest table."""
MAX_LINE: Final = 1024 * 1024
"""Maximum length of a line, which is read in one step: a light curve of ``max_points`` has half of it."""
BYTES_PER_VALUE: Final = 6
"""Maximum number of separators in a table: one for this many bytes of the largest table."""
BYTES_PER_JSON_VALUE: Final = 8

router = APIRouter()


@router.post(
    "/v1/tables",
    **route_docs(
        "Classify the objects of a table",
        openapi.TABLE_BODY,
        openapi.TABLE_REPLY,
        TableQuery,
    ),
)
async def classify_table(request: Request) -> Response:
    """Send one table of light curves, with one row per observation or per object.

    CSV, text, JSON and JSON Lines are read. Other formats (ECSV, FITS, VOTable, Parquet, compressed files and forms)
    are a problem (415): `nightjar classify FILE --url URL` reads them on the machine of the user. The reader guesses
    columns, filters, time scale and units. The first line of the response has its guesses; if it cannot decide, the
    response is a problem (422) whose `question` names the option to set. Each object has a result as in `/v1/classify`,
    in the order in which the objects are read. The last line counts the rows that were not used.
    """
    query = read_query(request, TableQuery)
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        raise ProblemError(UNSUPPORTED, MULTIPART)
    check_deadline(query.deadline_ms, "/query/deadline_ms", get_service(request).settings)
    return TableResponse(request, query, _read_options(query.options))


def _read_options(text: str) -> TableOptions:
    """Parse the option ``options`` of a query. Raises ProblemError (422)."""
    if not text:
        return TableOptions()
    members = decode_json(text, "/query/options", "must be a JSON object")
    if not isinstance(members, dict):
        raise invalid_field("/query/options", "not_an_object", "must be a JSON object")
    for name in members:
        if name not in TableOptions.option_names():
            known = ", ".join(TableOptions.option_names())
            raise invalid_field("/query/options", "unknown_field", f"there is no option {name[:40]!r}: {known}")
    kinds, values = get_type_hints(TableOptions), {}
    for name, value in members.items():
        try:
            values[name] = msgspec.convert(value, kinds[name], strict=False)  # numbers may be text, as in a form
        except msgspec.ValidationError:
            error = find_error(value, kinds[name], QUERY_READER, name)
            raise invalid_field("/query/options", "invalid_option", f"{error.pointer}: {error.detail}") from None
    try:
        return TableOptions(**values)
    except TableError as invalid:
        raise invalid_field("/query/options", "invalid_option", str(invalid)[:300]) from None


class TableResponse(StreamedResponse):
    """Response to a table, whose objects are classified while the response is sent.

    A deadline that the request states holds for all of it, the default deadline for each group of objects.
    """

    def __init__(self, request: Request, query: TableQuery, options: TableOptions) -> None:
        super().__init__(request, query)
        self._light_curve, self._name, self._options = query.light_curve, query.name, options
        self._client = get_client_id(request)
        milliseconds = requested_deadline_ms(request, self.service.settings, query.deadline_ms)
        self._stated_deadline = None if milliseconds is None else monotonic() + milliseconds / 1000

    async def run(self, classifier: LineClassifier, reservation: Reservation, receive: Receive, send: Send) -> None:
        """Classify the objects of the table."""
        settings = self.service.settings
        data = await read_body(self.request, reservation, settings.max_json_bytes)
        check_text(data)
        _check_counts(data, settings.max_json_bytes)
        work = SlicedWork(self.service.turns, self._client, self._next_deadline())
        table = _TableReading(data, self._options, self._name, settings, work.checkpoint)
        await cancel_on_disconnect(self.request, self._run(table, work, classifier, reservation, send))

    async def _run(
        self, table: "_TableReading", work: SlicedWork, classifier: LineClassifier, reservation: Reservation, send: Send
    ) -> None:
        # The first group is read before the head is sent, so that an unreadable table gets an error status. Opening a
        # large table needs the most memory, so only one is opened at a time.
        large_turn = self.service.large_tables.turn(self._client, work.deadline)
        async with large_turn if table.size > LARGE_BYTES else nullcontext():
            held = min(HELD_FACTOR * table.size, self.service.budget.limit // 2)
            reservation.resize(reservation.size + held)
            group = await work.run(table.open)
        await send(self.head)
        await send(
            body_message(encode_json({"model": classifier.provenance, "table": table.head()}) + b"\n", more=True)
        )
        while group:
            await self._classify(group, classifier, work.deadline, send)
            if len(group) < GROUP_OBJECTS:  # the end, so a small table needs one turn
                break
            work.deadline = self._next_deadline()
            group = await work.run(table.next_group)
        await send(body_message(encode_json({"summary": table.summary()}) + b"\n", more=False))

    def _next_deadline(self) -> float:
        default = monotonic() + self.service.settings.default_deadline_ms / 1000
        return default if self._stated_deadline is None else self._stated_deadline

    async def _classify(
        self, group: list[LightCurve | InvalidLightCurve], classifier: LineClassifier, deadline: float, send: Send
    ) -> None:
        await classifier.charge(len(group))
        results = await classifier.classify_curves(group, InferOptions(deadline, client=self._client))
        if self._light_curve:
            for result, curve in zip(results.results, group, strict=True):
                add_light_curve(result, curve)
        await send(body_message(encode_ndjson(results), more=True))


def _check_counts(data: bytes, largest: int) -> None:
    """Check the numbers of lines and of values, and the length of lines, which the cost of a table depends on.

    Raises ProblemError (413).
    """
    lines, values = largest // BYTES_PER_LINE, largest // BYTES_PER_VALUE
    if (count := max(data.count(b"\n"), data.count(b"\r"))) > lines:
        raise _too_large(f"more than {lines} lines")
    if data[:16].lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
        if data.count(b",") > largest // BYTES_PER_JSON_VALUE:
            raise _too_large(f"more than {largest // BYTES_PER_JSON_VALUE} values")
        return  # a document may be one line
    has_lists = data.count(b"[") > count // 2  # otherwise blanks may only align columns
    if max(map(data.count, (b",", b";", b"\t", b"|", *((b" ",) if has_lists else ())))) > values:
        raise _too_large(f"more than {values} values")
    end = b"\n" if b"\n" in data[:MAX_LINE] else b"\r"
    start = 0
    while len(data) - start > MAX_LINE:
        last = data.rfind(end, start, start + MAX_LINE)
        if last < 0:
            raise _too_large(f"a line of more than {MAX_LINE} bytes")
        start = last + 1


def _too_large(what: str) -> ProblemError:
    return ProblemError(TOO_LARGE, f"the table has {what}; divide it, or use {COMMAND}")


class _TableReading:
    """Reads a table; its methods run in a thread. They raise ProblemError: 413, 415 or 422, with a question if any."""

    def __init__(
        self, data: bytes, options: TableOptions, name: str, settings: Settings, checkpoint: Callable[[], None]
    ) -> None:
        self.size = len(data)
        self._data, self._options, self._name = data, options, name or "the table"
        self._max_points, self._checkpoint = settings.max_points, checkpoint
        self._bounds = Bounds(formats=TEXT_FORMATS, max_bytes=settings.max_json_bytes)

    def open(self) -> list[LightCurve | InvalidLightCurve]:
        """Open the table and return its first light curves."""
        with self._problems():
            self._table = read_table(
                self._data, self._options, name=self._name, bounds=self._bounds, checkpoint=self._checkpoint
            )
        self._objects = iter(self._table)
        return self.next_group()

    def next_group(self) -> list[LightCurve | InvalidLightCurve]:
        """Return the next light curves; empty at the end."""
        with self._problems():
            return [self._convert(item) for item in islice(self._objects, GROUP_OBJECTS)]

    def _convert(self, item: TableObject) -> LightCurve | InvalidLightCurve:
        self._checkpoint()
        return table_light_curve(item, self._max_points)

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """Convert errors of a table to problems."""
        try:
            yield
        except UnsupportedFormat as error:
            raise unsupported(error.format, self._data) from None
        except TableTooLarge as error:
            detail = f"{error.reason}; divide the table, or use {COMMAND}"
            raise ProblemError(TOO_LARGE, detail) from None
        except TableQuestion as error:
            pointer = "/query/options/" + error.option.replace(".", "/")
            errors = [FieldError(pointer=pointer, reason="ambiguous", detail=str(error))]
            raise ProblemError(INVALID, error.question, errors=errors, question=error.to_dict()) from None
        except TableError as error:
            raise unsupported("binary", self._data) if is_binary(self._data) else _unreadable(str(error)) from None
        except RecursionError:
            raise _unreadable("the document is nested too deeply") from None

    def head(self) -> dict[str, Any]:
        """Return how the table is read."""
        return {"columns": self._table.columns, "guesses": [guess.to_dict() for guess in self._table.guesses]}

    def summary(self) -> dict[str, Any]:
        """Return the counts of what was not used."""
        return self._table.report.to_dict()


def _unreadable(detail: str) -> ProblemError:
    return ProblemError(INVALID, detail, errors=[FieldError(pointer="", reason="unreadable_table", detail=detail)])
