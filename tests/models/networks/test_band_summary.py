"""Per-band summaries against a plain loop."""

import numpy as np
import torch

from nightjar_alerts.models.networks.informer import summarise


def test_summary_agrees_with_a_loop_over_bands() -> None:
    rng = np.random.default_rng(0)
    lengths, width, n_bands = [12, 1, 5], 14, 4
    mask = np.arange(width) < np.array(lengths)[:, None]
    flux, flux_err = rng.normal(size=mask.shape), rng.uniform(0.1, 2.0, mask.shape)
    time, band = (
        np.sort(rng.uniform(-50, 0, mask.shape), axis=1),
        rng.integers(0, n_bands - 1, mask.shape),
    )  # one unseen
    flux[~mask] = 1e6  # padding may hold anything
    columns = [torch.from_numpy(column) for column in (flux, flux_err, time, band, mask)]
    summary = summarise(columns[0], columns[1], columns[2], columns[3], columns[4], n_bands)
    features = summary.features().numpy()
    for row, length in enumerate(lengths):
        for which in range(n_bands):
            here = np.flatnonzero(band[row, :length] == which)
            assert bool(summary.present_BG[row, which]) == bool(len(here))
            if not len(here):
                assert float(summary.newest_BG[row, which]) == float(summary.mean_BG[row, which]) == 0.0
                assert not features[row, which].any()
                continue
            weight = flux_err[row, here] ** -2
            mean, mean_err = np.average(flux[row, here], weights=weight), weight.sum() ** -0.5
            newest, newest_err, age = flux[row, here[-1]], flux_err[row, here[-1]], -time[row, here[-1]]
            expected = [1, np.arcsinh(newest), np.log(newest_err), np.log1p(age), np.arcsinh(mean), np.log(mean_err)]
            np.testing.assert_allclose(features[row, which], expected, rtol=1e-9)
            np.testing.assert_allclose(float(summary.mean_BG[row, which]), mean, rtol=1e-9)
