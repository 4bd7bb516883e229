"""``POST /v1/tables`` over a real socket."""

import gzip
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.tables import TableObject
from support.edge import Live, Network, live, loader

CSV = {"Content-Type": "text/csv"}


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    with live(loader(Network()), max_json_bytes=1_000_000) as edge:
        yield edge


def rows(objects: int, points: int = 6) -> list[tuple[str, float, str, float, float]]:
    return [
        (f"o{index}", 60_000.0 + 3.1 * point, "gr"[point % 2], 20.0 - 0.1 * point, 0.05)
        for index in range(objects)
        for point in range(points)
    ]


def table(objects: int, header: str = "name,mjd,filter,mag,mag_err") -> bytes:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows(objects))]).encode()


def post(edge: Live, body: bytes, headers: dict[str, str] | None = None, **query: Any) -> tuple[int, list[Any]]:
    text = {name: value if isinstance(value, str) else json.dumps(value) for name, value in query.items()}
    status, _, reply = edge.ask("POST", f"/v1/tables?{urlencode(text)}", body, headers or CSV)
    return status, [json.loads(line) for line in reply.splitlines()]


def test_tables_with_a_csv_returns_guesses_results_and_a_summary(edge: Live) -> None:
    status, (head, *results, end) = post(edge, table(150), light_curve=True)
    assert status == 200
    assert head["table"]["columns"]["time"] == "mjd"
    assert all({"option", "value", "text"} == set(guess) for guess in head["table"]["guesses"])
    assert [result["object_id"] for result in results] == [f"o{index}" for index in range(150)]
    assert {result["status"] for result in results} == {"classified"}
    assert end["summary"]["objects"] == 150
    again, _, text = edge.ask(
        "POST", "/v1/classify", json.dumps(results[0]["light_curve"]).encode(), {"Content-Type": "application/json"}
    )
    assert again == 200
    (same,) = json.loads(text)["results"]
    assert same["probabilities"] == pytest.approx(results[0]["probabilities"], abs=2e-5)


def test_tables_with_an_unusable_object_reject_it_alone(edge: Live) -> None:
    body = table(2) + b"\nlost,60001.0,g,,\n"
    status, (_, *results, _) = post(edge, body)
    assert status == 200
    assert [(result["object_id"], result["status"]) for result in results] == [
        ("o0", "classified"),
        ("o1", "classified"),
        ("lost", "rejected"),
    ]
    assert results[2]["errors"][0]["reason"] == "no_usable_points"


def test_tables_that_are_ambiguous_are_answered_with_the_question_and_its_answer_is_used(edge: Live) -> None:
    body = table(2, "name,mjd,filter,flux,flux_err")
    status, (problem,) = post(edge, body)
    assert status == 422
    question = problem["question"]
    assert question["question"] == problem["detail"]
    assert problem["errors"][0]["reason"] == "ambiguous"
    assert (question["option"], question["choices"][0]["value"]) == ("flux_unit", "uJy")
    status, (_, *results, _) = post(edge, body, options={"flux_unit": "uJy"})
    assert status == 200, results
    assert [result["status"] for result in results] == ["classified"] * 2


def test_tables_without_errors_ask_for_one_whose_answer_may_be_text(edge: Live) -> None:
    body = b"\n".join(line.rpartition(b",")[0] for line in table(1).splitlines())
    status, (problem,) = post(edge, body)
    assert (status, problem["question"]["option"]) == (422, "mag_err")
    status, (_, *results, _) = post(edge, body, options={"mag_err": "0.1"})
    assert status == 200, results
    assert [result["status"] for result in results] == ["classified"]


@pytest.mark.parametrize(
    ("body", "headers", "query", "expected"),
    [
        (b"", CSV, {}, (400, None)),
        (b"hello", CSV, {}, (422, "")),
        (table(1), CSV, {"options": "nonsense"}, (422, "/query/options")),
        (table(1), CSV, {"options": []}, (422, "/query/options")),
        (table(1), CSV, {"options": {"colour": "g"}}, (422, "/query/options")),
        (table(1), CSV, {"options": {"time_format": "stardate"}}, (422, "/query/options")),
        (table(1), CSV, {"prior": "nobody"}, (422, "/query/prior")),
        (table(1), CSV, {"shape": "long"}, (422, "/query/shape")),
        (gzip.compress(table(1)), CSV, {"name": "t.csv.gz"}, (415, None)),
        (b"x" * 1_000_001, CSV, {}, (413, None)),
    ],
)
def test_tables_with_an_invalid_request_are_a_problem(
    edge: Live, body: bytes, headers: dict[str, str], query: dict[str, Any], expected: tuple[int, str | None]
) -> None:
    status, (problem,) = post(edge, body, headers, **query)
    pointer = problem["errors"][0]["pointer"] if problem["errors"] else None
    assert (status, pointer) == expected, problem


