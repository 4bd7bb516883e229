"""Flip rate and stability against a loop over the predictions of every object."""

from itertools import pairwise

import numpy as np
import pytest

from nightjar_alerts.training.metrics import first_stable, stability

STEPS = (1.0, 2.0, 4.0, 8.0)


def test_by_hand() -> None:
    top_NK = np.array([[0, 0, 0, 0], [1, 0, 1, 1], [2, 2, 2, 0], [0, 1, 0, 1]])
    settling = stability(top_NK, np.array([0, 1, 2, 0]), STEPS)
    assert first_stable(top_NK).tolist() == [0, 2, 3, 3]
    assert settling.flip_rate == pytest.approx((0 + 2 + 1 + 3) / 12)
    assert settling.flips_per_object == 1.5
    assert settling.never_flipped == 0.25
    assert settling.stable_K.tolist() == [0.25, 0.25, 0.5, 1.0]
    assert settling.stable_and_right_K.tolist() == [0.25, 0.25, 0.5, 0.5]
    assert settling.median_step == 4.0
    assert settling.median_step_right == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_random_answers_against_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    top_NK, label_N = rng.integers(0, 3, (60, 7)), rng.integers(0, 3, 60)
    steps = tuple(2.0**k for k in range(7))
    flips, stable = 0, []
    for row in top_NK.tolist():
        flips += sum(a != b for a, b in pairwise(row))
        stable.append(next(k for k in range(7) if len(set(row[k:])) == 1))
    settling = stability(top_NK, label_N, steps)
    assert first_stable(top_NK).tolist() == stable
    assert settling.flip_rate == pytest.approx(flips / (60 * 6))
    assert settling.stable_K == pytest.approx([np.mean([s <= k for s in stable]) for k in range(7)])
    assert settling.median_step == steps[sorted(stable)[29]]


def test_nothing_right_has_no_median() -> None:
    settling = stability(np.zeros((3, 2), dtype=np.int64), np.ones(3, dtype=np.int64), (1.0, 2.0))
    assert np.isnan(settling.median_step_right)
    assert settling.stable_and_right_K.tolist() == [0.0, 0.0]


def test_one_step_never_flips() -> None:
    settling = stability(np.array([[1], [0]]), np.array([1, 1]), (1.0,))
    assert (settling.flip_rate, settling.stable_K.tolist(), settling.never_flipped) == (0.0, [1.0], 1.0)


@pytest.mark.parametrize(("shape", "steps"), [((0, 2), (1.0, 2.0)), ((3, 2), (1.0,)), ((3, 0), ())])
def test_nothing_to_follow_is_an_error(shape: tuple[int, int], steps: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="stability needs"):
        stability(np.zeros(shape, dtype=np.int64), np.zeros(shape[0], dtype=np.int64), steps)
