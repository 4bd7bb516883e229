"""msgpack: columns as bytes or lists, compared with JSON; hostile bytes are rejected cheaply."""

import time
from collections.abc import Sequence
from itertools import islice, product
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.core.errors import InvalidLightCurve
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.service.http.edge.errors import ProblemError
from support.bodies import Curve, read_msgpack
from support.edge import curve, settings
from support.wire import msgpack_body, packed

SETTINGS = settings(max_points=100, max_curves=5)
FULL = curve(4, detected=[True, False, True, True], metadata={"mwebv": 0.5, "z_final": None})


def read(body: bytes) -> Sequence[Curve]:
    return read_msgpack(body, SETTINGS).items


def one(**changes: Any) -> LightCurve | InvalidLightCurve:
    """Put the light curve in the middle of three."""
    _, found, _ = read(msgpack_body([packed(FULL), packed(FULL) | changes, packed(FULL)]))
    return found


def assert_same(ours: object, theirs: object) -> None:
    assert isinstance(ours, LightCurve)
    assert isinstance(theirs, LightCurve)
    for name in ("mjd", "flux", "flux_err", "band", "detected"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert (ours.object_id, ours.metadata) == (theirs.object_id, theirs.metadata)


def test_msgpack_band_names_beside_bytes_are_read() -> None:
    assert_same(one(band=FULL["band"], detected=FULL["detected"], metadata={"mwebv": 0.5}), one())


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"mjd": b"1234567"}, "/mjd", "partial_value"),
    ({"flux": b"123"}, "/flux", "partial_value"),
    ({"flux": b""}, "/flux", "empty"),
    ({"flux": b"1234"}, "/flux", "length_mismatch"),
    ({"mjd": np.array([60_000, np.nan, 60_002, 60_003]).tobytes()}, "/mjd/1", "not_finite"),
    ({"flux": np.array([1, 2, np.inf, 3], "<f4").tobytes()}, "/flux/2", "not_finite"),
    ({"flux": np.arange(4.0).tobytes()}, "/flux", "length_mismatch"),
    ({"flux_err": np.array([1, 2, 3, -1], "<f4").tobytes()}, "/flux_err/3", "not_positive"),
    ({"band": bytes([0, 1, 6, 2])}, "/band/2", "unknown_band"),
    ({"band": b"gr"}, "/band/0", "unknown_band"),
    ({"detected": bytes([0, 1, 2, 0])}, "/detected/2", "not_a_boolean"),
    ({"detected": b"\x01"}, "/detected", "length_mismatch"),
    ({"metadata": b"1234" * 63}, "/metadata", "wrong_length"),
    ({"metadata": b"12345"}, "/metadata", "partial_value"),
    ({"metadata": np.full(64, np.inf, "<f4").tobytes()}, f"/metadata/{METADATA_COLUMNS[0]}", "not_finite"),
    ({"mjd": bytes(8 * 101)}, "/mjd", "too_many_points"),
    ({"object_id": b"abcd"}, "/object_id", "not_a_string"),
    ({"object_id": msgspec.msgpack.Ext(5, b"x")}, "/object_id", "not_a_string"),
    ({"flux": [1.0, msgspec.msgpack.Ext(5, b"x"), 2.0, 3.0]}, "/flux/1", "not_a_number"),
    ({"flux": [1.0, float("nan"), 2.0, 3.0]}, "/flux/1", "not_finite"),
    ({"flux_unit": b"nJy"}, "/flux_unit", "not_one_of"),
    ({"a/b": 1}, "/a~1b", "unknown_field"),
]


@pytest.mark.parametrize(("changes", "pointer", "reason"), BAD)
def test_msgpack_invalid_light_curve_is_rejected_alone(changes: dict[str, Any], pointer: str, reason: str) -> None:
    found = one(**changes)
    assert isinstance(found, InvalidLightCurve)
    assert (found.errors[0].pointer, found.errors[0].reason) == (f"/light_curves/1{pointer}", reason)
    assert found.object_id == ("" if "object_id" in changes else FULL["object_id"])


