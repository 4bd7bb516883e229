"""Test that an exported graph is the network: light curves of every length, and the largest difference on them.

Notable: torch and onnxruntime must agree within 1e-4 on ragged batches that send tokens through every expert of every
layer. Real light curves of one survey may never reach some experts, so noise of every brightness is added.
"""

import tempfile
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn

from nightjar_alerts.models.bundle import GOLDEN_TOLERANCE, MODEL, difference
from nightjar_alerts.models.lightcurve import LightCurve, RaggedBatch, Tokens
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.parts.transformer import FeedForwardExperts, Router
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.data.batches import draw_examples, draw_indices, usable_tokens
from nightjar_alerts.training.data.dataset import split_indices
from nightjar_alerts.training.data.drawn import network_inputs
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.export.served import LOADS, Arrays, Ensembled, ServedNetwork
from nightjar_alerts.training.fit.checkpoints import RunConfig

CURVES, DRAWN_CURVES, NOISE = 200, 500, 400  # light curves of a dataset, of drawn folders, and of noise
MOVED: Final = 1e-3  # share of expert choices that may differ between torch and onnxruntime
DISABLED: Final = -1e4  # bias of an expert that no token shall choose
DECIDED: Final = 1e-3  # spreads of a statistic

LAST_DIGITS: Final = 3e-7  # relative

JITTERED: Final = 4

SAME_LEAVES: Final = 1e-5  # of a logit: a leaf differs from its neighbour by more


class ExportError(ValueError):
    """The exported graph differs from the network, or the parity batches do not reach every expert."""


def check_parity(served: ServedNetwork, path: Path, batches: Sequence[Arrays]) -> float:
    """Return the largest absolute difference of torch and onnxruntime.

    Raises
    ------
    ExportError
        If it exceeds 1e-4, or an expert was never reached.
    """
    session = open_session(path)
    worst, reached = 0.0, dict[str, NDArray[np.int64]]()
    for batch in batches:
        differs, loads = _compare(served, session, batch)
        worst = float(np.max([worst, differs]))  # max() would drop a NaN
        reached = {name: reached.get(name, 0) + load for name, load in loads.items()}
    if getattr(served.network, "supports_prediction_only", False) and "expert_load" in reached:
        worst = float(np.max([worst, _last_experts(served, path, batches[-1], reached["expert_load"][-1])]))
    missed = [f"{name}{list(map(int, index))}" for name, load in reached.items() for index in np.argwhere(load == 0)]
    if missed:
        raise ExportError(f"no token reached {', '.join(missed)}: give more light curves to test their parity")
    if not worst <= GOLDEN_TOLERANCE:
        raise ExportError(f"torch and onnxruntime differ by {worst:.2e}")
    return worst


def _compare(
    served: ServedNetwork, session: ort.InferenceSession, batch: Arrays, only: str = ""
) -> tuple[float, dict[str, NDArray[np.int64]]]:
    """Return the largest difference of torch and onnxruntime, of all outputs or of one, and the loads of the graph."""
    with torch.no_grad():
        expected = served.outputs(*served.arguments(batch).values())
    actual = run(session, batch)
    counts = (*LOADS, "experts_by_band")  # compared separately, since rounding can change the choice of experts
    compared = [only] if only else [name for name in expected if name not in counts]
    values = [difference(actual[name], expected[name].numpy()) for name in compared]
    if "experts_by_band" in expected:
        count = expected["experts_by_band"].numpy()
        values.append(float(np.abs(actual["experts_by_band"] - count).sum() > MOVED * count.sum()))
    return float(np.max(values)), {name: actual[name] for name in LOADS if name in expected}


def _last_experts(served: ServedNetwork, path: Path, batch: Arrays, reached_E: NDArray[np.int64]) -> float:
    """Return the largest difference in runs that force each expert of the last mixture in turn.

    Only [CLS] tokens reach the last mixture, and they may all choose the same few experts. So the gate biases are
    overridden, in torch and in the graph. The loads of these runs are added to ``reached_E``. Only the embedding is
    compared, which has what the experts compute: with another embedding, trees may be at a threshold.
    """
    routers = [(name, part) for name, part in served.named_modules() if isinstance(part, Router)]
    if not routers or not isinstance(served.network.light_curve.blocks[-1].feed_forward, FeedForwardExperts):  # type: ignore[union-attr, index]  # one that routes has blocks
        return 0.0
    name, router = routers[-1]
    model, own_E = onnx.load(path), router.gate.bias.detach().clone()
    gates = [node for node in model.graph.node if node.op_type == "Gemm" and node.name.startswith(f"{name}.gate/")]
    if len(gates) != 1:
        raise ExportError(
            f"{path} does not have exactly one Gemm node of {name}.gate, so its experts cannot be checked"
        )
    bias = model.graph.initializer.add(name=f"{name}.gate.bias/by_hand")
    del gates[0].input[2:]  # gates with equal biases may share a tensor, and a bias of zeros may be absent
    gates[0].input.append(bias.name)
    worst, experts = 0.0, len(reached_E)
    for first in range(0, experts, router.top_k):
        taken_E = torch.full_like(own_E, DISABLED)
        taken_E[[(first + more) % experts for more in range(router.top_k)]] = 0.0
        bias.CopyFrom(numpy_helper.from_array(taken_E.numpy(), bias.name))
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            onnx.save(model, Path(folder) / MODEL)
            router.gate.bias.copy_(taken_E)
            try:
                differs, loads = _compare(served, open_session(Path(folder) / MODEL), batch, "embedding")
            finally:
                router.gate.bias.copy_(own_E)
        worst = float(np.max([worst, differs]))
        reached_E += loads["expert_load"][-1]
    return worst


