"""Throughput and latency of the Open Inference Protocol over gRPC, HTTP with binary tensors, and of bare onnxruntime.

    python -m deploy.bench --parts '["grpc"]'
    python -m deploy.bench.grpc_bench PORT PLAN --clients 32      the load client alone

The same tensors are sent over both protocols to one service, with 1 and 64 light curves a call: by one client for
latency (``lone``), by 32 clients with one light curve each, and by 8 with 64. Each client is one connection. Rates are
divided by that of bare onnxruntime with the best schedule (:mod:`deploy.bench.bare`) in the same round, and those of
gRPC by those of HTTP. Load comes from another process on the same cores; a call costs grpcio's client several times as
much as the raw client of HTTP (:mod:`deploy.bench.http_load`), whose processor time is not part of
``cpu_ms_per_curve``. All probabilities are compared with those of the network alone.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import numpy as np
import orjson
import uvloop
from numpy.typing import NDArray

from deploy.bench.bare import Bare, Best
from deploy.bench.http_load import (
    HOST,
    HttpReply,
    HttpRequest,
    PlanOutcome,
    read_plan,
    run_in_process,
    summary,
    write_plan,
)
from deploy.bench.report import ROOT, Numbers, spread
from deploy.bench.throughput import LONE_REQUESTS, PATIENT, SEED, TOLERANCE, WrongAnswer, answered
from deploy.bench.workload import BATCH, CurveColumns, alert_mix
from nightjar_alerts.core.machine import usable_cores
from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.service.grpc import SERVICE
from nightjar_alerts.service.grpc.messages import ModelInferRequest, ModelInferResponse
from nightjar_alerts.service.local import free_port, running

METHOD: Final = f"/{SERVICE}/ModelInfer"
DATATYPES: Final = {"f8": "FP64", "f4": "FP32", "i8": "INT64", "O": "BYTES"}

Tensors = Mapping[str, NDArray[Any]]


class Plans(NamedTuple):
    """Calls over both protocols: HTTP requests, and messages of gRPC; number of clients and of light curves."""

    http: Sequence[HttpRequest]
    grpc: Sequence[HttpRequest]
    clients: int
    curves: int


def tensors_of(curves: Sequence[CurveColumns], metadata_columns: Sequence[str]) -> Tensors:
    """Return light curves as the tensors of a request."""
    lengths = [len(curve["mjd"]) for curve in curves]
    rows = [[curve["metadata"].get(name, np.nan) for name in metadata_columns] for curve in curves]
    bands = [band.encode() for curve in curves for band in curve["band"]]
    return {
        "mjd": np.concatenate([curve["mjd"] for curve in curves]),
        "flux": np.concatenate([curve["flux"] for curve in curves]),
        "flux_err": np.concatenate([curve["flux_err"] for curve in curves]),
        "band": np.array(bands, dtype=object),
        "offsets": np.concatenate(([0], np.cumsum(lengths))),
        "metadata": np.array(rows, np.float64),
    }


def _described(tensors: Tensors) -> Iterator[tuple[str, str, tuple[int, ...], bytes]]:
    """Return name, datatype, shape and bytes of each tensor."""
    for name, array in tensors.items():
        data = array.tobytes()
        if array.dtype == object:
            data = b"".join(len(text).to_bytes(4, "little") + text for text in array.tolist())
        yield name, DATATYPES[array.dtype.str.lstrip("<|")], array.shape, data


def http_call(model: str, tensors: Tensors) -> HttpRequest:
    """Return a request with binary tensors, whose response has binary tensors."""
    inputs, parts = [], []
    for name, datatype, shape, data in _described(tensors):
        size = {"binary_data_size": len(data)}
        inputs.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
        parts.append(data)
    text = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    length = len(text) + sum(map(len, parts))
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1",
        f"Host: {HOST}",
        "Content-Type: application/octet-stream",
        f"Inference-Header-Content-Length: {len(text)}",
        f"Content-Length: {length}",
    ]
    return HttpRequest("\r\n".join([*lines, "", ""]).encode() + text + b"".join(parts))


def grpc_call(model: str, tensors: Tensors) -> HttpRequest:
    """Return the message of a call with raw tensors, as an entry of a plan."""
    request = ModelInferRequest(model_name=model)
    for name, datatype, shape, data in _described(tensors):
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(data)
    return HttpRequest(request.SerializeToString())


def measure(bundle: Path, curves: int, rounds: int, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``grpc.*``; each arm sees ``curves`` light curves per round, ``lone_1`` fewer."""
    cores, drawn, manifest = usable_cores(), alert_mix(curves, SEED), load_bundle(bundle).manifest
    best = Best.of(bundle, drawn, cores)
    singles = [tensors_of([curve], manifest.metadata_columns) for curve in drawn]
    groups = [tensors_of(drawn[at : at + BATCH], manifest.metadata_columns) for at in range(0, curves, BATCH)]
    lone = singles[:LONE_REQUESTS]
    arms = {
        name: Plans(
            [http_call(manifest.name, each) for each in sent],
            [grpc_call(manifest.name, each) for each in sent],
            clients,
            count,
        )
        for name, sent, clients, count in (
            ("lone_1", lone, 1, len(lone)),
            ("lone_64", groups, 1, curves),
            ("1", singles, 32, curves),
            ("64", groups, 8, curves),
        )
    }
    grpc_port, rates = free_port(), dict[str, list[dict[str, float]]]()
    settings = {f"NIGHTJAR_{name}": value for name, value in PATIENT.items()} | {"NIGHTJAR_GRPC_PORT": str(grpc_port)}
    with tempfile.TemporaryDirectory() as folder, running(bundle, settings) as service:
        error = largest_difference(grpc_port, [*arms["lone_1"].grpc, *arms["64"].grpc], Bare.of(bundle, drawn), curves)
        for name, plans in arms.items():
            write_plan(Path(folder, f"http_{name}"), plans.http)
            write_plan(Path(folder, f"grpc_{name}"), plans.grpc)
        for number in range(rounds):
            ideal = best.run(cores).per_second
            for name, plans in arms.items():
                for protocol, port, send in (("http", service.port, run_in_process), ("grpc", grpc_port, _run_calls)):
                    before = service.cpu_seconds()
                    outcome = answered(send(port, Path(folder, f"{protocol}_{name}"), plans.clients))
                    row = {
                        "per_s": plans.curves / outcome["seconds"],
                        "p50_ms": outcome["p50_ms"],
                        "p99_ms": outcome["p99_ms"],
                        "cpu_ms_per_curve": 1e3 * (service.cpu_seconds() - before) / plans.curves,
                        "bare": ideal,
                    }
                    rates.setdefault(f"{protocol}_{name}", []).append(row)
            line = ", ".join(f"{name} {rows[-1]['per_s']:.0f}/s" for name, rows in rates.items())
            say(f"round {number + 1}/{rounds}: bare {ideal:.0f}/s, {line}")
    numbers: Numbers = {
        "grpc.curves_per_round": curves,
        "grpc.rounds": rounds,
        "grpc.max_abs_difference_to_bare": error,
        "grpc.bare_best_per_s": spread([row["bare"] for row in rates["grpc_1"]]),
    }
    for name, rows in rates.items():
        for key in ("per_s", "p50_ms", "p99_ms", "cpu_ms_per_curve"):
            numbers[f"grpc.{name}.{key}"] = spread([row[key] for row in rows])
        numbers[f"grpc.{name}.vs_bare"] = spread([row["per_s"] / row["bare"] for row in rows])
    for name in arms:
        pairs = zip(rates[f"grpc_{name}"], rates[f"http_{name}"], strict=True)
        numbers[f"grpc.grpc_{name}.vs_http"] = spread([ours["per_s"] / theirs["per_s"] for ours, theirs in pairs])
    return numbers


