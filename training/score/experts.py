"""Uses of each expert: its share of the tokens of every band and of every class.

Two ways to know, told apart in the result:

- ``tokens``, from a run folder: the routers' choices are read from the network itself, observation by observation, in
  complete light curves;
- ``batches``, from a bundle: its graph tells the loads of a call only, so it is called with objects of one class, and
  with light curves cut down to one band. That is another question: an observation is routed in the context of its own
  band alone, and [CLS] tokens count.

Rows are shares of a group's choices: they sum to 1, and an even mixture has 1 / experts everywhere.

Legend: N tokens, L mixtures, G groups (bands or classes), X experts, K kept experts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from models.bands import BANDS
from models.bundle import MANIFEST, load_bundle
from models.lightcurve import Int64, RaggedBatch
from models.networks.parts.moe import Router, Routing
from models.runtime import open_session, run
from training.data.augment import View
from training.data.batches import Example, collate, view_examples
from training.data.dataset import Dataset
from training.fit.checkpoints import load_network
from training.score.predictions import BATCH, Model, outputs_of

PER_CLASS, PER_BAND = 50, 200
LOADS = ("input_expert_load", "expert_load")


class Mixture(NamedTuple):
    """Shares of one mixture's choices by band (bands, X) and by class (classes, X); NaN rows had no tokens."""

    name: str
    by_band: NDArray[np.float64]
    by_class: NDArray[np.float64]


class Specialisation(NamedTuple):
    """Every mixture of one model, and how it was measured."""

    model: str
    measured: Literal["tokens", "batches"]
    mixtures: list[Mixture]


def specialisation(models: Sequence[Model], dataset: Dataset, rows: Int64, classes: int) -> Specialisation | None:
    """Expert use of the first run folder with mixtures among the models, else of the first bundle with loads."""
    runs = [model for model in models if model.path and not (model.path / MANIFEST).exists()]
    bundles = [model for model in models if model.path and (model.path / MANIFEST).exists()]
    sample = _balanced(dataset, rows, classes)
    for model in (*runs, *bundles):
        assert model.path is not None
        if model in runs:
            examples = view_examples(dataset, sample, model.data, View())
            mixtures = shares_by_token(load_network(model.path)[0], examples, classes)
        else:
            mixtures = shares_by_batch(model.path, model, dataset, sample, classes)
        if mixtures:
            return Specialisation(model.name, "tokens" if model in runs else "batches", mixtures)
    return None


def shares_by_token(network: nn.Module, examples: Sequence[Example], classes: int) -> list[Mixture]:
    """Read the routers while the network answers; [CLS] and padding tokens are left out. Empty without mixtures."""
    routers = [(name, part) for name, part in network.named_modules() if isinstance(part, Router)]
    if not routers or not examples:
        return []
    counts = [
        (np.zeros((len(BANDS), router.gate.out_features)), np.zeros((classes, router.gate.out_features)))
        for _, router in routers
    ]
    heard: dict[int, Routing] = {}
    hooks = [
        router.register_forward_hook(lambda _module, _inputs, routing, place=place: heard.update({place: routing}))
        for place, (_, router) in enumerate(routers)
    ]
    try:
        ordered = sorted(examples, key=lambda example: len(example.tokens))
        for start in range(0, len(ordered), BATCH):
            part = ordered[start : start + BATCH]
            outputs_of(network, part)
            for place, routing in heard.items():
                _count(counts[place], routing.expert_NK, part, network)
    finally:
        for hook in hooks:
            hook.remove()
    names = _names(len(routers), routers[0][0].startswith("embed"))
    return [Mixture(name, _shares(band), _shares(label)) for name, (band, label) in zip(names, counts, strict=True)]


def _count(
    counts: tuple[NDArray[np.float64], NDArray[np.float64]],
    expert_NK: Tensor,
    examples: Sequence[Example],
    network: nn.Module,
) -> None:
    """Add one batch's choices; tokens are row-major, the [CLS]s in front where there are any."""
    batch = collate(examples)
    real_BL = batch.mask_BL.numpy()
    grid = np.ones_like(real_BL) if getattr(network.config, "aux_counts_padding", False) else real_BL
    chosen_NK = expert_NK.numpy()[len(expert_NK) - int(grid.sum()) :][real_BL[grid]]
    label_N = np.broadcast_to(batch.label_B.numpy()[:, None], real_BL.shape)[real_BL]
    for count, group_N in zip(counts, (batch.band_BL.numpy()[real_BL], label_N), strict=True):
        np.add.at(count, (group_N[:, None], chosen_NK), 1)


def shares_by_batch(path: Path, model: Model, dataset: Dataset, rows: Int64, classes: int) -> list[Mixture]:
    """Ask a bundle about one class, and about one band, at a time. Empty when its graph tells no loads."""
    session = open_session(load_bundle(path).model)
    told = [name for name in LOADS if name in {output.name for output in session.get_outputs()}]
    if not told:
        return []

    def loads(examples: Sequence[Example]) -> list[NDArray[np.float64]]:
        ordered = sorted(examples, key=lambda example: len(example.tokens))
        parts = [ordered[start : start + BATCH] for start in range(0, len(ordered), BATCH)]
        outputs = [run(session, RaggedBatch.collate([item.tokens for item in part]).padded()) for part in parts]
        totals = [np.sum([output[name] for output in outputs], axis=0) for name in told if outputs]
        return [load.astype(np.float64) for total in totals for load in total]

    of_band = rows if len(rows) <= PER_BAND else np.random.default_rng(0).choice(rows, PER_BAND, replace=False)
    bands = [loads(view_examples(dataset, of_band, model.data, View(bands=(band,)))) for band in BANDS]
    labels = [
        loads(view_examples(dataset, rows[dataset.label[rows] == label], model.data, View()))
        for label in range(classes)
    ]
    return _stack(bands, labels, has_input=LOADS[0] in told)


def _stack(
    bands: list[list[NDArray[np.float64]]], labels: list[list[NDArray[np.float64]]], *, has_input: bool
) -> list[Mixture]:
    """Mixtures of loads by group; a group without objects has no loads, hence a row of NaN."""
    sizes = [len(load) for load in next((group for group in (*bands, *labels) if group), [])]

    def table(groups: list[list[NDArray[np.float64]]], place: int) -> NDArray[np.float64]:
        return _shares(np.stack([group[place] if group else np.zeros(sizes[place]) for group in groups]))

    names = _names(len(sizes), has_input)
    return [Mixture(name, table(bands, place), table(labels, place)) for place, name in enumerate(names)]


def _names(mixtures: int, has_input: bool) -> list[str]:
    """Names of mixtures in the order that the network holds them, the input experts first."""
    first = ["input experts"] if has_input and mixtures else []
    return first + [f"block {number}" for number in range(1, mixtures - len(first) + 1)]


def _shares(count_GX: NDArray[np.float64]) -> NDArray[np.float64]:
    total_G1 = count_GX.sum(1, keepdims=True)
    shares_GX = np.full(count_GX.shape, np.nan)
    np.divide(count_GX, total_G1, out=shares_GX, where=total_G1 > 0)
    return shares_GX


def _balanced(dataset: Dataset, rows: Int64, classes: int) -> Int64:
    """At most ``PER_CLASS`` objects of every class, always the same ones."""
    rng = np.random.default_rng(0)
    groups = [rows[dataset.label[rows] == label] for label in range(classes)]
    return np.concatenate([rng.permutation(group)[:PER_CLASS] for group in groups])
