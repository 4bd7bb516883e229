"""The card of a forecaster: what it answers, how it did beside persistence, and what it must not be used for.

Written from the bundle's manifest, whose scores are those of the validation that chose the weights.
"""

from models.bundle import Manifest

SCORES = {
    "median_sigma": "median error, in units of the observation's own error",
    "rmse_sigma": "root mean square of the same",
}

USE = """## Intended use

Planning of follow-up: how bright a transient or variable is likely to be at a given night and band, and how sure that
is. It interpolates as well as it extrapolates.

## What it must not be used for

- as photometry, or to fill gaps in data that are then analysed as if they had been observed
- for the noise of another instrument: the error is that of one visit of the simulated survey, source and noise together
- far beyond the horizon it was trained on (`recipe` in `manifest.json`)

## Known limits

- Trained and scored on simulated objects only.
- Queries are answered one by one: errors at neighbouring times are correlated, and the forecast does not say how."""


def forecast_sections(manifest: Manifest) -> list[str]:
    """Sections of the card that differ from a classifier's: before and after its training data."""
    return [_identity(manifest), _scores(manifest), USE]


def _identity(manifest: Manifest) -> str:
    return f"""# {manifest.name} {manifest.version}

A forecaster of multiband light curves: the flux to expect at requested times and bands, and the standard deviation of
an observation there.

- network: {manifest.architecture}, {manifest.parameters.total:,} parameters
- input: difference flux and its error in any of {", ".join(manifest.bands)}, at most the newest
  {manifest.limits.max_points_per_band} observations of each band; times and bands of the queries
- output: `forecast_flux` and `forecast_flux_err` in {manifest.flux_unit}
- recipe: `{manifest.recipe.get("name")}`, seed {manifest.recipe.get("seed")}, resolved in `manifest.json`
- created: {manifest.created}"""


def _scores(manifest: Manifest) -> str:
    scores = manifest.metrics.get("validation", {})
    who = {"": "this network", "persistence_": "last flux in the band", "mean_": "mean flux of the band"}
    rows = [
        f"| {label} | " + " | ".join(f"{scores[f'validation_{key}{name}']:.2f}" for name in SCORES) + " |"
        for key, label in who.items()
    ]
    header = ["| | " + " | ".join(SCORES.values()) + " |", "|---|" + "---:|" * len(SCORES)]
    coverage = [f"{100 * scores[f'validation_coverage_{level}']:.1f} %" for level in (68, 95)]
    return "\n".join(
        [
            "## Scores",
            "",
            "On validation objects, light curves cut where an alert was sent, the survey's later visits asked for:",
            "",
            *header,
            *rows,
            "",
            f"Negative log likelihood {scores['validation_nll']:.3f} nats a query; {coverage[0]} of the observations",
            f"lie inside the central 68.3 % interval and {coverage[1]} inside the 95 % one.",
        ]
    )