def largest_difference(port: int, calls: Sequence[HttpRequest], bare: Bare, curves: int) -> float:
    """Return the largest difference between probabilities over gRPC and of the network alone.

    Parameters
    ----------
    calls : single light curves from the first on, and then calls with all ``curves``.

    Raises
    ------
    WrongAnswer
        Above the tolerance of the benchmarks.
    """
    rows = []
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        infer = channel.unary_unary(METHOD, response_deserializer=ModelInferResponse.FromString)
        for each in calls:
            response = infer(each.data, timeout=300)
            index = [output.name for output in response.outputs].index("probabilities")
            values = np.frombuffer(response.raw_output_contents[index], np.float32)
            rows.append(values.reshape(tuple(response.outputs[index].shape)))
    served, expected = np.concatenate(rows), bare.probabilities()
    singles = len(served) - curves
    error = float(np.abs(served - np.concatenate([expected[:singles], expected])).max())
    if not error <= TOLERANCE:
        raise WrongAnswer(f"probabilities differ by {error:.1e} from those of the network alone")
    return error


def _run_calls(port: int, plan: Path, clients: int) -> dict[str, Any]:
    """Run this module in a separate process and return its summary."""
    command = [sys.executable, "-m", "deploy.bench.grpc_bench", str(port), str(plan), "--clients", str(clients)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


async def drive(port: int, plan: list[HttpRequest], clients: int) -> PlanOutcome:
    """Send all messages of a plan from ``clients`` connections, as :func:`deploy.bench.http_load.drive`."""
    outcome = PlanOutcome([0.0] * len(plan), [HttpReply(0)] * len(plan), Counter())
    queue: Iterator[tuple[int, HttpRequest]] = iter(enumerate(plan))

    async def work() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"{HOST}:{port}", options) as channel:
            infer = channel.unary_unary(METHOD)
            for index, one in queue:  # shared by the clients
                started = time.perf_counter()
                try:
                    await infer(one.data)
                    outcome.replies[index] = HttpReply(200)
                except grpc.RpcError as error:
                    outcome.statuses[error.code().name] += 1
                else:
                    outcome.statuses["200"] += 1
                outcome.latency[index] = time.perf_counter() - started

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    outcome.seconds = time.perf_counter() - started
    return outcome


def main() -> None:
    """Send a plan and print the summary."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.grpc_bench", description="closed-loop gRPC load")
    parser.add_argument("port", type=int)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--clients", type=int, default=32)
    options = parser.parse_args()
    print(json.dumps(summary(uvloop.run(drive(options.port, read_plan(options.plan), options.clients)))))


if __name__ == "__main__":
    main()
