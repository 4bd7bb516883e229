"""The comparison of exact recordings: what it sees, and what it forgives on another machine."""

from pathlib import Path

import pytest

from support.contract import exact
from support.contract.exact import exact_differences, write

BODY = b'{"class":"Ia","p":{"Ia":0.75000001,"II":0.25}}'
CHANGES = {
    "digit": BODY.replace(b"0.75000001", b"0.75000002"),
    "number": BODY.replace(b"0.75000001", b"0.751"),
    "order": b'{"p":{"Ia":0.75000001,"II":0.25},"class":"Ia"}',
    "space": BODY.replace(b":", b": "),
    "text": BODY.replace(b'"class":"Ia"', b'"class":"II"'),
    "notation": BODY.replace(b"0.25", b'"0.25"'),
}


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "FOLDER", tmp_path)
    write("part", {"case": exact.exact([b"200 OK"], BODY)})


def _differences(body: bytes, head: tuple[bytes, ...] = (b"200 OK",)) -> list[str]:
    return exact_differences("part", {"case": exact.exact(head, body)})


@pytest.mark.parametrize("body", CHANGES.values(), ids=CHANGES)
def test_exact_differences_changed_body_is_shown(body: bytes) -> None:
    assert any(line.startswith("+") for line in _differences(body))


@pytest.mark.parametrize("change", CHANGES)
def test_exact_differences_on_another_machine_only_last_digits_may_differ(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "machine", lambda: "another")
    assert (_differences(CHANGES[change]) == []) == (change == "digit")


def test_exact_differences_new_header_is_shown() -> None:
    assert "+etag: x" in _differences(BODY, (b"200 OK", b"etag: x"))


def test_exact_differences_missing_and_new_cases_are_named() -> None:
    found = exact_differences("part", {"other": exact.exact([], BODY)})
    assert found[-1] == "cases that differ: case, other"


def test_exact_varying_texts_are_masked() -> None:
    body = b'{"request_id":"%s","at":"2026-11-28T17:00:00.5Z","load_seconds":0.25}'
    first, second = (exact.exact([b"Date: now"], body % (digit * 32)) for digit in (b"0", b"a"))
    assert first == second
    assert '"at":"<date>T<time>Z"' in first


def test_exact_lines_joined_are_the_bytes() -> None:
    lines = exact.exact([], BODY + b"\n[]\n").splitlines()[1:]
    assert "".join(f"\n{line[1:]}" if line[0] == "|" else line[1:] for line in lines)[1:].encode() == BODY + b"\n[]\n"


def test_exact_bytes_that_are_no_text_are_escaped() -> None:
    assert exact.exact([], b"\x81\xa1a\xcb\n") == "\n*\\x81\\xa1a\\xcb\\n\n"