def test_msgpack_keys_that_are_no_text_are_malformed() -> None:
    for key in (b"\x07", b"\xc0", b"\xc4\x01a", b"\x91\x01"):
        with pytest.raises(ProblemError) as caught:
            read(b"\x81" + key + b"\x01")
        assert caught.value.kind.status == 400


GOOD = msgpack_body([packed(FULL)])
HOSTILE = {
    "nothing": b"",
    "cut short": GOOD[:-3],
    "more than one document": GOOD + GOOD,
    "4 GiB of list": b"\xdd\xff\xff\xff\xff",
    "4 GiB of map": b"\xdf\xff\xff\xff\xff",
    "4 GiB of bytes": b"\xc6\xff\xff\xff\xff",
    "4 GiB of text": b"\xdb\xff\xff\xff\xff",
    "a bomb of lists": b"\x91" * 1_000_000,
    "a bomb of maps": b"\x81\xa1a" * 1_000_000,
    "a bomb of big lists": b"\xdc\xff\xff" * 10_000,
    "invalid UTF-8": b"\x81\xa1\xff\x01",
    "a reserved byte": b"\xc1",
    "a map as a key": b"\x81\x81\x01\x01\x01",
    "a time that is none": b"\xd7\xff" + b"\xff" * 8,
    "JSON": b'{"light_curves": []}',
    "many empty lists": b"\xdd" + (1 << 20).to_bytes(4, "big") + b"\x90" * (1 << 20),
    "many empty maps as light curves": b"\x81\xaclight_curves\xdd" + (1 << 20).to_bytes(4, "big") + b"\x80" * (1 << 20),
    "many short bytes": b"\x81\xa4flux\xdd" + (1 << 20).to_bytes(4, "big") + b"\xc4\0" * (1 << 20),
    "many names": b"\xdf" + (1 << 20).to_bytes(4, "big") + b"\xa1a\xc0" * (1 << 20),
    "lists as names": b"\x81\xa4flux\xdc\4\0" + b"\x81\x92\1\2\xc0" * 1024,
    "a long list as a name": b"\x81\xa4flux\x81\xdc\x20\0" + b"\1" * 8192 + b"\xc0",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_msgpack_hostile_bytes_are_problems(name: str) -> None:
    with pytest.raises(ProblemError) as caught:
        read(HOSTILE[name])
    assert caught.value.kind.status in (400, 413, 422)


def test_msgpack_colliding_keys_take_the_time_of_others() -> None:
    """Quadratic time with the GIL held: 272 kB took 3 s, and 8 MB would take an hour; others took 2 ms."""

    def seconds(names: list[bytes]) -> float:
        body = b"\x81\xa4flux\xdf" + len(names).to_bytes(4, "big") + b"".join(name + b"\xc0" for name in names)
        started = time.thread_time()
        with pytest.raises(ProblemError):
            read(body)
        return time.thread_time() - started

    colliding = [b"\x9f" + bytes(name) for name in islice(product(b"\xff\xfe", repeat=15), 16_000)]
    assert seconds(colliding) < 100 * seconds([b"\xaf%015d" % number for number in range(16_000)])


def test_msgpack_invalid_light_curve_in_a_large_body_is_rejected_alone() -> None:
    long = curve(90, object_id="x" * 150)
    bands = [f"{band}{' ' * 40}" for band in long["band"]]
    others = {
        "flux": [1.0, b"", "text" * 20, [[]], {"a": {}}],
        "band": bands,
        "survey": True,
        "mjd": [2**63, -(2**63), -1],
    }
    bad = {"object_id": msgspec.msgpack.Ext(5, b"x"), "metadata": {"mwebv": "x" * 300, "a": [0.5] * 70_000}} | others
    before, found, after = read(msgpack_body([long, bad, packed(long)]))
    assert isinstance(found, InvalidLightCurve)
    assert_same(before, after)


@given(st.data())
def test_msgpack_corrupted_body_is_read_or_a_problem(data: st.DataObject) -> None:
    body = bytearray(GOOD)
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[place] = data.draw(st.integers(0, 255))
    try:
        assert read(bytes(body[: data.draw(st.integers(0, len(body)))]))
    except ProblemError as error:
        if error.kind.status not in (400, 413, 422):
            raise
