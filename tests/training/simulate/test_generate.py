"""The simulator end to end: reproducible, and every object is one that a survey would have alerted on."""

import json
from collections import Counter
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.dataset import LabelledObject, read_dataset, read_notes
from nightjar_alerts.training.simulate import host
from nightjar_alerts.training.simulate.cadence import PRE_TRIGGER_DAYS
from nightjar_alerts.training.simulate.generate import (
    CHUNK,
    SATURATION,
    VERSION,
    simulate,
    simulate_class,
    simulate_objects,
)

PER_CLASS = 12


@pytest.fixture(scope="module")
def sample() -> list[LabelledObject]:
    return list(simulate_objects(PER_CLASS, seed=5))


def same(left: LabelledObject, right: LabelledObject) -> bool:
    pairs = [(getattr(left, f.name), getattr(right, f.name)) for f in fields(LabelledObject)]
    return all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") if isinstance(a, np.ndarray) else a == b for a, b in pairs
    )


def test_every_class_is_there_in_taxonomy_order(sample: list[LabelledObject]) -> None:
    assert list(Counter(o.class_name for o in sample)) == list(ELASTICC.names)
    assert set(Counter(o.class_name for o in sample).values()) == {PER_CLASS}


def test_ids_are_unique_whole_numbers_of_63_bits(sample: list[LabelledObject]) -> None:
    ids = [int(o.object_id) for o in [*sample, *simulate_class("uLens", 2, seed=99_999)]]
    assert len(set(ids)) == len(ids)
    assert 0 < min(ids) < max(ids) < 2**63


def test_the_seed_alone_decides(sample: list[LabelledObject]) -> None:
    for name in ("AGN", "Ia", "uLens"):
        first = [o for o in sample if o.class_name == name]
        assert all(map(same, first, simulate_class(name, PER_CLASS, seed=5)))
        assert not any(map(same, first, simulate_class(name, PER_CLASS, seed=6)))


def test_a_larger_set_begins_with_the_smaller_one() -> None:
    small, large = list(simulate_class("KN", 3, seed=5)), list(simulate_class("KN", CHUNK + 5, seed=5))
    assert len(large) == CHUNK + 5
    assert all(map(same, small, large[:3]))
    assert len({o.object_id for o in large}) == len(large)


def test_the_number_of_workers_changes_nothing(tmp_path: Path, sample: list[LabelledObject]) -> None:
    path = simulate(tmp_path / "two.parquet", PER_CLASS, seed=5, workers=2, progress=False)
    data = read_dataset(path)
    assert data.object_id.tolist() == [o.object_id for o in sample]
    np.testing.assert_array_equal(data.flux, np.concatenate([o.flux for o in sample]))
    np.testing.assert_array_equal(data.metadata, np.stack([o.metadata for o in sample]))


def test_a_file_says_how_it_was_made(tmp_path: Path) -> None:
    path = simulate(tmp_path / "some.parquet", 3, seed=5, progress=False, classes=["uLens", "Ia"])
    assert len(read_dataset(path)) == 6
    assert json.loads(read_notes(path)["simulation"]) == {
        "simulator": "nightjar_alerts.training.simulate",
        "version": VERSION,
        "seed": 5,
        "objects": {"Ia": 3, "uLens": 3},
        "options": {"deep_fraction": 0.05},
    }


def test_a_class_is_the_same_in_a_file_of_its_own(tmp_path: Path, sample: list[LabelledObject]) -> None:
    data = read_dataset(simulate(tmp_path / "tde.parquet", PER_CLASS, seed=5, progress=False, classes=["TDE"]))
    np.testing.assert_array_equal(data.flux, np.concatenate([o.flux for o in sample if o.class_name == "TDE"]))


def test_an_unknown_class_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Quark"):
        simulate(tmp_path / "none.parquet", 1, seed=1, progress=False, classes=["Quark nova"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("n", "seed"), [(0, 1), (-3, 1), (1, -1)])
def test_nonsense_is_refused(n: int, seed: int) -> None:
    with pytest.raises(ValueError, match="must"):
        list(simulate_objects(n, seed))


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(ValueError, match="tuple"):
        list(simulate_class("Quark nova", 1, seed=1))


def test_columns_are_of_the_declared_types(sample: list[LabelledObject]) -> None:
    kinds = {"mjd": "float64", "flux": "float32", "flux_err": "float32", "band": "int8", "detected": "bool"}
    for o in sample:
        assert {name: getattr(o, name).dtype.name for name in kinds} == kinds
        assert o.metadata.dtype == np.float32
        assert o.metadata.shape == (len(METADATA_COLUMNS),)


def test_every_history_is_one_an_alert_would_hold(sample: list[LabelledObject]) -> None:
    for o in sample:
        assert o.detected.sum() >= 2
        assert o.trigger_mjd == o.mjd[o.detected][0]
        assert o.detected[-1], "a history ends with the detection that made the alert"
        assert o.mjd[0] >= o.trigger_mjd - PRE_TRIGGER_DAYS
        assert (np.diff(o.mjd) >= 0).all()
        assert len(set(zip(o.mjd.tolist(), o.band.tolist(), strict=True))) == len(o.mjd)
        assert np.isfinite(o.flux).all()
        assert (o.flux_err > 0).all()
        assert (np.abs(o.flux) / o.flux_err)[o.detected].min() > 2.9
        assert set(o.band.tolist()) <= set(range(6))


def test_some_histories_reach_back_before_the_first_detection(sample: list[LabelledObject]) -> None:
    before = [o.trigger_mjd - o.mjd[0] for o in sample]
    assert 5.0 < np.median(before) <= PRE_TRIGGER_DAYS


def test_fluxes_are_nanojanskys_of_the_survey(sample: list[LabelledObject]) -> None:
    """The faintest error of each band is a fifth of the 5-sigma depth of a single visit, in nJy (AB 31.4)."""
    error, band = np.concatenate([o.flux_err for o in sample]), np.concatenate([o.band for o in sample])
    depth = [31.4 - 2.5 * np.log10(5.0 * np.percentile(error[band == b], 25)) for b in range(6)]
    np.testing.assert_allclose(depth, [23.4, 24.3, 23.9, 23.4, 22.7, 22.1], atol=0.4)
    peak = np.array([o.flux[o.detected].max() for o in sample])
    assert peak.max() < 1.05 * SATURATION.max()
    assert 1e3 < np.median(peak) < 1e5  # AB 24 to 19


def test_steady_sources_dim_as_often_as_they_brighten(sample: list[LabelledObject]) -> None:
    for name in ("RR Lyrae", "Cepheid", "EB"):
        negative = np.concatenate([o.flux[o.detected] < 0 for o in sample if o.class_name == name]).mean()
        assert 0.2 < negative < 0.8, name
    for name in ("Ia", "II", "TDE"):
        negative = np.concatenate([o.flux[o.detected] < 0 for o in sample if o.class_name == name]).mean()
        assert negative < 0.02, name


def test_only_the_extragalactic_have_a_redshift(sample: list[LabelledObject]) -> None:
    for o in sample:
        assert (o.redshift > 0) == (o.class_name in host.HOSTS)
        assert not np.isin(o.metadata, [-9.0, -99.0, -999.0, -9999.0, 999.0]).any()


def test_deep_fields_exceed_what_a_model_keeps() -> None:
    """Some histories hold more than 65 points in a band, so that the cut is met in training."""
    longest = max(int(np.bincount(o.band).max()) for o in simulate_class("RR Lyrae", CHUNK, seed=2))
    assert longest > 65
