"""Fit heads on embeddings of a frozen backbone and on statistics.

Notable: every copy of the mixed head has its own random weights of the light curves (the Bayesian bootstrap, Rubin
1981), so that copies differ where there are few examples; the mean of their log-probabilities is the prediction. The
prediction is of class shares of the table (``shares``), which the service replaces with others.

Legend: N light curves, M of a batch, K statistics, E embedding of the branches, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from nightjar_alerts.models.common import write_atomic
from nightjar_alerts.models.lightcurve import Bool, Float32, Int64
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.networks.statistics.points import Statistics
from nightjar_alerts.models.networks.zoo import build, transfer
from nightjar_alerts.training.fit.checkpoints import BEST, CONFIG, DataSource, RunConfig, load_network, save_weights
from nightjar_alerts.training.fit.loop import update_average
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.metrics import confusion, ece, log_loss, macro_f1

SMOOTHING: Final = 0.01
SURE: Final = 0.8
LEAST_SPREAD: Final = 0.2  # of a statistic: below, what a runtime rounds otherwise would be made large
WARMUP: Final = 50
ROWS_AT_ONCE: Final = 4096  # rows at a time where nothing is learned


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
        """Return some of the light curves as tensors."""
        value, is_known = torch.from_numpy(self.value[rows]), torch.from_numpy(self.is_known[rows])
        return torch.from_numpy(self.embedding[rows]), Statistics(value, is_known)


def join_inputs(parts: Sequence[HeadInputs]) -> HeadInputs:
    """Join what is known of the light curves of several folders."""
    if len(parts) == 1:
        return parts[0]
    columns = ("embedding", "value", "is_known")
    return HeadInputs(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))


class HeadsConfig(NamedTuple):
    """Settings by which heads are fitted.

    ``taught``: share of the loss that a teacher's probabilities make, where there is one; ``go_on``: from the heads
    that the backbone's network holds, instead of from none.
    """

    steps: int = 2_500
    batch: int = 1_024
    rate: float = 2e-3
    decay: float = 0.02
    average: float = 0.995
    taught: float = 0.5
    go_on: bool = False


def fit_heads(
    backbone: AstroMoE,
    recipe: Recipe,
    inputs: HeadInputs,
    label_N: Int64,
    config: HeadsConfig,
    *,
    seed: int,
    teacher_NC: Float32 | None = None,
) -> AstroMoE:
    """Build a recipe's network on the branches of ``backbone`` and fit its heads and statistics; in evaluation mode.

    ``teacher_NC`` are probabilities that the heads are trained on in addition to the labels.
    """
    target_NC = _targets(label_N, recipe.network.n_classes, teacher_NC, config.taught)
    torch.manual_seed(seed)
    network = build(recipe.network)
    assert isinstance(network, AstroMoE)
    if config.go_on:
        network.load_state_dict(backbone.state_dict())
    else:
        _begin(network, backbone, inputs, seed)
    average = build(recipe.network)
    average.load_state_dict(network.state_dict())
    parts = [name for name, _ in network.named_parameters() if name.startswith(("head", "statistics"))]
    optimiser = torch.optim.AdamW(
        [network.get_parameter(name) for name in parts], lr=config.rate, weight_decay=config.decay
    )
    rng = np.random.default_rng((seed, 1))
    weight_NH = rng.exponential(1.0, (len(label_N), 1 + len(network.head_more))).astype(np.float32)
    for step in range(config.steps):
        rate = min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + np.cos(np.pi * step / config.steps))
        for group in optimiser.param_groups:
            group["lr"] = config.rate * max(rate, 1e-3)
        rows = rng.integers(0, len(label_N), config.batch)
        network.train()
        loss = _loss(network, *inputs.rows(rows), torch.from_numpy(target_NC[rows]), torch.from_numpy(weight_NH[rows]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        update_average(average, network, config.average, step)
    assert isinstance(average, AstroMoE)
    return average.eval()


def _begin(network: AstroMoE, backbone: AstroMoE, inputs: HeadInputs, seed: int) -> None:
    """Take over the branches of a backbone, and learn the scales of the statistics."""
    transfer(backbone.state_dict(), network)
    assert network.statistics is not None
    sample = np.random.default_rng(seed).permutation(len(inputs.value))[:20_000]
    network.statistics.fit(inputs.rows(sample)[1])
    network.statistics.spread_K.clamp_(min=LEAST_SPREAD)


def _targets(label_N: Int64, classes: int, teacher_NC: Float32 | None, taught: float) -> Float32:
    """Probabilities to learn, [N, C]."""
    target_NC = np.eye(classes, dtype=np.float32)[label_N]
    return target_NC if teacher_NC is None else (1 - taught) * target_NC + taught * teacher_NC


def _loss(network: AstroMoE, body_ME: Tensor, statistics: Statistics, target_MC: Tensor, weight_MH: Tensor) -> Tensor:
    """Mean cross-entropy over the copies of the mixed head, each with its own weights, and of the statistics' head."""
    assert network.statistics is not None
    assert network.head_statistics is not None
    vector_MD = network.statistics(statistics)
    joined_ME = torch.cat([body_ME, vector_MD], dim=1)
    losses = [cross_entropy(network.head_statistics(vector_MD), target_MC)]
    for place, head in enumerate((network.head_mix, *network.head_more)):
        each_M = cross_entropy(head(joined_ME), target_MC, reduction="none", label_smoothing=SMOOTHING)
        losses.append((each_M * weight_MH[:, place]).mean())
    return torch.stack(losses).mean()


