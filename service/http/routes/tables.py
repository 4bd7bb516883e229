"""``POST /v1/tables``: classify the objects of a table, with one line of NDJSON per object.

The first line describes how the table was read, the last one counts the rows that were not used. An ambiguous table is
a problem whose ``question`` names the option to set.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Send

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.service.answers.replies import FieldError
from nightjar_alerts.service.answers.serializer import encode_json, light_curve_members
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.deadlines import check_deadline
from nightjar_alerts.service.http.edge.body import cancel_on_disconnect
from nightjar_alerts.service.http.edge.budget import Reservation
from nightjar_alerts.service.http.edge.errors import INVALID, UNSUPPORTED, ProblemError, invalid_field
from nightjar_alerts.service.http.endpoint import read_body, route_docs
from nightjar_alerts.service.http.formats import encode_ndjson
from nightjar_alerts.service.http.lifecycle import get_service
from nightjar_alerts.service.http.query import TableQuery, read_query
from nightjar_alerts.service.http.routes.ndjson import LineClassifier, StreamedResponse, body_message
from nightjar_alerts.service.lightcurves.errors import InvalidLightCurve
from nightjar_alerts.service.lightcurves.validation import table_light_curve
from nightjar_alerts.tables import Table, TableError, TableObject, TableOptions, TableQuestion, read_table

GROUP_OBJECTS: Final = 64
"""Number of objects that are classified together."""
COMPRESSED: Final = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")
_VARIABLE_LENGTH: Final = re.compile(rb"TFORM\d+ *= *'\d*[PQ]")

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

    CSV, text and JSON are always read; ECSV, FITS and VOTable if the service has the `tables` extra. The
    reader guesses columns, filters, time scale and units. The first line of the response has its guesses; if it cannot
    decide, the response is a problem (422) whose `question` names the option to set. Each object has a result as in
    `/v1/classify`, in the order in which the objects are read. The last line counts the rows that were not used.
    """
    query = read_query(request, TableQuery)
    check_deadline(query.deadline_ms, "/query/deadline_ms", get_service(request).settings)
    return TableResponse(request, query, _read_options(query.options))


def _read_options(text: str) -> TableOptions:
    """Parse the option ``options`` of a query. Raises ProblemError (422)."""
    if not text:
        return TableOptions()
    try:
        members = msgspec.json.decode(text)
        if not isinstance(members, dict):
            raise invalid_field("/query/options", "not_an_object", "must be a JSON object")
        for name in members:
            if name not in TableOptions.option_names():
                known = ", ".join(TableOptions.option_names())
                raise invalid_field("/query/options", "unknown_field", f"there is no option {name[:40]!r}: {known}")
        return msgspec.convert(members, TableOptions, strict=False)  # numbers may be text, as in a form
    except msgspec.ValidationError as error:
        raise invalid_field("/query/options", "invalid_option", str(error)[:300]) from None
    except msgspec.DecodeError:
        raise invalid_field("/query/options", "malformed", "must be a JSON object") from None


class TableResponse(StreamedResponse):
    """Response to a table, whose objects are classified while the response is sent."""

    def __init__(self, request: Request, query: TableQuery, options: TableOptions) -> None:
        super().__init__(request, query)
        self._light_curve, self._name, self._options = query.light_curve, query.name, options

    async def run(self, classifier: LineClassifier, reservation: Reservation, receive: Receive, send: Send) -> None:
        """Classify the objects of the table."""
        service, request = self.service, self.request
        data = await read_body(request, reservation, service.settings.max_json_bytes)
        table = await service.run_in_thread(partial(_open, data, self._options, self._name), large=True)
        objects = iter(table)
        # The first group is read before the head is sent, so that an unreadable table gets an error status.
        group = await service.run_in_thread(partial(_next_group, objects), large=True)
        await send(self.head)
        guesses = [guess.to_dict() for guess in table.guesses]
        head = {"model": classifier.provenance, "table": {"columns": table.columns, "guesses": guesses}}
        await send(body_message(encode_json(head) + b"\n", more=True))
        while group:
            await cancel_on_disconnect(request, self._classify(group, classifier, send))
            group = await service.run_in_thread(partial(_next_group, objects), large=True)
        await send(body_message(encode_json({"summary": table.report.to_dict()}) + b"\n", more=False))

    async def _classify(
        self, group: list[LightCurve | InvalidLightCurve], classifier: LineClassifier, send: Send
    ) -> None:
        await classifier.charge(len(group))
        results = await classifier.classify_curves(group)
        if self._light_curve:
            results = results._replace(results=list(map(_add_light_curve, results.results, group)))
        await send(body_message(encode_ndjson(results), more=True))


def _add_light_curve(result: Mapping[str, Any], curve: LightCurve | InvalidLightCurve) -> Mapping[str, Any]:
    return {**result, "light_curve": light_curve_members(curve)} if isinstance(curve, LightCurve) else result


def _open(data: bytes, options: TableOptions, name: str) -> Table:
    """Open a table.

    Raises
    ------
    ProblemError
        415 for compressed data, Parquet and FITS columns of variable length, 422 for a table that cannot be read, with
        a question if it is ambiguous.
    """
    if data.startswith(COMPRESSED):
        raise ProblemError(UNSUPPORTED, "send the table uncompressed, or with Content-Encoding: gzip")
    if data.startswith(b"PAR1"):  # a corrupt file can crash the process, by an uncaught C++ exception in pyarrow
        raise ProblemError(UNSUPPORTED, "Parquet is not read over HTTP; use nightjar classify --url, or send CSV")
    if data.startswith(b"SIMPLE  =") and _VARIABLE_LENGTH.search(data):
        raise ProblemError(UNSUPPORTED, "columns of variable length in FITS are not read over HTTP; send CSV")
    try:
        return read_table(data, options, name=name or "the table")
    except TableError as error:
        raise _table_problem(error) from None


def _table_problem(error: TableError) -> ProblemError:
    if isinstance(error, TableQuestion):
        pointer = "/query/options/" + error.option.replace(".", "/")
        errors = [FieldError(pointer=pointer, reason="ambiguous", detail=str(error))]
        return ProblemError(INVALID, error.question, errors=errors, question=error.to_dict())
    return ProblemError(
        INVALID, str(error), errors=[FieldError(pointer="", reason="unreadable_table", detail=str(error))]
    )


def _next_group(objects: Iterator[TableObject]) -> list[LightCurve | InvalidLightCurve]:
    """Return the light curves of the next objects; empty at the end. Raises ProblemError (422)."""
    try:
        return [table_light_curve(item) for item in islice(objects, GROUP_OBJECTS)]
    except TableError as error:
        raise _table_problem(error) from None
