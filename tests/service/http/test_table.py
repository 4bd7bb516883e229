"""Choice of a reply's format."""

import pytest

from nightjar_alerts.service.http import formats
from nightjar_alerts.service.http.edge.errors import ProblemError
from nightjar_alerts.service.http.formats import ARROW, FORMATS, JSON, LINES, MSGPACK, body_format, reply_format

PACK, VENDOR_PACK, *_ = MSGPACK


@pytest.mark.parametrize(
    ("accept", "sent", "chosen"),
    [
        ("", JSON, JSON),
        ("*/*", JSON, JSON),
        ("*/*", PACK, PACK),
        ("application/*", ARROW, ARROW),
        ("*/*", LINES, LINES),
        ("application/json", PACK, JSON),
        ("Application/JSON ; charset=utf-8", ARROW, JSON),
        ("application/vnd.msgpack", JSON, VENDOR_PACK),
        ("application/x-ndjson", JSON, LINES),
        ("text/html, application/json;q=0.9, */*;q=0.8", PACK, JSON),
        ("application/json;q=0.5, application/msgpack", JSON, PACK),
        ("application/json;q=0, */*", JSON, PACK),
        ("application/json;q=x", PACK, JSON),
        ("application/json;version=1;q=0.1, application/msgpack;q=0.2", JSON, PACK),
        (",;,q=1,,application/msgpack", JSON, PACK),
    ],
)
def test_accepted_formats(accept: str, sent: formats.Format, chosen: formats.Format) -> None:
    assert reply_format(accept, sent) is chosen


@pytest.mark.parametrize(
    ("accept", "sent"),
    [("text/html", JSON), ("image/*", PACK), ("application/json", LINES), ("*/*;q=0", JSON), ("*", JSON)],
)
def test_formats_that_cannot_be_given(accept: str, sent: formats.Format) -> None:
    with pytest.raises(ProblemError) as caught:
        reply_format(accept, sent)
    assert caught.value.kind.status == 406
    assert sent.media_type in caught.value.detail


def test_a_body_without_a_type_is_json() -> None:
    assert body_format("") is JSON
    assert {body_format(name) for name in FORMATS} == set(FORMATS.values())


def test_arrow_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "available", formats.available.__wrapped__)  # which looks every time
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(ProblemError) as caught:
        body_format(ARROW.media_type)
    assert (caught.value.kind.status, "nightjar-alerts[arrow]" in caught.value.detail) == (415, True)
    with pytest.raises(ProblemError) as caught:
        reply_format(ARROW.media_type, JSON)
    assert caught.value.kind.status == 406
    assert reply_format("*/*", PACK) is PACK
