"""Experts by band and router entropy: torch, the exported graph and the native kernel against sums written out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the network is of the [train] extra")

import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import ROUTING_OUTPUTS, load_bundle
from nightjar_alerts.models.lightcurve import RaggedBatch
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.parts.transformer import Router, Routing
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export.functions import ROUTING, inlined
from nightjar_alerts.training.export.graph import write_graph
from nightjar_alerts.training.export.served import AXES, ServedNetwork
from support.bundles import random_tokens, tiny_network

Arrays = dict[str, NDArray[Any]]
LAYERS: dict[str, tuple[dict[str, Any], int]] = {
    "cls": ({"n_blocks": 3}, 2),  # the last block gets the [CLS] tokens only
    "mean": ({"n_blocks": 2, "pooling": "mean"}, 2),
    "rotary": ({"n_blocks": 2, "time_encoding": "rotary"}, 2),  # its blocks get all tokens
}


def ragged(seed: int, count: int = 9) -> Arrays:
    """Padded inputs; one light curve has an empty place between its points."""
    batch = RaggedBatch.collate(random_tokens(seed, count)).padded()
    longest = int(batch["mask"].sum(1).argmax())
    if batch["mask"].shape[1] > 2:
        batch["mask"][longest, 2] = False
    return batch


def written_out(network: AstroMoE, batch: Arrays, layers: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Count the choices and average the entropies token by token in double precision."""
    logits: list[NDArray[np.float64]] = []
    routers = [part for part in network.light_curve.modules() if isinstance(part, Router)]

    def keep(_module: Router, _inputs: object, routing: Routing) -> None:
        logits.append(routing.logits_NE.double().numpy())

    hooks = [router.register_forward_hook(keep) for router in routers]
    with torch.no_grad():
        network(*(torch.from_numpy(batch[name]) for name in network.input_names), prediction_only=True)
    for hook in hooks:
        hook.remove()
    rows, columns = np.nonzero(batch["mask"])
    size, experts = len(batch["mask"]), routers[0].gate.out_features
    count_BSGX, entropy_BS = np.zeros((size, layers, len(BANDS), experts)), np.zeros((size, layers))
    for layer in range(layers):
        observed = logits[layer][len(logits[layer]) - len(rows) :]
        for row, column, logit in zip(rows, columns, observed, strict=True):
            for expert in np.argsort(-logit)[: routers[layer].top_k]:
                count_BSGX[row, layer, batch["band"][row, column], expert] += 1
            p = np.exp(logit - logit.max())
            p /= p.sum()
            entropy_BS[row, layer] -= (p * np.log(p)).sum() / batch["mask"][row].sum()
    return count_BSGX, entropy_BS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cls", "mean", pytest.param("rotary", marks=pytest.mark.nightly)])
def test_routing_of_network_graph_and_kernel_equals_sums_written_out(
    kind: str, native_library: Path, tmp_path: Path
) -> None:
    changes, layers = LAYERS[kind]
    network, path = tiny_network(**changes), tmp_path / "model.onnx"
    served = ServedNetwork(network).eval()
    example = served.arguments(ragged(1))
    with torch.no_grad():
        names = list(served.outputs(*example.values()))
    conditions = served.missing_input_outputs(), served.row_subset_modules(), served.native_kernels()
    write_graph(served, example, AXES, names, path, *conditions)
    assert [function.name for function in onnx.load(path).functions] == [ROUTING]
    sessions = open_session(path), open_session(path, kernels=native_library)
    for batch in (ragged(2), ragged(3, 1), ragged(4, 33)):
        count_BSGX, entropy_BS = written_out(network, batch, layers)
        assert (count_BSGX.sum((1, 2, 3)) == 2 * layers * batch["mask"].sum(1)).all()
        with torch.no_grad():
            expected = served.outputs(*served.arguments(batch).values())
        found = [{name: expected[name].numpy() for name in ROUTING_OUTPUTS}, *(run(each, batch) for each in sessions)]
        for outputs in found:
            np.testing.assert_array_equal(outputs["experts_by_band"], count_BSGX)
            np.testing.assert_allclose(outputs["router_entropy"], entropy_BS, atol=1e-5)


@pytest.mark.parametrize("changes", [{"n_experts": 0}, {"n_blocks": 1}, {"aux_counts_padding": True}], ids=str)
def test_network_without_routed_observations_has_no_routing(changes: dict[str, Any]) -> None:
    served = ServedNetwork(tiny_network(**changes)).eval()
    with torch.no_grad():
        assert not set(ROUTING_OUTPUTS) & set(served.outputs(*served.arguments(ragged(1)).values()))
    assert "network.routing" not in served.native_kernels()


@pytest.fixture(params=["nodes", "kernel"])
def session(request: pytest.FixtureRequest, tiny_bundle: Path, native_library: Path) -> ort.InferenceSession:
    """The graph of the tiny bundle, with and without native kernels."""
    kernels = native_library if request.param == "kernel" else None
    return open_session(load_bundle(tiny_bundle).model, kernels=kernels)


def routing(session: ort.InferenceSession, batch: Arrays) -> list[NDArray[Any]]:
    outputs = run(session, batch)
    return [outputs[name] for name in ROUTING_OUTPUTS]


@pytest.mark.slow
def test_routing_of_a_light_curve_ignores_padding_order_and_neighbours(session: ort.InferenceSession) -> None:
    batch = RaggedBatch.collate(random_tokens(5, 7)).padded()
    together = routing(session, batch)
    turned = routing(session, {name: value[::-1].copy() for name, value in batch.items()})
    wider = {
        name: np.pad(value, ((0, 0), (0, 9))) if value.ndim == 2 and name != "metadata" else value
        for name, value in batch.items()
    }
    padded = routing(session, wider | {"flux_err": np.where(wider["mask"], wider["flux_err"], 1.0).astype(np.float32)})
    for index, mask in enumerate(batch["mask"]):
        alone = {name: value[index : index + 1] for name, value in batch.items()}
        length = int(mask.sum())
        alone = {name: value if name == "metadata" else value[:, :length] for name, value in alone.items()}
        for whole, reverse, wide, single in zip(together, turned, padded, routing(session, alone), strict=True):
            np.testing.assert_allclose(whole[index], single[0], atol=1e-5)
            np.testing.assert_allclose(whole[index], reverse[-1 - index], atol=1e-5)
            np.testing.assert_allclose(whole[index], wide[index], atol=1e-5)


@pytest.mark.slow
def test_function_of_routing_inlines_to_standard_operators(tiny_bundle: Path) -> None:
    model = onnx.load(load_bundle(tiny_bundle).model)
    assert [function.name for function in model.functions] == [ROUTING]
    assert {node.domain for node in inlined(model).graph.node} <= {"", "ai.onnx"}
