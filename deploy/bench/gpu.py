"""The service on a GPU: bare onnxruntime with the CUDA graph of a bundle, and light curves per second through HTTP.

- ``gpu.ms.*``, ``gpu.curves_per_s.*``: batches of one shape;
- ``gpu.mix_per_s``: batches of the lengths of real alerts, from two threads, as the service runs them;
- ``gpu.moe_over_dense.*``: the network of the paper's size over the same network with dense layers;
- ``gpu.service_per_s``, ``gpu.service_share``: light curves per second through HTTP, and divided by ``gpu.mix_per_s``.

Without a GPU it prints that nothing was measured.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from deploy.bench.bare import length_batches, tokens_of
from deploy.bench.http_load import run_in_process, write_plan
from deploy.bench.report import Numbers, spread
from deploy.bench.workload import BATCH, CurveColumns, alert_mix, packed_request
from nightjar_alerts.models.bundle import Manifest, load_bundle
from nightjar_alerts.models.lightcurve import RaggedBatch
from nightjar_alerts.models.networks.astro_moe import AstroMoE, AstroMoEConfig
from nightjar_alerts.models.runtime import OnnxGraph, Provider, open_session
from nightjar_alerts.service.local import running
from nightjar_alerts.training.export.cuda import add_cuda, cuda_graph
from nightjar_alerts.training.export.served import ServedNetwork
from nightjar_alerts.training.export.weights import random_inputs, trace

Arrays = dict[str, NDArray[Any]]
ROUNDS: Final = 9
GPU_SHAPES: Final = {"b256_l390": (256, 390), "b256_l60": (256, 60)}
GPU_CURVES: Final = 8192
GPU_BUDGET: Final = 65_536  # maximum number of padded observations in a batch of the real mix
GPU_THREADS: Final = 2  # one copies while the other computes


def measure(bundle: Path, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``gpu.*``; none without a GPU."""
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        say(f"no GPU: onnxruntime has {', '.join(ort.get_available_providers())}; nothing was measured")
        return {}
    numbers: Numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "bundle"
        add_cuda(bundle, copy)
        graph = load_bundle(copy).graph("cuda")
        for shape, (size, length) in GPU_SHAPES.items():
            bound = device_run(graph, "cuda")
            seconds = timed_runs(bound, random_inputs(size, length))
            numbers[f"gpu.ms.{shape}"] = spread([1e3 * each for each in seconds])
            numbers[f"gpu.curves_per_s.{shape}"] = spread([size / each for each in seconds])
            say(f"{shape}: {1e3 * min(seconds):.2f} ms")
        _gpu_experts(Path(folder), numbers, say)
        drawn = alert_mix(GPU_CURVES, seed=5)
        paces = real_mix(graph, "cuda", drawn, load_bundle(bundle).manifest)
        numbers["gpu.mix_per_s"] = spread(paces)
        served = _served_per_second(copy, drawn)
        numbers["gpu.service_per_s"] = served
        numbers["gpu.service_share"] = served / float(np.median(paces))
        say(f"real mix {np.median(paces):.0f}/s, through the service {served:.0f}/s")
    return numbers


def timed_runs(bound: OnnxGraph, inputs: Arrays) -> list[float]:
    """Return the seconds of equal runs, including the copies of inputs and outputs."""
    bound(inputs)
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        bound(inputs)
        seconds.append(time.perf_counter() - started)
    return seconds


def device_run(graph: Path, provider: Provider) -> OnnxGraph:
    """Open a graph as the service does on a device."""
    return OnnxGraph(open_session(graph, provider))


def real_mix(graph: Path, provider: Provider, drawn: Sequence[CurveColumns], manifest: Manifest) -> list[float]:
    """Return the light curves per second of each round; two threads run batches."""
    tokens = [tokens_of(one, manifest) for one in drawn]
    batches = [RaggedBatch.collate(some).padded() for some in length_batches(tokens, GPU_BUDGET)]
    bound = device_run(graph, provider)
    paces = []
    with ThreadPoolExecutor(GPU_THREADS) as threads:
        for number in range(ROUNDS + 1):
            started = time.perf_counter()
            list(threads.map(bound, batches))
            if number:  # the first warms up
                paces.append(len(drawn) / (time.perf_counter() - started))
    return paces


def _gpu_experts(folder: Path, numbers: Numbers, say: Callable[[str], None]) -> None:
    """Measure the key ``gpu.moe_over_dense.b256_l390``."""
    torch.manual_seed(0)
    config, size, length = AstroMoEConfig(), *GPU_SHAPES["b256_l390"]
    dense = config.model_copy(update={"n_experts": 0, "n_input_experts": 0})
    runs = []
    for name, one in (("sparse", config), ("dense", dense)):
        path = folder / f"{name}.onnx"
        trace(ServedNetwork(AstroMoE(one).eval()).eval(), path)
        onnx.save(cuda_graph(onnx.load(path)), path)
        runs.append(device_run(path, "cuda"))
    inputs, ratios = random_inputs(size, length), []
    for number in range(ROUNDS + 1):
        spent = []
        for bound in runs:
            started = time.perf_counter()
            bound(inputs)
            spent.append(time.perf_counter() - started)
        if number:
            ratios.append(spent[0] / spent[1])
    say(f"experts over dense: {np.median(ratios):.2f}")
    numbers["gpu.moe_over_dense.b256_l390"] = spread(ratios)


def _served_per_second(bundle: Path, drawn: Sequence[CurveColumns]) -> float:
    """Return the light curves per second of the service on the GPU, for MessagePack batches from 32 clients."""
    plan_of = [packed_request(drawn[first : first + BATCH]) for first in range(0, len(drawn), BATCH)]
    chosen = {"NIGHTJAR_PROVIDER": "cuda", "NIGHTJAR_CACHE_BYTES": "0"}  # no cache, because curves are repeated
    with tempfile.TemporaryDirectory() as folder, running(bundle, chosen, seconds=300) as service:
        plan = Path(folder, "plan")
        write_plan(plan, plan_of)
        paces = [run_in_process(service.port, plan, clients=32)["per_second"] for _ in range(3)]
    return BATCH * float(np.median(paces[1:]))
