"""The domain that an exported run states: what its training objects have."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts import Classifier
from nightjar_alerts.models.bundle import CARD
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.routing import outside_domain
from nightjar_alerts.training.data.dataset import read_dataset, write_dataset
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.export import parity
from nightjar_alerts.training.export.bundle import export_run
from nightjar_alerts.training.export.domain import domain_of_dataset, in_common_bands
from nightjar_alerts.training.fit.train import train
from nightjar_alerts.training.recipes.astro_moe import debug
from support.referee import small
from support.toy_dataset import TOY_CLASSES, toy_objects

GREEN, RED, INFRARED = 1, 2, 3


def write_in_bands(path: Path, bands: tuple[int, ...], count: int = 60) -> Path:
    """Write toy objects in some bands, with a note of an import from ZTF."""
    objects = (
        replace(one, band=np.resize(np.array(bands, dtype=np.int8), len(one.band))) for one in toy_objects(count)
    )
    record = '{"survey": "ZTF", "format": "table", "licence": "own", "rules": {}, "report": {"objects_read": 60, '
    record += '"objects_written": 60, "dropped_objects": {}}}'
    write_dataset(path, objects, classes=TOY_CLASSES, notes=lambda: {"import": record})
    return path


@pytest.fixture
def in_g_and_r(tmp_path: Path) -> Sample:
    return read_dataset(write_in_bands(tmp_path / "toy.parquet", (GREEN, RED)))


def test_in_common_bands_leaves_out_a_band_of_few_objects(in_g_and_r: Sample) -> None:
    band = in_g_and_r.band.copy()
    band[0] = INFRARED
    rows = np.arange(len(in_g_and_r))
    assert in_common_bands(debug(), replace(in_g_and_r, band=band), rows).data.bands == ("g", "r")


def test_in_common_bands_keeps_bands_that_no_object_has(in_g_and_r: Sample) -> None:
    recipe = debug().model_copy(update={"data": debug().data.model_copy(update={"bands": ("i",)})})
    assert in_common_bands(recipe, in_g_and_r, np.arange(len(in_g_and_r))) == recipe


def test_domain_of_dataset_has_the_brightness_of_the_chosen_objects(in_g_and_r: Sample) -> None:
    rows = np.arange(20)
    domain = domain_of_dataset(in_g_and_r, rows, in_common_bands(debug(), in_g_and_r, rows), "ztf")
    at = slice(0, int(in_g_and_r.offsets[20]))
    largest = float(np.abs(in_g_and_r.flux[at][in_g_and_r.detected[at]]).max())
    assert domain.brightest_njy == pytest.approx(2.5 * largest)
    assert (domain.bands, domain.surveys, domain.fewest_bands) == (("g", "r"), ("ztf",), 1)
    assert domain.fewest_points <= in_g_and_r.lengths[:20].min()


@pytest.mark.slow
def test_export_run_of_g_and_r_makes_a_bundle_that_abstains_on_the_i_band(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CURVES", "NOISE"):  # without experts, a few light curves reach every part
        monkeypatch.setattr(parity, name, 40)
    data, said = write_in_bands(tmp_path / "toy.parquet", (GREEN, RED), 120), list[str]()
    train(small(), data, tmp_path / "run", progress=False)
    made = export_run(tmp_path / "run", tmp_path / "bundle", name="toy", version="1.0.0", data=data, say=said.append)
    assert (made.manifest.bands, made.manifest.domain.bands if made.manifest.domain else ()) == (("g", "r"),) * 2
    assert any(line.startswith("bands u, i, z, Y are left out") for line in said)
    assert "- bands g, r, brightest point from" in (made.path / CARD).read_text()
    time, flux, error = np.arange(60_000, 60_048, 4.0), np.full(12, 9e3), np.full(12, 1e2)
    curves = {
        (band, survey): LightCurve.from_columns(time, flux, error, [band] * 12, survey=survey)
        for band, survey in (("g", ""), ("g", "ztf"), ("g", "lsst"), ("i", ""))
    }
    outside = [key for key, curve in curves.items() if outside_domain(curve, made.manifest)]
    assert outside == [("g", "lsst"), ("i", "")]
    assert Classifier(made.path).classify(curves["i", ""]).reason == "no_usable_points"
