"""Statistics and embeddings of drawn light curves, and the predictions of the heads of a network from them.

A folder of drawn light curves has ``PART.statistics.npz`` and ``PART.embedding.npz`` for each of its parts.

The prediction is the mean of the log-probabilities over all copies of the mixed head. It assumes the class shares of
the training light curves (``shares``), which the service can replace.

Legend: N light curves, M in a batch, K statistics, E embedding of the branches, D of the statistics, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from nightjar_alerts.models.common import write_atomic
from nightjar_alerts.models.lightcurve import Bool, Float32, Int64
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.networks.statistics.points import Statistics
from nightjar_alerts.models.networks.zoo import build, transfer
from nightjar_alerts.training.data.drawn import PARTS, join_drawn, padded_batches, read_drawn
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.checkpoints import BEST, CONFIG, DataSource, RunConfig, load_network, save_weights
from nightjar_alerts.training.recipes.schema import Recipe

ROWS_AT_ONCE: Final = 4096


@dataclass(frozen=True, eq=False)
class HeadInputs:
    """Inputs of the heads: ``embedding`` f32[N, E], ``value`` f32[N, K], ``is_known`` bool[N, K]."""

    embedding: Float32
    value: Float32
    is_known: Bool

    @property
    def columns(self) -> Float32:
        """Statistics (NaN where undefined) and embedding, [N, K + E]."""
        return np.concatenate([np.where(self.is_known, self.value, np.float32(np.nan)), self.embedding], axis=1)

    def take(self, rows: Any) -> "HeadInputs":
        """Return some of the light curves."""
        return HeadInputs(self.embedding[rows], self.value[rows], self.is_known[rows])

    def rows(self, rows: Any) -> tuple[Tensor, Statistics]:
        """Return embedding and statistics of some of the light curves as tensors."""
        value, is_known = torch.from_numpy(self.value[rows]), torch.from_numpy(self.is_known[rows])
        return torch.from_numpy(self.embedding[rows]), Statistics(value, is_known)


def join_inputs(parts: Sequence[HeadInputs]) -> HeadInputs:
    """Concatenate the inputs of several folders."""
    if len(parts) == 1:
        return parts[0]
    columns = ("embedding", "value", "is_known")
    return HeadInputs(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))


def statistics_network(recipe: Recipe) -> AstroMoE:
    """Return an untrained network of a recipe, for computing statistics."""
    network = build(recipe.network)
    assert isinstance(network, AstroMoE)
    return network.eval()


@torch.inference_mode()
def statistics_of(network: AstroMoE, light_curves: Sample) -> tuple[Float32, Bool]:
    """Return the statistics and whether they are defined, both [N, K]."""
    value_NK, mask_NK = np.zeros((len(light_curves), 0), np.float32), np.zeros((len(light_curves), 0), np.bool_)
    for rows, inputs in padded_batches(light_curves):
        statistics = network.statistics_of(*(inputs[name] for name in network.input_names))
        if not value_NK.shape[1]:
            value_NK = np.zeros((len(light_curves), statistics.value_BK.shape[1]), np.float32)
            mask_NK = np.zeros(value_NK.shape, np.bool_)
        value_NK[rows], mask_NK[rows] = statistics.value_BK.numpy(), statistics.mask_BK.numpy()
    return value_NK, mask_NK


@torch.inference_mode()
def embeddings_of(network: AstroMoE | RoMAE, light_curves: Sample) -> Float32:
    """Return the embeddings [N, E] of the branches, or of RoMAE."""
    embedding_NE = np.zeros((len(light_curves), network.embedding_dim), np.float32)
    for rows, inputs in padded_batches(light_curves):
        embedding_NE[rows] = network(*(inputs[name] for name in network.input_names)).embedding_BE.numpy()
    return embedding_NE


def write_statistics(recipe: Recipe, folder: Path) -> None:
    """Compute the statistics of a recipe's network for every part."""
    network = statistics_network(recipe)
    for part in PARTS:
        value_NK, mask_NK = statistics_of(network, read_drawn(folder / f"{part}.npz"))
        np.savez(folder / f"{part}.statistics.npz", value=value_NK, known=mask_NK)


