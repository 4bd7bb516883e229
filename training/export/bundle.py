"""Export a trained network as a bundle: trace, check against torch, write golden vectors and the manifest.

Notable:

- the graph is what ``training.export.served`` puts around the network; batch, length and queries are dynamic;
- only chosen feed-forward experts are computed: ``parts.grouping`` exports to one Split and a Gemm pair per expert, in
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

from models.bundle import (
    GOLDEN_TOLERANCE,
    MODEL,
    Bundle,
    Manifest,
    Parameters,
    TensorSpec,
    difference,
    write_golden,
    write_manifest,
)
from models.confidence import Calibration, PredictionSets
from models.lightcurve import Tokens
from models.metadata import METADATA_COLUMNS
from models.networks.zoo import NetworkTask, count_parameters
from models.runtime import open_session, run
from models.taxonomy import ELASTICC, Taxonomy
from training.export.confidence import Ensembled
from training.export.graph import OPSET, write_graph
from training.export.served import AXES, LOADS, Arrays, Scored, ServedForecaster, ServedNetwork, parity_batches
from training.fit.checkpoints import RunConfig
from training.score.novelty import NoveltyFit

DTYPES = {"band": "int64", "mask": "bool", "query_band": "int64", "query_mask": "bool"}
SERVED: dict[NetworkTask, type[ServedNetwork]] = {"classify": ServedNetwork, "forecast": ServedForecaster}


class ExportError(Exception):
    """The exported graph is not the network, or the parity batches do not reach every expert."""


@dataclass(frozen=True, slots=True)
class Release:
    """Facts that a bundle states of itself beyond its network; the taxonomy is that of its training set."""

    name: str
    version: str
    calibration: Calibration
    data: dict[str, Any]
    metrics: dict[str, Any]
    taxonomy: Taxonomy | None = ELASTICC
    novelty: NoveltyFit | Scored | None = None
    prediction_sets: PredictionSets | None = None
    ensemble: Ensembled | None = None


def export_bundle(
    network: nn.Module, config: RunConfig, tokens: Sequence[Tokens], out: Path, release: Release
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
    if config.recipe.task not in SERVED:
        raise ExportError(
            f"a network trained to {config.recipe.task} is not served: train a classifier from its weights"
        )
    answered = SERVED[config.recipe.task]
    served = answered(network.eval(), release.calibration, release.novelty, release.ensemble).eval()
    batches = parity_batches(tokens)
    with torch.no_grad():
        example = served.outputs(*served.arguments(batches[0]).values())
    write_graph(served, served.arguments(batches[0]), AXES, list(example), out / MODEL, served.answers_to_nothing())
    worst = check_parity(served, out / MODEL, batches)
    golden = {name: batches[-1][name] for name in served.arguments(batches[-1])}
    write_golden(out, golden, run(open_session(out / MODEL), golden))
    return write_manifest(out, _manifest(served, example, config, release)), worst


def check_parity(served: ServedNetwork, path: Path, batches: Sequence[Arrays]) -> float:
    """Largest absolute difference of torch and onnxruntime; ExportError above 1e-4 or on a missed expert."""
    session = open_session(path)
    worst, reached = 0.0, dict[str, NDArray[np.int64]]()
    for batch in batches:
        with torch.no_grad():
            expected = served.outputs(*served.arguments(batch).values())
        actual = run(session, batch)
        for name, value in expected.items():
            if name in LOADS:
                reached[name] = reached.get(name, 0) + actual[name]
            else:
                worst = float(np.max([worst, difference(actual[name], value.numpy())]))  # max() would drop a NaN
    missed = [f"{name}{list(map(int, index))}" for name, load in reached.items() for index in np.argwhere(load == 0)]
    if missed:
        raise ExportError(f"no token reached {', '.join(missed)}: parity says nothing about them; give more curves")
    if not worst <= GOLDEN_TOLERANCE:
        raise ExportError(f"torch and onnxruntime differ by {worst:.2e}")
    return worst


def _manifest(served: ServedNetwork, example: dict[str, Tensor], config: RunConfig, release: Release) -> Manifest:
    network, names = served.network, served.input_names
    counts = count_parameters(network)
    assert isinstance(counts["total"], int)
    assert isinstance(counts["active"], int)
    return Manifest(
        name=release.name,
        version=release.version,
        architecture=config.recipe.network.architecture,
        task=served.task,
        taxonomy=release.taxonomy if served.task == "classification" else None,
        bands=config.recipe.data.bands,
        flux_unit=config.recipe.data.flux_unit,
        limits=config.recipe.data.limits,
        metadata_columns=METADATA_COLUMNS if "metadata" in names else (),
        inputs=tuple(_input_spec(name) for name in names),
        outputs=tuple(_output_spec(name, value) for name, value in example.items()),
        embedding_dim=example["embedding"].shape[1] if "embedding" in example else 0,
        parameters=Parameters(total=counts["total"], active=counts["active"]),
        ensemble=None if release.ensemble is None else release.ensemble.described,
        calibration=release.calibration,
        novelty=None if release.novelty is None else release.novelty.described,
        prediction_sets=release.prediction_sets,
        recipe=config.recipe.model_dump(mode="json"),
        data=release.data,
        metrics=release.metrics,
        opset=OPSET,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        files={},
    )


def _input_spec(name: str) -> TensorSpec:
    shape = ("batch", len(METADATA_COLUMNS)) if name == "metadata" else AXES[name]
    return TensorSpec(name=name, dtype=DTYPES.get(name, "float32"), shape=shape)


def _output_spec(name: str, value: Tensor) -> TensorSpec:
    shape: tuple[int | str, ...] = ("batch", *value.shape[1:])
    if name in LOADS:
        shape = tuple(value.shape)
    elif name.startswith("forecast"):
        shape = ("batch", "queries")
    return TensorSpec(name=name, dtype="int64" if name in LOADS else "float32", shape=shape)