@torch.inference_mode()
def answers(network: AstroMoE | RoMAE, inputs: HeadInputs) -> tuple[Float32, Float32]:
    """Logits [N, C] and complete embeddings [N, E + D] from the embeddings of the branches; RoMAE has no statistics."""
    if isinstance(network, RoMAE):
        return network.head(torch.from_numpy(inputs.embedding)).numpy(), inputs.embedding
    logits, embeddings = [], []
    assert network.statistics is not None
    for start in range(0, len(inputs.embedding), ROWS_AT_ONCE):
        body_ME, statistics = inputs.rows(slice(start, start + ROWS_AT_ONCE))
        joined_ME = torch.cat([body_ME, network.statistics(statistics)], dim=1)
        mixed = [head(joined_ME) for head in (network.head_mix, *network.head_more)]
        logits_MC = mixed[0] if len(mixed) == 1 else log_softmax(torch.stack(mixed), -1).mean(0)
        logits.append(logits_MC.numpy())
        embeddings.append(joined_ME.numpy())
    return np.concatenate(logits), np.concatenate(embeddings)


def shares(label_N: Int64, classes: int) -> NDArray[np.float64]:
    """Class shares of what heads were fitted on, [C]; a class that is not there counts as half an object."""
    count_C = np.maximum(np.bincount(label_N, minlength=classes), 0.5)
    share_C: NDArray[np.float64] = count_C / count_C.sum()
    return share_C


def scores(p_NC: NDArray[np.float64], label_N: Int64) -> dict[str, float]:
    """Scores of probabilities: macro-F1, log loss, calibration error, and the share that is sure and wrong."""
    wrong_N = p_NC.argmax(1) != label_N
    return {
        "light_curves": float(len(label_N)),
        "top_1": float(1 - wrong_N.mean()),
        "macro_f1": macro_f1(confusion(label_N, p_NC.argmax(1), p_NC.shape[1])),
        "log_loss": log_loss(p_NC, label_N),
        "ece": ece(p_NC, label_N),
        "sure_and_wrong": float(((p_NC.max(1) >= SURE) & wrong_N).mean()),
    }


def load_backbone(run: Path) -> tuple[AstroMoE, RunConfig]:
    """Network of a run of ``sky-body``; of a run of ``sky heads``, or a bundle unpacked, the branches alone."""
    network, config = load_whole(run)
    if network.statistics is None:
        return network, config
    fields = {"d_statistics": 0, "lag_statistics": False, "period_statistics": False}
    branches = build(network.config.model_copy(update=fields))
    assert isinstance(branches, AstroMoE)
    transfer(network.state_dict(), branches)
    return branches.eval(), config


def load_whole(run: Path) -> tuple[AstroMoE, RunConfig]:
    """Network of a run, with its heads. Raises ValueError for another architecture."""
    network, config = load_network(run)
    if not isinstance(network, AstroMoE):
        raise ValueError(f"{run} holds no Astro-MoE")
    return network, config


def save_run(network: nn.Module, recipe: Recipe, backbone: Path, data: DataSource, folder: Path) -> Path:
    """Write a fitted network as a run folder, as ``train`` leaves it, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = RunConfig(recipe=recipe, data=data, pretrained=str(backbone))
    write_atomic(folder / CONFIG, config.model_dump_json(indent=2).encode())
    save_weights(folder / BEST, network.state_dict())
    return folder
