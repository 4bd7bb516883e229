"""The service over HTTP beside bare onnxruntime at its best: JSON one by one, msgpack by 64, bursts.

Rounds are interleaved (bare, msgpack, JSON with few and with many in flight, bare, ...); ratios are taken within a
round. Every arm handles the same curves once. The load comes from another process, which shares the cores with the
service, while bare onnxruntime has them to itself.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import orjson

from deploy.bench.bare import Bare, Best
from deploy.bench.http_load import HOST, Request, request, run_in_process, write_plan
from deploy.bench.report import Numbers, spread
from deploy.bench.service_process import ServiceProcess, running
from deploy.bench.throughput import WrongAnswer, check_answers
from deploy.bench.workload import Columns, alert_mix
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import filter_index
from nightjar_alerts.service.engine.machine import usable_cores

MSGPACK: Final = "application/msgpack"
BATCH, BATCHES_IN_FLIGHT = 64, 8
JSON_IN_FLIGHT: Final = (32, 128)
BURST, BURST_BATCH = 10_000, 100
TOLERANCE: Final = 1e-4  # what batch mates may change
PATIENT: Final = {"MAX_QUEUED_SECONDS": "600", "DEFAULT_DEADLINE_MS": "300000", "CACHE_BYTES": "0"}


class WireRound(NamedTuple):
    """Curves a second of one turn of every arm; ``json`` in the order of :data:`JSON_IN_FLIGHT`.

    ``bare_of_few`` is bare onnxruntime where it has no more to choose among than the fewer of those.
    """

    bare: float
    msgpack: float
    json: tuple[float, ...]
    bare_of_few: float


@contextmanager
def patient(bundle: Path) -> Iterator[ServiceProcess]:
    """Return a service that refuses no burst and answers nothing from memory."""
    with running(bundle, {f"NIGHTJAR_{name}": value for name, value in PATIENT.items()}) as service:
        yield service


def measure(bundle: Path, curves: Sequence[Columns], rounds: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``engine.vs_bare.*`` and what they are made of."""
    cores = usable_cores()
    best, of_few = Best.of(bundle, curves, cores), Best.of(bundle, curves, cores, JSON_IN_FLIGHT[0])
    say(f"best schedule of bare onnxruntime: {best.budget or 'one by one'}")
    packed = [packed_request(curves[first : first + BATCH]) for first in range(0, len(curves), BATCH)]
    with tempfile.TemporaryDirectory() as folder, patient(bundle) as service:
        batches, singles = Path(folder, "batches"), Path(folder, "singles")
        write_plan(batches, packed)
        write_plan(singles, [request("/v1/classify", orjson.dumps(curve)) for curve in curves])
        alone = Bare.of(bundle, curves)
        error = max(check_answers(service, singles, curves, alone), check_packed(service, packed, alone))
        rounds_done = []
        for number in range(rounds):
            rounds_done.append(_round(service, batches, singles, best, of_few, cores))
            say(f"round {number + 1}/{rounds}: {_line(rounds_done[-1])}")
    return {
        "engine.max_abs_difference_to_bare": error,
        "engine.bare_best_budget": best.budget,
        **_figures(rounds_done),
    }


def _round(service: ServiceProcess, batches: Path, singles: Path, best: Best, of_few: Best, cores: int) -> WireRound:
    bare = best.run(cores).per_second
    packed = answered(run_in_process(service.port, batches, BATCHES_IN_FLIGHT))
    msgpack = best.curves / packed["seconds"]
    return WireRound(
        bare,
        msgpack,
        tuple(best.curves / answered(run_in_process(service.port, singles, n))["seconds"] for n in JSON_IN_FLIGHT),
        of_few.run(cores).per_second,
    )


