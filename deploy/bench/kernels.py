"""Benchmark of sparse experts and native kernels on one CPU thread.

- ``kernels.moe_over_dense.*``, ``kernels.moe_over_all_experts.*``: time of the untrained network of the paper's size
  divided by that of the same network with dense layers, and of one that computes every expert for every token.
- ``kernels.native.*``: time of the bundle with native kernels (``models.native``) divided by that with standard
  operators.

Ratios are of CPU time within a round, in which the graphs alternate.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch import Tensor

from deploy.bench.report import Numbers, spread
from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.models.native import NativeError, find
from nightjar_alerts.models.networks.astro_moe import AstroMoE, AstroMoEConfig
from nightjar_alerts.models.networks.parts.transformer import Block, FeedForwardExperts, Routing
from nightjar_alerts.models.runtime import open_session
from nightjar_alerts.training.export.served import ServedNetwork
from nightjar_alerts.training.export.weights import random_inputs, trace

Arrays = dict[str, NDArray[Any]]
ROUNDS: Final = 9
SECONDS: Final = 0.3
"""CPU seconds of each graph in a round."""
NATIVE_SHAPES: Final = {"lone30": (1, 30), "lone100": (1, 100), "b32_l60": (32, 60), "b8_l390": (8, 390)}


def measure(bundle: Path, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``kernels.*``."""
    return measure_experts(AstroMoEConfig(), say) | measure_native(bundle, say)


def measure_native(bundle: Path, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``kernels.native.*``; none if the kernels are not built."""
    try:
        library = find()
    except NativeError as error:
        say(f"no native kernels: {error}")
        return {}
    model = load_bundle(bundle).model
    standard, native = open_session(model), open_session(model, kernels=library)
    numbers: Numbers = {}
    for name, (size, length) in NATIVE_SHAPES.items():
        inputs = random_inputs(size, length)
        times = [(_seconds(native, inputs), _seconds(standard, inputs)) for _ in range(ROUNDS)]
        numbers[f"kernels.native.{name}"] = spread([fast / slow for fast, slow in times])
        say(f"native, {name}: {1e3 * times[-1][0]:.2f} ms, standard operators {1e3 * times[-1][1]:.2f} ms")
    return numbers


EXPERT_SHAPES: Final = {"b16_l128_t1": (16, 128), "b16_l390_t1": (16, 390), "b1_l128_t1": (1, 128)}


def measure_experts(config: AstroMoEConfig, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``kernels.moe_over_dense.*`` and ``kernels.moe_over_all_experts.*``."""
    torch.manual_seed(0)
    networks = {
        "sparse": AstroMoE(config),
        "dense": AstroMoE(config.model_copy(update={"n_experts": 0, "n_input_experts": 0})),
        "all": AstroMoE(config),
    }
    for block in networks["all"].light_curve.blocks:
        assert isinstance(block, Block)
        block.feed_forward = EveryExpert(block.feed_forward)
    with tempfile.TemporaryDirectory() as folder:
        sessions = {name: _exported(network, Path(folder) / f"{name}.onnx") for name, network in networks.items()}
    numbers: Numbers = {}
    for shape, (size, length) in EXPERT_SHAPES.items():
        inputs = random_inputs(size, length)
        times = [{name: _seconds(session, inputs) for name, session in sessions.items()} for _ in range(ROUNDS)]
        for key, other in (("dense", "dense"), ("all_experts", "all")):
            numbers[f"kernels.moe_over_{key}.{shape}"] = spread([each["sparse"] / each[other] for each in times])
        say(f"{shape}: " + ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in times[-1].items()))
    return numbers


def _exported(network: torch.nn.Module, path: Path) -> ort.InferenceSession:
    """Export a network as a bundle's graph and open it."""
    served = ServedNetwork(network.eval())
    trace(served.eval(), path)
    return open_session(path)


class EveryExpert(torch.nn.Module):
    """Mixture that computes all experts for every token, as two wide matrix products, and weights them."""

    def __init__(self, experts: torch.nn.Module) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Routing]:
        """Return the weighted sum of the chosen experts, [N, D], and the routing."""
        experts = self.experts
        assert isinstance(experts, FeedForwardExperts)
        routing: Routing = experts.router(x_ND)
        gate_NE = torch.zeros_like(routing.logits_NE).scatter(1, routing.expert_NK, routing.weight_NK)
        wide_NX = x_ND @ experts.w1_EDF.transpose(0, 1).flatten(1) + experts.b1_EF.flatten()
        hidden_NEF = experts.activation(wide_NX).view(-1, *experts.b1_EF.shape) * gate_NE[..., None]
        return hidden_NEF.flatten(1) @ experts.w2_EFD.flatten(0, 1) + gate_NE @ experts.b2_ED, routing


def _seconds(session: ort.InferenceSession, inputs: Arrays) -> float:
    """Return the mean CPU seconds of a run."""
    names = [node.name for node in session.get_inputs()]
    feed = {name: inputs[name] for name in names}
    session.run(None, feed)
    runs, started = 0, time.process_time()
    while (spent := time.process_time() - started) < SECONDS:
        session.run(None, feed)
        runs += 1
    return spent / max(runs, 1)
