"""Names that anybody may have chosen."""

import pytest

from nightjar_alerts.names import file_key, file_name, printable, spreadsheet_text


@pytest.mark.parametrize("text", ["SN 2026a", "Äußerer Stern", "超新星", "a\\b"])
def test_printable_ordinary_name_is_unchanged(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b]0;title\x07", "a\\x1b]0;title\\x07"),
        ("a\r\nb\t\x7f", "a\\r\\nb\\t\\x7f"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202eb\u2066\u200f", "a\\u202eb\\u2066\\u200f"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_printable_controls_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("text", ["\uff1d1+1", "=HYPERLINK(1)", "+1+1", "-x", "@SUM(1)", "\tx", "\rx"])
def test_spreadsheet_text_that_is_a_formula_gets_an_apostrophe(text: str) -> None:
    assert spreadsheet_text(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-1.5", "+2e3", "SN=1", ""])
def test_spreadsheet_text_that_is_no_formula_is_unchanged(text: str) -> None:
    assert spreadsheet_text(text) == text


def names_of(ids: list[str]) -> list[str]:
    taken: dict[str, str] = {}
    for text in ids:
        taken[file_key(file_name(text, taken))] = text
    return list(taken)


def test_file_name_ordinary_id_is_kept_and_repeated_one_is_numbered() -> None:
    assert names_of(["ZTF18abc", "ZTF18abc", "a b"]) == ["ztf18abc", "ztf18abc_2", "a_b"]


def test_file_name_of_two_objects_is_never_shared() -> None:
    ids = [
        "a/b",
        "a:b",
        "A/B",
        "é",
        "e\u0301",
        "x" * 500,
        "x" * 501,
        "a_b_2",
        "..",
        "",
        "a_b",
        "a_b",
        "\ud800",
        "\ud801",
    ]
    assert len(set(names_of(ids))) == len(ids)


@pytest.mark.parametrize(
    "text", ["-rf", "../../etc/passwd", ".hidden", "CON", "nul.txt", "星" * 100, "a\x00b", "\\\\x", "C:x"]
)
def test_file_name_is_short_and_plain(text: str) -> None:
    name = file_name(text, {})
    assert len(f"{name}_12.svg".encode()) < 200
    assert name[0] not in "-."
    assert not set(name) & set('/\\:\x00<>|?*"')
    assert name.partition(".")[0].lower() not in ("con", "nul")
