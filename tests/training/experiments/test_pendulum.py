from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.training.experiments import pendulum
from nightjar_alerts.training.experiments.pendulum import (
    Pendulum,
    PendulumHead,
    advance,
    draw,
    kept_frames,
    observe,
    read_pendulums,
    render,
    swing,
    visibility,
)
from nightjar_alerts.training.experiments.position import Regression
from support.shared import needs_shared, shared

Float64 = NDArray[np.float64]


def wrapped(difference: Float64) -> Float64:
    return np.asarray((difference + np.pi) % (2 * np.pi) - np.pi)


@needs_shared
def test_published_states_follow_the_physics() -> None:
    """Every stored angle is one frame ahead of the state before it; the velocity differs by its noise, 0.1."""
    state_NT2 = np.load(shared("parity", "generators.npz"))["pendulum/states"]
    angle_NT, velocity_NT = advance(state_NT2[:, :-1, 0] + np.pi, state_NT2[:, :-1, 1])
    np.testing.assert_allclose(wrapped(angle_NT - np.pi - state_NT2[:, 1:, 0]), 0.0, atol=1e-12)
    assert (state_NT2[:, 1:, 1] - velocity_NT).std() == pytest.approx(0.1, rel=0.1)


@needs_shared
def test_published_images_are_rendered_to_the_bit() -> None:
    stored = np.load(shared("parity", "generators.npz"))
    for sequence in range(3):
        for frame in range(0, 100, 9):
            image_PP = render(stored["pendulum/states"][sequence, frame, 0])
            np.testing.assert_array_equal(image_PP, stored["pendulum/clean"][sequence, frame])


@needs_shared
def test_published_targets_are_sine_and_cosine() -> None:
    stored = np.load(shared("parity", "generators.npz"))
    angle_NT = stored["pendulum/states"][..., 0]
    np.testing.assert_allclose(stored["pendulum/targets"], np.stack([np.sin(angle_NT), np.cos(angle_NT)], axis=-1))


def test_one_frame_is_a_hundred_semi_implicit_steps() -> None:
    angle, velocity = 1.2, -0.4
    moved, faster = advance(np.array([angle]), np.array([velocity]))
    for _ in range(100):
        velocity += 1e-4 * (29.43 * np.sin(angle) - 0.1 * velocity)
        angle += 1e-4 * velocity
    assert (moved[0], faster[0]) == pytest.approx((angle, velocity))


def test_pendulums_start_anywhere_and_stay_wrapped() -> None:
    angle_NT = swing(400, np.random.default_rng(0))
    assert angle_NT.shape == (400, 100)
    assert (np.abs(angle_NT) <= np.pi).all()
    assert np.histogram(angle_NT[:, 0], 4, (-np.pi, np.pi))[0].min() > 70


def test_visibility_is_clean_at_first_then_from_none_to_all() -> None:
    share_NT = visibility(400, np.random.default_rng(0))
    assert (share_NT[:, :5] == 1.0).all()
    assert (share_NT.min(), share_NT.max()) == (0.0, 1.0)
    assert 0.1 < (share_NT[:, 50:] == 0.0).mean() < 0.4
    assert 0.1 < (share_NT[:, 50:] == 1.0).mean() < 0.4


@needs_shared
def test_visibility_has_the_published_distribution() -> None:
    stored = np.load(shared("parity", "generators.npz"))["pendulum/factors"][:, 5:]
    ours = visibility(1_000, np.random.default_rng(0))[:, 5:]
    stored_3, *others_3 = (
        np.array([six.mean(), (six == 0.0).mean(), (six == 1.0).mean()])
        for six in (stored, *np.split(ours[:996], 166))  # as many sequences as are stored
    )
    assert (np.abs(stored_3 - np.mean(others_3, axis=0)) < 4 * np.std(others_3, axis=0)).all()


def test_images_are_blended_with_noise() -> None:
    angle, share = np.full((1, 3), 0.7), np.array([[1.0, 0.5, 0.0]])
    clean, half, noise = observe(angle, share, np.random.default_rng(0))[0].astype(float)
    np.testing.assert_array_equal(clean, render(0.7))
    assert (half - clean / 2).min() >= -1
    assert (half - clean / 2).max() <= 128
    assert noise.mean() == pytest.approx(127, abs=8)
    assert abs(np.corrcoef(noise.ravel(), clean.ravel())[0, 1]) < 0.15


def test_the_kept_frames_are_the_published_ones() -> None:
    for split, first in (("train", 2_000), ("test", 0), ("validation", 1_000)):
        frame_NK = kept_frames(split)
        expected = np.sort(np.random.default_rng(first + 7).choice(100, 50, replace=False))
        np.testing.assert_array_equal(frame_NK[7], expected)
        assert frame_NK.shape == (pendulum.SIZES[split], 50)


def test_targets_belong_to_the_kept_frames() -> None:
    frame_NK = kept_frames("test")[:4]
    drawn = draw(4, frame_NK, np.random.default_rng(3))
    angle_NT = swing(4, np.random.default_rng(3))
    np.testing.assert_allclose(drawn.target_NK2[2, 5, 0], np.sin(angle_NT[2, frame_NK[2, 5]]), rtol=1e-6)
    assert drawn.image_NKPP.shape == (4, 50, 24, 24)
    assert drawn.image_NKPP.dtype == np.uint8


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of few sequences."""
    monkeypatch.setattr(pendulum, "SIZES", {"train": 20, "test": 6, "validation": 6})
    read_pendulums("train", tmp_path)
    return tmp_path


def test_the_cache_is_written_once(few: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in few.iterdir()}
    assert sorted(before) == ["test.npz", "train.npz", "validation.npz"]
    train, test = read_pendulums("train", few), read_pendulums("test", few)
    assert (len(train.target_NK2), len(test.target_NK2)) == (20, 6)
    assert {path.name: path.stat().st_mtime_ns for path in few.iterdir()} == before


@pytest.mark.parametrize(("head", "parameters"), [("cls", 77_080), ("frames", 71_102)])
def test_networks_train_and_have_the_published_size(head: PendulumHead, parameters: int, few: Path) -> None:
    plan = Pendulum(head=head, cache=few).plan()
    assert sum(p.numel() for p in plan.network.parameters()) == parameters
    assert (plan.published_steps, plan.fit.schedule.warmup_steps) == (6_250, 1_000)
    batch = next(plan.task.batches(0))
    step = plan.task.loss(plan.network, batch)
    assert step.loss.item() == pytest.approx(16 * 100 * step.log["mse"].item(), rel=1e-5)
    assert plan.measure(plan.network)["MSE"] > 0


def test_inputs_are_standardised_as_published(few: Path) -> None:
    task = Pendulum(cache=few).plan().task
    assert isinstance(task, Regression)
    image = task.prepare(task.train.values_NLK)
    assert 238.0 < image.max().item() < 476.0
    assert image.dtype == torch.float32
