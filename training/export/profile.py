"""Costs of a network's modules in onnxruntime: its own timings, added up by the names of the nodes.

Nodes carry the module they were traced in (``training.export.graph``); older bundles do not, and are told by operator.
A timing is the least of several runs, since whatever disturbs a run only ever makes it longer.

Run::

    nightjar-train profile tests/assets/astro-moe-elasticc-1.2.0 --batch 32 --length 60
"""

import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.runtime import session_options

PRODUCTS: Final = ("Gemm", "MatMul", "FusedMatMul", "FusedGemm", "Attention", "MultiHeadAttention", "MatMulInteger")
QUERIES: Final = 8
_OF_FUNCTION: Final = re.compile(r"^_inlfunc_[^_]+_")  # what onnxruntime puts before the names of nodes of a function

Arrays = dict[str, NDArray[Any]]


def profile(
    bundle: Path, batch: int, length: int, *, metadata: bool = False, rounds: int = 50, kernels: Path | None = None
) -> dict[str, Any]:
    """Time the graph of a bundle; :func:`profile_graph`."""
    return profile_graph(load_bundle(bundle).model, batch, length, metadata=metadata, rounds=rounds, kernels=kernels)


def profile_graph(
    graph: Path, batch: int, length: int, *, metadata: bool = False, rounds: int = 50, kernels: Path | None = None
) -> dict[str, Any]:
    """Time a graph on random light curves, one thread; microseconds of one run.

    Parameters
    ----------
    kernels : library of native kernels (``models.native``) that take over what they can.

    Returns
    -------
    ``nodes`` that ran, ``microseconds`` in all, the ``share_of_products`` of matrices, and for every module and every
    operator its nodes, microseconds and share, dearest first.
    """
    options = session_options(1, kernels)
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        inputs = random_inputs(batch, length, metadata=metadata)
        names = [node.name for node in session.get_inputs()]
        for _ in range(rounds):
            session.run(None, {name: inputs[name] for name in names})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return summary(events, rounds)


def summary(events: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """Add up the events of a profile of so many equal runs."""
    times: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events:
        if event.get("cat") != "Node" or event["args"].get("op_name") == "If":
            continue  # the time of a condition is that of what stands under it, which has events of its own
        if event["name"].endswith("_kernel_time"):
            times[event["name"].removesuffix("_kernel_time"), event["args"]["op_name"]].append(event["dur"])
    nodes, spent = (Counter[str](), Counter[str]()), (Counter[str](), Counter[str]())
    for (name, operator), durations in times.items():
        count = max(1, round(len(durations) / rounds))
        module = _OF_FUNCTION.sub("", name).rsplit("/", 1)[0].split("/")[0] if "/" in name else "(unnamed)"
        for place, key in enumerate((module, operator)):
            nodes[place][key] += count
            spent[place][key] += min(durations) * count
    whole = max(spent[1].total(), 1)
    return {
        "nodes": nodes[1].total(),
        "microseconds": spent[1].total(),
        "share_of_products": round(sum(spent[1][operator] for operator in PRODUCTS) / whole, 3),
        "modules": _rows(nodes[0], spent[0], whole),
        "operators": _rows(nodes[1], spent[1], whole),
    }


def _rows(nodes: Mapping[str, int], spent: Counter[str], whole: int) -> dict[str, dict[str, float]]:
    return {
        name: {"nodes": nodes[name], "microseconds": time, "share": round(time / whole, 3)}
        for name, time in spent.most_common()
    }


def random_inputs(batch: int, length: int, *, metadata: bool = False, seed: int = 0) -> Arrays:
    """Whole light curves of noise over two years, as graphs take them; every column of metadata, or none."""
    rng = np.random.default_rng(seed)
    shape, query_shape = (batch, length), (batch, QUERIES)
    time = np.sort(rng.uniform(0, 700, shape), axis=1)
    columns = rng.uniform(0, 1, (batch, len(METADATA_COLUMNS))) if metadata else np.nan
    numbers = {
        "flux": rng.normal(50, 40, shape),
        "flux_err": rng.uniform(2, 8, shape),
        "time": time - time[:, :1],
        "metadata": np.broadcast_to(columns, (batch, len(METADATA_COLUMNS))),
        "query_time": rng.uniform(700, 760, query_shape),
    }
    bands = {"band": rng.integers(0, 6, shape), "query_band": rng.integers(0, 6, query_shape)}
    masks = {"mask": np.ones(shape, dtype=bool), "query_mask": np.ones(query_shape, dtype=bool)}
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in numbers.items()} | bands | masks
