"""Export a trained network as a bundle: trace, check against torch, write golden vectors and the manifest.

Notable:

- the graph is that of ``training.export.served.ServedNetwork``; batch and length are dynamic;
- only chosen feed-forward experts are computed: ``parts.packing`` exports to one Split and a Gemm pair per expert, in
  standard operators (traced by ``training.export.graph``);
- torch and onnxruntime must agree within 1e-4 on ragged batches that send tokens through every expert of every layer.

Run::

    nightjar-train export runs/default-0 build/astro-moe --data build/sim.parquet

Order: fit calibration, prediction sets and novelty on views of the validation split as in the service; export; test
parity; record provenance. The bundle has a model card, which ``nightjar-train card`` rewrites with scores.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn

from nightjar_alerts.models.bundle import (
    GOLDEN_TOLERANCE,
    MODEL,
    Bundle,
    Calibration,
    InputStatistics,
    Manifest,
    Parameters,
    TensorSpec,
    difference,
    write_golden,
    write_manifest,
)
from nightjar_alerts.models.lightcurve import LightCurve, RaggedBatch, Tokens
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.parts.transformer import FeedForwardExperts, Router
from nightjar_alerts.models.networks.zoo import count_parameters
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.posterior import PredictionSets
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.models.taxonomy import ELASTICC, Taxonomy, taxonomy_of
from nightjar_alerts.training.confidence.calibration import calibrated, fit_calibration, predict_as_served
from nightjar_alerts.training.confidence.novelty import REFERENCE_PER_CLASS, NoveltyFit, fit_novelty
from nightjar_alerts.training.confidence.sets import fit_sets
from nightjar_alerts.training.data.batches import draw_examples, draw_indices, draw_weighted, usable_tokens
from nightjar_alerts.training.data.dataset import UNLABELLED, Dataset, read_dataset, read_notes, split_indices
from nightjar_alerts.training.export.card import write_card
from nightjar_alerts.training.export.graph import OPSET, write_graph
from nightjar_alerts.training.export.served import AXES, LOADS, Arrays, Ensembled, ServedNetwork, parity_batches
from nightjar_alerts.training.export.statistics import input_statistics
from nightjar_alerts.training.fit.checkpoints import RunConfig, RunError, fingerprint, load_network, read_log
from nightjar_alerts.training.recipes.schema import Recipe

DTYPES = {"band": "int64", "mask": "bool"}
STATISTICS_CURVES, STATISTICS_DRAW = 5_000, 2**32 + 7  # light curves of the input statistics, and their random stream
MOVED = 1e-3  # share of expert choices that may differ between torch and onnxruntime
DISABLED = -1e4  # bias of an expert that no token shall choose


class ExportError(Exception):
    """The exported graph differs from the network, or the parity batches do not reach every expert."""


@dataclass(frozen=True, slots=True)
class Release:
    """Contents of a bundle's manifest besides the network; the taxonomy is that of the training set."""

    name: str
    version: str
    calibration: Calibration
    data: dict[str, Any]
    metrics: dict[str, Any]
    taxonomy: Taxonomy = ELASTICC
    novelty: NoveltyFit | None = None
    prediction_sets: PredictionSets | None = None
    ensemble: Ensembled | None = None
    input_statistics: InputStatistics | None = None


def _silent(_: str) -> None:
    """Ignore a progress message."""


def export_bundle(
    network: nn.Module,
    config: RunConfig,
    tokens: Sequence[Tokens],
    out: Path,
    release: Release,
    say: Callable[[str], None] = _silent,
) -> tuple[Bundle, float]:
    """Write a bundle folder and check its graph against the network.

    Parameters
    ----------
    tokens : real light curves for the parity batches, enough to reach every expert; some of them, of all lengths,
        become the golden vectors.
    say : callback for progress messages.

    Returns
    -------
    The bundle and the largest absolute difference between torch and onnxruntime.

    Raises
    ------
    ExportError
        If they differ by more than 1e-4, or an expert was never reached.
    """
    out.mkdir(parents=True, exist_ok=True)
    if config.recipe.task != "classify":
        raise ExportError(f"only classifiers are exported: the task of {config.recipe.name} is {config.recipe.task}")
    served = ServedNetwork(network.eval(), release.calibration, release.novelty, release.ensemble).eval()
    batches = parity_batches(tokens)
    with torch.no_grad():
        example = served.outputs(*served.arguments(batches[0]).values())
    say("tracing the network into a graph")
    conditions = served.missing_input_outputs(), served.row_subset_modules(), served.native_kernels()
    write_graph(served, served.arguments(batches[0]), AXES, list(example), out / MODEL, *conditions)
    say(f"comparing torch and onnxruntime on {len(batches)} batches")
    worst = check_parity(served, out / MODEL, batches)
    golden = {name: batches[-1][name] for name in served.arguments(batches[-1])}
    write_golden(out, golden, run(open_session(out / MODEL), golden))
    return write_manifest(out, _manifest(served, example, config, release)), worst