def dataset_tokens(dataset: Sample, config: RunConfig) -> list[Tokens]:
    """Return views of validation objects of all classes, and noise of all brightnesses that reaches rare experts."""
    recipe = config.recipe
    rng = np.random.default_rng(recipe.seed)
    validation = split_indices(dataset, recipe.data.fractions, recipe.data.turn)["validation"]
    drawn = draw_indices(dataset.label, validation, CURVES, balance=1.0, rng=rng)
    examples = draw_examples(dataset, drawn, recipe.data, recipe.augmentation, rng)
    noisy = (usable_tokens(noise(rng), recipe.data) for _ in range(NOISE))
    return [example.tokens for example in examples] + [tokens for tokens in noisy if tokens is not None]


def drawn_tokens(
    network: AstroMoE | RoMAE, light_curves: Sample, config: RunConfig, ensemble: Ensembled | None = None
) -> tuple[list[Tokens], int]:
    """Return light curves of every length, and noise of every brightness that reaches the rarer experts.

    Some have two periods that fit equally well, or a number at a threshold of the trees, so that rounding chooses: what
    it chooses proves nothing of the graph. Such light curves are left out; their number is the second value.
    """
    rng = np.random.default_rng(config.recipe.seed)
    rows = rng.permutation(len(light_curves))[:DRAWN_CURVES]
    drawn = (usable_tokens(noise(rng), config.recipe.data) for _ in range(NOISE))
    candidates = [_tokens(light_curves, int(row)) for row in rows] + [tokens for tokens in drawn if tokens is not None]
    if isinstance(network, RoMAE):
        return candidates, 0
    kept = [tokens for tokens in candidates if _is_decided(network, tokens)]
    if ensemble is not None:
        exact = deepcopy(network).double()
        kept = [tokens for tokens in kept if _keeps_its_leaves(network, exact, ensemble, tokens)]
    return kept, len(candidates) - len(kept)


@torch.inference_mode()
def _is_decided(network: AstroMoE, tokens: Tokens) -> bool:
    """Check that statistics in single precision are those in double, also where last digits of the points differ.

    Of shapes, which only trees use, it is enough that the same ones are defined.
    """
    assert network.statistics is not None
    inputs = RaggedBatch.collate([tokens]).padded()
    single = [torch.from_numpy(inputs[name]) for name in network.input_names]
    exact = network.statistics_of(*(part.double() if part.is_floating_point() else part for part in single))
    for points in (single, *(_jittered(single, seed) for seed in range(JITTERED))):
        statistics = network.statistics_of(*points)
        own = len(network.statistics.spread_K)
        away_BK = ((statistics.value_BK - exact.value_BK)[:, :own] / network.statistics.spread_K).abs()
        if not (statistics.mask_BK == exact.mask_BK).all() or away_BK[statistics.mask_BK[:, :own]].max() > DECIDED:
            return False
    return True


@torch.inference_mode()
def _keeps_its_leaves(network: AstroMoE, exact: nn.Module, ensemble: Ensembled, tokens: Tokens) -> bool:
    """Check that the trees are stable against rounding of the last digits, with metadata or without.

    With tens of thousands of thresholds some number of every light curve is near one; what counts is that rounding,
    and ten times as much, leads to the same leaves.
    """
    inputs = RaggedBatch.collate([tokens, tokens]).padded()
    inputs["metadata"][1] = np.nan
    single = [torch.from_numpy(inputs[name]) for name in network.input_names]
    doubled = [part.double() if part.is_floating_point() else part for part in single]
    leaves_BC = ensemble.trees(ensemble.numbers(network(*single)))
    others = [ensemble.trees(ensemble.numbers(exact(*doubled)).float())]
    for seed in range(JITTERED):
        for digits in (LAST_DIGITS, 10 * LAST_DIGITS):
            others.append(ensemble.trees(ensemble.numbers(network(*_jittered(single, seed, digits)))))
    return all(bool(((other - leaves_BC).abs() < SAME_LEAVES).all()) for other in others)


def _jittered(inputs: Sequence[torch.Tensor], seed: int, digits: float = LAST_DIGITS) -> list[torch.Tensor]:
    """Return inputs whose last digits differ."""
    rng = torch.Generator().manual_seed(seed)
    return [
        part * (1 + digits * torch.randn(part.shape, generator=rng)) if part.is_floating_point() else part
        for part in inputs
    ]


def _tokens(light_curves: Sample, row: int) -> Tokens:
    curve = network_inputs(light_curves, np.array([row]))
    return Tokens(
        time=curve.time,
        flux=curve.flux,
        flux_err=curve.flux_err,
        band=curve.band,
        detected=curve.detected,
        metadata=curve.metadata[0],
        truncated=False,
        points_per_band=tuple(np.bincount(curve.band, minlength=len(BANDS)).tolist()),
        origin_mjd=0.0,
    )


def noise(rng: np.random.Generator, points: int = 60) -> LightCurve:
    """Return random fluxes of either sign and errors, both log-uniform from 0.01 nJy to 0.1 Jy, over eight years.

    The ranges are wider than those of surveys, since light curves of one survey may never reach some experts.
    """
    flux, flux_err = 10 ** rng.uniform(-2, 8, (2, points))
    return LightCurve.from_columns(
        mjd=60_000 + np.sort(rng.uniform(0, 3_000, points)),
        flux=flux * rng.choice((-1, 1), points),
        flux_err=flux_err,
        band=rng.integers(0, len(BANDS), points),
    )
