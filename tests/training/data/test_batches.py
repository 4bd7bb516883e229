"""Batches: same featurisation as serving, balance, bucketing, and a stream that depends on (seed, step) alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nightjar_alerts.models.lightcurve import featurise
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.training.data.augment import View
from nightjar_alerts.training.data.batches import (
    Example,
    TrainingBatch,
    batches_of_pool,
    collate,
    draw_examples,
    draw_indices,
    stream,
    view_examples,
)
from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.recipes.astro_moe import debug
from nightjar_alerts.training.recipes.schema import Recipe
from support.toy_dataset import TOY_CLASSES, TOY_LABELS, write_toy_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return read_dataset(write_toy_dataset(tmp_path_factory.mktemp("data") / "toy.parquet", 120))


def recipe(seed: int = 0) -> Recipe:
    base = debug()
    return base.model_copy(update={"seed": seed, "batch": base.batch.model_copy(update={"size": 8, "pool": 3})})


def same(left: TrainingBatch, right: TrainingBatch) -> bool:
    pairs = zip(left, right, strict=True)
    return all(a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def test_training_sees_the_tokens_that_serving_makes(dataset: Sample) -> None:
    config = recipe().data
    example = view_examples(dataset, np.array([3]), config, View())[0]
    served = featurise(dataset.curve(3), config.limits, config.flux_unit, METADATA_COLUMNS)
    for name in ("time", "flux", "flux_err", "band", "detected", "metadata"):
        np.testing.assert_array_equal(getattr(example.tokens, name), getattr(served, name))


def test_a_batch_is_padded_at_the_end(dataset: Sample) -> None:
    examples = view_examples(dataset, np.arange(5), recipe().data, View())
    batch = collate(examples)
    lengths = [len(example.tokens) for example in examples]
    assert len(batch.label_B) == 5
    assert batch.mask_BL.sum(1).tolist() == lengths
    assert batch.flux_BL.shape == batch.mask_BL.shape == (5, max(lengths))
    assert not batch.flux_BL[~batch.mask_BL].any()
    assert batch.metadata_BF.shape == (5, 64)
    assert {tensor.dtype for tensor in batch[:6]} == {torch.float32, torch.int64, torch.bool}
    assert batch.label_B.tolist() == [example.label for example in examples]


def test_balanced_draws_take_rare_classes_as_often_as_common_ones(dataset: Sample) -> None:
    rng = np.random.default_rng(0)
    first = np.flatnonzero(dataset.label == TOY_LABELS[0])
    rare = np.delete(np.arange(len(dataset)), first[1:])
    drawn = draw_indices(dataset.label, rare, 103, balance=1.0, rng=rng)
    counts = [int((dataset.label[drawn] == label).sum()) for label in TOY_LABELS]
    assert sum(counts) == 103
    assert set(counts) <= {25, 26}
    plain = draw_indices(dataset.label, rare, 1000, balance=0.0, rng=rng)
    assert (dataset.label[plain] == TOY_LABELS[0]).sum() < 50
    # One object against others of three classes: its square root of the share is 1 / (1 + 3 sqrt(n)).
    between, others = draw_indices(dataset.label, rare, 10_000, balance=0.5, rng=rng), (len(rare) - 1) / 3
    assert (dataset.label[between] == TOY_LABELS[0]).mean() == pytest.approx(1 / (1 + 3 * others**0.5), rel=0.2)
    assert set(drawn) <= set(rare)


def test_a_view_without_detection_leaves_the_object_out_when_scoring_but_not_when_training(dataset: Sample) -> None:
    config, indices = recipe().data, np.arange(40)
    only_u = View(bands=("u",))
    visible = view_examples(dataset, indices, config, only_u)
    assert 0 < len(visible) < 40
    assert all(set(example.tokens.band.tolist()) == {0} for example in visible)
    blind = debug().augmentation.model_copy(update={"as_ztf": 1.0})
    drawn = draw_examples(dataset, indices, config, blind, np.random.default_rng(0))
    assert [example.label for example in drawn] == dataset.label[indices].tolist()
    assert all(example.tokens.detected.any() for example in drawn)


def test_a_pool_is_grouped_by_length(dataset: Sample) -> None:
    pool = batches_of_pool(dataset, split_indices(dataset)["train"], recipe(), 0)
    assert [len(batch.label_B) for batch in pool] == [8, 8, 8]
    ordered = sorted(pool, key=lambda batch: batch.mask_BL.shape[1])
    longest = [int(batch.mask_BL.sum(1).max()) for batch in ordered]
    shortest = [int(batch.mask_BL.sum(1).min()) for batch in ordered]
    assert all(before <= after for before, after in zip(longest[:-1], shortest[1:], strict=True))
    labels = torch.cat([batch.label_B for batch in pool])
    assert [int((labels == label).sum()) for label in TOY_LABELS] == [6] * len(TOY_CLASSES)


@pytest.mark.parametrize("first", [0, 1, 3, 7])
def test_the_stream_from_a_step_is_the_stream_from_the_start(dataset: Sample, first: int) -> None:
    indices = split_indices(dataset)["train"]
    whole, later = stream(dataset, indices, recipe()), stream(dataset, indices, recipe(), first)
    expected = [next(whole) for _ in range(first + 4)][first:]
    assert all(same(next(later), batch) for batch in expected)
    whole.close()
    later.close()


def test_seeds_give_other_batches(dataset: Sample) -> None:
    indices = split_indices(dataset)["train"]
    first = batches_of_pool(dataset, indices, recipe(0), 0)[0]
    assert not same(first, batches_of_pool(dataset, indices, recipe(1), 0)[0])
    assert not same(first, batches_of_pool(dataset, indices, recipe(0), 1)[0])


def test_an_error_in_the_background_reaches_the_trainer(dataset: Sample, tmp_path: Path) -> None:
    broken = stream(dataset, np.array([10**9]), recipe())
    with pytest.raises(IndexError):
        next(broken)


def test_examples_are_plain_records(dataset: Sample) -> None:
    example = view_examples(dataset, np.array([0]), recipe().data, View())[0]
    with pytest.raises(AttributeError):
        example.label = 3  # type: ignore[misc]  # frozen: it must raise
    assert isinstance(example, Example)