def answered(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome of a plan. Raises WrongAnswer when a request was not answered with 200."""
    if set(outcome["statuses"]) != {"200"}:
        raise WrongAnswer(f"not every request was answered: {outcome['statuses']}")
    return outcome


def _figures(rounds: Sequence[WireRound]) -> Numbers:
    few, many = JSON_IN_FLIGHT
    return {
        "engine.bare_best_per_s": spread([r.bare for r in rounds]),
        f"engine.msgpack_{BATCH}_per_s": spread([r.msgpack for r in rounds]),
        f"engine.json_1_per_s.in_flight_{few}": spread([r.json[0] for r in rounds]),
        f"engine.json_1_per_s.in_flight_{many}": spread([r.json[1] for r in rounds]),
        f"engine.vs_bare.msgpack_{BATCH}": spread([r.msgpack / r.bare for r in rounds]),
        f"engine.bare_among_{few}_vs_bare": spread([r.bare_of_few / r.bare for r in rounds]),
        "engine.vs_bare.json_1": spread([r.json[0] / r.bare for r in rounds]),
        f"engine.vs_bare.json_1_{many}": spread([r.json[1] / r.bare for r in rounds]),
    }


def packed_request(curves: Sequence[Columns]) -> Request:
    """Curves as one msgpack request, their columns in one piece each."""
    document = {"light_curves": [_packed(curve) for curve in curves]}
    return request("/v1/classify", msgspec.msgpack.encode(document), MSGPACK)


def _packed(curve: Columns) -> dict[str, Any]:
    packed = {
        "object_id": curve["object_id"],
        "mjd": np.asarray(curve["mjd"], "<f8").tobytes(),
        "flux": np.asarray(curve["flux"], "<f4").tobytes(),
        "flux_err": np.asarray(curve["flux_err"], "<f4").tobytes(),
        "band": np.array([filter_index(name) for name in curve["band"]], "u1").tobytes(),
    }
    values = [curve["metadata"].get(name, np.nan) for name in METADATA_COLUMNS]
    return packed | ({"metadata": np.asarray(values, "<f4").tobytes()} if curve["metadata"] else {})


def check_packed(service: ServiceProcess, plan: Sequence[Request], bare: Bare) -> float:
    """Largest difference between a probability served to msgpack and the same curve's alone. Raises WrongAnswer."""
    connection = HTTPConnection(HOST, service.port, timeout=60)
    served: list[list[float]] = []
    for one in plan:
        connection.request("POST", "/v1/classify", one.data.partition(b"\r\n\r\n")[2], {"Content-Type": MSGPACK})
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise WrongAnswer(f"{response.status} {body[:500]!r}")
        served += [list(result["probabilities"].values()) for result in msgspec.msgpack.decode(body)["results"]]
    connection.close()
    error = float(np.abs(np.asarray(served) - bare.probabilities()).max())
    if not error <= TOLERANCE:
        raise WrongAnswer(f"probabilities differ by {error:.1e} from those of the network alone")
    return error


def burst(bundle: Path, size: int, rounds: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``engine.burst_10k_s`` and ``engine.burst_10k_vs_ideal``: `size` curves in requests that all come at once.

    Ideal is bare onnxruntime with the best schedule, on the same curves in the same round.
    """
    cores, curves = usable_cores(), alert_mix(size, seed=2)
    best = Best.of(bundle, curves, cores)
    plan = [packed_request(curves[first : first + BURST_BATCH]) for first in range(0, size, BURST_BATCH)]
    seconds, ideal = [], []
    with tempfile.TemporaryDirectory() as folder, patient(bundle) as service:
        path = Path(folder, "burst")
        write_plan(path, plan[:1])
        answered(run_in_process(service.port, path, 1))
        write_plan(path, plan)
        for number in range(rounds):
            ideal.append(size / best.run(cores).per_second)
            seconds.append(answered(run_in_process(service.port, path, len(plan)))["seconds"])
            say(f"burst {number + 1}/{rounds}: {seconds[-1]:.2f} s, bare at its best {ideal[-1]:.2f} s")
    return {
        "engine.burst_curves": size,
        "engine.burst_10k_s": spread(seconds),
        "engine.burst_10k_vs_ideal": spread([one / least for one, least in zip(seconds, ideal, strict=True)]),
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by resampling."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (10_000, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(low), float(high)


def _line(r: WireRound) -> str:
    few, many = (rate / r.bare for rate in r.json)
    return f"bare {r.bare:.0f} curves/s; msgpack {r.msgpack / r.bare:.2f} of it, JSON {few:.2f} and {many:.2f}"
