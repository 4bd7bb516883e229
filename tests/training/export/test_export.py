"""Export: parity over ragged batches that reach every expert, sparse dispatch, and errors."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from nightjar_alerts.models.bundle import Calibration, load_bundle
from nightjar_alerts.models.lightcurve import RaggedBatch
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.parts.transformer import FeedForwardExperts, Router
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export.bundle import export_bundle
from nightjar_alerts.training.export.describe import Release
from nightjar_alerts.training.export.functions import inlined
from nightjar_alerts.training.export.graph import walk, write_graph
from nightjar_alerts.training.export.parity import DISABLED, ExportError, check_parity
from nightjar_alerts.training.export.served import ServedNetwork, parity_batches
from nightjar_alerts.training.fit.checkpoints import DataSource, RunConfig
from nightjar_alerts.training.recipes.catalogue import RECIPES
from support.bundles import random_tokens, tiny_network, untrained_bundle

pytestmark = pytest.mark.slow

SOURCE = DataSource(name="none", sha256="0" * 64, objects=0)


def config() -> RunConfig:
    return RunConfig(recipe=RECIPES["debug"](), data=SOURCE)


def test_the_graph_computes_only_chosen_experts(tiny_bundle: Path) -> None:
    """One Split by measured load per expert layer, and a Gemm pair per expert behind it: nothing is computed twice."""
    model = onnx.load(tiny_bundle / "model.onnx")
    counted = {output for node in model.graph.node if node.op_type == "ReduceSum" for output in node.output}
    counted |= {node.output[0] for node in model.graph.node if node.op_type == "Cast" and node.input[0] in counted}
    by_load = [node for node in model.graph.node if node.op_type == "Split" and {*node.input} & counted]
    assert sorted(len(node.output) for node in by_load) == [4, 4, 6]  # experts of two layers, bands
    assert {node.domain for node in inlined(model).graph.node} <= {"", "ai.onnx"}
    assert not [t.name for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]


def test_axes_are_dynamic(tiny_bundle: Path) -> None:
    session = open_session(tiny_bundle / "model.onnx")
    served = ServedNetwork(tiny_network())
    for count in (1, 2, 17):
        tokens = random_tokens(count, count)
        batch = RaggedBatch.collate(tokens).padded()
        output = run(session, batch)
        with torch.no_grad():
            expected = served.outputs(*served.arguments(batch).values())
        np.testing.assert_allclose(output["probabilities"], expected["probabilities"], atol=1e-5)
        np.testing.assert_allclose(output["embedding"], expected["embedding"], atol=1e-4)
        np.testing.assert_array_equal(output["expert_load"], expected["expert_load"])


def test_a_dense_network_exports_without_loads_and_twice_alike(tmp_path: Path) -> None:
    network = tiny_network(n_experts=0, n_input_experts=0, time_encoding="baseline")
    release = Release("dense", "0.0.1", Calibration(method="temperature", temperature=1.7), {}, {})
    tokens = random_tokens(1, 20)
    bundle, worst = export_bundle(network, config(), tokens, tmp_path / "dense", release)
    assert worst < 1e-4
    assert [spec.name for spec in bundle.manifest.outputs] == ["probabilities", "embedding"]
    again, _ = export_bundle(network, config(), tokens, tmp_path / "again", release)
    assert again.manifest.files == bundle.manifest.files


def discourage(network: AstroMoE, graph: Path, block: int, bias: float, path: Path) -> None:
    """Give the third expert of a block this bias, in the network and in a copy of its graph."""
    feed_forward = network.light_curve.blocks[block].feed_forward
    assert isinstance(feed_forward, FeedForwardExperts)
    own_E = feed_forward.router.gate.bias
    with torch.no_grad():
        own_E[2] = bias
    model, module = onnx.load(graph), f"network.light_curve.blocks.{block}.feed_forward.router.gate/"
    (gate,) = (node for node in model.graph.node if node.op_type == "Gemm" and node.name.startswith(module))
    model.graph.initializer.append(numpy_helper.from_array(own_E.detach().numpy(), "discouraging"))
    gate.input[:] = [*gate.input[:2], "discouraging"]  # a bias of zeros may be absent
    onnx.save(model, path)


def test_parity_fails_when_an_expert_was_not_reached(tiny_bundle: Path, tmp_path: Path) -> None:
    network, path = tiny_network(), tmp_path / "model.onnx"
    discourage(network, tiny_bundle / "model.onnx", 0, -1e6, path)
    with pytest.raises(ExportError, match=r"no token reached expert_load\[0, 2\]"):
        check_parity(ServedNetwork(network).eval(), path, parity_batches(random_tokens(1)))


def test_an_expert_that_only_a_cls_token_could_reach_is_compared_as_well(tiny_bundle: Path, tmp_path: Path) -> None:
    """One that no [CLS] of the batches chooses, wrong in the graph alone."""
    network, path = tiny_network(), tmp_path / "model.onnx"
    discourage(network, tiny_bundle / "model.onnx", 1, -100.0, path)
    served, batches = ServedNetwork(network).eval(), parity_batches(random_tokens(1))
    assert check_parity(served, path, batches) < 1e-4
    model = onnx.load(path)
    module = "network.light_curve.blocks.1.feed_forward/Gemm"
    products = [node for node in walk(model.graph) if node.name.startswith(module)]
    assert len(products) == 8  # two of each expert, in their order
    next(attribute for attribute in products[5].attribute if attribute.name == "alpha").f = 1.5
    onnx.save(model, path)
    with pytest.raises(ExportError, match="differ by"):
        check_parity(served, path, batches)


class Jumping(ServedNetwork):
    """A network whose probabilities jump where an expert is forced, as those of trees may."""

    def outputs(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        values = super().outputs(*inputs)
        if any((part.gate.bias == DISABLED).any() for part in self.modules() if isinstance(part, Router)):
            values["probabilities"] = values["probabilities"].roll(1, dims=1)
        return values


def test_parity_of_forced_experts_compares_the_embedding_alone(tiny_bundle: Path) -> None:
    batches = parity_batches(random_tokens(1))
    assert check_parity(Jumping(tiny_network()).eval(), tiny_bundle / "model.onnx", batches) < 1e-4


class Looked(torch.nn.Module):
    """A network whose tracer calls a value like one of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(6, 4)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = self.table(inputs[0]).sum(1)
        return summed


