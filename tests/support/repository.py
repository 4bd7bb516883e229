"""A repository of real bundles of a few nodes: each version answers in a way of its own, so a mix-up cannot go unseen.

The embedding of a version's classifier begins with the number of observations times the version's ``factor``, and the
probabilities follow from it: no two factors give the same answer.
"""

import shutil
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.core.warmup import BatchShape, dummy_batch
from nightjar_alerts.models.bundle import MODEL, Bundle, load_bundle, write_golden, write_manifest
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.models.taxonomy import ELASTICC
from support.graph_bundles import classifier_bundle


def version(root: Path, number: str, factor: float = 1.0, name: str = "mine", **changes: Any) -> Bundle:
    """A bundle under ``root/name/number``, put there in one go, as a deployment does."""
    making = root.parent / f"making-{name}-{number}"
    bundle = classifier_bundle(making, name=name, version=number, **changes)
    _scale(bundle, factor)
    target = root / name / number
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    making.rename(target)
    return load_bundle(target)


def _scale(bundle: Bundle, factor: float) -> None:
    """Multiply the slopes of the logits."""
    model = onnx.load(bundle.path / MODEL)
    for node in model.graph.node:
        if node.output[0] == "slopes":
            values = numpy_helper.to_array(node.attribute[0].t) * factor
            node.attribute[0].t.CopyFrom(numpy_helper.from_array(values.astype("float32"), "slopes"))
    onnx.save(model, bundle.path / MODEL)
    adapter = Adapter(bundle.manifest)
    golden = adapter.assemble(dummy_batch(adapter, BatchShape(3, 9, 4)))
    session = open_session(bundle.path / MODEL)
    golden = {node.name: golden[node.name] for node in session.get_inputs()}
    write_golden(bundle.path, golden, run(session, golden))
    write_manifest(bundle.path, bundle.manifest)


def corrupt(path: Path) -> None:
    """Change a byte of the graph; the manifest knows nothing of it."""
    data = bytearray((path / MODEL).read_bytes())
    data[len(data) // 2] ^= 0xFF
    (path / MODEL).write_bytes(bytes(data))


def lie(path: Path) -> None:
    """Give a bundle golden outputs that its graph does not give, with hashes that match."""
    bundle = load_bundle(path)
    adapter = Adapter(bundle.manifest)
    session = open_session(bundle.model)
    made = adapter.assemble(dummy_batch(adapter, BatchShape(3, 9, 4)))
    golden = {node.name: made[node.name] for node in session.get_inputs()}
    outputs = run(session, golden)
    outputs["probabilities"] = outputs["probabilities"][:, ::-1].copy()
    write_golden(path, golden, outputs)
    write_manifest(path, bundle.manifest)


CLASSES = ELASTICC.names
