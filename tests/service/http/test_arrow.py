"""Arrow streams: all types that writers may use, compared with JSON; hostile streams are rejected."""

import struct
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nightjar_alerts.core.errors import InvalidLightCurve
from nightjar_alerts.core.request import Options
from nightjar_alerts.core.result import ExpertLayer, Experts, PhotometryWarning, Rejected, ResultFields, Subtype
from nightjar_alerts.core.schemas import fields_of
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.service.http import arrow
from nightjar_alerts.service.http.arrow import is_compressed
from nightjar_alerts.service.http.bodies import decode_rows
from nightjar_alerts.service.http.edge.errors import ProblemError
from nightjar_alerts.service.http.results import ClassifyResults
from support.bodies import Curve, built, read_json
from support.edge import curve, settings
from support.results import MODEL, classified
from support.wire import arrow_stream, arrow_table

SETTINGS = settings(max_points=100, max_curves=5)
CURVES = [
    curve(4, object_id="a", detected=[True, False, True, True], metadata={"mwebv": 0.5, "z_final": None}),
    curve(2, object_id="b", flux=[1.5, -2.5], detected=[False, True], metadata={"z_final": 0.25}),
    curve(3, object_id="c", detected=[True] * 3, metadata={}),
]
NAMED = pa.struct([("mwebv", pa.float32()), ("z_final", pa.float64())])
F4, F8 = pa.float32(), pa.float64()


def read(body: bytes) -> Sequence[Curve]:
    return built(decode_rows(arrow.read_arrow(body, SETTINGS.max_curves), SETTINGS), SETTINGS).items


def refusal(body: bytes) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        read(body)
    return caught.value


def stream(**types: Any) -> bytes:
    return arrow_stream(arrow_table(CURVES, **types))


@pytest.mark.parametrize(
    "types",
    [
        {},
        {"mjd": pa.large_list(F8), "flux": pa.large_list(F8), "flux_err": pa.list_(F8)},
        {"band": pa.large_list(pa.large_string())},
        {"band": pa.list_(pa.string_view()), "object_id": pa.string_view()},
        {"band": pa.list_(pa.dictionary(pa.int8(), pa.string())), "object_id": pa.dictionary(pa.int32(), pa.string())},
        {"metadata": NAMED},
        {"metadata": pa.list_(F4, len(METADATA_COLUMNS))},
        {"metadata": pa.large_list(F8)},
    ],
    ids=lambda types: str(list(types)),
)
def test_arrow_every_column_type_gives_the_same_light_curve(types: dict[str, Any]) -> None:
    expected = read_json({"light_curves": CURVES}, SETTINGS).items
    for ours, theirs in zip(read(stream(**types)), expected, strict=True):
        assert isinstance(ours, LightCurve)
        assert isinstance(theirs, LightCurve)
        for name in ("mjd", "flux", "flux_err", "band", "detected"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        assert (ours.object_id, ours.metadata) == (theirs.object_id, theirs.metadata)


@pytest.mark.parametrize("kind", [pa.uint8(), pa.int64(), pa.uint64()])
def test_arrow_integer_bands_and_ids_are_read(kind: Any) -> None:
    table = arrow_table([{**CURVES[2], "band": [0, 1, 5], "object_id": 2**63 - 1}], band=pa.list_(kind))
    (found,) = read(arrow_stream(table.set_column(0, "object_id", pa.array([2**63 - 1]))))
    assert isinstance(found, LightCurve)
    assert (found.band.tolist(), found.object_id) == ([0, 1, 5], "9223372036854775807")


def test_arrow_sliced_columns_are_read_from_their_offset() -> None:
    found = read(arrow_stream(arrow_table(CURVES).slice(1)))
    assert [item.object_id for item in found] == ["b", "c"]


def test_arrow_nulls_are_missing_values() -> None:
    rows: list[dict[str, Any]] = [dict(each) for each in CURVES]
    rows[0] |= {"detected": None, "metadata": None, "object_id": None}
    rows[1] |= {"flux": [1.0, None]}
    rows[2] |= {"mjd": None, "band": ["g", None, "r"]}
    first, second, third = read(arrow_stream(arrow_table(rows)))
    assert isinstance(first, LightCurve)
    assert (first.object_id, len(first.metadata), first.detected.tolist()) == ("", 0, [True] * 4)
    assert isinstance(second, InvalidLightCurve)
    assert [(error.pointer, error.reason) for error in second.errors] == [("/light_curves/1/flux/1", "not_a_number")]
    assert isinstance(third, InvalidLightCurve)
    faults = {(error.pointer, error.reason) for error in third.errors}
    assert faults == {("/light_curves/2/mjd", "missing"), ("/light_curves/2/band/1", "not_a_string")}


@pytest.mark.parametrize(
    ("changes", "types", "pointer", "reason"),
    [
        ({"flux": [1.0, np.nan, 2.0]}, {}, "/flux/1", "not_finite"),
        ({"mjd": [60_000.0, np.inf, 2.0]}, {}, "/mjd/1", "not_finite"),
        ({"flux": []}, {}, "/flux", "empty"),
        ({"flux": [1.0]}, {}, "/flux", "length_mismatch"),
        ({"flux_err": [1.0, 1.0, 0.0]}, {}, "/flux_err/2", "not_positive"),
        ({"band": ["g", "q", "r"]}, {}, "/band/1", "unknown_band"),
        ({"band": [1, 6, 0]}, {"band": pa.list_(pa.int8())}, "/band/1", "unknown_band"),
        ({"band": [1, None, 7]}, {"band": pa.list_(pa.int8())}, "/band/1", "not_a_string"),
        ({"metadata": {"mwebv": np.inf}}, {"metadata": NAMED}, "/metadata/mwebv", "not_finite"),
        ({"object_id": "x" * 201}, {}, "/object_id", "too_long"),
        ({"mjd": np.zeros(101)}, {}, "/mjd", "too_many_points"),
    ],
)
def test_arrow_invalid_row_is_rejected_alone(
    changes: dict[str, Any], types: dict[str, Any], pointer: str, reason: str
) -> None:
    good = {**CURVES[2], "metadata": {}} | ({"band": [0, 1, 2]} if types.get("band") else {})
    first, bad, last = read(arrow_stream(arrow_table([good, good | changes, good], **types)))
    assert isinstance(bad, InvalidLightCurve)
    assert (bad.errors[0].pointer, bad.errors[0].reason) == (f"/light_curves/1{pointer}", reason)
    assert isinstance(first, LightCurve)
    assert isinstance(last, LightCurve)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("mjd", pa.list_(F4)),  # a grain of minutes
        ("mjd", pa.list_view(F8)),
        ("mjd", pa.list_(pa.int64())),
        ("flux", pa.list_(pa.float16())),
        ("flux", pa.list_(pa.list_(F4))),
        ("flux", pa.list_(pa.decimal128(12, 2))),
        ("detected", pa.list_(pa.int8())),
        ("metadata", pa.struct([("mwebv", pa.string())])),
    ],
)
def test_arrow_column_of_another_type_is_a_problem(column: str, kind: Any) -> None:
    empty = pa.table({name: pa.array([], kind if name == column else None) for name in CURVES[0]})
    faults = refusal(arrow_stream(empty)).errors
    assert ("/" + column, "wrong_type") in {(fault.pointer, fault.reason) for fault in faults}


