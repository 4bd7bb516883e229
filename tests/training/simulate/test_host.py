"""The 64 metadata columns: missing values are NaN, and values are consistent."""

import numpy as np

from nightjar_alerts.models.metadata import METADATA_COLUMNS, clean_metadata
from nightjar_alerts.training.simulate import host

N = 2000
COLUMN = {name: position for position, name in enumerate(METADATA_COLUMNS)}


def drawn(name: str, redshift: float) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    table = host.metadata(np.random.default_rng(0), name, np.full(N, redshift), np.full(N, 0.03))
    assert table.shape == (N, 64)
    assert table.dtype == np.float32
    return {column: table[:, position] for column, position in COLUMN.items()}


def test_every_column_is_filled_for_some_object() -> None:
    columns = drawn("Ia", 0.2)
    assert [name for name, values in columns.items() if not np.isfinite(values).any()] == []


def test_hosts_are_there_for_supernovae_and_by_chance_for_stars() -> None:
    assert np.isfinite(drawn("Ia", 0.3)["hostgal_mag_r"]).mean() > 0.95
    assert 0.01 < np.isfinite(drawn("RR Lyrae", 0.0)["hostgal_mag_r"]).mean() < 0.12
    assert np.isfinite(drawn("RR Lyrae", 0.0)["mwebv"]).all()
    assert 0.05 < np.isfinite(drawn("Ia", 0.3)["hostgal2_zphot"]).mean() < 0.16


def test_a_host_is_missing_as_a_whole() -> None:
    for prefix in ("hostgal", "hostgal2"):
        columns = drawn("SLSN", 1.2)
        block = [np.isnan(v) for name, v in columns.items() if name.startswith(prefix + "_") and "zspec" not in name]
        assert all(np.array_equal(block[0], other) for other in block[1:])


def test_a_second_host_implies_a_first() -> None:
    columns = drawn("II", 0.3)
    assert not (np.isfinite(columns["hostgal2_mag_r"]) & np.isnan(columns["hostgal_mag_r"])).any()


def test_photometric_redshifts_scatter_about_the_truth() -> None:
    error = (drawn("Ia", 0.3)["hostgal_zphot"] - 0.3) / 1.3
    error = error[np.isfinite(error)]
    assert abs(np.median(error)) < 0.01
    assert 0.02 < np.percentile(np.abs(error), 68) < 0.1
    assert 0.05 < (np.abs(error) > 0.15).mean() < 0.25  # outliers and wrong hosts


def test_quantiles_rise_and_bracket_the_estimate() -> None:
    columns = drawn("Ia", 0.3)
    quantiles = np.stack([columns[f"hostgal_zphot_q{k:03d}"] for k in range(0, 101, 10)], axis=1)
    quantiles = quantiles[np.isfinite(quantiles[:, 0])]
    assert (np.diff(quantiles, axis=1) > 0).all()
    assert (quantiles > 0).all()
    np.testing.assert_array_equal(columns["hostgal_zphot_q050"], columns["hostgal_zphot"])


def test_the_final_redshift_is_spectroscopic_where_known() -> None:
    columns = drawn("Ia", 0.05)
    has_spectrum = np.isfinite(columns["hostgal_zspec"])
    assert 0.01 < has_spectrum.mean() < 0.5
    for suffix in ("", "_err"):
        final = columns["z_final" + suffix]
        np.testing.assert_array_equal(final[has_spectrum], columns["hostgal_zspec" + suffix][has_spectrum])
        np.testing.assert_array_equal(final[~has_spectrum], columns["hostgal_zphot" + suffix][~has_spectrum])


def test_magnitude_errors_grow_from_their_floor() -> None:
    columns = drawn("Ia", 0.4)
    error, magnitude = columns["hostgal_magerr_g"], columns["hostgal_mag_g"]
    error, magnitude = error[np.isfinite(error)], magnitude[np.isfinite(magnitude)]
    assert error.min() >= np.float32(host.MAG_ERROR_FLOOR)
    assert np.corrcoef(magnitude, np.log(error))[0, 1] > 0.7


def test_nuclear_events_sit_on_their_hosts() -> None:
    separation = {name: np.nanmedian(drawn(name, 0.3)["hostgal_snsep"]) for name in ("TDE", "AGN", "Ia", "CART")}
    assert separation["TDE"] < 0.15
    assert separation["AGN"] < 0.15
    assert separation["Ia"] < separation["CART"]


def test_ellipticals_prefer_red_hosts() -> None:
    colour = {}
    for name in ("91bg", "SLSN"):
        columns = drawn(name, 0.2)
        colour[name] = np.nanmedian(columns["hostgal_mag_g"] - columns["hostgal_mag_r"])
    assert colour["91bg"] > colour["SLSN"] + 0.3


def test_values_never_look_like_sentinels() -> None:
    """A measured value must not be one that the wire would read as missing."""
    for name, redshift in (("Ia", 0.3), ("EB", 0.0)):
        table = host.metadata(np.random.default_rng(1), name, np.full(N, redshift), np.full(N, 0.02))
        for row in table[:200]:
            values = {column: float(v) for column, v in zip(METADATA_COLUMNS, row, strict=True) if np.isfinite(v)}
            assert clean_metadata(values) == values
