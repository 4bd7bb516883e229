"""8-bit weights for a bundle: what they save and what they cost, before anyone ships them.

Two ways of onnxruntime, on the products of matrices (those of :data:`KEPT` stay in single precision: a router's choice
and a statistic that are a little off are wrong):

- ``dynamic``: weights are integers, the scale of what they are multiplied with is taken anew in each run;
- ``static``: these scales are taken once, on light curves that are not scored (calibration).

Time is processor time of one thread, the graphs in turn, the ratio to single precision within a round. Worth shipping
is what takes at most :data:`MOST_TIME` of the time at every shape, moves macro-F1 by at most :data:`MOST_F1`, and tells
a light curve the same whoever else is in its batch, to :data:`MOST_BY_MATES`: a scale that is taken in each run is that
of all light curves in it. A change of macro-F1 means little below its standard error, hence the many light curves::

    nightjar-train quantize-trial models/pretrained/astro-moe-elasticc/2.4.0 --per-class 300
"""

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from nightjar_alerts.models.bundle import Bundle, load_bundle
from nightjar_alerts.models.lightcurve import RaggedBatch, Tokens, featurise
from nightjar_alerts.models.runtime import open_session, run, session_options
from nightjar_alerts.training.data.dataset import Dataset, read_dataset
from nightjar_alerts.training.export.profile import random_inputs
from nightjar_alerts.training.score.metrics import confusion, macro_f1
from nightjar_alerts.training.simulate.generate import Survey, simulate

Arrays = dict[str, NDArray[Any]]
Sessions = dict[str, ort.InferenceSession]
KEPT: Final = (".router", "novelty", "told")
SHAPES: Final = {"1 of 30": (1, 30), "1 of 100": (1, 100), "32 of 60": (32, 60), "8 of 390": (8, 390)}
MOST_TIME: Final = 0.8
MOST_F1: Final = 0.002
MOST_BY_MATES: Final = 1e-4
ALONE: Final = 256  # light curves that are asked alone as well
RESAMPLED: Final = 200  # times, for the standard error
ROUNDS: Final = 7
SECONDS: Final = 0.1  # of processor time, of each graph in a round
BUDGET: Final = 1024  # padded points of a batch that is scored
CALIBRATED_ON: Final = 12  # one batch of so many
SEED: Final = 7

Long = TypeVar("Long", bound=Sized)


def trial(bundle: Path, data: Path | None = None, per_class: int = 25) -> dict[str, Any]:
    """Score and time a classifier's bundle with 8-bit weights beside single precision.

    Parameters
    ----------
    data : labelled light curves; None: simulated ones of the survey that the bundle is named after.
    per_class : light curves of each class that are simulated.

    Returns
    -------
    ``curves`` scored; for every graph its ``macro_f1``; for the small ones how it ``changed`` and the
    ``standard_error`` of that, ``moves``, the most that a probability does, ``moves_by_mates``, the most that one does
    with the company in its batch, ``time`` by shape over that of single precision, and whether it is
    ``worth_shipping``; ``error`` for one that onnxruntime cannot make or run.
    """
    original = load_bundle(bundle)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = data or simulate(folder / "curves.parquet", per_class, SEED, survey=_survey(original), progress=False)
        tokens, label_B = _labelled(original, read_dataset(data))
        batches = [RaggedBatch.collate(some).padded() for some in cut_by_length(tokens, BUDGET)]
        is_calibration = np.arange(len(batches)) % CALIBRATED_ON == 0
        row_B = np.repeat(is_calibration, [len(batch["mask"]) for batch in batches])
        calibration = batches[::CALIBRATED_ON]
        scored = [one for one, out in zip(batches, is_calibration, strict=True) if not out]
        sessions, errors = _sessions(original, folder, calibration)
        probabilities = {way: _probabilities(session, scored) for way, session in sessions.items()}
        alone = [one for one, out in zip(tokens, row_B, strict=True) if not out]
        mates = {way: _moves_by_mates(sessions[way], alone, p_BC) for way, p_BC in probabilities.items()}
        report = _compared(probabilities, label_B[~row_B], _times(sessions), mates)
        for way in probabilities.keys() - {"single"}:
            report[way]["standard_error"] = _standard_error(probabilities, way, label_B[~row_B])
    return report | {way: {"error": text} for way, text in errors.items()}