def test_arrow_unknown_or_missing_columns_are_a_problem() -> None:
    table = arrow_table(CURVES)
    for changed, fault in (
        (table.append_column("magnitude", [[1, 2, 3]]), ("/magnitude", "unknown_field")),
        (table.append_column("mag", [[1, 2, 3]]), ("/mag", "wrong_type")),
        (table.drop_columns("mjd"), ("/mjd", "missing")),
        (table.append_column("mjd", table["mjd"]), ("", "ambiguous")),
        (table.set_column(6, "metadata", pa.array([{"z": 1.0}] * 3)), ("/metadata/z", "unknown_field")),
        (table.slice(0, 0), ("/light_curves", "empty")),
    ):
        error = refusal(arrow_stream(changed))
        assert (error.kind.status, fault) == (422, (error.errors[0].pointer, error.errors[0].reason))


def test_arrow_too_many_rows_is_a_problem() -> None:
    error = refusal(arrow_stream(arrow_table(CURVES * 2)))
    assert (error.kind.status, error.limit) == (413, 5)


GOOD = stream()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_arrow_compressed_buffers_are_rejected_unread(codec: str) -> None:
    bomb = curve(1, object_id="0" * 10_000_000)
    for table in (arrow_table([bomb]), arrow_table([bomb], object_id=pa.dictionary(pa.int8(), pa.string()))):
        error = refusal(arrow_stream(table, compression=codec))
        assert (error.kind.status, error.errors[0].reason) == (422, "compressed")


def test_arrow_invalid_message_metadata_raises() -> None:
    for nonsense in (b"", b"\x01", b"\xff" * 64, struct.pack("<Ii", 4, -(2**31)) + bytes(64)):
        with pytest.raises(struct.error):
            is_compressed(nonsense)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"xx",
        b"\xff" * 64,
        GOOD[:100],
        GOOD[:-400],
        GOOD[8:],
        b"ARROW1\0\0" + GOOD,
        b"\xff\xff\xff\xff\xf0\xff\xff\x7f",
    ],
    ids=lambda body: repr(body[:8]),
)
def test_arrow_invalid_stream_is_malformed(body: bytes) -> None:
    assert refusal(body).kind.status == 400