def test_tables_compressed_with_a_content_coding_are_read(edge: Live) -> None:
    status, lines = post(edge, gzip.compress(table(1)), {**CSV, "Content-Encoding": "gzip"})
    assert (status, len(lines)) == (200, 3)


@pytest.mark.parametrize(
    "body",
    [
        table(1) + b"a,1,g,2,3\n" * 60_000,
        table(1).replace(b"\n", b"\r") + b"a,1,g,2,3\r" * 60_000,
        b'{"mjd":[' + b"1," * 130_000 + b"1]}",
        b"x," * 2000 + b"\n" + (b"1," * 2000 + b"\n") * 2,
        b"mjd,mag\n" + b"1" * 900_000 + b",1\n",
        json.dumps([{f"k{row}": 1} for row in range(50_000)]).encode(),
    ],
    ids=["lines", "lines of an old Mac", "values", "columns", "line", "keys"],
)
def test_tables_beyond_a_bound_are_refused_before_they_are_read(edge: Live, body: bytes) -> None:
    status, (problem,) = post(edge, body)
    assert status in (413, 422), problem


def test_tables_with_a_line_of_more_than_a_mebibyte_are_too_large() -> None:
    header = b"name,mjd,filter,mag,mag_err,note\n"
    with live(loader(Network())) as edge:
        for size, expected in ((1_000_000, 200), (1_100_000, 413)):
            body = header + b"a,60000,g,20,0.1,\nb,60000,g,20,0.1," + b"x" * size + b"\n"
            assert post(edge, body)[0] == expected


