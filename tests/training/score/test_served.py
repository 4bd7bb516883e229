"""Predictions of views as in the service, with the properties of every view."""

import numpy as np
import pytest

from nightjar_alerts.models.networks.network import NetworkOutput
from nightjar_alerts.training.confidence.calibration import DRAWS, LARGEST_SAMPLE, draws_per_object, predict_as_served
from nightjar_alerts.training.data.batches import Example, collate, to_tokens
from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.recipes.catalogue import RECIPES
from support.bundles import tiny_network
from support.toy_dataset import write_toy_dataset

RECIPE = RECIPES["debug"]()
NETWORK = tiny_network()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return read_dataset(write_toy_dataset(tmp_path_factory.mktemp("toy") / "toy.parquet", 160))


def test_every_object_is_seen_whole_and_in_random_views(dataset: Sample) -> None:
    sample = predict_as_served(NETWORK, dataset, RECIPE, "validation")
    rows = split_indices(dataset, RECIPE.data.fractions)["validation"]
    assert np.bincount(sample.object_N, minlength=len(dataset))[rows].tolist() == [DRAWS[1] + 1] * len(rows)
    assert (sample.label_N == dataset.label[sample.object_N]).all()
    assert (sample.detections_N >= 1).all()
    assert (sample.detections_N <= sample.length_N).all()
    whole = [to_tokens(dataset.curve(int(row)), RECIPE.data) for row in rows]
    for row, tokens in zip(rows, whole, strict=True):
        assert sample.length_N[sample.object_N == row].max() == len(tokens)
    assert len(np.unique(sample.length_N)) > len(rows) / 2


def test_fewer_objects_are_shown_more_often() -> None:
    assert [draws_per_object(objects) for objects in (0, 1, 1_250, 2_500, 5_000, LARGEST_SAMPLE)] == [8, 8, 8, 4, 2, 2]


def test_the_answers_belong_to_their_rows(dataset: Sample) -> None:
    sample = predict_as_served(NETWORK, dataset, RECIPE, "validation")
    for row in np.unique(sample.object_N)[:5]:
        tokens = to_tokens(dataset.curve(int(row)), RECIPE.data)
        output: NetworkOutput = NETWORK(*collate([Example(tokens, 0)]).inputs_of(NETWORK))
        of_N = sample.object_N == row
        distance = np.abs(sample.logits_NC[of_N] - output.logits_BC.detach().numpy()).max(1)
        assert distance[sample.length_N[of_N] == len(tokens)].min() < 1e-4
        near = distance.argmin()
        np.testing.assert_allclose(sample.embedding_NE[of_N][near], output.embedding_BE[0].detach().numpy(), atol=1e-4)


def test_so_many_of_each_class_and_the_same_again(dataset: Sample) -> None:
    sample = predict_as_served(NETWORK, dataset, RECIPE, "train", per_class=3)
    objects = np.unique(sample.object_N)
    assert np.unique(dataset.label[objects], return_counts=True)[1].tolist() == [3, 3, 3, 3]
    again = predict_as_served(NETWORK, dataset, RECIPE, "train", per_class=3)
    for ours, theirs in zip(sample, again, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_empty_split_is_an_error(dataset: Sample) -> None:
    data = RECIPE.data.model_copy(update={"fractions": (1.0, 0.0, 0.0)})
    with pytest.raises(ValueError, match="has observations"):
        predict_as_served(NETWORK, dataset, RECIPE.model_copy(update={"data": data}), "validation")