def check_parity(served: ServedNetwork, path: Path, batches: Sequence[Arrays]) -> float:
    """Return the largest absolute difference of torch and onnxruntime.

    Raises
    ------
    ExportError
        If it exceeds 1e-4, or an expert was never reached.
    """
    session = open_session(path)
    worst, reached = 0.0, dict[str, NDArray[np.int64]]()
    for batch in batches:
        differs, loads = _compare(served, session, batch)
        worst = float(np.max([worst, differs]))  # max() would drop a NaN
        reached = {name: reached.get(name, 0) + load for name, load in loads.items()}
    if getattr(served.network, "supports_prediction_only", False) and "expert_load" in reached:
        worst = float(np.max([worst, _last_experts(served, path, batches[-1], reached["expert_load"][-1])]))
    missed = [f"{name}{list(map(int, index))}" for name, load in reached.items() for index in np.argwhere(load == 0)]
    if missed:
        raise ExportError(f"no token reached {', '.join(missed)}: give more light curves to test their parity")
    if not worst <= GOLDEN_TOLERANCE:
        raise ExportError(f"torch and onnxruntime differ by {worst:.2e}")
    return worst


def _compare(
    served: ServedNetwork, session: ort.InferenceSession, batch: Arrays
) -> tuple[float, dict[str, NDArray[np.int64]]]:
    """Return the largest difference of torch and onnxruntime on a batch, and the graph's loads."""
    with torch.no_grad():
        expected = served.outputs(*served.arguments(batch).values())
    actual = run(session, batch)
    counts = (*LOADS, "experts_by_band")  # compared separately, since rounding can change the choice of experts
    values = [difference(actual[name], value.numpy()) for name, value in expected.items() if name not in counts]
    if "experts_by_band" in expected:
        count = expected["experts_by_band"].numpy()
        values.append(float(np.abs(actual["experts_by_band"] - count).sum() > MOVED * count.sum()))
    return float(np.max(values)), {name: actual[name] for name in LOADS if name in expected}


def _last_experts(served: ServedNetwork, path: Path, batch: Arrays, reached_E: NDArray[np.int64]) -> float:
    """Return the largest difference in runs that force each expert of the last mixture in turn.

    Only [CLS] tokens reach the last mixture, and they may all choose the same few experts. So the gate biases are
    overridden, in torch and in the graph. The loads of these runs are added to ``reached_E``.
    """
    routers = [(name, part) for name, part in served.named_modules() if isinstance(part, Router)]
    if not routers or not isinstance(served.network.light_curve.blocks[-1].feed_forward, FeedForwardExperts):  # type: ignore[union-attr, index]  # one that routes has blocks
        return 0.0
    name, router = routers[-1]
    model, own_E = onnx.load(path), router.gate.bias.detach().clone()
    gates = [node for node in model.graph.node if node.op_type == "Gemm" and node.name.startswith(f"{name}.gate/")]
    if len(gates) != 1:
        raise ExportError(
            f"{path} does not have exactly one Gemm node of {name}.gate, so its experts cannot be checked"
        )
    bias = model.graph.initializer.add(name=f"{name}.gate.bias/by_hand")
    del gates[0].input[2:]  # gates with equal biases may share a tensor, and a bias of zeros may be absent
    gates[0].input.append(bias.name)
    worst, experts = 0.0, len(reached_E)
    for first in range(0, experts, router.top_k):
        taken_E = torch.full_like(own_E, DISABLED)
        taken_E[[(first + more) % experts for more in range(router.top_k)]] = 0.0
        bias.CopyFrom(numpy_helper.from_array(taken_E.numpy(), bias.name))
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            onnx.save(model, Path(folder) / MODEL)
            router.gate.bias.copy_(taken_E)
            try:
                differs, loads = _compare(served, open_session(Path(folder) / MODEL), batch)
            finally:
                router.gate.bias.copy_(own_E)
        worst = float(np.max([worst, differs]))
        reached_E += loads["expert_load"][-1]
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
        taxonomy=release.taxonomy,
        bands=config.recipe.data.bands,
        flux_unit=config.recipe.data.flux_unit,
        limits=config.recipe.data.limits,
        metadata_columns=METADATA_COLUMNS if "metadata" in names else (),
        inputs=tuple(_input_spec(name) for name in names),
        outputs=tuple(output_spec(name, value.numpy()) for name, value in example.items()),
        embedding_dim=example["embedding"].shape[1],
        parameters=Parameters(total=counts["total"], active=counts["active"]),
        ensemble=None if release.ensemble is None else release.ensemble.described,
        calibration=release.calibration,
        novelty=None if release.novelty is None else release.novelty.described,
        prediction_sets=release.prediction_sets,
        recipe=config.recipe.model_dump(mode="json"),
        data=release.data,
        input_statistics=release.input_statistics,
        metrics=release.metrics,
        opset=OPSET,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        files={},
    )


