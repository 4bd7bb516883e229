"""Use of experts: counts by token against the loads of the network, and against a loop."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.astro_moe import AstroMoE, AstroMoEConfig
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.data.augment import View
from nightjar_alerts.training.data.batches import Example, collate, view_examples
from nightjar_alerts.training.data.dataset import read_dataset
from nightjar_alerts.training.fit.checkpoints import load_network
from nightjar_alerts.training.recipes.schema import DataConfig
from nightjar_alerts.training.score.predictions import open_model, outputs_of
from nightjar_alerts.training.score.sections import shares_by_token, shares_in_bundle, specialisation
from support.pipeline import Pipeline
from support.toy_dataset import write_toy_dataset

SMALL = {"d_model": 16, "n_heads": 2, "n_blocks": 2, "d_ff": 16, "n_experts": 4, "n_input_experts": 3, "tab_blocks": 1}


def small(**changes: object) -> AstroMoE:
    torch.manual_seed(0)
    config = AstroMoEConfig.model_validate({**SMALL, "d_tab": 16, "tab_heads": 2, "tab_ff": 16, **changes})
    return AstroMoE(config).eval()


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    dataset = read_dataset(write_toy_dataset(tmp_path / "toy.parquet", 12))
    return view_examples(dataset, np.arange(12), DataConfig(), View())


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("padding", [False, True])
def test_input_experts_against_their_router(examples: list[Example], pooling: str, padding: bool) -> None:
    network = small(pooling=pooling, aux_counts_padding=padding)
    mixtures = shares_by_token(network, examples, 20)
    assert [mixture.name for mixture in mixtures] == ["input experts", "block 1", "block 2"]
    counts = np.zeros((len(BANDS), 3))
    for example in examples:
        batch = collate([example])
        observed = network.observations(batch.flux_BL, batch.flux_err_BL, batch.mask_BL)[0]
        chosen = network.embed.router(observed).expert_NK  # type: ignore[operator]  # has a router where it has experts
        for band, experts in zip(batch.band_BL[0].tolist(), chosen.tolist(), strict=True):
            counts[band, experts] += 1
    np.testing.assert_allclose(mixtures[0].by_band, counts / counts.sum(1, keepdims=True))


def test_tokens_of_blocks_add_up_to_the_loads(examples: list[Example]) -> None:
    network = small(pooling="mean")  # without [CLS] every token is an observation
    alone = [example for example in examples if example.label == examples[0].label]
    loads = outputs_of(network, alone).expert_load_SX
    assert loads is not None
    mixtures = shares_by_token(network, alone, 20)
    for load, mixture in zip(loads.numpy(), mixtures[1:], strict=True):
        np.testing.assert_allclose(mixture.by_class[examples[0].label], load / load.sum())
        assert np.isnan(np.delete(mixture.by_class, examples[0].label, axis=0)).all()


def test_hooks_are_gone_afterwards(examples: list[Example]) -> None:
    network = small()
    shares_by_token(network, examples, 20)
    assert not any(part._forward_hooks for part in network.modules())


def test_a_dense_network_has_no_experts(examples: list[Example]) -> None:
    assert shares_by_token(small(n_experts=0, n_input_experts=0), examples, 20) == []
    blocks = shares_by_token(small(n_input_experts=0), examples, 20)
    assert [mixture.name for mixture in blocks] == ["block 1", "block 2"]


def test_a_bundle_counts_what_its_network_does(pipeline: Pipeline) -> None:
    dataset = read_dataset(pipeline.data)
    rows = np.concatenate([np.flatnonzero(dataset.label == label)[:6] for label in (0, 1)])
    examples = view_examples(dataset, rows, open_model(pipeline.bundle, dataset).data, View())
    mixtures = shares_in_bundle(pipeline.bundle, examples, 20)
    of_run = {mixture.name: mixture for mixture in shares_by_token(load_network(pipeline.run)[0], examples, 20)}
    assert mixtures
    for mixture in mixtures:
        np.testing.assert_allclose(mixture.by_band, of_run[mixture.name].by_band, atol=0.02)  # ties of rounding
        np.testing.assert_allclose(mixture.by_class, of_run[mixture.name].by_class, atol=0.02)
    assert shares_in_bundle(pipeline.bundle, [], 20) == []


def test_specialisation_prefers_run_folders(pipeline: Pipeline) -> None:
    dataset = read_dataset(pipeline.data)
    models = [open_model(path, dataset) for path in (pipeline.bundle, pipeline.run)]
    special = specialisation(models, dataset, np.arange(40), 20)
    assert special is not None
    assert special.model == pipeline.run.name
    assert specialisation([], dataset, np.arange(40), 20) is None
