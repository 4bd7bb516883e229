"""Weights read from a bundle reproduce its outputs."""

import json
from pathlib import Path

import pytest
import torch

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, ROUTING_OUTPUTS, BundleError, load_bundle, read_golden
from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.export import weights
from nightjar_alerts.training.fit.checkpoints import load_network

ASSETS = Path(__file__).parents[2] / "assets"


def test_a_run_folder_of_a_bundle_predicts_what_the_bundle_predicts(tmp_path: Path) -> None:
    network, config = load_network(weights.unpack(ASSETS / "astro-moe-elasticc-1.2.0", tmp_path / "run"))
    inputs, outputs = read_golden(ASSETS / "astro-moe-elasticc-1.2.0")
    names: tuple[str, ...] = network.input_names  # type: ignore[assignment]  # nn.Module types attributes as tensors
    with torch.no_grad():
        predicted = network(*(torch.from_numpy(inputs[name]) for name in names))
    assert torch.equal(predicted.logits_BC.argmax(1), torch.from_numpy(outputs["probabilities"]).argmax(1))
    torch.testing.assert_close(predicted.embedding_BE, torch.from_numpy(outputs["embedding"]), rtol=1e-4, atol=1e-4)
    assert config.recipe.task == "classify"


def test_unpack_of_a_bundle_with_trees_reproduces_its_outputs(tmp_path: Path) -> None:
    """The network has the embedding of the bundle, and its probabilities once the trees are added."""
    network, _ = load_network(weights.unpack(DEFAULT_BUNDLE, tmp_path / "run"))
    inputs, outputs = read_golden(DEFAULT_BUNDLE)
    names: tuple[str, ...] = network.input_names  # type: ignore[assignment]  # nn.Module types attributes as tensors
    with torch.no_grad():
        predicted = network(*(torch.from_numpy(inputs[name]) for name in names))
    torch.testing.assert_close(predicted.embedding_BE, torch.from_numpy(outputs["embedding"]), rtol=1e-4, atol=1e-4)
    both, served = torch.from_numpy(outputs["probabilities"]), weights.read_served(DEFAULT_BUNDLE)
    mask_BL, metadata_BF = (torch.from_numpy(inputs[name]) for name in ("mask", "metadata"))
    assert served.ensemble is not None
    with torch.no_grad():
        pooled_BC = served.calibrated(served.ensemble(predicted, mask_BL, metadata_BF), mask_BL)
    torch.testing.assert_close(pooled_BC, both, rtol=1e-4, atol=1e-4)
    assert (predicted.logits_BC.argmax(1) == both.argmax(1)).float().mean() > 0.7


def test_mixed_up_weights_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = weights._tabular

    def swapped(*arguments: object) -> dict[str, weights.Array]:
        found = read(*arguments)  # type: ignore[arg-type]  # handed on as they came
        return found | {
            "metadata.weight_CD": found["metadata.bias_CD"],
            "metadata.bias_CD": found["metadata.weight_CD"],
        }

    monkeypatch.setattr(weights, "_tabular", swapped)
    with pytest.raises(BundleError, match="differ from the golden ones"):
        weights.read_network(DEFAULT_BUNDLE)


def test_a_weight_that_is_not_in_the_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_input_experts", lambda *_: {})
    with pytest.raises(BundleError, match=r"embed\.weight_EID"):
        weights.read_network(DEFAULT_BUNDLE)


def test_the_command_writes_a_run(tmp_path: Path) -> None:
    main(["unpack", str(DEFAULT_BUNDLE), str(tmp_path / "run")])
    assert load_network(tmp_path / "run")[1].recipe.network.n_classes == 20


@pytest.mark.parametrize("path", sorted(DEFAULT_BUNDLE.parents[1].glob("astro-moe-*/*")), ids=lambda path: path.name)
def test_read_served_has_trees_novelty_and_calibration(path: Path) -> None:
    served = weights.read_served(path)
    inputs, outputs = read_golden(path)
    with torch.no_grad():
        computed = served.outputs(*served.arguments(inputs).values())
    assert set(computed) >= set(outputs)  # older bundles lack the newest outputs
    for name, expected in outputs.items():
        torch.testing.assert_close(computed[name], torch.from_numpy(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_export_again_reproduces_the_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["export-again", str(DEFAULT_BUNDLE), str(tmp_path / "again")])
    report = json.loads(capsys.readouterr().out)
    assert report["nodes"] <= report["nodes_before"] + 30  # the routing outputs, which the shipped bundle may lack
    assert report["furthest"] < 1e-4
    first, second = (load_bundle(path).manifest for path in (DEFAULT_BUNDLE, tmp_path / "again"))
    assert second.model_dump(exclude={"files", "outputs"}) == first.model_dump(exclude={"files", "outputs"})
    assert {output.name for output in second.outputs} == {output.name for output in first.outputs} | {*ROUTING_OUTPUTS}
    weights.read_network(tmp_path / "again")  # the weights come back from the new graph as well
