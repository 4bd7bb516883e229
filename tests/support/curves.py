"""Light curves of invented supernovae, as bodies of /v1/classify and as rows of tables."""

from typing import Any

import numpy as np

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import BANDS

NO_TABLES = "astropy, pandas or pyarrow is missing: pip install 'nightjar-alerts[tables]'"


def random_curve(rng: np.random.Generator, n_points: int, metadata: bool = True, span: float = 200.0) -> LightCurve:
    """A light curve of noise around a random level: valid in every respect, of no class in particular."""
    level = rng.lognormal(6.0, 1.5)
    return LightCurve.from_columns(
        mjd=60_000.0 + np.sort(rng.uniform(0.0, span, n_points)),
        flux=rng.normal(0.0, level, n_points),
        flux_err=rng.uniform(0.02, 0.5, n_points) * level,
        band=rng.integers(0, len(BANDS), n_points),
        metadata={name: float(rng.normal()) for name in METADATA_COLUMNS} if metadata else {},
        object_id=str(rng.integers(10**17)),
    )


def supernovae(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Return light curves with the fields of ``/v1/classify``, of 1 to 150 points."""
    rng = np.random.default_rng(seed)
    return [_supernova(f"SN{number:04d}", rng) for number in range(count)]


def _supernova(name: str, rng: np.random.Generator) -> dict[str, Any]:
    points = int(np.clip(rng.lognormal(3.5, 0.8), 1, 150))
    mjd = np.sort(60_000 + rng.uniform(0, 120, points))
    peak, width = 60_000 + rng.uniform(20, 60), rng.uniform(10, 40)
    flux = rng.lognormal(8.5, 0.7) * np.exp(-(((mjd - peak) / width) ** 2)) + rng.normal(0, 150, points)
    return {
        "object_id": name,
        "mjd": mjd.round(5).tolist(),
        "flux": flux.round(2).tolist(),
        "flux_err": [150.0] * points,
        "band": rng.choice(list("griz"), points).tolist(),
    }


def rows(curves: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return light curves as the columns of a long table."""
    names = ("mjd", "flux", "flux_err", "band")
    columns: dict[str, list[Any]] = {name: [value for curve in curves for value in curve[name]] for name in names}
    return {"object_id": [curve["object_id"] for curve in curves for _ in curve["mjd"]]} | columns


def csv_text(curves: list[dict[str, Any]]) -> str:
    """Return light curves as a CSV of one row per observation, with fluxes in nJy."""
    columns = rows(curves)
    heading = ["object_id", "mjd", "flux_njy", "flux_err_njy", "band"]
    lines = zip(*(columns[name] for name in ("object_id", "mjd", "flux", "flux_err", "band")), strict=True)
    return "\n".join([",".join(heading), *(",".join(map(str, line)) for line in lines)]) + "\n"


TOLERANCE = 2e-5


def close(actual: Any, expected: Any) -> bool:
    """Return True for equal documents whose numbers differ by no more than the tolerance."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and actual.keys() == expected.keys() and all(
            close(actual[name], expected[name]) for name in expected
        )  # fmt: skip
    if isinstance(expected, list):
        return isinstance(actual, list) and len(actual) == len(expected) and all(map(close, actual, expected))
    if isinstance(expected, float):
        return isinstance(actual, float) and abs(actual - expected) <= TOLERANCE * max(1.0, abs(expected))
    return bool(actual == expected)
