import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.training.fit.tasks import ReconstructionScore
from support.shared import needs_shared, shared


def scored(*batches: tuple[np.ndarray, np.ndarray, np.ndarray]) -> ReconstructionScore:
    score = ReconstructionScore()
    for target, prediction, probed in batches:
        score.add(target[..., None], prediction[..., None], probed)
    return score


@given(seed=st.integers(0, 10_000), objects=st.integers(1, 6), length=st.integers(2, 20))
def test_definitions(seed: int, objects: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    target, prediction = rng.normal(3.0, 2.0, (2, objects, length))
    probed = rng.random((objects, length)) < 0.5
    probed[:, :2] = True
    score = scored((target, prediction, probed))
    per_object = [np.mean((target[b, on] - prediction[b, on]) ** 2) for b, on in enumerate(probed)]
    total = sum(np.sum((target[b, on] - target[b, on].mean()) ** 2) for b, on in enumerate(probed))
    assert score.rmse == pytest.approx(math.sqrt(np.mean(per_object)))
    assert score.r2 == pytest.approx(1 - np.sum((target - prediction)[probed] ** 2) / total)


def test_batches_add_up_whatever_their_padding() -> None:
    rng = np.random.default_rng(0)
    target, prediction = rng.normal(size=(2, 6, 10))
    probed = rng.random((6, 10)) < 0.6
    probed[:3, 7:] = False
    parts = scored((target[:3, :7], prediction[:3, :7], probed[:3, :7]), (target[3:], prediction[3:], probed[3:]))
    whole = scored((target, prediction, probed))
    assert parts.rmse == pytest.approx(whole.rmse)
    assert parts.r2 == pytest.approx(whole.r2)


def test_anchors() -> None:
    rng = np.random.default_rng(1)
    target, probed = rng.normal(20.0, 1.0, (4, 9)), np.ones((4, 9), dtype=np.bool_)
    perfect = scored((target, target, probed))
    assert (perfect.rmse, perfect.r2) == (0.0, 1.0)
    own_mean = np.broadcast_to(target.mean(1, keepdims=True), target.shape)
    assert scored((target, own_mean, probed)).r2 == pytest.approx(0.0)


def test_an_object_without_probed_observations_lowers_the_rmse_only() -> None:
    rng = np.random.default_rng(2)
    target, prediction = rng.normal(size=(2, 3, 8))
    probed = np.ones((3, 8), dtype=np.bool_)
    full = scored((target, prediction, probed))
    probed[2] = False
    score, without = scored((target, prediction, probed)), scored((target[:2], prediction[:2], probed[:2]))
    assert score.rmse == pytest.approx(without.rmse * math.sqrt(2 / 3))
    assert score.r2 == pytest.approx(without.r2)
    assert score.r2 != pytest.approx(full.r2)


def test_nothing_to_score_is_not_a_score() -> None:
    assert math.isnan(ReconstructionScore().rmse)
    assert math.isnan(scored((np.ones((1, 3)), np.zeros((1, 3)), np.ones((1, 3), dtype=np.bool_))).r2)


@needs_shared
def test_parity_with_the_released_losses() -> None:
    with np.load(shared("parity", "astromer.npz")) as data:
        target, prediction, mask = (data[f"loss/{name}"][..., 0] for name in ("y_true", "y_pred", "mask"))
        rmse, r2 = float(data["loss/rmse_v2"]), float(data["loss/r2"])
    score = scored((target, prediction, mask > 0))
    assert score.rmse == pytest.approx(rmse, rel=1e-6)
    assert score.r2 == pytest.approx(r2, rel=1e-5)
