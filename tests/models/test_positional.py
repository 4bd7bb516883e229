"""Time encodings against float64 restatements of Astro-MoE eqs 6 and 7."""

import numpy as np
import torch

from models.positional import TimeModulation, sinusoidal


def test_sinusoidal_is_equation_6() -> None:
    time_N = np.array([0.0, 0.5, 3.0, 250.25, 1400.0])
    width = 10
    expected = np.empty((5, width))
    for i in range(width):
        angle = time_N * 1000.0 ** (-2 * i / width)
        expected[:, i] = np.sin(angle) if i % 2 == 0 else np.cos(angle)
    actual = sinusoidal(torch.from_numpy(time_N), width).numpy()
    np.testing.assert_allclose(actual, expected, atol=2e-4)  # single-precision angles of up to 1,400 rad


def test_time_modulation_is_equation_7() -> None:
    layer = TimeModulation(n_bands=3, width=4, n_harmonics=5, t_max=1500.0).double()
    rng = np.random.default_rng(0)
    x_ND, time_N, band_N = rng.normal(size=(7, 4)), rng.uniform(0, 2000, 7), rng.integers(0, 3, 7)
    weight_GPQ = layer.weight_GPQ.detach().numpy()
    expected = np.empty_like(x_ND)
    for n in range(7):
        gamma1, gamma2 = np.zeros(4), np.zeros(4)
        for m in range(5):
            a = 2 * np.pi * m * time_N[n] / 1500.0
            sine, cosine = weight_GPQ[band_N[n], m], weight_GPQ[band_N[n], 5 + m]
            gamma1 += np.sin(a) * sine[:4] + np.cos(a) * cosine[:4]
            gamma2 += np.sin(a) * sine[4:] + np.cos(a) * cosine[4:]
        expected[n] = x_ND[n] * gamma1 + gamma2
    actual = layer(torch.from_numpy(x_ND), torch.from_numpy(time_N), torch.from_numpy(band_N))
    np.testing.assert_allclose(actual.detach().numpy(), expected, atol=1e-5)


def test_harmonic_zero_is_a_constant() -> None:
    layer = TimeModulation(n_bands=1, width=2, n_harmonics=1, t_max=1500.0)
    x_ND, band_N = torch.ones(2, 2), torch.zeros(2, dtype=torch.int64)
    early, late = layer(x_ND, torch.tensor([0.0, 900.0]), band_N)
    torch.testing.assert_close(early, late)
