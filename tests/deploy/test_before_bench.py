"""Comparison with another checkout: its settings, and the ratios of several starts."""

import sys
from pathlib import Path

import pytest

from deploy.bench.before import OPTIONAL, Ratios, Usage, _ratios, environment, summary


@pytest.fixture
def nightjar(tmp_path: Path) -> Path:
    """A command that prints a table of three settings."""
    command = tmp_path / "nightjar"
    rows = "| setting |\n|---|\n| `NIGHTJAR_HOST` |\n| `NIGHTJAR_AUTOTUNE` |\n| `NIGHTJAR_NATIVE` |"
    command.write_text(f"#!{sys.executable}\nprint({rows!r})\n")
    command.chmod(0o700)
    return command


def test_environment_of_an_older_checkout_has_the_settings_that_it_knows(
    nightjar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_PORT", "1")
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    found = environment(nightjar, {"HOST": "127.0.0.1", "NATIVE": "off"})
    assert "PYTHONPATH" not in found
    assert {name: text for name, text in found.items() if name.startswith("NIGHTJAR_")} == {
        "NIGHTJAR_HOST": "127.0.0.1",
        "NIGHTJAR_NATIVE": "off",
        "NIGHTJAR_AUTOTUNE": OPTIONAL["AUTOTUNE"],
    }


def test_environment_setting_that_a_checkout_lacks_raises(nightjar: Path) -> None:
    with pytest.raises(ValueError, match="has no setting CACHE_BYTES"):
        environment(nightjar, {"HOST": "127.0.0.1", "CACHE_BYTES": "0"})


def test_ratios_of_a_faster_checkout_exceed_one() -> None:
    assert _ratios(lambda: Usage(1.0, 3.0), lambda: Usage(2.0, 4.0), rounds=3) == Ratios(2.0, 0.75)


def test_summary_has_the_median_and_range_over_starts() -> None:
    numbers = summary({"stream": [Ratios(0.9, 1.0), Ratios(1.0, 1.0), Ratios(1.2, 1.0)]})
    assert numbers["before.stream.throughput_ratio"] == {"median": 1.0, "spread": pytest.approx(0.3)}
    assert numbers["before.stream.throughput_ratio.low"] == 0.9
    assert numbers["before.stream.throughput_ratio.high"] == 1.2