def test_arrow_offsets_out_of_range_are_malformed() -> None:
    offsets = np.array([0, 4, 6, 9], "<i4").tobytes()
    table = arrow_table(CURVES)
    body = arrow_stream(table).replace(offsets[:12], np.array([0, 4, 2**30], "<i4").tobytes())
    assert body != arrow_stream(table)
    assert refusal(body).kind.status == 400


@given(st.data())
def test_arrow_corrupted_stream_is_read_or_a_problem(data: st.DataObject) -> None:
    body = bytearray(GOOD)
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[place] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]))
    try:
        assert read(bytes(body[: data.draw(st.integers(0, len(body)))]))
    except ProblemError as error:
        if error.kind.status not in (400, 413, 422):
            raise


CLASSIFIED = classified(
    probabilities={"x": 0.75, "y": 0.25},
    hierarchy={"all": 1.0},
    embedding=np.array([1.0, 1e30, -2.0], np.float32),
)
REJECTED = Rejected(object_id="b", reason="no", detail="nothing", errors=[])


def written(results: list[ResultFields], options: Options) -> pa.Table:
    response = ClassifyResults(MODEL, ("x", "y"), ("all",), BANDS, 3, results, options)
    return pa.ipc.open_stream(arrow.write_arrow(response)).read_all()


def test_arrow_response_has_a_column_for_every_field() -> None:
    warning = PhotometryWarning(reason="total_flux", detail="x")
    described = replace(REJECTED, filters={"F606W": "r"}, warnings=[warning])
    layers = [ExpertLayer(router_entropy=0.5, bands={"g": [2, 0]}), ExpertLayer(router_entropy=0.25, bands={})]
    subtype = Subtype(class_name="Ia", class_id=1, confidence=0.9, probabilities={"Ia": 0.9, "II": 0.1}, model=MODEL)
    found = replace(CLASSIFIED, experts=Experts(layers=layers), subtype=subtype)
    table = written([described, found], Options(embedding=True))
    assert set(table.schema.names) == {"status", *fields_of("CurveResult", "CurveFailure")} - {"model"}
    assert table["experts"].to_pylist(maps_as_pydicts="strict") == [None, Experts(layers=layers).to_dict()]
    row = table["subtype"].to_pylist(maps_as_pydicts="strict")[1]
    assert {name: row[name] for name in ("class", "probabilities")} == {
        "class": "Ia",
        "probabilities": {"Ia": 0.9, "II": 0.1},
    }
    assert row["model"]["name"] == MODEL.name


@pytest.mark.parametrize("results", [[CLASSIFIED, REJECTED], [REJECTED], [CLASSIFIED]])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_arrow_response_has_the_values_of_the_results(results: list[ResultFields], dtype: Any) -> None:
    table = written(results, Options(embedding=True, embedding_dtype=dtype))
    assert orjson.loads(table.schema.metadata[b"model"]) == MODEL.to_dict()
    assert table.schema.field("embedding").type == pa.list_(pa.from_numpy_dtype(dtype), 3)
    for row, result in zip(table.to_pylist(), results, strict=True):
        embedding = row.pop("embedding")
        assert {name: value for name, value in row.items() if value is not None} == {
            name: value for name, value in result.to_dict().items() if name != "embedding"
        }
        wanted = None if result is REJECTED else [1.0, 65504.0 if dtype == "float16" else np.float32(1e30), -2.0]
        assert embedding == wanted


LONG = "x" * 20_000


@pytest.mark.parametrize("name", ["object_id", "band", "flux_unit"])
@pytest.mark.parametrize("kind", ["dictionary", "view"])
@pytest.mark.parametrize("null", [False, True])
def test_arrow_long_shared_text_is_a_problem(name: str, kind: str, null: bool) -> None:
    """A body of 1 MB became 1 or 2 GB, as each row had its own copy."""
    texts = pa.array([LONG] * 40 + [None if null else "r"])
    shared = texts.dictionary_encode() if kind == "dictionary" else texts.cast(pa.string_view())
    rows = [curve(1, object_id="a", flux_unit="nJy") for _ in range(41)]
    table = arrow_table(rows)
    if name == "band":
        shared = pa.ListArray.from_arrays(list(range(42)), shared)
    table = table.drop_columns([name]) if name in table.column_names else table
    body = arrow_stream(table.append_column(name, shared))
    tracemalloc.start()
    try:
        with pytest.raises(ProblemError) as caught:
            arrow.read_arrow(body, 1000)
        assert tracemalloc.get_traced_memory()[1] < 700_000
    finally:
        tracemalloc.stop()
    assert [error.reason for error in caught.value.errors] == ["too_long"]


