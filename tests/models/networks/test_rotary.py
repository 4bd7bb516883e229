"""Continuous axial rotary positions against a float64 restatement, and the released code's tensors."""

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.parts.positional import AxialRotary
from support.romae_oracle import rotate
from support.shared import needs_shared, shared

CASES = [
    "n1_h60_p75",
    "n2_h60_p75",
    "n3_h60_p75",
    "n1_h72_p75",
    "n2_h72_p75",
    "n1_h16_p100",
    "n1_h16_p0",
    "n2_h16_p50",
    "n1_h240_p75",
]


@pytest.mark.parametrize(("head_dim", "n_axes"), [(16, 1), (16, 2), (18, 3), (60, 2)])
@pytest.mark.parametrize("p", [0.0, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("keep", ["highest", "lowest"])
def test_rotation_is_the_equation(head_dim: int, n_axes: int, p: float, keep: str) -> None:
    rng = np.random.default_rng(0)
    x_BHSE, position_BSA = rng.normal(size=(2, 3, 5, head_dim)), rng.uniform(-200, 200, (2, 5, n_axes))
    rotary = AxialRotary(head_dim, n_axes, p, keep="lowest" if keep == "lowest" else "highest").double()
    actual, _ = rotary(torch.from_numpy(x_BHSE), torch.from_numpy(x_BHSE), torch.from_numpy(position_BSA))
    for b in range(2):
        for h in range(3):
            expected = rotate(x_BHSE[b, h], position_BSA[b], p, keep_lowest=keep == "lowest")
            np.testing.assert_allclose(actual[b, h], expected, atol=2e-5)  # frequencies are single precision


@pytest.mark.parametrize(
    ("head_dim", "n_axes", "p", "turning"),
    [(60, 1, 0.75, 22), (60, 2, 0.75, 11), (60, 3, 0.75, 7), (16, 1, 1.0, 8), (16, 1, 0.0, 0)],
)
def test_number_and_end_of_the_frequencies_that_turn(head_dim: int, n_axes: int, p: float, turning: int) -> None:
    pairs = head_dim // n_axes // 2
    highest = AxialRotary(head_dim, n_axes, p).frequency_P
    lowest = AxialRotary(head_dim, n_axes, p, keep="lowest").frequency_P
    assert int((highest > 0).sum()) == int((lowest > 0).sum()) == turning
    assert (highest[:turning] > 0).all()
    assert (lowest[pairs - turning :] > 0).all()
    if turning:
        assert highest[0] == 1.0


def test_products_depend_on_differences_of_positions_alone() -> None:
    rotary = AxialRotary(24, 2)
    query, key = torch.randn(1, 1, 6, 24), torch.randn(1, 1, 6, 24)
    position = 20 * torch.rand(1, 6, 2)

    def scores(shift: torch.Tensor) -> torch.Tensor:
        turned_query, turned_key = rotary.position(position + shift)(query, key)
        return turned_query @ turned_key.transpose(2, 3)

    torch.testing.assert_close(scores(torch.tensor([3.0, -40.0])), scores(torch.zeros(2)), atol=2e-4, rtol=1e-4)
    assert not torch.allclose(scores(torch.arange(6.0)[:, None].expand(6, 2)), scores(torch.zeros(2)), atol=1e-2)


def test_number_type_of_the_query_is_kept() -> None:
    rotary = AxialRotary(8, 1)
    query = torch.randn(1, 1, 3, 8, dtype=torch.bfloat16)
    turned, _ = rotary(query, query, torch.tensor([[[0.0], [1.0], [900.0]]]))
    assert turned.dtype == torch.bfloat16


@pytest.mark.parametrize(("head_dim", "n_axes"), [(60, 4), (15, 1), (16, 0), (16, 3)])
def test_axes_of_odd_length_are_refused(head_dim: int, n_axes: int) -> None:
    with pytest.raises(ValueError, match="axes of even length"):
        AxialRotary(head_dim, n_axes)


def test_share_and_axes_are_checked() -> None:
    with pytest.raises(ValueError, match="not a share"):
        AxialRotary(16, 1, p=1.5)
    with pytest.raises(ValueError, match="3 axes, expected 2"):
        AxialRotary(16, 2).position(torch.zeros(1, 4, 3))


@needs_shared
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_released_code(case: str) -> None:
    with np.load(shared("parity", "romae.npz")) as file:
        if f"rope/{case}/out" not in file:
            pytest.skip(f"the reference file holds no {case}")
        x, position, out, exact = (file[f"rope/{case}/{name}"] for name in ("x", "pos", "out", "out_f64"))
    n_axes, head_dim, percent = (int(part[1:]) for part in case.split("_"))
    rotary = AxialRotary(head_dim, n_axes, percent / 100)
    position_BSA = torch.from_numpy(position).transpose(1, 2)
    actual = rotary.position(position_BSA).turn(torch.from_numpy(x).transpose(1, 2)).transpose(1, 2).numpy()
    ordinary = np.abs(position).max(1) < 1_000  # the last token of the first row stands at a raw MJD
    np.testing.assert_allclose(actual[ordinary], out[ordinary], atol=1e-5)
    np.testing.assert_allclose(actual[ordinary], exact[ordinary], atol=1e-5)
    np.testing.assert_allclose(actual, exact, atol=2e-2)  # at 60,310 days single precision has lost the angle
