"""Small made-up surveys for tests of training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.sample import SurveyObject
from nightjar_alerts.training.data.survey_readers import WAVELENGTH


def bump(
    object_id: str = "SN1",
    *,
    source: str = "one",
    label: int = 13,
    seed: int = 0,
    points: int = 40,
    peak: float = 20_000.0,
    bands: str = "gri",
    noise: float = 150.0,
    width: float = 12.0,
    **fields: Any,
) -> SurveyObject:
    """A transient that rises and falls within ``width`` days or so, redder as it ages, peak at MJD 60,000 (nJy)."""
    rng = np.random.default_rng(seed)
    mjd = np.sort(rng.uniform(59_970.0, 60_070.0, points))
    band = np.array([BANDS.index(bands[i % len(bands)]) for i in range(points)], dtype=np.int8)
    since = mjd - 60_000.0
    shape = np.where(since < 0, np.exp(-((since / (0.6 * width)) ** 2)), np.exp(-since / (2.0 * width)))
    nanometres = np.array([WAVELENGTH[name] for name in BANDS])[band]
    colour = (nanometres / 622.0) ** np.clip(0.02 * since, -0.5, 2.0)
    flux = peak * shape * colour + rng.normal(0.0, noise, points)
    return SurveyObject(
        source=source, object_id=object_id, mjd=mjd, flux=flux, flux_err=np.full(points, noise), band=band,
        detected=flux >= 5 * noise, foreign=np.zeros(points, np.bool_), wavelength=nanometres.astype(np.float32),
        label=label, quality="simulated", names=(object_id,), **fields,
    )  # fmt: skip


def pulsator(
    object_id: str = "RR1", *, source: str = "var", period: float = 0.55, seed: int = 0, points: int = 80,
    amplitude: float = 8_000.0, label: int = 10, **fields: Any,
) -> SurveyObject:  # fmt: skip
    """A variable of known period in g and r, total flux around 30,000 nJy."""
    rng = np.random.default_rng(seed)
    mjd = np.sort(rng.uniform(59_000.0, 60_000.0, points))
    band = np.array([1 + i % 2 for i in range(points)], dtype=np.int8)
    phase = mjd / period % 1.0
    flux = amplitude * np.where(phase < 0.2, phase / 0.2, (1 - phase) / 0.8) * np.where(band == 1, 1.0, 0.7)
    flux += rng.normal(0.0, 200.0, points)
    total = 30_000.0 + flux
    for number in (1, 2):
        flux[band == number] -= np.median(flux[band == number])
    return SurveyObject(
        source=source, object_id=object_id, mjd=mjd, flux=flux, flux_err=np.full(points, 200.0), band=band,
        detected=np.abs(flux) >= 1_000.0, foreign=np.zeros(points, np.bool_),
        wavelength=np.where(band == 1, 480.0, 622.0).astype(np.float32), total_flux=total, label=label,
        quality="catalogue", period=period, names=(object_id,), **fields,
    )  # fmt: skip


def write_real(path: Path, objects: Sequence[SurveyObject]) -> None:
    """Write objects to a file that `training.data.survey_readers.read_real` reads."""
    path.parent.mkdir(parents=True)
    rows = [
        {
            "source": row.source, "object_id": row.object_id, "label": ELASTICC.names[row.label], "raw_label": "",
            "label_quality": row.quality, "z": row.z, "z_err": row.z_err, "z_phot": row.z_phot,
            "z_phot_err": row.z_phot_err, "mwebv": row.mwebv, "period_d": row.period, "aliases": "", "also_in": "",
            "mjd": row.mjd, "band": [BANDS[number] for number in row.band], "flux": row.flux, "flux_err": row.flux_err,
            "total_flux": [] if row.total_flux is None else row.total_flux, "detected": row.detected,
        }
        for row in objects
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), path)