def test_arrow_dictionary_text_is_created_once() -> None:
    ids = pa.array(["a" * 200] * 2).dictionary_encode()
    table = arrow_table([curve(1) for _ in range(2)]).drop_columns(["object_id"]).append_column("object_id", ids)
    first, second = arrow.read_arrow(arrow_stream(table), 1000)
    assert first["object_id"] is second["object_id"]


def batches(tables: list[Any]) -> bytes:
    """A stream with the record batches of some tables, and the dictionary of the first of them sent once."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def with_dictionary(names: list[str]) -> Any:
    """A table of one light curve in g whose band column has a dictionary of these names; a lone surrogate is a byte."""
    texts = pa.array([name.encode(errors="surrogateescape") for name in names]).view(pa.string())
    coded = pa.DictionaryArray.from_arrays(pa.array([names.index("g")], pa.int8()), texts)
    table = arrow_table([curve(1)]).drop_columns(["band"])
    return table.append_column("band", pa.ListArray.from_arrays([0, 1], coded))


def test_arrow_too_many_empty_batches_is_a_problem() -> None:
    """A dictionary of a million names and thousands of empty batches kept a decoder busy for half an hour."""
    table = with_dictionary(["g", "r"])
    full = table.to_batches()[0]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in [full, *[full.slice(0, 0)] * SETTINGS.max_curves]:
            writer.write_batch(batch)
    error = refusal(sink.getvalue().to_pybytes())
    assert (error.kind.status, error.limit, "record batches" in str(error)) == (413, SETTINGS.max_curves, True)


def test_arrow_one_batch_per_light_curve_is_read() -> None:
    assert len(read(batches([with_dictionary(["g", "r"])] * SETTINGS.max_curves))) == SETTINGS.max_curves


def test_arrow_unused_dictionary_entries_are_not_read() -> None:
    body = batches([with_dictionary(["g", *(f"a filter that no point has, {number}" for number in range(10_000))])])
    tracemalloc.start()
    (found,) = read(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found, LightCurve)
    assert found.band.tolist() == [BANDS.index("g")]
    assert peak < 100_000  # the entries as texts have a megabyte


def test_arrow_batch_without_rows_is_not_validated() -> None:
    """A million names would be validated again with each of thousands of empty batches."""
    good, wrong = with_dictionary(["g", "r"]), with_dictionary(["g", "\udcff"])  # not UTF-8
    sinks = pa.BufferOutputStream(), pa.BufferOutputStream()
    for sink, rows in zip(sinks, (0, 1), strict=True):
        with pa.ipc.new_stream(sink, good.schema) as writer:
            writer.write_table(good)
            writer.write_batch(wrong.to_batches()[0].slice(0, rows))
    empty, full = (sink.getvalue().to_pybytes() for sink in sinks)
    assert len(read(empty)) == 1
    assert refusal(full).kind.status == 400


def test_arrow_repeated_dictionary_validation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    table = with_dictionary(["g"] + [""] * 1000)  # 4 kB, validated again with each batch
    assert len(read(batches([table] * 5))) == 5
    monkeypatch.setattr(arrow, "MAX_REREAD_BYTES", 15_000)
    assert len(read(batches([table] * 3))) == 3
    error = refusal(batches([table] * 5))
    assert (error.kind.status, error.limit) == (413, 15_000)


def test_arrow_replaced_dictionary_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "MAX_REREAD_BYTES", 5 * 6000)  # each has 4 to 5 kB
    tables = [with_dictionary(["g"] + [name] * 1000) for name in ("", "r", "i", "z", "u")]
    assert len(read(batches(tables))) == 5


def test_arrow_long_text_of_many_views_is_rejected_unread() -> None:
    """Ten thousand views of one text of 400 kB took 2.5 seconds to validate, for a body of 560 kB."""
    views = pa.array([LONG.encode() + b"\xff"], pa.binary_view())  # reading it would find that it is not UTF-8
    _, view, text = views.buffers()
    many = pa.Array.from_buffers(pa.string_view(), 1000, [None, pa.py_buffer(view.to_pybytes()[:16] * 1000), text])
    column = pa.ListArray.from_arrays([0, 1000], many)
    table = arrow_table([curve(1)]).drop_columns(["band"]).append_column("band", column)
    assert [fault.reason for fault in refusal(arrow_stream(table)).errors] == ["too_long"]


def test_arrow_text_of_many_views_is_created_once() -> None:
    """A null among the views made a text for each of them: sixteen bytes became a thousand."""
    views = pa.array(["x" * 1000] * 5000 + [None], pa.string_view())
    column = pa.ListArray.from_arrays([0, 5001], views)
    table = arrow_table([curve(1)]).drop_columns(["band"]).append_column("band", column)
    body = arrow_stream(table)
    tracemalloc.start()
    (row,) = arrow.read_arrow(body, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert row["band"] == ["x" * 1000] * 5000 + [None]
    assert peak < 500_000
