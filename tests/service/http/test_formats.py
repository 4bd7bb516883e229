"""Content negotiation: the format of a response by the Accept header and the format of the request."""

import pytest

from nightjar_alerts.service.http import formats
from nightjar_alerts.service.http.edge.errors import ProblemError
from nightjar_alerts.service.http.formats import (
    ARROW_TYPE,
    CLASSIFY_TYPES,
    JSON_TYPE,
    MSGPACK_TYPES,
    NDJSON_TYPE,
    NDJSON_TYPES,
    get_request_format,
    negotiate_response,
)

MSGPACK, VENDOR_MSGPACK, *_ = MSGPACK_TYPES


@pytest.mark.parametrize(
    ("accept", "sent", "expected"),
    [
        ("", JSON_TYPE, JSON_TYPE),
        ("", "", JSON_TYPE),
        ("*/*", JSON_TYPE, JSON_TYPE),
        ("*/*", MSGPACK, MSGPACK),
        ("application/*", ARROW_TYPE, ARROW_TYPE),
        ("*/*", NDJSON_TYPE, NDJSON_TYPE),
        ("", "application/jsonl", NDJSON_TYPE),
        ("application/json", MSGPACK, JSON_TYPE),
        ("Application/JSON ; charset=utf-8", ARROW_TYPE, JSON_TYPE),
        ("application/vnd.msgpack", JSON_TYPE, VENDOR_MSGPACK),
        ("application/x-ndjson", JSON_TYPE, NDJSON_TYPE),
        ("text/html, application/json;q=0.9, */*;q=0.8", MSGPACK, JSON_TYPE),
        ("application/json;q=0.5, application/msgpack", JSON_TYPE, MSGPACK),
        ("application/json;q=0, */*", JSON_TYPE, MSGPACK),
        ("application/json;q=x", MSGPACK, JSON_TYPE),
        ("application/json;version=1;q=0.1, application/msgpack;q=0.2", JSON_TYPE, MSGPACK),
        (",;,q=1,,application/msgpack", JSON_TYPE, MSGPACK),
    ],
)
def test_negotiate_response_supported_accept_selects_format(accept: str, sent: str, expected: str) -> None:
    assert negotiate_response(accept, sent).media_type == expected


@pytest.mark.parametrize(
    ("accept", "sent"),
    [
        ("text/html", JSON_TYPE),
        ("image/*", MSGPACK),
        ("application/json", NDJSON_TYPE),
        ("*/*;q=0", JSON_TYPE),
        ("*", JSON_TYPE),
    ],
)
def test_negotiate_response_unsupported_accept_raises_406(accept: str, sent: str) -> None:
    with pytest.raises(ProblemError) as caught:
        negotiate_response(accept, sent)
    assert caught.value.kind.status == 406
    assert sent in caught.value.detail


def test_get_request_format_without_content_type_returns_json() -> None:
    assert get_request_format("") is get_request_format(JSON_TYPE)
    assert all(get_request_format(name) for name in CLASSIFY_TYPES if name not in NDJSON_TYPES)


def test_get_request_format_arrow_not_installed_raises_415(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "is_available", formats.is_available.__wrapped__)  # without its cache
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(ProblemError) as caught:
        get_request_format(ARROW_TYPE)
    assert (caught.value.kind.status, "nightjar-alerts[arrow]" in caught.value.detail) == (415, True)
    with pytest.raises(ProblemError) as caught:
        negotiate_response(ARROW_TYPE, JSON_TYPE)
    assert caught.value.kind.status == 406
    assert negotiate_response("*/*", MSGPACK).media_type == MSGPACK
