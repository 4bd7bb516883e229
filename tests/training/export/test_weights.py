"""Weights read back from a bundle answer as the bundle does."""

from pathlib import Path

import pytest
import torch

from models.bundle import DEFAULT_BUNDLE, BundleError, read_golden
from training.__main__ import main
from training.export import weights
from training.fit.checkpoints import load_network

ASSETS = Path(__file__).parents[2] / "assets"


def test_a_run_folder_of_a_bundle_predicts_what_the_bundle_predicts(tmp_path: Path) -> None:
    network, config = load_network(weights.unpack(ASSETS / "astro-moe-elasticc-1.2.0", tmp_path / "run"))
    inputs, outputs = read_golden(ASSETS / "astro-moe-elasticc-1.2.0")
    names: tuple[str, ...] = network.input_names  # type: ignore[assignment]  # nn.Module types attributes as tensors
    with torch.no_grad():
        told = network(*(torch.from_numpy(inputs[name]) for name in names))
    assert torch.equal(told.logits_BC.argmax(1), torch.from_numpy(outputs["probabilities"]).argmax(1))
    torch.testing.assert_close(told.embedding_BE, torch.from_numpy(outputs["embedding"]), rtol=1e-4, atol=1e-4)
    assert config.recipe.task == "classify"


def test_of_a_bundle_with_trees_the_network_comes_back(tmp_path: Path) -> None:
    """The trees stay behind: the embedding is the bundle's, and the answer is the network's share of the bundle's."""
    network, _ = load_network(weights.unpack(DEFAULT_BUNDLE, tmp_path / "run"))
    inputs, outputs = read_golden(DEFAULT_BUNDLE)
    names: tuple[str, ...] = network.input_names  # type: ignore[assignment]  # nn.Module types attributes as tensors
    with torch.no_grad():
        told = network(*(torch.from_numpy(inputs[name]) for name in names))
    torch.testing.assert_close(told.embedding_BE, torch.from_numpy(outputs["embedding"]), rtol=1e-4, atol=1e-4)
    both = torch.from_numpy(outputs["probabilities"])
    assert (both.log() - told.logits_BC.log_softmax(1)).abs().max() < 3.0
    assert (told.logits_BC.argmax(1) == both.argmax(1)).float().mean() > 0.7


def test_mixed_up_weights_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = weights._tabular

    def swapped(*arguments: object) -> dict[str, weights.Array]:
        found = read(*arguments)  # type: ignore[arg-type]  # handed on as they came
        return found | {
            "metadata.weight_CD": found["metadata.bias_CD"],
            "metadata.bias_CD": found["metadata.weight_CD"],
        }

    monkeypatch.setattr(weights, "_tabular", swapped)
    with pytest.raises(BundleError, match="other embeddings"):
        weights.read_network(DEFAULT_BUNDLE)


def test_a_weight_that_is_not_in_the_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_input_experts", lambda *_: {})
    with pytest.raises(BundleError, match=r"embed\.weight_EID"):
        weights.read_network(DEFAULT_BUNDLE)


def test_the_command_writes_a_run(tmp_path: Path) -> None:
    main(["unpack", str(DEFAULT_BUNDLE), str(tmp_path / "run")])
    assert load_network(tmp_path / "run")[1].recipe.network.n_classes == 20
