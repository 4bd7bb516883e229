"""Real bundles around graphs of a few nodes whose answers a test can work out: any inputs, bands, limits, outputs.

A classifier's embedding begins with what it saw of each curve: number of points, mean flux, mean time, mean band; a
metadata graph adds the number of columns present.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.core.warmup import BatchShape, dummy_batch
from nightjar_alerts.models.bundle import MODEL, Bundle, Manifest, write_golden, write_manifest
from nightjar_alerts.models.posterior import Domain, Novelty
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.models.taxonomy import ELASTICC
from support.graphs import echo_manifest
from support.statistics import survey_statistics

HISTORY = ("flux", "flux_err", "time", "band", "mask")
QUERIES = ("query_time", "query_band", "query_mask")
_TYPES = {"band": "INT64", "mask": "BOOL", "query_band": "INT64", "query_mask": "BOOL"}
_OPSET = 20

Nodes = list[onnx.NodeProto]


def _input(name: str, columns: int) -> onnx.ValueInfoProto:
    kind = getattr(TensorProto, _TYPES.get(name, "FLOAT"))
    second: int | str = "queries" if name in QUERIES else columns if name == "metadata" else "length"
    return helper.make_tensor_value_info(name, kind, ["batch", second])


def _constant(
    name: str, values: Sequence[float], shape: Sequence[int], kind: int = TensorProto.FLOAT
) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=helper.make_tensor(name, kind, shape, values))


def _constants() -> Nodes:
    return [
        _constant("zero", [0.0], []),
        _constant("thousand", [1000.0], []),
        _constant("along", [1], [1], TensorProto.INT64),
    ]


def _count() -> Nodes:
    return [
        helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["real", "along"], ["n"], keepdims=1),
    ]


def _mean(name: str) -> Nodes:
    """Mean of an input over the real observations: ``mean_NAME`` [batch, 1]."""
    return [
        helper.make_node("Cast", [name], [f"{name}_float"], to=TensorProto.FLOAT),
        helper.make_node("Where", ["mask", f"{name}_float", "zero"], [f"{name}_seen"]),
        helper.make_node("ReduceSum", [f"{name}_seen", "along"], [f"{name}_sum"], keepdims=1),
        helper.make_node("Div", [f"{name}_sum", "n"], [f"mean_{name}"]),
    ]


def _present() -> Nodes:
    """Number of metadata columns that hold a value: ``present`` [batch, 1]."""
    return [
        helper.make_node("IsNaN", ["metadata"], ["missing"]),
        helper.make_node("Not", ["missing"], ["there"]),
        helper.make_node("Cast", ["there"], ["there_float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["there_float", "along"], ["present"], keepdims=1),
    ]


def _classifier(inputs: Sequence[str], embedding_dim: int, trouble: Nodes) -> Nodes:
    """``embedding`` and, from its first number, ``probabilities`` over 20 classes.

    What ``trouble`` makes, a tensor of that name which holds 0, is added on the way.
    """
    means = [name for name in inputs if name not in ("mask", "metadata")]
    nodes = _constants() + _count() + [node for name in means for node in _mean(name)]
    features = ["n", *(f"mean_{name}" for name in means)]
    if "metadata" in inputs:
        nodes += _present()
        features.append("present")
    classes = len(ELASTICC.names)
    return [
        *nodes,
        _constant("ones", [1.0] * (embedding_dim - len(features)), [1, embedding_dim - len(features)]),
        helper.make_node("MatMul", ["n", "ones"], ["filler"]),
        helper.make_node("Concat", [*features, "filler"], ["embedding"], axis=1),
        _constant("slopes", [0.01 * k for k in range(classes)], [1, classes]),
        helper.make_node("MatMul", ["n", "slopes"], ["clear"]),
        *(trouble or [_constant("trouble", [0.0], [])]),
        helper.make_node("Add", ["clear", "trouble"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]


def _bundle(folder: Path, nodes: Nodes, inputs: Sequence[str], outputs: Sequence[str], manifest: Manifest) -> Bundle:
    folder.mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(
        nodes,
        manifest.name,
        [_input(name, len(manifest.metadata_columns)) for name in inputs],
        [
            helper.make_tensor_value_info(
                name, TensorProto.FLOAT, ["batch"] if name == "novelty" else ["batch", "width"]
            )
            for name in outputs
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, folder / MODEL)
    adapter = Adapter(manifest)
    made = adapter.assemble(dummy_batch(adapter, BatchShape(3, 9, 4)))
    golden = {name: made[name] for name in inputs if name in made}
    write_golden(folder, golden, run(open_session(folder / MODEL), golden))
    return write_manifest(folder, manifest)


def classifier_bundle(
    folder: Path, inputs: Sequence[str] = HISTORY, embedding_dim: int = 7, trouble: Nodes | None = None, **changes: Any
) -> Bundle:
    """A classifier that takes ``inputs``; ``changes`` are fields of its manifest."""
    defaults = {"name": "counter", "embedding_dim": embedding_dim, "metadata_columns": ()}
    manifest = echo_manifest().model_copy(update=defaults | changes)
    nodes = _classifier(inputs, embedding_dim, trouble or [])
    return _bundle(folder, nodes, inputs, ("probabilities", "embedding"), manifest)


UNUSUAL_FLUX = 1000.0
"""Mean flux of light curves that a :func:`sign_bundle` calls unusual."""
FEWEST_POINTS = 4
"""Points below which it abstains."""


def sign_bundle(folder: Path, trouble: Nodes | None = None) -> Bundle:
    """A classifier by the sign of the mean flux: the first class if it is negative, else the last one, and unusual."""
    classes = len(ELASTICC.names)
    nodes = [
        *_constants(),
        *_count(),
        *_mean("flux"),
        _constant("ones", [1.0] * 4, [1, 4]),
        helper.make_node("MatMul", ["mean_flux", "ones"], ["embedding"]),
        _constant("scale", [1.0 / UNUSUAL_FLUX], []),
        _constant("slopes", [float(k) for k in range(classes)], [1, classes]),
        helper.make_node("Mul", ["mean_flux", "scale"], ["scaled"]),
        _constant("least", [-1.0], []),
        _constant("most", [1.0], []),
        helper.make_node("Clip", ["scaled", "least", "most"], ["clipped"]),
        helper.make_node("MatMul", ["clipped", "slopes"], ["clear"]),
        *(trouble or [_constant("trouble", [0.0], [])]),
        helper.make_node("Add", ["clear", "trouble"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        helper.make_node("Clip", ["clipped", "zero", "most"], ["novelty_column"]),
        helper.make_node("Squeeze", ["novelty_column", "along"], ["novelty"]),
    ]
    rule = Novelty(threshold=0.5, false_alarm_rate=0.05, split="none", objects=1, reference_objects=1)
    domain = Domain(bands=("r",), fewest_points=FEWEST_POINTS, measured_on="test light curves")
    changes = {"name": "sign", "embedding_dim": 4, "metadata_columns": (), "novelty": rule, "domain": domain}
    manifest = echo_manifest().model_copy(update=changes)
    manifest = manifest.model_copy(update={"survey_statistics": {"ztf": survey_statistics(manifest)}})
    return _bundle(folder, nodes, HISTORY, ("probabilities", "embedding", "novelty"), manifest)
