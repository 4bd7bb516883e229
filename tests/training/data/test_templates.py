"""Objects from published fits: energy of the magnetar, synthetic tables, and parts of the split."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.reobserve.origins import event_of
from nightjar_alerts.training.data.reobserve.templates import (
    STEFAN,
    _diffused,
    _nickel,
    _photosphere,
    _spin_down,
    magnetar,
    template_objects,
)
from nightjar_alerts.training.simulate.photometry import distance_modulus

FIT = {
    "redshift": 0.2, "Pspin": 2.4, "log(Bfield)": 14.2, "Mns": 1.7, "thetaPB": 1.57, "mejecta": 9.0, "kappa": 0.1,
    "kappagamma": 0.06, "vejecta": 7_000.0, "temperature": 6_500.0, "alpha": 1.8, "cutoff_wavelength": 3_500.0,
    "A_V": 0.0, "mnickel": 0.2,
}  # fmt: skip


def tables(folder: Path, number: int = 16) -> Path:
    """Write tables of made-up fits with the columns that are read."""
    fits = [
        {"name": f"SN20{n:02d}", **{f"{key}_med": value for key, value in FIT.items()},
         **{f"{key}_{side}": 0.05 * abs(value) for key, value in FIT.items() for side in ("lo", "up")}}
        for n in range(number)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(fits), folder / "slsn_magnetar_parameters.parquet")
    flares = [
        {"name": f"AT20{n:02d}", "z": 0.08, "peak_mag_g": 18.0 if n % 2 else None, "peak_mag_r": 18.3,
         "efold_rest_d_g": 50.0 + n, "half_rise_rest_d_g": 15.0}
        for n in range(number)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(flares), folder / "tde_parameters.parquet")
    days = np.arange(-20.0, 60.0, 0.5)
    curve = {"t": days, "rollingMedian": -((days / 15) ** 2).clip(0, 3), "rollingPc25": -((days / 12) ** 2).clip(0, 4)}
    curve["rollingPc75"] = -((days / 18) ** 2).clip(0, 2)
    keys = {f"{band}|{kind}|{name}": values for band in ("B", "g", "V", "rp", "R", "ip", "I")
            for kind in ("Ib", "Ic", "Ic-bl", "Ibn") for name, values in curve.items()}  # fmt: skip
    np.savez(folder / "sesn_templates_gpsntempl.npz", allow_pickle=False, **keys)
    return folder


def test_spin_down_power_integrates_to_the_rotational_energy() -> None:
    age = np.geomspace(1e-4, 1e5, 40_000)
    whole = np.trapezoid(_spin_down(FIT, age), age * 86_400.0)
    assert whole == pytest.approx(2.6e52 * (1.7 / 1.4) ** 1.5 / 2.4**2, rel=1e-3)


def test_diffusion_delays_light_and_temperature_has_a_minimum() -> None:
    age = np.geomspace(0.3, 500.0, 2_000)
    power = _spin_down(FIT, age) + _nickel(0.2, age)
    out = _diffused(FIT, age, power)
    top = int(out.argmax())
    assert out[top] == pytest.approx(power[top], rel=0.25)  # Arnett's rule, but for leakage
    assert np.trapezoid(out, age) < np.trapezoid(power, age)
    temperature, radius = _photosphere(FIT, age, out)
    assert temperature.min() == pytest.approx(FIT["temperature"], rel=1e-6)
    np.testing.assert_allclose(4 * np.pi * radius**2 * STEFAN * temperature**4, np.maximum(out, 1e35), rtol=1e-9)


def test_a_magnetar_supernova_is_superluminous() -> None:
    supernova = magnetar(FIT)
    assert supernova is not None
    red = supernova.band == BANDS.index("r")
    magnitude = 31.4 - 2.5 * np.log10(supernova.flux[red].max()) - float(distance_modulus(np.array([0.2]))[0])
    assert -22.5 < magnitude < -20.0


def test_template_objects_copies_differ_and_keep_the_part(tmp_path: Path) -> None:
    folder = tables(tmp_path)
    parts = [template_objects(folder, part, 1, seed=1) for part in range(3)]
    names = [set(part.group.tolist()) for part in parts]
    assert not names[0] & names[1]
    assert not names[0] & names[2]
    train = parts[0]
    assert {ELASTICC.names[label] for label in np.unique(train.label)} == {"SLSN", "TDE", "Ib/c"}
    for source in ("magnetar", "tidal disruption", "stripped"):
        mine = np.flatnonzero(train.source == source)
        assert len(mine) > 5
        assert len({float(train.flux[train.points(int(row))].max()) for row in mine}) == len(mine)
        assert sum(event_of(train, int(row)) is not None for row in mine[:6]) >= 4


def test_template_objects_without_files_is_empty(tmp_path: Path) -> None:
    assert len(template_objects(tmp_path, 0, 3)) == 0
