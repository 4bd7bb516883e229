"""Sections of the model card on calibration, prediction sets and novelty."""

from pathlib import Path
from typing import Any

from nightjar_alerts.models.bundle import Calibration, Manifest, load_bundle
from nightjar_alerts.training.export.card import confidence_sections

SCORES = {"rows": 90.0, "log_loss": 1.0, "ece": 0.0123, "ece_by_chance": 0.0111}


def with_numbers(manifest: Manifest, groups: tuple[str, ...]) -> Manifest:
    before = {name: {**SCORES, "ece": 0.0456} for name in groups}
    fit: dict[str, Any] = {"objects": 30, "before": before, "after": dict.fromkeys(groups, SCORES)}
    return manifest.model_copy(update={"metrics": {"calibration": fit}})


def test_a_bundle_of_one_temperature_and_nothing_else_has_one_section(confident_bundle: Path) -> None:
    bare = {
        "calibration": Calibration(method="temperature", temperature=0.987),
        "novelty": None,
        "prediction_sets": None,
    }
    manifest = load_bundle(confident_bundle).manifest.model_copy(update=bare)
    (section,) = confidence_sections(with_numbers(manifest, ("all", "3")))
    assert "One temperature, 0.987." in section
    assert "| 3 or more | 90 | 0.0456 | 0.0123 | 0.0111 |" in section


def test_card_has_calibration_sets_and_novelty(confident_bundle: Path) -> None:
    manifest = with_numbers(load_bundle(confident_bundle).manifest, ("all", "0", "2", "3", "5"))
    calibration, sets, novelty = confidence_sections(manifest)
    assert "exp((0.4000) + (-0.2000) ln n); the best single one is 1.100." in calibration
    for name in ("all", "0 to 1", "2", "3 to 4", "5 or more"):
        assert f"| {name} | 90 | 0.0456 | 0.0123 | 0.0111 |" in calibration
    assert "| 0 to 4 | 0.9000 | 0.9900 |\n| 5 or more | 0.8000 | 0.9700 |" in sets
    assert "(90 % unless" in sets
    assert manifest.novelty is not None
    assert f"Beyond 0.99 lie\n{100 * manifest.novelty.false_alarm_rate:.1f} % of these views" in novelty
    assert max(map(len, "\n".join((calibration, sets, novelty)).splitlines())) <= 120


def test_an_uncalibrated_network_says_so(tiny_bundle: Path) -> None:
    assert confidence_sections(load_bundle(tiny_bundle).manifest) == [
        "## Calibration\n\nNone: the probabilities are the network's own."
    ]