def _input_spec(name: str) -> TensorSpec:
    shape = ("batch", len(METADATA_COLUMNS)) if name == "metadata" else AXES[name]
    return TensorSpec(name=name, dtype=DTYPES.get(name, "float32"), shape=shape)


def output_spec(name: str, value: NDArray[Any]) -> TensorSpec:
    """Return the manifest entry of an output. The first axis is the batch, except for expert loads."""
    shape: tuple[int | str, ...] = ("batch", *value.shape[1:])
    if name in LOADS:
        shape = tuple(value.shape)
    return TensorSpec(name=name, dtype="int64" if name in LOADS else "float32", shape=shape)


PARITY_CURVES = 200
PARITY_NOISE = 400


class Confidence(NamedTuple):
    """Calibration, novelty and prediction sets of a classifier, fitted on its validation split, with metrics."""

    calibration: Calibration
    novelty: NoveltyFit
    prediction_sets: PredictionSets
    metrics: dict[str, Any]


def release(
    run: Path, data: Path, out: Path, *, name: str, version: str, say: Callable[[str], None] = _silent
) -> Bundle:
    """Calibrate the best weights of a classifier's run and export them as a bundle with a card.

    Parameters
    ----------
    data : the data file of the run; its validation split is used for calibration.
    say : callback for progress messages.

    Raises
    ------
    RunError
        If the run was trained on other data, or ``out`` is not empty.
    ExportError
        If the exported graph differs from the network.
    """
    if out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty; remove it or name another folder")
    network, config = load_network(run)
    if config.recipe.task != "classify":
        raise RunError(f"only classifiers are exported: the task of {run} is {config.recipe.task}")
    dataset = read_dataset(data)
    if fingerprint(data, len(dataset)).sha256 != config.data.sha256:
        raise RunError(f"{run} was trained on other data than {data}")
    say(f"running the network on {len(dataset)} light curves")
    fit = fit_confidence(network, dataset, config.recipe)
    described = Release(
        name=name,
        version=version,
        calibration=fit.calibration,
        data=_provenance(dataset, config) | origin_of(data),
        metrics={"validation": _validation(run)} | fit.metrics,
        taxonomy=taxonomy_of(dataset.classes),
        novelty=fit.novelty,
        prediction_sets=fit.prediction_sets,
        input_statistics=_input_statistics(network, dataset, config),
    )
    export_bundle(network, config, _parity_tokens(dataset, config), out, described, say)
    return write_card(out)


def fit_confidence(network: nn.Module, dataset: Dataset, recipe: Recipe) -> Confidence:
    """Calibrate a classifier, fit prediction sets to its calibrated probabilities, and novelty to its embeddings."""
    sample = predict_as_served(network, dataset, recipe, "validation")
    fit = fit_calibration(sample)
    p_NC = calibrated(sample.logits_NC, sample.length_N, fit.calibration)
    sets = fit_sets(p_NC, sample.label_N, sample.detections_N, sample.object_N)
    training = predict_as_served(network, dataset, recipe, "train", per_class=REFERENCE_PER_CLASS)
    metrics = {"calibration": fit.numbers(), "prediction_sets": {"coverage_of_one_threshold": sets.coverage_of_one}}
    return Confidence(fit.calibration, fit_novelty(training, sample), sets.sets, metrics)


