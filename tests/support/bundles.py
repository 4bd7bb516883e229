"""A small, untrained but valid bundle, made by the real export, for tests that need a graph and not its opinion."""

from pathlib import Path

import numpy as np
import torch

from nightjar_alerts.models.bundle import Bundle, Calibration
from nightjar_alerts.models.lightcurve import LightCurve, RaggedBatch, Tokens
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.astro_moe import AstroMoE, AstroMoEConfig
from nightjar_alerts.models.posterior import PredictionSets, SetThresholds
from nightjar_alerts.training.confidence.calibration import ServedSample
from nightjar_alerts.training.confidence.novelty import NoveltyFit, fit_novelty
from nightjar_alerts.training.data.batches import to_tokens
from nightjar_alerts.training.export.bundle import export_bundle
from nightjar_alerts.training.export.describe import Release
from nightjar_alerts.training.fit.checkpoints import DataSource, RunConfig
from nightjar_alerts.training.recipes.catalogue import RECIPES
from support.curves import random_curve


def random_curves(seed: int, count: int = 48) -> list[LightCurve]:
    """Ragged curves, lengths log-normal from one point to several hundred, a third without metadata."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3.3, 0.9, count), 1, 250).astype(int)
    lengths[0] = 1
    return [random_curve(rng, int(n), metadata=bool(rng.random() > 0.33)) for n in lengths]


def random_tokens(seed: int, count: int = 48) -> list[Tokens]:
    """Random light curves as the debug recipe's network sees them."""
    return [to_tokens(curve, RECIPES["debug"]().data) for curve in random_curves(seed, count)]


def tiny_network(seed: int = 0, **changes: object) -> AstroMoE:
    """A seeded network of a few thousand parameters whose every expert is reachable."""
    torch.manual_seed(seed)
    sizes: dict[str, object] = {"d_model": 32, "n_heads": 2, "n_blocks": 2, "d_ff": 48, "n_harmonics": 8}
    sizes |= {"n_experts": 4, "d_tab": 16, "tab_heads": 2, "tab_blocks": 1, "tab_ff": 32, "dropout": 0.0, "n_knots": 16}
    network = AstroMoE(AstroMoEConfig.model_validate(sizes | changes))
    network.fit_inputs(np.random.default_rng(seed).normal(size=(300, len(METADATA_COLUMNS))))
    with torch.no_grad():
        for parameter in network.parameters():  # at the initial 0.02 every answer would be nearly the same
            parameter.mul_(3.0)
    return network.eval()


def untrained_bundle(folder: Path) -> Bundle:
    """Export a tiny network; the recipe recorded in the manifest is the debug one with the tiny sizes."""
    return _export(folder, Release("tiny", "0.0.1", Calibration(method="none", temperature=1.0), data={}, metrics={}))


def export_confident(folder: Path) -> Bundle:
    """Export it with all that a bundle may say besides: a temperature by length, novelty and prediction sets."""
    by_length = Calibration(
        method="temperature_by_length", temperature=1.1, coefficients=(0.4, -0.2), lengths=(2, 120), split="none"
    )
    groups = (
        SetThresholds(detections=0, largest=(0.9, 0.99), views=1),
        SetThresholds(detections=5, largest=(0.8, 0.97), views=1),
    )
    sets = PredictionSets(coverages=(0.8, 0.9), default=0.9, groups=groups, split="none")
    release = Release("confident", "0.0.1", by_length, data={}, metrics={}, novelty=_novelty(), prediction_sets=sets)
    return _export(folder, release)


def _export(folder: Path, release: Release) -> Bundle:
    network = tiny_network()
    recipe = RECIPES["debug"]().model_copy(update={"network": network.config})
    config = RunConfig(recipe=recipe, data=DataSource(name="none", sha256="0" * 64, objects=0))
    bundle, _ = export_bundle(network, config, random_tokens(1), folder, release)
    return bundle


def _novelty() -> NoveltyFit:
    """Fit what is usual for the tiny network among random light curves of three classes of its own choice."""
    network, tokens = tiny_network(), random_tokens(7, 200)
    batch = RaggedBatch.collate(tokens).padded()
    with torch.no_grad():
        output = network(*(torch.from_numpy(batch[name]) for name in network.input_names))
    count = np.arange(len(tokens))
    logits, embedding = output.logits_BC.numpy(), output.embedding_BE.numpy()
    sample = ServedSample(logits, embedding, count % 3, count, count + 1, count)
    return fit_novelty(sample, sample)
