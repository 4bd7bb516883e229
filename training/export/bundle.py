"""Export a trained network as a bundle: trace, check against torch, write golden vectors and the manifest.

Notable:

- the graph is the network itself behind softmax(logits / temperature); batch and length are dynamic;
- only chosen feed-forward experts are computed: ``models.grouping`` exports to one Split and a Gemm pair per expert, in
  standard operators (``training.export.graph`` traces);
- equality is proved, not assumed: torch and onnxruntime must agree within 1e-4 on ragged batches that send tokens
  through every expert of every layer (an expert the tracer missed is the classic export bug).

Run::

    python -m training export runs/default-0 build/astro-moe --data build/sim.parquet
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.astro_moe import AstroMoE
from models.bundle import (
    GOLDEN_TOLERANCE,
    MODEL,
    Bundle,
    Calibration,
    Manifest,
    Parameters,
    TensorSpec,
    write_golden,
    write_manifest,
)
from models.lightcurve import BANDS, RaggedBatch, Tokens
from models.metadata import METADATA_COLUMNS
from models.parameters import count_parameters
from models.runtime import open_session, run
from models.taxonomy import ELASTICC
from training.export.graph import OPSET, write_graph
from training.fit.checkpoints import RunConfig

GOLDEN_CURVES = 12
AXES = {
    **dict.fromkeys(("flux", "flux_err", "time", "band", "mask"), ("batch", "length")),
    "metadata": ("batch",),
}
FLOATS = ("probabilities", "embedding")
LOADS = ("input_expert_load", "expert_load")

Arrays = dict[str, NDArray[Any]]


class ExportError(Exception):
    """The exported graph is not the network, or the parity batches do not reach every expert."""


class ServedNetwork(nn.Module):
    """What a bundle computes: calibrated probabilities, the embedding and the expert loads of one call."""

    def __init__(self, network: AstroMoE, temperature: float) -> None:
        super().__init__()
        self.network, self.temperature = network, temperature

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities [B, C], embedding [B, E] and, for mixtures, loads [layers, experts]."""
        output = self.network(*inputs)
        probabilities_BC = (output.logits_mix_BC / self.temperature).softmax(-1)
        config = self.network.config
        loads = (output.input_expert_load_1X,) if config.n_input_experts else ()
        loads += (output.expert_load_SX,) if config.n_experts else ()
        return (probabilities_BC, output.embedding_BE, *loads)


@dataclass(frozen=True, slots=True)
class Release:
    """What a bundle says of itself beyond its network."""

    name: str
    version: str
    calibration: Calibration
    data: dict[str, Any]
    metrics: dict[str, Any]


def export_bundle(
    network: AstroMoE, config: RunConfig, tokens: Sequence[Tokens], out: Path, release: Release
) -> tuple[Bundle, float]:
    """Write a bundle folder and prove it equal to the network.

    Parameters
    ----------
    tokens : real light curves for the parity batches, enough to reach every expert; the shortest and longest of them
        and some between become the golden vectors.

    Returns
    -------
    The bundle and the largest absolute difference between torch and onnxruntime.

    Raises
    ------
    ExportError
        When they differ by more than 1e-4, or an expert was never reached.
    """
    out.mkdir(parents=True, exist_ok=True)
    served = ServedNetwork(network.eval(), release.calibration.temperature).eval()
    batches = parity_batches(tokens)
    names = output_names(network)
    write_graph(served, named_tensors(batches[0]), AXES, names, out / MODEL)
    worst = check_parity(served, out / MODEL, batches)
    write_golden(out, batches[-1], run(open_session(out / MODEL), batches[-1]))
    return write_manifest(out, _manifest(network, config, release)), worst


def parity_batches(tokens: Sequence[Tokens]) -> list[Arrays]:
    """Ragged batches over all the tokens: mixed lengths, one curve, one point, no metadata; golden vectors last."""
    ordered = sorted(tokens, key=len)
    spread = [ordered[index] for index in np.linspace(0, len(ordered) - 1, GOLDEN_CURVES).astype(int)]
    batches = [RaggedBatch.collate(tokens[start : start + 16]).padded() for start in range(0, len(tokens), 16)]
    batches.append(RaggedBatch.collate(ordered[:1]).padded())
    batches.append(RaggedBatch.collate(ordered[-1:]).padded())
    batches.append(_without_metadata(RaggedBatch.collate(spread).padded(length=len(ordered[-1]) + 7)))
    golden = RaggedBatch.collate(spread).padded()
    golden["metadata"][1::3] = np.nan  # objects with and without metadata in one call
    return [*batches, golden]