def test_inner_values_named_like_an_output_are_renamed(tmp_path: Path) -> None:
    """``nn.Embedding`` gives a value called ``embedding``, and so is an output of every classifier."""
    network, path = Looked().eval(), tmp_path / "model.onnx"
    band = torch.tensor([[0, 1, 5], [2, 2, 3]])
    write_graph(network, {"band": band}, {"band": ("batch", "length")}, ["embedding"], path)
    given = run(open_session(path), {"band": band[:1].numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(given["embedding"], network(band[:1]), atol=1e-6)


def test_parity_fails_when_the_graph_is_another_network(tiny_bundle: Path) -> None:
    batches = parity_batches(random_tokens(1))
    with pytest.raises(ExportError, match="differ by"):
        check_parity(ServedNetwork(tiny_network(seed=9)).eval(), tiny_bundle / "model.onnx", batches)


def test_manifest_records_how_it_was_made(tiny_bundle: Path) -> None:
    manifest = load_bundle(tiny_bundle).manifest
    assert manifest.flux_unit == "FLUXCAL"
    assert manifest.limits.max_points_per_band == 65
    assert manifest.recipe["network"]["d_model"] == 32
    assert set(manifest.files) == {"model.onnx", "golden.npz"}
    assert manifest.classes.ids[13] == 2222


@pytest.mark.nightly
def test_exporting_twice_gives_the_same_graph(tiny_bundle: Path, tmp_path: Path) -> None:
    again = untrained_bundle(tmp_path / "again")
    assert again.manifest.files["model.onnx"] == load_bundle(tiny_bundle).manifest.files["model.onnx"]
