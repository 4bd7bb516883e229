"""Patches of arrays with one, two and three spatial axes: every value in its place, every patch at its position."""

import numpy as np
import pytest
import torch

from models.patches import cut_patches
from models.romae_encoder import RoMAEEncoderConfig
from models.romae_sequence import MaskedAutoencoder, SequenceModel


@pytest.mark.parametrize(
    ("shape", "patch"), [((2, 12), (4,)), ((3, 8, 6), (4, 2)), ((1, 4, 6, 8), (2, 3, 4)), ((3, 5, 5), (1, 1))]
)
def test_every_patch_holds_the_values_at_its_position(shape: tuple[int, ...], patch: tuple[int, ...]) -> None:
    x = np.arange(2 * np.prod(shape), dtype=np.float32).reshape(2, *shape)
    values_BLK, position_BLA = cut_patches(torch.from_numpy(x), patch)
    grid = [length // size for length, size in zip(shape[1:], patch, strict=True)]
    assert values_BLK.shape == (2, np.prod(grid), shape[0] * np.prod(patch))
    for number, index in enumerate(np.ndindex(*grid)):
        assert position_BLA[1, number].tolist() == list(index)
        window = tuple(slice(i * size, (i + 1) * size) for i, size in zip(index, patch, strict=True))
        expected = np.moveaxis(x[1][(slice(None), *window)], 0, -1).ravel()  # channel last
        np.testing.assert_array_equal(values_BLK[1, number], expected)


@pytest.mark.parametrize("patch", [(4,), (5, 2), (2, 2, 2)])
def test_patches_must_tile(patch: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not divide into patches"):
        cut_patches(torch.zeros(1, 1, 8, 6), patch)


@pytest.mark.parametrize(("shape", "patch"), [((2, 16), (4,)), ((1, 8, 12), (4, 4)), ((3, 4, 4, 4), (2, 2, 2))])
def test_networks_take_images_spectrograms_and_volumes(shape: tuple[int, ...], patch: tuple[int, ...]) -> None:
    n_axes = len(patch)
    sizes = RoMAEEncoderConfig(d_model=12 * n_axes, n_heads=2, depth=2)
    values_BLK, position_BLA = cut_patches(torch.randn(3, *shape), patch)
    mask_BL = torch.ones(values_BLK.shape[:2], dtype=torch.bool)
    hidden_BL = torch.rand(mask_BL.shape).argsort(1) < mask_BL.shape[1] // 2
    classifier = SequenceModel(values_BLK.shape[2], 5, n_axes, sizes)
    assert classifier(values_BLK, position_BLA, mask_BL).shape == (3, 5)
    autoencoder = MaskedAutoencoder(values_BLK.shape[2], n_axes, sizes, sizes)
    assert autoencoder(values_BLK, position_BLA, mask_BL, hidden_BL).shape == values_BLK.shape
