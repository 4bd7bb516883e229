"""The MALLORN tables: units, classes, missing fluxes, and unlabelled light curves without metadata."""

from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.tables import TableError
from nightjar_alerts.training.importers.surveys import (
    MALLORN_CLASSES,
    mallorn_class,
    read_mallorn,
    read_unlabelled_mallorn,
)
from support.mallorn import write_mallorn
from support.shared import needs_shared, shared


def test_labelled_objects_are_in_njy_with_redshift_and_extinction(tmp_path: Path) -> None:
    data = read_mallorn(write_mallorn(tmp_path))
    first = data.curves[0]
    assert len(data) == 6
    assert len(first) == 8  # the row without a flux is gone
    assert first.flux.tolist() == [1500.0] * 8
    assert first.flux_err.tolist() == [250.0] * 8
    assert first.metadata == {"z_final": 0.1, "mwebv": 0.05}
    assert first.band.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert [MALLORN_CLASSES[label] for label in data.label_N] == ["AGN", "Ia", "core-collapse", "TDE", "SLSN", "Ia"]


def test_unlabelled_objects_carry_photometry_alone(tmp_path: Path) -> None:
    data = read_unlabelled_mallorn(write_mallorn(tmp_path))
    assert len(data) == 3
    assert all(curve.metadata == {} for curve in data.curves)
    assert (data.label_N == -1).all()
    assert len(read_unlabelled_mallorn(tmp_path, limit=2)) == 2


@pytest.mark.parametrize(
    ("spectral_type", "name"),
    [
        *(("SN Ib", "core-collapse"), ("SN Ic-BL", "core-collapse"), ("SN IIn", "core-collapse")),
        *(("SN Iax[02cx-like]", "Ia"), ("SN Ia-pec", "Ia"), ("SLSN-II", "SLSN")),
    ],
)
def test_classes_of_spectroscopic_types(spectral_type: str, name: str) -> None:
    assert MALLORN_CLASSES[mallorn_class(spectral_type)] == name


def test_unknown_types_are_refused() -> None:
    with pytest.raises(TableError, match="'Nova'"):
        mallorn_class("Nova")


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"train_log\.csv is missing"):
        read_mallorn(tmp_path)
    write_mallorn(tmp_path, header="object_id,mjd,flux,err,band")
    with pytest.raises(TableError, match="does not have"):
        read_mallorn(tmp_path)


@needs_shared
def test_the_real_tables() -> None:
    data = read_mallorn(shared("data", "mallorn"))
    assert len(data) > 2000
    assert (np.bincount(data.label_N, minlength=5) > 20).all()
    error = np.median(np.concatenate([curve.flux_err for curve in data.curves]))
    assert 200 < error < 500  # nJy: the flux unit of the files is microJy
