"""Where a model was measured, and whether a light curve lies within; the basis of routing (:mod:`service.registry`)."""

from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.bands import BandMap
from models.lightcurve import LightCurve
from models.units import magnitude_of


class Domain(BaseModel):
    """The light curves on which a model's quality was measured.

    Attributes
    ----------
    bands : of the bundle that count for it.
    fewest_bands, fewest_points : with points, and points in those bands.
    faintest_njy, brightest_njy : of the brightest detection (of all points where none is detected), nJy; None is open.
    surveys : a light curve that names another is outside; one that names none is not judged by it. Empty: any.
    measured_on : for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bands: tuple[str, ...] = Field(min_length=1)
    fewest_bands: int = Field(default=1, ge=1)
    fewest_points: int = Field(default=1, ge=1)
    faintest_njy: float | None = Field(default=None, gt=0)
    brightest_njy: float | None = Field(default=None, gt=0)
    surveys: tuple[str, ...] = ()
    measured_on: str

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        if self.faintest_njy and self.brightest_njy and self.faintest_njy >= self.brightest_njy:
            raise ValueError("faintest_njy must be below brightest_njy")
        return self

    def outside(self, curve: LightCurve, bands: BandMap) -> str:
        """Say in words why a light curve lies outside; empty where it lies within.

        Parameters
        ----------
        bands : of the model.
        """
        if self.surveys and curve.survey and curve.survey not in self.surveys:
            return f"measured on {', '.join(self.surveys)}, not on {curve.survey}"
        counted = [bands.indices[bands.bands.index(name)] for name in self.bands]
        band_N = bands.table(curve.survey)[curve.band]
        within_N = np.isin(band_N, counted)
        if np.count_nonzero(within_N) < self.fewest_points:
            return f"measured on light curves of at least {self.fewest_points} points in {', '.join(self.bands)}"
        if len(np.unique(band_N[within_N])) < self.fewest_bands:
            return f"measured on light curves in at least {self.fewest_bands} bands of {', '.join(self.bands)}"
        bright_N = within_N & curve.detected if (within_N & curve.detected).any() else within_N
        return self._brightness(float(np.abs(curve.flux[bright_N]).max()))

    def _brightness(self, peak: float) -> str:
        if self.faintest_njy is not None and peak < self.faintest_njy:
            return f"the brightest point has {_told(peak)}, measured from {_told(self.faintest_njy)} on"
        if self.brightest_njy is not None and peak > self.brightest_njy:
            return f"the brightest point has {_told(peak)}, measured up to {_told(self.brightest_njy)}"
        return ""


def _told(flux_njy: float) -> str:
    return f"{flux_njy:.3g} nJy ({magnitude_of(flux_njy):.1f} mag)" if flux_njy > 0 else "0 nJy"