BINARY = {
    "FITS": b"SIMPLE  =                    T" + b" " * 50,
    "VOTable": b'<?xml version="1.0"?>\n<!-- t --><VOTABLE version="1.3"><RESOURCE/></VOTABLE>',
    "VOTable without a declaration": b"<VOTABLE><RESOURCE/></VOTABLE>",
    "VOTable with a prefix": b'\n <?xml version="1.0"?><v:VOTABLE xmlns:v="x"/>',
    "ECSV": b"# %ECSV 1.0\n# ---\n" + table(1),
    "ECSV behind a byte order mark": b"\xef\xbb\xbf\n# %ECSV 1.0\n" + table(1),
    "IPAC": b"\\catalog = x\n|name|mjd  |filter|mag |mag_err|\n  a    60000 g     19.0 0.1\n",
    "Parquet": b"PAR1" + bytes(100),
    "Arrow": b"ARROW1\x00\x00" + bytes(100),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "NumPy": b"\x93NUMPY\x01\x00" + bytes(100),
    "gzip": gzip.compress(table(1)),
    "bzip2": b"BZh91AY&SY" + bytes(100),
    "xz": b"\xfd7zXZ\x00" + bytes(100),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(100),
    "zip": b"PK\x03\x04\x14\x00" + bytes(100),
    "workbook": b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml" + bytes(100),
    "web page": b"<!DOCTYPE html><html><body>404</body></html>",
    "binary file": bytes(range(256)) * 4,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("media_type", ["text/csv", "application/octet-stream", "text/plain"])
def test_tables_in_other_formats_are_unsupported_and_name_the_command(edge: Live, name: str, media_type: str) -> None:
    status, (problem,) = post(edge, BINARY[name], {"Content-Type": media_type})
    assert (status, problem["type"]) == (415, "/problems/unsupported-media-type")
    assert "`nightjar classify FILE --url URL`" in problem["detail"]


def test_tables_with_the_name_of_another_format_are_unsupported(edge: Live) -> None:
    status, (problem,) = post(edge, table(1), name="t.ecsv")
    assert (status, "`nightjar classify FILE --url URL`" in problem["detail"]) == (415, True)


@pytest.mark.parametrize("query", [{"name": "t.fits"}, {"options": {"format": "votable"}}])
def test_tables_whose_content_is_not_of_the_stated_format_are_unreadable(edge: Live, query: dict[str, Any]) -> None:
    status, (problem,) = post(edge, table(1), **query)
    assert (status, problem["errors"][0]["reason"]) == (422, "unreadable_table")


@pytest.mark.parametrize("media_type", ["multipart/form-data; boundary=b", "Multipart/Form-Data", "text/csv"])
def test_tables_in_a_form_are_unsupported_and_name_the_option_of_curl(edge: Live, media_type: str) -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="t.csv"\r\n\r\n'
    status, (problem,) = post(edge, head + table(1) + b"\r\n--b--\r\n", {"Content-Type": media_type})
    assert status == 415
    assert "curl --data-binary @FILE" in problem["detail"]


def test_tables_in_utf16_are_read(edge: Live) -> None:
    status, lines = post(edge, table(1).decode().encode("utf-16"))
    assert (status, len(lines)) == (200, 3)


INVALID_IDS = {"half of a pair": '"\\ud800"', "too long": json.dumps("x" * 300)}


@pytest.mark.parametrize("name", INVALID_IDS)
@pytest.mark.parametrize("lines", [True, False])
def test_tables_with_an_invalid_id_reject_it_alone(edge: Live, name: str, lines: bool) -> None:
    ids = ['"a"', INVALID_IDS[name], '"b"']
    points = [
        f'{{"name":{text},"mjd":{60_000 + day},"filter":"g","mag":19.5,"mag_err":0.1}}'
        for text in ids
        for day in range(5)
    ]
    body = "\n".join(points) if lines else f"[{','.join(points)}]"
    status, (_, first, bad, last, end) = post(edge, body.encode(), {"Content-Type": "application/json"})
    assert (status, first["status"], bad["status"], last["status"]) == (200, "classified", "rejected", "classified")
    assert bad["errors"][0]["pointer"] == "/object_id"
    assert end["summary"]["objects"] == 3


def test_tables_with_half_of_a_pair_in_the_name_of_a_filter_count_it(edge: Live) -> None:
    row = '{"name":"a","mjd":%d,"filter":"%s","mag":19.5,"mag_err":0.1}'
    rows = [row % (60_000 + day, "\\udfff" if day == 3 else "g") for day in range(9)]
    status, (_, result, end) = post(edge, f"[{','.join(rows)}]".encode())
    assert (status, result["status"]) == (200, "classified")
    assert end["summary"]["unknown_filters"] == {"\\udfff": 1}


def test_tables_with_infinite_positions_are_read(edge: Live) -> None:
    row = '{"mjd":%d,"filter":"g","mag":19,"mag_err":0.1,"dec":-1e999}'
    status, lines = post(edge, f"[{','.join(row % day for day in range(60_000, 60_009))}]".encode())
    assert (status, lines[-1]["summary"]["points"]) == (200, 9)


def test_tables_with_a_date_outside_the_calendar_ask_about_it(edge: Live) -> None:
    row = '{"name":"a","time":"0001-01-01T00:00:00+14:00","filter":"g","mag":19,"mag_err":0.1}'
    status, (problem,) = post(edge, f"[{row}]".encode())
    assert (status, problem["errors"][0]["pointer"]) == (422, "/query/options/columns/time")


@pytest.mark.parametrize("values", ['"mjd":1e999,"flux":NaN', '"mjd":60000,"flux":1,"filter":"%s"' % ("1" * 5000)])
def test_tables_with_infinite_or_long_numbers_ask_about_them(edge: Live, values: str) -> None:
    status, (problem,) = post(edge, f'[{{"name":"a","mag_err":0.1,{values}}}]'.encode())
    assert (status, problem["errors"][0]["reason"]) == (422, "ambiguous")


def test_tables_with_an_object_that_fails_report_it_alone(edge: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    light_curve = TableObject.light_curve

    def fail(self: TableObject) -> LightCurve:
        if self.object_id == "o1":
            raise ZeroDivisionError
        return light_curve(self)

    monkeypatch.setattr(TableObject, "light_curve", fail)
    status, (_, *results, end) = post(edge, table(3))
    assert status == 200
    assert [result["status"] for result in results] == ["classified", "failed", "classified"]
    assert (results[1]["reason"], end["summary"]["objects"]) == ("internal_error", 3)


def test_tables_with_too_many_points_of_an_object_reject_it_alone() -> None:
    with live(loader(Network()), max_points=10) as edge:
        body = table(2) + b"".join(b"\no0,%d,g,20,0.1" % (60_100 + day) for day in range(9))
        _, (_, *results, _) = post(edge, body)
    assert [result.get("reason") for result in results] == ["too_many_points", None]


@pytest.mark.parametrize("depth", [900, 1010, 30_000])
@pytest.mark.parametrize("text", ['[{"mjd":1,"flux":%s}]', '{"mjd":1,"flux":%s}', "%s", '[{"mjd":NaN,"flux":%s}]'])
def test_tables_that_are_nested_deeply_are_unreadable(edge: Live, text: str, depth: int) -> None:
    for nested in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        status, (problem,) = post(edge, (text % nested).encode())
        assert (status, problem["errors"][0]["reason"]) in ((422, "unreadable_table"), (422, "ambiguous"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *((path, "prior") for path in ("/v1/tables", "/v1/classify", "/v1/alerts", "/v1/evolution")),
        ("/v1/tables", "options"),
    ],
)
def test_query_that_is_nested_deeply_is_invalid(edge: Live, path: str, name: str) -> None:
    deep = '{"columns":{"a":' + "[" * 3000 + "]" * 3000 + "}}"
    status, _, reply = edge.ask("POST", f"{path}?{urlencode({name: deep})}", table(1), CSV)
    assert (status, json.loads(reply)["errors"][0]["pointer"]) == (422, f"/query/{name}")