def _probabilities(session: ort.InferenceSession, batches: Sequence[Arrays]) -> NDArray[np.float32]:
    return np.concatenate([run(session, batch)["probabilities"] for batch in batches])


def _moves_by_mates(session: ort.InferenceSession, tokens: Sequence[Tokens], p_BC: NDArray[np.float32]) -> float:
    """Largest difference of a probability between light curves in their batches and some of them asked alone."""
    some = range(0, len(tokens), -(-len(tokens) // ALONE))
    alone = _probabilities(session, [RaggedBatch.collate([tokens[place]]).padded() for place in some])
    return round(float(np.abs(alone - p_BC[list(some)]).max()), 7)


def _standard_error(probabilities: dict[str, NDArray[np.float32]], way: str, label_B: NDArray[np.int64]) -> float:
    """Return the standard error of the change of macro-F1: a bootstrap over light curves that both have answered."""
    rng, classes = np.random.default_rng(SEED), probabilities["single"].shape[1]
    class_of_each = [probabilities[each].argmax(1) for each in ("single", way)]
    changes = []
    for _ in range(RESAMPLED):
        rows = rng.integers(0, len(label_B), len(label_B))
        single, small = (macro_f1(confusion(label_B[rows], top_B[rows], classes)) for top_B in class_of_each)
        changes.append(small - single)
    return round(float(np.std(changes)), 4)


def _survey(bundle: Bundle) -> Survey:
    return "ztf" if "ztf" in bundle.manifest.name else "rubin"


def _labelled(bundle: Bundle, dataset: Dataset) -> tuple[list[Tokens], NDArray[np.int64]]:
    """Light curves of classes that the bundle knows, shortest first, and their labels as it counts them."""
    manifest = bundle.manifest
    own = list(manifest.classes.names)
    pairs = []
    for index, label in enumerate(dataset.label):
        if label >= 0 and dataset.classes[label] in own:
            tokens = featurise(
                dataset.curve(index), manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.band_map
            )
            pairs.append((tokens, own.index(dataset.classes[label])))
    pairs.sort(key=lambda one: len(one[0]))
    return [tokens for tokens, _ in pairs], np.array([label for _, label in pairs])


def cut_by_length(tokens: Sequence[Long], budget: int) -> list[list[Long]]:
    """Cut light curves, sorted by length, into batches of no more padded observations than the budget."""
    batches: list[list[Long]] = [[]]
    for one in sorted(tokens, key=len):
        if batches[-1] and (len(batches[-1]) + 1) * len(one) > budget:
            batches.append([])
        batches[-1].append(one)
    return batches


def _sessions(bundle: Bundle, folder: Path, calibration: Sequence[Arrays]) -> tuple[Sessions, dict[str, str]]:
    """Open the graph and its small forms; of those that fail, say why."""
    makers: dict[str, Callable[[], Path]] = {
        "single": lambda: bundle.model,
        "dynamic": lambda: as_int8(bundle.model, folder / "dynamic.onnx"),
        "static": lambda: as_static_int8(bundle.model, folder / "static.onnx", calibration),
    }
    sessions, errors = Sessions(), dict[str, str]()
    for way, make in makers.items():
        try:
            sessions[way] = open_session(make())
            for batch in calibration:
                run(sessions[way], batch)
        except Exception as error:  # onnxruntime raises a family of its own that share no base class
            sessions.pop(way, None)
            errors[way] = f"{type(error).__name__}: {str(error)[:200]}"
    return sessions, errors


def as_int8(graph: Path, out: Path) -> Path:
    """Write a graph whose products, but for those of :data:`KEPT`, have weights of 8-bit integers."""
    model = _with_weights_alone(graph, out)
    exclusions = [node.name for node in model.graph.node if any(part in node.name for part in KEPT)]
    exclusions += [f"{name}_MatMul" for name in exclusions]  # what a Gemm becomes on the way
    logging.disable(logging.WARNING)  # it tells of every index that it does not make smaller
    try:
        quantize_dynamic(model, out, weight_type=QuantType.QInt8, nodes_to_exclude=exclusions)
    finally:
        logging.disable(logging.NOTSET)
    return out


def as_static_int8(graph: Path, out: Path, calibration: Sequence[Arrays]) -> Path:
    """Write a graph with products of 8-bit integers, whose scales are those of the batches given."""
    model = _with_weights_alone(graph, out)
    exclusions = [
        node.name for node in model.graph.node if node.op_type == "If" or any(part in node.name for part in KEPT)
    ]
    names = [value.name for value in model.graph.input]
    basic = out.with_suffix(".basic.onnx")
    onnx.save(model, basic)
    logging.disable(logging.WARNING)
    try:
        quantize_static(
            basic,
            out,
            _Reader({name: batch[name] for name in names} for batch in calibration),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul", "Gemm"],
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=exclusions,
        )
    finally:
        logging.disable(logging.NOTSET)
    return out


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime's quantization is untyped
    """Batches, as onnxruntime asks for them."""

    def __init__(self, batches: Iterator[Arrays]) -> None:
        self._rest = iter(batches)

    def get_next(self) -> Arrays | None:
        """Return the next batch, None behind the last."""
        return next(self._rest, None)


def _with_weights_alone(graph: Path, out: Path) -> onnx.ModelProto:
    """Read a graph as onnxruntime simplifies it: weights that are cut from others then stand alone."""
    options = session_options(1)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    model = onnx.load(out)
    del model.graph.value_info[:]
    return model


def _times(sessions: Sessions) -> dict[str, dict[str, float]]:
    """Time over that of single precision, by way and shape, the median of the rounds."""
    ratios: dict[str, dict[str, float]] = {way: {} for way in sessions}
    for shape, (size, length) in SHAPES.items():
        inputs = random_inputs(size, length)
        rounds = [{way: _seconds(one, inputs) for way, one in sessions.items()} for _ in range(ROUNDS)]
        for way in sessions:
            ratios[way][shape] = round(float(np.median([each[way] / each["single"] for each in rounds])), 3)
    return ratios


def _seconds(session: ort.InferenceSession, inputs: Arrays) -> float:
    """Mean processor seconds of a run."""
    run(session, inputs)
    runs, started = 0, time.process_time()
    while (spent := time.process_time() - started) < SECONDS:
        run(session, inputs)
        runs += 1
    return spent / max(runs, 1)


def _compared(
    probabilities: dict[str, NDArray[np.float32]],
    label_B: NDArray[np.int64],
    times: dict[str, dict[str, float]],
    mates: dict[str, float],
) -> dict[str, Any]:
    """Put scores and times together."""
    single_BC = probabilities["single"]
    scores = {way: macro_f1(confusion(label_B, p_BC.argmax(1), p_BC.shape[1])) for way, p_BC in probabilities.items()}
    report: dict[str, Any] = {"curves": len(label_B), "single": {"macro_f1": round(scores["single"], 4)}}
    for way in probabilities.keys() - {"single"}:
        changed = scores[way] - scores["single"]
        report[way] = {
            "macro_f1": round(scores[way], 4),
            "changed": round(changed, 4),
            "moves": round(float(np.abs(probabilities[way] - single_BC).max()), 4),
            "moves_by_mates": mates[way],
            "time": times[way],
            "worth_shipping": abs(changed) <= MOST_F1
            and max(times[way].values()) <= MOST_TIME
            and mates[way] <= MOST_BY_MATES,
        }
    return report
