"""``POST /v1/tables`` over a real socket."""

import gzip
import io
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

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


def test_tables_in_fits_are_read_unless_a_column_has_a_variable_length(edge: Live) -> None:
    pytest.importorskip("astropy", reason="astropy is missing: pip install 'nightjar-alerts[tables]'")
    from astropy.io import fits
    from astropy.table import Table

    stream = io.BytesIO()
    Table(rows=rows(3), names=("name", "mjd", "filter", "mag", "mag_err")).write(stream, format="fits")
    octets = {"Content-Type": "application/octet-stream"}
    status, (_, *results, _) = post(edge, stream.getvalue(), octets)
    assert (status, [result["object_id"] for result in results]) == (200, ["o0", "o1", "o2"])
    column = fits.Column("mjd", "PD()", array=np.array([np.arange(3.0)], dtype=object))
    stream = io.BytesIO()
    fits.HDUList([fits.PrimaryHDU(), fits.BinTableHDU.from_columns([column])]).writeto(stream)
    assert post(edge, stream.getvalue(), octets)[0] == 415


def test_tables_in_parquet_are_not_read(edge: Live) -> None:
    status, (problem,) = post(edge, b"PAR1" + bytes(100), {"Content-Type": "application/octet-stream"})
    assert (status, problem["detail"]) == (
        415,
        "Parquet is not read over HTTP; use nightjar classify --url, or send CSV",
    )
