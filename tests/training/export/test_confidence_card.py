"""Sections of the model card on calibration, prediction sets and novelty."""

from pathlib import Path
from typing import Any

from nightjar_alerts.models.bundle import Calibration, Manifest, load_bundle
from nightjar_alerts.training.export.card import card

SCORES = {"rows": 90.0, "log_loss": 1.0, "ece": 0.0123, "ece_by_chance": 0.0111}


def section(manifest: Manifest, title: str) -> str:
    """Return one section of a card; empty if it has none of this title."""
    text = card(manifest)
    _, found, rest = text.partition(f"## {title}\n")
    return rest.partition("\n## ")[0] if found else ""


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
    manifest = with_numbers(manifest, ("all", "3"))
    calibration = section(manifest, "Calibration")
    assert "One temperature, 0.987." in calibration
    assert "| 3 or more | 90 | 0.0456 | 0.0123 | 0.0111 |" in calibration
    assert not section(manifest, "Prediction sets")
    assert not section(manifest, "Novelty")


def test_card_has_calibration_sets_and_novelty(confident_bundle: Path) -> None:
    manifest = with_numbers(load_bundle(confident_bundle).manifest, ("all", "0", "2", "3", "5"))
    calibration, sets, novelty = (section(manifest, title) for title in ("Calibration", "Prediction sets", "Novelty"))
    assert "exp((0.4000) + (-0.2000) ln n); the best single one is 1.100." in calibration
    for name in ("all", "0 to 1", "2", "3 to 4", "5 or more"):
        assert f"| {name} | 90 | 0.0456 | 0.0123 | 0.0111 |" in calibration
    assert "| 0 to 4 | 0.9000 | 0.9900 |\n| 5 or more | 0.8000 | 0.9700 |" in sets
    assert "(90 % unless" in sets
    assert manifest.novelty is not None
    assert f"Beyond 0.99 lie\n{100 * manifest.novelty.false_alarm_rate:.1f} % of these views" in novelty
    assert max(map(len, "\n".join((calibration, sets, novelty)).splitlines())) <= 120


def test_an_uncalibrated_network_says_so(tiny_bundle: Path) -> None:
    text = section(load_bundle(tiny_bundle).manifest, "Calibration")
    assert text.strip() == "None: the probabilities are the network's own."