def _without_metadata(batch: Arrays) -> Arrays:
    return batch | {"metadata": np.full_like(batch["metadata"], np.nan)}


def output_names(network: AstroMoE) -> list[str]:
    """Names of the graph's outputs, in order."""
    config = network.config
    present = (config.n_input_experts > 0, config.n_experts > 0)
    return [*FLOATS, *(name for name, is_there in zip(LOADS, present, strict=True) if is_there)]


def check_parity(served: ServedNetwork, path: Path, batches: Sequence[Arrays]) -> float:
    """Largest absolute difference of torch and onnxruntime; ExportError above 1e-4 or on a missed expert."""
    session = open_session(path)
    names = output_names(served.network)
    worst, reached = 0.0, dict.fromkeys(names[len(FLOATS) :], np.zeros(()))
    for batch in batches:
        with torch.no_grad():
            expected = dict(
                zip(names, (value.numpy() for value in served(*named_tensors(batch).values())), strict=True)
            )
        actual = run(session, batch)
        worst = float(np.max([worst, *(np.abs(actual[name] - expected[name]).max() for name in FLOATS)]))
        for name in reached:
            reached[name] = reached[name] + actual[name]
    missed = [f"{name}{list(map(int, index))}" for name, load in reached.items() for index in np.argwhere(load == 0)]
    if missed:
        raise ExportError(f"no token reached {', '.join(missed)}: parity says nothing about them; give more curves")
    if not worst <= GOLDEN_TOLERANCE:
        raise ExportError(f"torch and onnxruntime differ by {worst:.2e}")
    return worst


def named_tensors(batch: Arrays) -> dict[str, Tensor]:
    """Inputs of the network, in the order of its arguments."""
    return {name: torch.from_numpy(batch[name]) for name in AXES}


def _manifest(network: AstroMoE, config: RunConfig, release: Release) -> Manifest:
    sizes, counts = network.config, count_parameters(network)
    assert isinstance(counts["total"], int)
    assert isinstance(counts["active"], int)
    return Manifest(
        name=release.name,
        version=release.version,
        architecture="astro-moe",
        taxonomy=ELASTICC,
        bands=BANDS,
        flux_unit=config.recipe.data.flux_unit,
        limits=config.recipe.data.limits,
        metadata_columns=METADATA_COLUMNS,
        inputs=_input_specs(sizes.n_metadata),
        outputs=_output_specs(network),
        embedding_dim=sizes.d_tab + sizes.d_model,
        parameters=Parameters(total=counts["total"], active=counts["active"]),
        calibration=release.calibration,
        recipe=config.recipe.model_dump(mode="json"),
        data=release.data,
        metrics=release.metrics,
        opset=OPSET,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        files={},
    )


def _input_specs(n_metadata: int) -> tuple[TensorSpec, ...]:
    types = {"band": "int64", "mask": "bool"}
    shapes: dict[str, tuple[int | str, ...]] = {"metadata": ("batch", n_metadata)}
    return tuple(
        TensorSpec(name=name, dtype=types.get(name, "float32"), shape=shapes.get(name, ("batch", "length")))
        for name in AXES
    )


def _output_specs(network: AstroMoE) -> tuple[TensorSpec, ...]:
    config = network.config
    shapes: dict[str, tuple[int | str, ...]] = {
        "probabilities": ("batch", config.n_classes),
        "embedding": ("batch", config.d_tab + config.d_model),
        "input_expert_load": (1, config.n_input_experts),
        "expert_load": (config.n_blocks, config.n_experts),
    }
    return tuple(
        TensorSpec(name=name, dtype="int64" if name in LOADS else "float32", shape=shapes[name])
        for name in output_names(network)
    )
