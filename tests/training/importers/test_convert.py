"""Checks of every point and object: what is dropped is counted under its reason, what is ambiguous stops the import."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import njy_of_magnitude, njy_with_error
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.tables import TableError, TableObject
from nightjar_alerts.training.data.dataset import (
    DatasetError,
    LabelledObject,
    read_dataset,
    read_notes,
    require_labels,
    write_dataset,
)
from nightjar_alerts.training.importers.commands import ImportRules, import_objects
from support.importers import cleaned, raw_object


def test_good_points_pass_untouched() -> None:
    raw = raw_object(label="Ia", metadata={"mwebv": 0.1, "hostgal_zphot": -9.0, "ra": 3.0}, redshift=0.2)
    record, report = cleaned(raw)
    np.testing.assert_array_equal(record.mjd, raw.mjd)
    np.testing.assert_array_equal(record.flux, raw.flux)
    assert record.band.tolist() == [1, 2, 1, 2]
    assert record.detected.tolist() == [True, True, False, False]
    assert (record.trigger_mjd, record.class_name, record.redshift) == (60_000.0, "Ia", 0.2)
    present = {name: v for name, v in zip(METADATA_COLUMNS, record.metadata, strict=True) if not np.isnan(v)}
    assert present == {"mwebv": np.float32(0.1)}
    assert not report.dropped_points
    assert not report.dropped_objects


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"flux": np.array([np.nan, 1e4, 1e4, 1e4])}, "flux is not finite"),
        ({"flux": np.array([1e300, 1e4, 1e4, 1e4])}, "flux is not finite"),
        ({"flux_err": np.array([-1.0, 1.0, 1.0, 1.0])}, "flux error is not positive"),
        ({"flux_err": np.array([0.0, 1.0, 1.0, 1.0])}, "flux error is not positive"),
        ({"flux_err": np.array([1e-60, 1.0, 1.0, 1.0])}, "flux error is not positive"),
        ({"flux_err": np.array([np.inf, 1.0, 1.0, 1.0])}, "flux error is not finite"),
        ({"mjd": np.array([np.nan, 60_001.0, 60_002.0, 60_003.0])}, "time is not finite"),
        ({"mjd": np.array([1e9, 60_001.0, 60_002.0, 60_003.0])}, "time cannot be an MJD"),
        ({"rejected": {"saturated": np.array([True, False, False, False])}}, "saturated"),
    ],
)
def test_a_bad_point_is_dropped_and_counted_once(changes: dict[str, Any], reason: str) -> None:
    record, report = cleaned(raw_object(**changes))
    assert record.mjd.tolist() == [60_001.0, 60_002.0, 60_003.0]
    assert report.dropped_points == {reason: 1}


def test_points_are_sorted_and_the_most_precise_of_a_moment_stays() -> None:
    order = [3, 1, 0, 2]
    raw = raw_object(
        mjd=np.array([2.0, 1.0, 1.0, 1.0])[order],
        flux=np.array([500.0, 600.0, 700.0, 800.0])[order],
        flux_err=np.array([1.0, 3.0, 2.0, 4.0])[order],
        band=[["g", "g", "g", "r"][n] for n in order],
    )
    record, report = cleaned(raw)
    assert record.flux.tolist() == [700.0, 800.0, 500.0]
    assert report.dropped_points == {"another point at this time in this band": 1}


def test_an_unknown_band_stops_the_import_and_says_how_to_go_on() -> None:
    raw = raw_object(band=["g", "w", "g", "w"])
    with pytest.raises(TableError, match=r"band 'w' is not one of u g r i z Y.*--bands 'w='"):
        cleaned(raw)
    assert cleaned(raw, bands={"w": "r"})[0].band.tolist() == [1, 2, 1, 2]
    record, report = cleaned(raw, bands={"w": ""})
    assert record.band.tolist() == [1, 1]
    assert report.dropped_points == {"band left out": 2}


def test_julian_dates_stop_the_import() -> None:
    with pytest.raises(TableError, match="Julian dates"):
        cleaned(raw_object(mjd=raw_object().mjd + 2_400_000.5))


@pytest.mark.parametrize(
    ("changes", "rules", "reason"),
    [
        ({"flux": np.full(4, np.nan)}, {}, "no usable points"),
        ({}, {"min_points": 5}, "too few points"),
        ({"flux": np.ones(4)}, {}, "too few detections"),
        ({}, {"required_bands": "gi"}, "fewer than 1 points in i"),
        ({}, {"required_bands": "g", "min_per_band": 3}, "fewer than 3 points in g"),
        ({"band": ["g"]}, {}, "columns differ in length"),
        ({"label": "?"}, {"classes": {"SN": "Ia", "*": ""}}, "label '?' is not imported"),
        ({"label": "SN"}, {"classes": {"SN": ""}}, "label 'SN' is not imported"),
    ],
)
def test_too_little_is_left_out_with_a_reason(changes: dict[str, Any], rules: dict[str, Any], reason: str) -> None:
    record, report = cleaned(raw_object(**changes), **rules)
    assert record is None
    assert report.dropped_objects == {reason: 1}


def test_labels_are_mapped() -> None:
    classes = {"SN Ia": "Ia", "?": "*"}
    assert cleaned(raw_object(label="SN Ia"), classes=classes)[0].class_name == "Ia"
    assert cleaned(raw_object(label="?"), classes=classes)[0].class_name == ""
    assert cleaned(raw_object(), classes=classes)[0].class_name == ""
    with pytest.raises(TableError, match="'Quark nova' is not one of elasticc-20"):
        cleaned(raw_object(label="Quark nova"), taxonomy="elasticc-20")


def test_label_without_an_entry_in_the_class_map_stops_the_import() -> None:
    classes = {"SN Ia": "Ia"}
    with pytest.raises(TableError, match="no entry for 'SNIa-SALT9'; map it"):
        cleaned(raw_object(label="SNIa-SALT9"), classes=classes, taxonomy="elasticc-20")
    record, _ = cleaned(raw_object(label="II"), classes=classes, taxonomy="elasticc-20")
    assert record is not None
    assert record.class_name == "II"  # already a class of the taxonomy


def imported(path: Path, objects: list[TableObject], **rules: Any) -> dict[str, Any]:
    return import_objects(objects, path, ImportRules(**rules), {"source": "test", "licence": "CC0"}, progress=False)


def test_the_file_carries_its_classes_report_and_provenance(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    labels = ["SLSN-II", "Ia", "", "Ia"]
    report = imported(path, [raw_object(object_id=str(n), label=label) for n, label in enumerate(labels)])
    data = read_dataset(path)
    assert data.classes == ("Ia", "SLSN-II")
    assert data.label.tolist() == [1, 0, -1, 0]
    assert report["classes"] == {"Ia": 2, "SLSN-II": 1, "(unlabelled)": 1}
    stored = json.loads(read_notes(path)["import"])
    assert stored["report"] == report
    assert (stored["source"], stored["licence"]) == ("test", "CC0")


def test_import_with_taxonomy_uses_its_classes(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    imported(path, [raw_object(label="TDE")], taxonomy="elasticc-20")
    data = read_dataset(path)
    assert data.classes == ELASTICC.names
    assert data.label.tolist() == [ELASTICC.names.index("TDE")]
    require_labels(data, path)


def test_unlabelled_objects_are_no_training_set_for_a_classifier(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    imported(path, [raw_object()], taxonomy="elasticc-20")
    with pytest.raises(DatasetError, match="1 unlabelled"):
        require_labels(read_dataset(path), path)
    imported(path, [raw_object(label="TDE")])
    with pytest.raises(DatasetError, match="fewer than two classes: TDE"):
        require_labels(read_dataset(path), path)


def test_parents_are_kept_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    parents = ["p", "", "p", "q"]
    report = imported(path, [raw_object(object_id=str(n), parent=name) for n, name in enumerate(parents)])
    data = read_dataset(path)
    assert data.group.tolist() == ["p", "1", "p", "q"]
    assert report["parents"] == 2


def test_repeated_and_missing_ids_are_left_out(tmp_path: Path) -> None:
    objects = [raw_object(label="x"), raw_object(label="y"), raw_object(object_id="")]
    report = imported(tmp_path / "data.parquet", objects)
    assert report["dropped_objects"] == {"id seen before": 1, "no id": 1}
    assert report["classes"] == {"x": 1}
    assert (report["objects_read"], report["points_read"], report["points_written"]) == (3, 12, 4)


def test_an_import_of_nothing_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="nothing to write"):
        imported(tmp_path / "data.parquet", [raw_object(flux=np.full(4, np.nan))])
    assert list(tmp_path.iterdir()) == []


def test_the_limit_stops_the_source(tmp_path: Path) -> None:
    def endless() -> Iterator[TableObject]:
        number = 0
        while True:
            yield raw_object(object_id=str(number := number + 1))

    report = import_objects(endless(), tmp_path / "data.parquet", ImportRules(limit=3), {}, progress=False)
    assert report["objects_written"] == 3


@pytest.mark.parametrize(("scale", "warned"), [(1.0, False), (1e9, True), (1e-9, True)])
def test_fluxes_in_the_wrong_unit_are_warned_of(tmp_path: Path, scale: float, warned: bool) -> None:
    raw = raw_object(flux=raw_object().flux * scale, flux_err=raw_object().flux_err * scale)
    report = imported(tmp_path / "data.parquet", [raw])
    assert bool(report["warnings"]) is warned
    if not warned:
        assert report["median_flux_err_njy"] == pytest.approx(100.0, rel=0.12)


def test_magnitudes_become_nanojanskys() -> None:
    flux, error = njy_with_error(np.array([31.4, 23.9, np.nan]), np.array([0.1, 0.02, 0.1]))
    np.testing.assert_allclose(flux[:2], [1.0, 1000.0])
    np.testing.assert_allclose(error[:2] / flux[:2], [0.0921034, 0.01842068], rtol=1e-6)
    assert np.isnan(flux[2])
    assert njy_of_magnitude(27.5) == pytest.approx(1 / 0.02754229, rel=1e-6)


def test_files_of_simulations_are_as_before(tmp_path: Path) -> None:
    """The taxonomy of the simulator is implied: nothing is added to the metadata of its files."""
    record, _ = cleaned(raw_object(label="Ia"))
    assert isinstance(record, LabelledObject)
    write_dataset(tmp_path / "data.parquet", [record])
    assert set(read_notes(tmp_path / "data.parquet")) == {"format", "metadata_columns"}
