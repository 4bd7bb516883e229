"""Names and versions of models."""

import pytest

from nightjar_alerts.models.bundle import version_key
from nightjar_alerts.service.registry.names import Reference


@pytest.mark.parametrize("text", ["mine", "mine@1.2.3", "a-1@10.0.20"])
def test_reference_parse_returns_name_and_version(text: str) -> None:
    assert str(Reference.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Mine",
        "mine@",
        "mine@1.2",
        "mine@1.2.3.4",
        "mine@1.2.3\n",
        "mine@latest",
        "../mine",
        "mine@１.2.3",
        "a" * 101,
    ],
)
def test_reference_parse_invalid_name_raises(text: str) -> None:
    with pytest.raises(ValueError, match="named as"):
        Reference.parse(text)


def test_versions_are_numbers() -> None:
    assert sorted(["1.10.0", "1.9.9", "0.20.1", "1.9.10"], key=version_key) == ["0.20.1", "1.9.9", "1.9.10", "1.10.0"]
