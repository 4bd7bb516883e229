"""SNANA FITS: our reader against bytes written here and against astropy, the alert window, damaged files."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.tables import TableError
from nightjar_alerts.training.importers import snana
from nightjar_alerts.training.importers.commands import ImportRules, import_objects
from nightjar_alerts.training.importers.snana import open_table
from support.importers import fits_table, write_snana

FLUXCAL = 10 ** (0.4 * 3.9)


@pytest.mark.parametrize("packed", [True, False])
def test_objects_come_with_their_points_units_and_truth(tmp_path: Path, packed: bool) -> None:
    objects = list(snana.read_snana(write_snana(tmp_path / "ELASTICC_TRAIN_SNIa-SALT2", packed=packed)))
    assert [raw.object_id for raw in objects] == ["10", "11", "12"]
    second = objects[1]
    assert list(second.band) == list("ugrizY")
    np.testing.assert_array_equal(second.mjd, 60_001.0 + np.array([0, 45, 50, 51, 60, 70]))
    np.testing.assert_allclose(second.flux, np.array([1, 2, 101, 1e6, 50, 3]) * FLUXCAL, rtol=1e-6)
    np.testing.assert_allclose(second.flux_err, 5 * FLUXCAL, rtol=1e-6)
    assert (second.label, second.redshift) == ("SNIa-SALT2", 0.25)
    assert second.metadata["hostgal_zphot"] == pytest.approx(0.3)
    assert second.metadata["z_final"] == -9.0


def test_points_outside_the_alerts_and_saturated_ones_are_left_out(tmp_path: Path) -> None:
    folder, out = write_snana(tmp_path / "ELASTICC_TRAIN_SNIa-SALT2"), tmp_path / "data.parquet"
    rules = ImportRules(classes=snana.ELASTICC_CLASSES, taxonomy="elasticc-20")
    report = import_objects(snana.read_snana(folder), out, rules, {}, progress=False)
    assert report["dropped_points"] == {"saturated": 3, "outside the alert window": 6}
    assert report["bands"] == {"g": 3, "r": 3, "z": 3}
    assert report["classes"] == {"Ia": 3}
    whole = import_objects(snana.read_snana(folder, window=False), out, rules, {}, progress=False)
    assert whole["dropped_points"] == {"saturated": 3}


def test_an_end_of_event_row_inside_the_pointers_is_no_point(tmp_path: Path) -> None:
    folder = write_snana(tmp_path / "m", objects=1, packed=False)
    head = folder / "MODEL_HEAD.FITS"
    columns = {"SNID": np.array([b"1"], dtype="S4"), "PTROBS_MIN": np.array([1]), "PTROBS_MAX": np.array([7])}
    head.write_bytes(fits_table({name: v.astype("i4") if v.dtype.kind == "i" else v for name, v in columns.items()}))
    raw = next(iter(snana.read_snana(folder, window=False)))
    assert raw.rejected["end-of-event row (-777)"].tolist() == [False] * 6 + [True]
    assert np.isnan(raw.redshift)


def test_ids_that_collide_between_models_are_prefixed(tmp_path: Path) -> None:
    for model in ("AGN", "TRAINFIX_Cepheid", "TRAINFIX_d-Sct"):
        write_snana(tmp_path / f"ELASTICC_{model}", objects=1)
    assert sorted(raw.object_id for raw in snana.read_snana(tmp_path)) == ["10", "100000010", "200000010"]


def test_every_model_has_a_class_and_every_class_a_model() -> None:
    assert set(snana.ELASTICC_CLASSES.values()) == {*ELASTICC.names, ""}  # Mira stars have no class
    for model in snana.ELASTICC_CLASSES:
        assert snana.model_of(f"ELASTICC_TRAIN_{model}") == model
    assert snana.model_of("LSST_DDF_MODEL90") == "LSST_DDF_MODEL90"


def test_metadata_have_their_snana_names() -> None:
    names = snana.COLUMNS
    assert len(set(names.values())) == 64
    assert [
        names[name] for name in ("hostgal2_mag_Y", "hostgal_magerr_u", "hostgal_zphot_q010", "hostgal_zspec_err")
    ] == [
        "HOSTGAL2_MAG_Y",
        "HOSTGAL_MAGERR_u",
        "HOSTGAL_ZPHOT_Q010",
        "HOSTGAL_SPECZ_ERR",
    ]
    assert (names["z_final"], names["mwebv"]) == ("REDSHIFT_HELIO", "MWEBV")


def test_a_label_can_come_from_a_column(tmp_path: Path) -> None:
    folder = write_snana(tmp_path / "m")
    assert {raw.label for raw in snana.read_snana(folder, label_column="SIM_TYPE_INDEX")} == {"90"}
    with pytest.raises(TableError, match="no column NOPE"):
        list(snana.read_snana(folder, label_column="NOPE"))


def test_points_are_read_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_snana(tmp_path / "m", objects=9)
    whole = [raw.flux.tolist() for raw in snana.read_snana(folder)]
    monkeypatch.setattr("nightjar_alerts.training.importers.snana.BinaryTable.blocks.__defaults__", (4,))
    assert [raw.flux.tolist() for raw in snana.read_snana(folder)] == whole


@pytest.mark.parametrize("packed", [True, False])
def test_truncated_files_are_named(tmp_path: Path, packed: bool) -> None:
    folder = write_snana(tmp_path / "m", objects=200, packed=packed)
    phot = next(folder.glob("*PHOT*"))
    phot.write_bytes(phot.read_bytes()[: -len(phot.read_bytes()) // 2])
    with pytest.raises(TableError, match=r"MODEL_PHOT.*truncated"):
        list(snana.read_snana(folder))


@pytest.mark.parametrize("content", [b"", b"not FITS at all", b" " * 2880 * 3])
def test_files_of_another_kind_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "A_HEAD.FITS").write_bytes(content)
    with pytest.raises(TableError, match=r"A_HEAD.FITS"):
        list(snana.read_snana(tmp_path))


def test_a_missing_partner_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"no HEAD.FITS"):
        list(snana.read_snana(tmp_path))
    folder = write_snana(tmp_path / "m")
    (folder / "MODEL_PHOT.FITS.gz").unlink()
    with pytest.raises(TableError, match=r"PHOT.FITS.gz is missing"):
        list(snana.read_snana(folder))


def test_pointers_beyond_the_points_are_refused(tmp_path: Path) -> None:
    long, short = write_snana(tmp_path / "long", objects=5), write_snana(tmp_path / "short", objects=2)
    (short / "MODEL_HEAD.FITS.gz").write_bytes((long / "MODEL_HEAD.FITS.gz").read_bytes())
    with pytest.raises(TableError, match="do not fit its 14 rows"):
        list(snana.read_snana(short))


def test_columns_that_are_not_understood_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.fits"
    path.write_bytes(fits_table({"A": np.zeros(2, "i4")}).replace(b"'J       '", b"'1PE(4)  '"))
    with pytest.raises(TableError, match="column A of form"), open_table(path):
        pass


def test_astropy_reads_and_writes_the_same(tmp_path: Path) -> None:
    """An implementation that is not ours, both ways."""
    fits = pytest.importorskip("astropy.io.fits")
    folder = write_snana(tmp_path / "m", packed=False)
    with fits.open(folder / "MODEL_PHOT.FITS") as theirs, open_table(folder / "MODEL_PHOT.FITS") as ours:
        rows = np.concatenate(list(ours.blocks()))
        for name in ("MJD", "PHOTFLAG", "FLUXCAL"):
            np.testing.assert_array_equal(rows[name], theirs[1].data[name])
        assert [band.strip() for band in theirs[1].data["BAND"]] == [b.decode() for b in rows["BAND"].tolist()]
    columns = [
        fits.Column("ID", "5A", array=np.array(["a", "bc"])),
        fits.Column("V", "3E", array=np.arange(6.0).reshape(2, 3)),
        fits.Column("N", "K", array=np.array([2**60 + 1, -1])),
        fits.Column("F", "L", array=np.array([True, False])),
    ]
    path = tmp_path / "theirs.fits.gz"
    fits.HDUList([fits.PrimaryHDU(np.zeros((7, 5))), fits.BinTableHDU.from_columns(columns)]).writeto(path)
    with open_table(path) as table:
        rows = np.concatenate(list(table.blocks()))
    assert rows["ID"].tolist() == [b"a", b"bc"]
    assert rows["V"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert rows["N"].tolist() == [2**60 + 1, -1]
    assert rows["F"].tolist() == [b"T", b"F"]


def test_a_gzip_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.fits.gz").write_bytes(b"SIMPLE")
    with pytest.raises(TableError, match="damaged"), open_table(tmp_path / "x.fits.gz"):
        pass
    (tmp_path / "y.fits.gz").write_bytes(gzip.compress(b"SIMPLE"))
    with pytest.raises(TableError, match="truncated"), open_table(tmp_path / "y.fits.gz"):
        pass
