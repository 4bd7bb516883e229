"""What a network says of light curves as they will be served, for calibration, sets and novelty to be fitted to.

Every object is seen whole and in random views drawn as in training (missing bands, metadata, forced photometry), at
least half of which end at a detection whose number is log-uniform, since a broker asks at every detection: in two such
views, or in up to eight where objects are few, since what a fit to a few hundred lacks most is rows.
A fit to complete light curves alone would promise what it does not know about alerts with two detections.

Legend: N rows (one for each view of each object), C classes, E embedding width.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models.lightcurve import Int64
from models.network import Output
from training.data.augment import View
from training.data.batches import Example, collate, draw_examples, view_examples
from training.data.dataset import Dataset, split_indices
from training.fit.loop import to_device
from training.recipes.schema import Recipe

DRAWS = (2, 8)  # random views of each object, beside the whole: at least, at most
AT_DETECTION = 0.5  # least share of them that ends at a detection
LARGEST_SAMPLE = 10_000  # objects
SERVED_DRAW = 2**32 + 1  # a generator of its own: neither training pools nor validation draws


class ServedSample(NamedTuple):
    """A network's answers and what they are about.

    Attributes
    ----------
    logits_NC, embedding_NE : float32.
    label_N : class index. object_N : row of the dataset, the same for all views of an object.
    length_N, detections_N : observations that the network saw, and those of them that the survey calls detected.
    """

    logits_NC: NDArray[np.float32]
    embedding_NE: NDArray[np.float32]
    label_N: Int64
    object_N: Int64
    length_N: Int64
    detections_N: Int64


def ask_as_served(
    network: nn.Module, dataset: Dataset, recipe: Recipe, split: str, per_class: int | None = None
) -> ServedSample:
    """Answers about the objects of a split, or about so many of each class.

    Raises
    ------
    ValueError
        When the split has no object with something to show.
    """
    rng = np.random.default_rng((recipe.seed, SERVED_DRAW))
    rows = _chosen(dataset, split_indices(dataset, recipe.data.fractions, recipe.data.turn)[split], per_class, rng)
    asked = sorted(_views(dataset, rows, recipe, rng), key=lambda pair: len(pair[1].tokens))
    if not asked:
        raise ValueError(f"no object of split {split!r} has anything to show")
    examples = [example for _, example in asked]
    logits_NC, embedding_NE = _answers(network, examples, recipe.batch.size)
    return ServedSample(
        logits_NC,
        embedding_NE,
        label_N=_integers([example.label for example in examples]),
        object_N=_integers([row for row, _ in asked]),
        length_N=_integers([len(example.tokens) for example in examples]),
        detections_N=_integers([int(np.count_nonzero(example.tokens.detected)) for example in examples]),
    )


def _chosen(dataset: Dataset, rows: Int64, per_class: int | None, rng: np.random.Generator) -> Int64:
    shuffled = rng.permutation(rows)[:LARGEST_SAMPLE]
    if per_class is None:
        return shuffled
    label = dataset.label[shuffled]
    return np.concatenate([shuffled[label == one][:per_class] for one in np.unique(label)])


def draws_of_each(objects: int) -> int:
    """How many random views of each object there are in a sample of so many objects."""
    least, most = DRAWS
    return max(least, min(most, LARGEST_SAMPLE // max(objects, 1)))


def _views(dataset: Dataset, rows: Int64, recipe: Recipe, rng: np.random.Generator) -> Iterator[tuple[int, Example]]:
    least = max(AT_DETECTION, recipe.augmentation.at_detection)
    augmentation = recipe.augmentation.model_copy(update={"at_detection": least})
    for row in rows:
        repeated = np.repeat(row, draws_of_each(len(rows)))
        shown = draw_examples(dataset, repeated, recipe.data, augmentation, rng)
        shown += view_examples(dataset, repeated[:1], recipe.data, View())
        yield from ((int(row), example) for example in shown)


@torch.inference_mode()
def _answers(
    network: nn.Module, examples: list[Example], batch_size: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    network.eval()
    device = next(network.parameters()).device
    answers: list[tuple[NDArray[np.float32], ...]] = []
    for start in range(0, len(examples), batch_size):
        batch = to_device(collate(examples[start : start + batch_size]), device)
        output: Output = network(*batch.inputs_of(network))
        answers.append(tuple(value.float().cpu().numpy() for value in (output.logits_BC, output.embedding_BE)))
    logits, embeddings = zip(*answers, strict=True)
    return np.concatenate(logits), np.concatenate(embeddings)


def _integers(values: list[int]) -> Int64:
    return np.array(values, dtype=np.int64)
