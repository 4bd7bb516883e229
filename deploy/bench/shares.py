"""Where the processor time of a streamed alert goes: decode, featurise, run, encode, each alone on one core."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import orjson

from deploy.bench.alerts import columns_of
from deploy.bench.bare import Bare
from deploy.bench.report import Numbers
from models.bundle import load_bundle
from models.runtime import run
from service.alerts.packet import Packet
from service.alerts.reader import read_packet
from service.dataplane import Outcome
from service.http.writers import ClassWriter
from service.inference.batching import Prediction
from service.inference.programs import Classification

ItemT = TypeVar("ItemT")

NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY


def measure(folder: Path, packets: Sequence[bytes]) -> Numbers:
    """Keys ``stream.cpu_us.STAGE`` and ``stream.cpu_share.STAGE``; runs are of one light curve, without batching."""
    bundle = load_bundle(folder)
    read_packet(packets[0])  # a schema's first packet makes its plan
    read, decode = _timed(lambda: [outcome for data in packets for outcome in read_packet(data)])
    curves = [one.curve for one in read if isinstance(one, Packet) and one.curve is not None]
    program = Classification(bundle.manifest)
    _, featurise = _timed(lambda: [program.prepare(curve) for curve in curves])
    bare = Bare.of(folder, [columns_of(curve) for curve in curves])
    runs = bare.run(callers=1).cpu_ms / 1000 * len(curves)
    outcomes, writer = _outcomes(bare), ClassWriter(bundle)
    _, encode = _timed(lambda: [orjson.dumps(writer.result(one, {}, embedding=True), option=NUMPY) for one in outcomes])
    seconds = {"decode": decode, "featurise": featurise, "run": runs, "encode": encode}
    each: Numbers = {f"stream.cpu_us.{stage}": 1e6 * spent / len(curves) for stage, spent in seconds.items()}
    return each | {f"stream.cpu_share.{stage}": spent / sum(seconds.values()) for stage, spent in seconds.items()}


def _outcomes(bare: Bare) -> list[Outcome]:
    """What the network says of each light curve."""
    outcomes = []
    for inputs in bare.inputs:
        row = {name: output[0] for name, output in run(bare.session, inputs).items() if len(output) == 1}
        outcomes.append(Outcome("classified", prediction=Prediction(row, 1, 0.0, 0.0, 0.0), points_per_band=(0,) * 6))
    return outcomes


def _timed(work: Callable[[], list[ItemT]]) -> tuple[list[ItemT], float]:
    started = time.process_time()
    return work(), time.process_time() - started
