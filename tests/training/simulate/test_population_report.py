"""The population check: measures against values put in by hand, cuts, and the report of two files."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nightjar_alerts.training.data.dataset import LabelledObject, write_dataset
from nightjar_alerts.training.simulate.generate import simulate
from nightjar_alerts.training.simulate.population_report import (
    PointSample,
    PopulationReport,
    at_redshifts_of,
    common_classes,
    compare,
    cut_at_alerts,
    measure,
    read_sample,
)


def curve(
    name: str, mjd: list[float], flux: list[float], band: list[int], detected: list[bool], z: float = 0.2
) -> LabelledObject:
    return LabelledObject(
        object_id=f"{name}-{mjd[0]}-{z}",
        class_name=name,
        mjd=np.array(mjd),
        flux=np.array(flux, dtype=np.float32),
        flux_err=np.full(len(mjd), 10.0, dtype=np.float32),
        band=np.array(band, dtype=np.int8),
        detected=np.array(detected),
        trigger_mjd=mjd[detected.index(True)],
        metadata=np.full(64, np.nan, dtype=np.float32),
        redshift=z,
    )


def stored(path: Path, objects: list[LabelledObject]) -> PointSample:
    write_dataset(path, objects)
    return read_sample(path)


@pytest.fixture
def sample(tmp_path: Path) -> PointSample:
    mjd, flux = [100.1, 100.2, 105.1, 105.2, 120.1], [1000.0, 2000.0, 500.0, 1000.0, 40.0]
    supernova = curve("Ia", mjd, flux, [1, 2, 1, 2, 2], [True, True, True, True, False])
    dimming = curve("RR Lyrae", [100.1, 130.1, 131.0], [-4000.0, 1000.0, 10.0], [3, 3, 0], [True, True, False], z=0.0)
    once = curve("II", [100.1, 101.1], [900.0, 20.0], [2, 2], [True, False])
    return stored(tmp_path / "three.parquet", [supernova, dimming, once])


def test_objects_seen_once_do_not_count(sample: PointSample) -> None:
    assert sample.class_name.tolist() == ["Ia", "RR Lyrae"]


def test_measures_are_those_of_the_points(sample: PointSample) -> None:
    measures = measure(sample)
    np.testing.assert_allclose(measures["peak"], 31.4 - 2.5 * np.log10([2000.0, 4000.0]))
    np.testing.assert_allclose(measures["duration"], [5.1, 30.0])
    np.testing.assert_array_equal(measures["points"], [5, 3])
    np.testing.assert_array_equal(measures["detections"], [4, 2])
    np.testing.assert_array_equal(measures["points_g"], [2, 0])
    np.testing.assert_allclose(measures["colour_gr"], [2.5 * np.log10(2.0), np.nan])
    np.testing.assert_allclose(measures["redshift"], [0.2, np.nan])


def test_a_dump_of_alerts_ends_histories_at_detections(sample: PointSample) -> None:
    cut = cut_at_alerts(sample, np.random.default_rng(0))
    assert set(cut.class_name) <= {"Ia", "RR Lyrae"}
    assert cut.detected[cut.offsets[1:] - 1].all()
    assert set(zip(cut.mjd, cut.flux, strict=True)) <= set(zip(sample.mjd, sample.flux, strict=True))


def test_redshifts_are_matched_class_by_class(tmp_path: Path) -> None:
    def at(z: float) -> LabelledObject:
        return curve("Ia", [100.1 + z, 101.1], [900.0, 900.0], [2, 2], [True, True], z=z)

    near_and_far = stored(tmp_path / "simulated.parquet", [at(z) for z in (0.1, 0.2, 0.3, 0.6)])
    real = stored(tmp_path / "real.parquet", [at(z) for z in (0.11, 0.12, 0.29, 1.5)])
    assert at_redshifts_of(near_and_far, real).redshift.tolist() == [0.1, 0.1, 0.3]


def test_a_set_agrees_with_itself_and_not_with_a_brighter_one(tmp_path: Path) -> None:
    path = simulate(tmp_path / "sim.parquet", 64, seed=3, progress=False, classes=["Ia", "TDE"])
    sample = read_sample(path)
    assert compare(sample, sample, "itself")["disagreements"] == []
    brighter = PointSample(**{**sample.__dict__, "flux": 3.0 * sample.flux})
    comparison = compare(brighter, sample, "real")
    assert comparison["classes"]["Ia"]["peak"]["distance"] > 0.3
    assert [line for line in comparison["disagreements"] if line.startswith("TDE: median peak")]


def test_the_command_writes_numbers_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = simulate(tmp_path / "sim.parquet", 40, seed=3, progress=False, classes=["Ia", "EB"])
    PopulationReport(
        simulated=path, against=path, out=tmp_path / "check" / "population", alerts=True, equal_redshift=True
    ).cli_cmd()
    report = json.loads((tmp_path / "check" / "population.json").read_text())
    assert sorted(report["classes"]) == ["EB", "Ia"]
    assert report["simulation"]["seed"] == 3
    assert report["selection"] == {"alerts": True, "seed": 0, "equal_redshift": True}
    assert "medians compared" in capsys.readouterr().out
    with Image.open(tmp_path / "check" / "population.png") as picture:
        assert picture.width > 1000


def test_sets_without_a_common_class_are_refused(sample: PointSample) -> None:
    other = PointSample(**{**sample.__dict__, "class_name": np.array(["SN Ia", "Cep"])})
    with pytest.raises(ValueError, match="--rename"):
        common_classes(sample, other)
