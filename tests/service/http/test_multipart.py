"""Multipart bodies: unchanged parts, or a problem."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.http.edge.errors import ProblemError
from nightjar_alerts.service.http.routes.alerts import split_parts

TYPE = "multipart/mixed; boundary=b"


def encode(parts: list[bytes]) -> bytes:
    return b"".join(b"--b\r\nContent-Type: avro/binary\r\n\r\n" + part + b"\r\n" for part in parts) + b"--b--\r\n"


@given(st.lists(st.binary(max_size=50).filter(lambda part: b"--b" not in part), min_size=1, max_size=5))
def test_split_parts_returns_the_parts_in_order(parts: list[bytes]) -> None:
    assert split_parts(encode(parts), TYPE, 5) == parts


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (encode([b"x"]), "multipart/mixed"),
        (encode([b"x"]), "multipart/mixed; boundary="),
        (encode([b"x"]), f"multipart/mixed; boundary={'b' * 71}"),
        (encode([b"x"]), "multipart/mixed; boundary=other"),
        (encode([b"x"])[:-8], TYPE),
        (b"--b--\r\n", TYPE),
        (b"", TYPE),
        (b"\0" * 1000, TYPE),
        (b"--b\r\n" + b"X: y\r\n" * 100_000 + b"\r\nx\r\n--b--\r\n", TYPE),
        (b"--b\r\nX: " + b"y" * 100_000 + b"\r\n\r\nx\r\n--b--\r\n", TYPE),
    ],
    ids=range(10),
)
def test_split_parts_malformed_body_raises(body: bytes, content_type: str) -> None:
    with pytest.raises(ProblemError) as caught:
        split_parts(body, content_type, 5)
    assert caught.value.kind.status == 400


def test_split_parts_too_many_parts_raise() -> None:
    with pytest.raises(ProblemError) as caught:
        split_parts(encode([b""] * 6), TYPE, 5)
    assert (caught.value.kind.status, caught.value.limit) == (413, 5)


@given(st.binary(max_size=300))
def test_split_parts_any_bytes_are_split_or_raise(noise: bytes) -> None:
    try:
        split_parts(noise, TYPE, 5)
    except ProblemError as error:
        if error.kind.status not in (400, 413):
            raise
