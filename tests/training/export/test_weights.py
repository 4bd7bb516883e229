"""Weights read from a bundle reproduce its outputs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch

from nightjar_alerts.models.bundle import (
    DEFAULT_BUNDLE,
    MODEL,
    ROUTING_OUTPUTS,
    Bundle,
    BundleError,
    Calibration,
    load_bundle,
    read_golden,
    write_manifest,
)
from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.export import weights
from nightjar_alerts.training.export.bundle import export_bundle
from nightjar_alerts.training.export.describe import Release
from nightjar_alerts.training.fit.checkpoints import DataSource, RunConfig, RunError, load_network
from nightjar_alerts.training.recipes.catalogue import RECIPES
from support.bundles import random_tokens, tiny_network

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


def altered(folder: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    """Copy the default bundle and change its graph; the manifest has the new checksum."""
    shutil.copytree(DEFAULT_BUNDLE, folder)
    model = onnx.load(folder / MODEL)
    change(model)
    onnx.save(model, folder / MODEL)
    write_manifest(folder, load_bundle(DEFAULT_BUNDLE).manifest)
    return folder


def tensor_named(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    found: onnx.TensorProto = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    return found


@pytest.mark.parametrize("source", ["astro-moe-elasticc", str(DEFAULT_BUNDLE)])
def test_initial_weights_of_a_bundle_are_those_of_its_graph(source: str) -> None:
    found = weights.initial_weights(source)
    network, _ = weights.read_network(DEFAULT_BUNDLE)
    assert found.origin == "astro-moe-elasticc 3.1.1"
    assert torch.equal(found.weights["light_curve.cls_1D"], network.state_dict()["light_curve.cls_1D"])


def test_initial_weights_of_nothing_name_the_bundles() -> None:
    with pytest.raises(RunError, match=r"neither a run folder, nor a bundle's folder, nor one of .*astro-moe-elasticc"):
        weights.initial_weights("astro-moe")


def test_read_network_with_exchanged_weights_raises(tmp_path: Path) -> None:
    def exchange(model: onnx.ModelProto) -> None:
        names = [f"network.light_curve.blocks.{block}.attention.out.weight" for block in (0, 1)]
        first, second = (tensor_named(model, name) for name in names)
        first.name, second.name = second.name, first.name

    with pytest.raises(BundleError, match="differ from the golden ones"):
        weights.read_network(altered(tmp_path / "bundle", exchange))


def test_read_network_without_a_weight_names_it(tmp_path: Path) -> None:
    def rename(model: onnx.ModelProto) -> None:
        tensor_named(model, "network.light_curve.cls_1D").name = "another"

    with pytest.raises(BundleError, match=r"does not contain .*light_curve\.cls_1D"):
        weights.read_network(altered(tmp_path / "bundle", rename))


def test_read_network_without_weights_of_the_input_experts_names_them(tmp_path: Path) -> None:
    def rename(model: onnx.ModelProto) -> None:
        gate, cls = (
            tensor_named(model, f"network.{name}") for name in ("embed.router.gate.weight", "light_curve.cls_1D")
        )
        shape = [gate.dims[0] * gate.dims[1], cls.dims[1]]
        (merged,) = (tensor for tensor in model.graph.initializer if list(tensor.dims) == shape)
        merged.name = "another"

    with pytest.raises(BundleError, match=r"embed\.weight_EID"):
        weights.read_network(altered(tmp_path / "bundle", rename))


def test_the_command_writes_a_run(tmp_path: Path) -> None:
    main(["makers", "unpack", str(DEFAULT_BUNDLE), str(tmp_path / "run")])
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


def small_bundle(folder: Path) -> Bundle:
    """Export a network whose weights all have names of their own in the graph: the tracer folds small ones."""
    network = tiny_network(d_model=64, d_ff=72, n_harmonics=16, n_blocks=1, d_tab=64, tab_ff=72)
    with torch.no_grad():
        for parameter in network.parameters():  # equal biases would share a tensor
            parameter.add_(0.1 * torch.randn(parameter.shape))
    recipe = RECIPES["debug"]().model_copy(update={"network": network.config})
    config = RunConfig(recipe=recipe, data=DataSource(name="none", sha256="0" * 64, objects=0))
    release = Release("small", "0.0.1", Calibration(method="none", temperature=1.0), data={}, metrics={})
    bundle, _ = export_bundle(network, config, random_tokens(1), folder, release)
    return bundle


@pytest.mark.slow
def test_export_again_of_a_small_bundle_reproduces_it(tmp_path: Path) -> None:
    bundle = small_bundle(tmp_path / "bundle")
    report = weights.export_again(bundle.path, tmp_path / "again")
    assert report["nodes"] == report["nodes_before"]
    assert report["furthest"] < 1e-4
    again = load_bundle(tmp_path / "again").manifest
    assert again.model_dump(exclude={"files"}) == bundle.manifest.model_dump(exclude={"files"})
    weights.read_network(tmp_path / "again")  # the weights come back from the new graph as well


@pytest.mark.nightly
def test_export_again_of_the_default_bundle_reproduces_its_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["makers", "export-again", str(DEFAULT_BUNDLE), str(tmp_path / "again")])
    report = json.loads(capsys.readouterr().out)
    assert report["nodes"] <= report["nodes_before"] + 30  # the routing outputs, which the shipped bundle may lack
    assert report["furthest"] < 1e-4
    first, second = (load_bundle(path).manifest for path in (DEFAULT_BUNDLE, tmp_path / "again"))
    assert second.model_dump(exclude={"files", "outputs"}) == first.model_dump(exclude={"files", "outputs"})
    assert {output.name for output in second.outputs} == {output.name for output in first.outputs} | {*ROUTING_OUTPUTS}
    weights.read_network(tmp_path / "again")  # the weights come back from the new graph as well
