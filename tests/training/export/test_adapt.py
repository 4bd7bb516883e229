"""Adapting a bundle to a survey: thresholds and report."""

from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, load_bundle, read_golden
from nightjar_alerts.routing import SURVEY_BUNDLES
from nightjar_alerts.training.data.dataset import read_dataset, write_dataset
from nightjar_alerts.training.data.reobserve.pulses import PERIODIC, synthetic_pulses
from nightjar_alerts.training.data.reobserve.views import add_synthetic, find_origins
from nightjar_alerts.training.data.sample import LABELS, SurveyObject, collect
from nightjar_alerts.training.export import adapt as module
from nightjar_alerts.training.export.adapt import SURVEY, adapt, library_of, read_origins
from support.surveys import bump, pulsator, write_real
from support.toy_dataset import toy_object

pytestmark = pytest.mark.slow


def like(path: Path, number: int = 40) -> Path:
    write_dataset(path, (toy_object(i) for i in range(number)))
    return path


def objects(number: int) -> list[SurveyObject]:
    rows = [bump(f"S{i}", seed=i, bands="ugrizY", points=90, z=0.1) for i in range(number)]
    rows += [bump(f"T{i}", seed=500 + i, label=16, bands="griz", points=90, width=25.0, z=0.05) for i in range(number)]
    return [*rows, *(pulsator(f"P{i}", seed=i) for i in range(number))]


def test_library_of_has_the_cadences_of_all_objects(tmp_path: Path) -> None:
    library = library_of(read_dataset(like(tmp_path / "mine.parquet")))
    assert library.surveys == (SURVEY,)
    assert (library.sample.label == -1).all()


def test_library_of_too_few_light_curves_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="are needed"):
        library_of(read_dataset(like(tmp_path / "mine.parquet", 6)))


def test_adapt_keeps_the_graph_and_reports_scores(tmp_path: Path) -> None:
    write_real(tmp_path / "surveys" / "real" / "set.parquet", objects(36))
    adapted = adapt(
        DEFAULT_BUNDLE, like(tmp_path / "mine.parquet"), tmp_path / "new", origins=tmp_path / "surveys", number=300
    )
    old, new = load_bundle(DEFAULT_BUNDLE), load_bundle(tmp_path / "new")
    assert new.sha256 == adapted.bundle.sha256
    assert new.model.read_bytes() == old.model.read_bytes()
    assert read_golden(new.path)[1].keys() == read_golden(old.path)[1].keys()
    major, minor, patch = old.manifest.version.split(".")
    assert new.manifest.version == f"{major}.{minor}.{int(patch) + 1}"
    report = adapted.report
    assert report["before"]["top_1"] == pytest.approx(report["after"]["top_1"])
    assert abs(report["after"]["coverage"] - 0.9) < 0.12
    assert report["after"]["withheld"] <= 0.15
    assert report["origins"]["from"] == "real surveys in surveys"
    assert report["origins"]["by class"]["Ia"] > 15  # two thirds of 36 are in the training part
    assert "no templates" in report["colours"]
    assert new.manifest.data["adapted"]["like"] == "mine.parquet"
    assert new.manifest.prediction_sets is not None
    assert new.manifest.prediction_sets.split == "views through the survey that it was adapted to"


def test_adapt_to_a_used_folder_or_of_other_classes_raises(tmp_path: Path) -> None:
    mine = like(tmp_path / "mine.parquet")
    with pytest.raises(ValueError, match="holds something"):
        adapt(DEFAULT_BUNDLE, mine, tmp_path)
    with pytest.raises(ValueError, match="does not have the 20 classes"):
        adapt(SURVEY_BUNDLES["ztf"], mine, tmp_path / "new")


def test_without_origins_simulated_objects_are_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIMULATED_PER_CLASS", 2)
    sky, where = read_origins(None, 0)
    assert len(sky) == 40
    assert "no real origins" in where


def test_add_synthetic_fills_classes_without_origins() -> None:
    rows = objects(3)
    sky = collect(rows, [row.object_id for row in rows])
    origins = find_origins(sky, 0)
    add_synthetic(origins, 0, 5)
    assert set(origins.by_class) >= PERIODIC
    assert set(origins.by_class[LABELS["RR Lyrae"]]) == {"var"}
    assert set(origins.by_class[LABELS["EB"]]) == {"made up"}


@pytest.mark.parametrize("label", sorted(PERIODIC))
def test_synthetic_pulses_have_periods_and_amplitudes_of_their_class(label: int) -> None:
    for pulse in synthetic_pulses(label, 5, np.random.default_rng(0)):
        magnitude = pulse.magnitude(np.linspace(0, 1, 300), np.full(300, 1, dtype=np.int8))
        assert np.ptp(magnitude) == pytest.approx(pulse.amplitude_B[1], rel=0.1)
        assert 17 < np.median(magnitude) < 21