def write_embeddings(backbone: AstroMoE | RoMAE, folder: Path) -> None:
    """Compute the embeddings of every part."""
    for part in PARTS:
        np.savez(
            folder / f"{part}.embedding.npz", embedding=embeddings_of(backbone, read_drawn(folder / f"{part}.npz"))
        )


def write_features(folder: Path, statistics: Recipe | None, run: Path | None) -> None:
    """Compute the statistics of a recipe's network and the embeddings of a run for a folder of drawn light curves.

    Parameters
    ----------
    statistics, run : None leaves them out.
    """
    if statistics is not None:
        write_statistics(statistics, folder)
    if run is not None:
        network, _ = load_network(run)
        write_embeddings(network if isinstance(network, RoMAE) else load_backbone(run)[0], folder)


def read_head_inputs(folder: Path, part: str) -> HeadInputs:
    """Read the features of a part."""
    with (
        np.load(folder / f"{part}.statistics.npz") as statistics,
        np.load(folder / f"{part}.embedding.npz") as embeddings,
    ):
        return HeadInputs(embeddings["embedding"], statistics["value"], statistics["known"])


def read_part(folders: Sequence[Path], part: str) -> tuple[HeadInputs, Sample]:
    """Read and concatenate features and light curves of a part of several folders."""
    return join_inputs([read_head_inputs(folder, part) for folder in folders]), join_drawn(
        [read_drawn(folder / f"{part}.npz") for folder in folders]
    )


@torch.inference_mode()
def head_outputs(network: AstroMoE | RoMAE, inputs: HeadInputs) -> tuple[Float32, Float32]:
    """Return logits [N, C] and embeddings [N, E + D] from the embeddings of the branches; RoMAE has no statistics."""
    if isinstance(network, RoMAE):
        return network.head(torch.from_numpy(inputs.embedding)).numpy(), inputs.embedding
    logits, embeddings = [], []
    assert network.statistics is not None
    for start in range(0, len(inputs.embedding), ROWS_AT_ONCE):
        branches_ME, statistics = inputs.rows(slice(start, start + ROWS_AT_ONCE))
        joined_ME = torch.cat([branches_ME, network.statistics(statistics)], dim=1)
        mixed = [head(joined_ME) for head in (network.head_mix, *network.head_more)]
        logits_MC = mixed[0] if len(mixed) == 1 else log_softmax(torch.stack(mixed), -1).mean(0)
        logits.append(logits_MC.numpy())
        embeddings.append(joined_ME.numpy())
    return np.concatenate(logits), np.concatenate(embeddings)


def shares(label_N: Int64, classes: int) -> NDArray[np.float64]:
    """Return the class shares of the training light curves, [C]; an absent class counts as half an object."""
    count_C = np.maximum(np.bincount(label_N, minlength=classes), 0.5)
    share_C: NDArray[np.float64] = count_C / count_C.sum()
    return share_C


def load_backbone(run: Path) -> tuple[AstroMoE, RunConfig]:
    """Return the branches of the network of a run, without heads and statistics."""
    network, config = load_astro_moe(run)
    if network.statistics is None:
        return network, config
    fields = {"d_statistics": 0, "lag_statistics": False, "period_statistics": False}
    branches = build(network.config.model_copy(update=fields))
    assert isinstance(branches, AstroMoE)
    transfer(network.state_dict(), branches)
    return branches.eval(), config


def load_astro_moe(run: Path) -> tuple[AstroMoE, RunConfig]:
    """Return the network of a run with its heads. Raises ValueError for another architecture."""
    network, config = load_network(run)
    if not isinstance(network, AstroMoE):
        raise ValueError(f"{run} holds no Astro-MoE")
    return network, config


def save_run(network: nn.Module, recipe: Recipe, backbone: Path, data: DataSource, folder: Path) -> Path:
    """Write a fitted network as a run folder like those of ``train``, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = RunConfig(recipe=recipe, data=data, pretrained=str(backbone))
    write_atomic(folder / CONFIG, config.model_dump_json(indent=2).encode())
    save_weights(folder / BEST, network.state_dict())
    return folder
