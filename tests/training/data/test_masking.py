import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from nightjar_alerts.models.lightcurve import Bool
from nightjar_alerts.models.networks.network import Masking
from nightjar_alerts.training.data.targets import MaskingConfig, count_masking, draw_masking

ROMAE = MaskingConfig(probed=0.75, hidden=1.0, random=0.0, same=0.0)
ASTRO_MOE = MaskingConfig(probed=0.9, hidden=0.3, random=0.3, same=0.4)


@st.composite
def masks(draw: st.DrawFn) -> Bool:
    rows, length = draw(st.integers(1, 5)), draw(st.integers(1, 24))
    flags = draw(st.lists(st.booleans(), min_size=rows * length, max_size=rows * length))
    return np.array(flags, dtype=np.bool_).reshape(rows, length)


@st.composite
def configs(draw: st.DrawFn) -> MaskingConfig:
    parts = [draw(st.integers(0, 10)) for _ in range(2)] + [draw(st.integers(1, 10))]
    hidden, random = parts[0] / sum(parts), parts[1] / sum(parts)
    return MaskingConfig(
        probed=draw(st.sampled_from([0.01, 0.3, 0.5, 0.75, 0.9, 1.0])),
        hidden=hidden,
        random=random,
        same=max(0.0, 1.0 - hidden - random),
        counting=draw(st.sampled_from(["exact", "sequential"])),
    )


def drawn(mask_BL: Bool, config: MaskingConfig, seed: int = 0) -> Masking:
    return draw_masking(mask_BL, config, np.random.default_rng(seed))


def arrays(masking: Masking) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    return masking.probed_BL.numpy(), masking.hidden_BL.numpy(), masking.source_BL.numpy()


@given(mask_BL=masks(), config=configs(), seed=st.integers(0, 2**32))
def test_every_row_keeps_the_rules(mask_BL: Bool, config: MaskingConfig, seed: int) -> None:
    probed, hidden, source = arrays(drawn(mask_BL, config, seed))
    place = np.broadcast_to(np.arange(mask_BL.shape[1]), mask_BL.shape)
    length = mask_BL.sum(1)
    counts = count_masking(length, config)
    assert not (probed & ~mask_BL).any()
    assert not (hidden & ~probed).any()
    assert (probed.sum(1) == counts.probed_B).all()
    assert (hidden.sum(1) == counts.hidden_B).all()
    assert (probed.sum(1)[length > 0] >= 1).all()
    assert ((mask_BL & ~hidden).sum(1)[length > 1] >= 1).all()
    replaced = source != place
    assert (replaced.sum(1) == np.where(length > 1, counts.random_B, 0)).all()
    assert not (replaced & (hidden | ~probed)).any()
    assert np.take_along_axis(mask_BL, source, 1)[mask_BL].all()


@given(config=configs(), length=st.integers(0, 400))
def test_counts_follow_the_fractions(config: MaskingConfig, length: int) -> None:
    probed, hidden, random = (int(count[0]) for count in count_masking(np.array([length]), config))
    assert abs(probed - config.probed * length) <= 1
    if config.counting == "exact" and hidden < length - 1:
        assert abs(hidden - config.hidden * probed) < 1
        assert abs(random - config.random * probed) < 1
        assert abs(probed - hidden - random - config.same * probed) < 1


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        (MaskingConfig(), (100, 60, 20)),  # ASTROMER's text: 30, 10 and 10 % of the window
        (MaskingConfig(counting="sequential"), (100, 64, 16)),  # ASTROMER's code
        (ROMAE, (150, 150, 0)),
        (ASTRO_MOE, (180, 54, 54)),
        (MaskingConfig(probed=0.55, hidden=1.0, random=0.0, same=0.0), (110, 110, 0)),
    ],
)
def test_a_window_of_two_hundred(config: MaskingConfig, counts: tuple[int, int, int]) -> None:
    assert tuple(int(count[0]) for count in count_masking(np.array([200]), config)) == counts


def test_a_single_observation_is_probed_and_may_be_hidden() -> None:
    probed, hidden, source = arrays(drawn(np.array([[False, True, False]]), ROMAE))
    assert probed.tolist() == hidden.tolist() == [[False, True, False]]
    assert source.tolist() == [[0, 1, 2]]


def test_hiding_everything_leaves_one_observation_out() -> None:
    config = MaskingConfig(probed=1.0, hidden=1.0, random=0.0, same=0.0)
    probed, hidden, _ = arrays(drawn(np.ones((3, 7), dtype=np.bool_), config))
    assert probed.sum(1).tolist() == hidden.sum(1).tolist() == [6, 6, 6]


def test_the_seed_decides() -> None:
    mask_BL = np.ones((4, 30), dtype=np.bool_)
    for one, same, other in zip(*(arrays(drawn(mask_BL, ASTRO_MOE, seed)) for seed in (1, 1, 2)), strict=True):
        assert (one == same).all()
        assert (one != other).any()


def test_places_and_sources_are_drawn_evenly() -> None:
    mask_BL = np.tile(np.arange(12) % 3 != 2, (6_000, 1))  # eight observations between padding
    config = MaskingConfig(probed=0.5, hidden=0.5, random=0.5, same=0.0)
    probed, hidden, source = arrays(drawn(mask_BL, config))
    np.testing.assert_allclose(probed.mean(0)[mask_BL[0]], 0.5, atol=0.03)
    np.testing.assert_allclose(hidden.mean(0)[mask_BL[0]], 0.25, atol=0.03)
    row, place = (source != np.arange(12)).nonzero()
    pairs = np.zeros((12, 12))
    np.add.at(pairs, (place, source[row, place]), 1)
    apart = mask_BL[0][:, None] & mask_BL[0] & ~np.eye(12, dtype=np.bool_)
    np.testing.assert_allclose(pairs[apart] / len(row), 1 / 56, atol=0.005)


@pytest.mark.parametrize("wrong", [{"hidden": 0.5}, {"probed": 0.0}, {"probed": 1.1}, {"hide": 0.1}])
def test_wrong_fractions_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        MaskingConfig.model_validate(wrong)
