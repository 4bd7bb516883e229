"""Input statistics of surveys in a manifest, and error rates of the drift checks."""

from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, load_bundle
from nightjar_alerts.training.data.sample import PARTS, Sample, collect
from nightjar_alerts.training.score import drift
from nightjar_alerts.training.score.drift import add_statistics, drift_page, measure_drift, survey_statistics
from support.surveys import bump

NUMBER = 120


def sky() -> Sample:
    """ELAsTiCC objects, half of them with dust: as many for training as for tests."""
    rows = [
        bump(
            f"S{number}", source="elasticc", seed=number, noise=100.0 + number % 10, mwebv=0.1 if number % 2 else np.nan
        )
        for number in range(2 * NUMBER)
    ]
    parts = [PARTS.index("train" if number < NUMBER else "test") for number in range(2 * NUMBER)]
    return collect(rows, [row.object_id for row in rows], parts)


def test_survey_statistics_of_known_light_curves_have_their_values() -> None:
    manifest = load_bundle(DEFAULT_BUNDLE).manifest
    found = survey_statistics(sky(), manifest)
    assert list(found) == ["elasticc"]
    statistics = found["elasticc"]
    assert statistics.light_curves == NUMBER
    assert statistics.flux_error[2] == pytest.approx(104.5)
    assert statistics.points_per_band["r"] == (13,) * 5  # of 40 points in turn in g, r and i
    assert statistics.missing_bands == {name: float(name not in "gri") for name in manifest.bands}
    assert statistics.missing_metadata == {"mwebv": 0.5}
    assert statistics.classes == {manifest.taxonomy.names[13]: 1.0}


def test_measured_drift_has_no_false_alarm_and_shows_wrong_units(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "WINDOWS", 20)
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for file in tiny_bundle.iterdir():
        (bundle / file.name).write_bytes(file.read_bytes())
    add_statistics(bundle, sky())
    report = measure_drift(bundle, sky(), "test")["elasticc"]
    alarms = report["false alarms"]["window"]
    assert {kind: share for kind, share in alarms.items() if kind != "class_mix"} == dict.fromkeys(
        alarms.keys() - {"class_mix"}, 0.0
    )
    assert {report["caught"][fault]["window"] for fault in drift.FACTORS} == {1.0}
    assert report["caught"]["half of the points lost"]["window"] == 1.0
    assert report["caught"]["half of the light curves of one class"]["window"] is None
    assert "| flux × 36 | window | 100.0 % |" in drift_page({"elasticc": report})