def _provenance(dataset: Dataset, config: RunConfig) -> dict[str, Any]:
    """Return the training data of the network for the manifest."""
    parts = split_indices(dataset, config.recipe.data.fractions, config.recipe.data.turn)
    labelled = dataset.label[dataset.label != UNLABELLED]
    counts = np.bincount(labelled, minlength=len(dataset.classes))
    return {
        **config.data.model_dump(),
        # without the path, which only matters on the training machine
        "pretrained": None if config.pretrained is None else Path(config.pretrained).name,
        "pretrained_sha256": config.pretrained_sha256,
        "splits": {part: len(indices) for part, indices in parts.items()},
        "classes": dict(zip(dataset.classes, counts.tolist(), strict=True)),
    }


def origin_of(data: Path) -> dict[str, Any]:
    """Return the origin of a data file from its notes: an import or a simulation."""
    notes = read_notes(data)
    if "import" in notes:
        record = json.loads(notes["import"])
        entries = {name: record[name] for name in ("format", "licence", "rules", "report")}
        return {"source": record["survey"], "import": entries}
    record = json.loads(notes.get("simulation", "{}"))
    names = {"version": "simulator_version", "seed": "simulator_seed", "options": "simulator_options"}
    return {"source": "nightjar_alerts.training.simulate"} | {
        name: record[key] for key, name in names.items() if key in record
    }


def _validation(run: Path) -> dict[str, Any]:
    """Return the log line of the exported weights: the best validation."""
    lines = [line for line in read_log(run) if "validation_score" in line]
    best: dict[str, Any] = max(lines, key=lambda line: line["validation_score"])
    return best


def _input_statistics(network: nn.Module, dataset: Dataset, config: RunConfig) -> InputStatistics:
    """Return the distribution of the training light curves, drawn as in training."""
    recipe = config.recipe
    names: tuple[str, ...] = network.input_names  # type: ignore[assignment]  # a module's attributes are untyped
    rng = np.random.default_rng((recipe.seed, STATISTICS_DRAW))
    training = split_indices(dataset, recipe.data.fractions, recipe.data.turn)["train"]
    drawn = draw_weighted(dataset, training, STATISTICS_CURVES, recipe, rng)
    examples = draw_examples(dataset, drawn, recipe.data, recipe.augmentation, rng)
    return input_statistics(
        RaggedBatch.collate([example.tokens for example in examples]),
        np.array([example.label for example in examples]),
        dataset.classes,
        bands=recipe.data.bands,
        flux_unit=recipe.data.flux_unit,
        columns=METADATA_COLUMNS if "metadata" in names else (),
    )


def _parity_tokens(dataset: Dataset, config: RunConfig) -> list[Tokens]:
    """Return views of validation objects of all classes, and noise of all brightnesses that reaches rare experts."""
    recipe = config.recipe
    rng = np.random.default_rng(recipe.seed)
    validation = split_indices(dataset, recipe.data.fractions, recipe.data.turn)["validation"]
    drawn = draw_indices(dataset.label, validation, PARITY_CURVES, balance=1.0, rng=rng)
    examples = draw_examples(dataset, drawn, recipe.data, recipe.augmentation, rng)
    noisy = (usable_tokens(noise(rng), recipe.data) for _ in range(PARITY_NOISE))
    return [example.tokens for example in examples] + [tokens for tokens in noisy if tokens is not None]


def noise(rng: np.random.Generator, points: int = 60) -> LightCurve:
    """Return random fluxes of either sign and errors, both log-uniform from 0.01 nJy to 0.1 Jy, over eight years.

    The ranges are wider than those of surveys, since light curves of one survey may never reach some experts.
    """
    flux, flux_err = 10 ** rng.uniform(-2, 8, (2, points))
    return LightCurve.from_columns(
        mjd=60_000 + np.sort(rng.uniform(0, 3_000, points)),
        flux=flux * rng.choice((-1, 1), points),
        flux_err=flux_err,
        band=rng.integers(0, len(BANDS), points),
    )
