"""Workloads of the benchmarks: light curves, packets, requests and arrival times, all determined by a seed.

**Light curves** have the lengths of a survey's alerts: lognormal (median 50, 95th percentile about 170), one in a
hundred from a deep field with several hundred points (:func:`draw_lengths`), and at most 390 points, spread evenly over
the six bands. Half of the curves have the 64 metadata columns, the others none, like real LSST alerts. The first point
is a detection, so that the service uses all points.

**Packets** are framed LSST records of the newest schema, without images, with the lengths of a night in the survey's
design: of a hundred alerts, seventy are of new objects and have one detection, twenty have 5 detections and 20 forced
points, eight have 20 and 80, and two, of deep fields, have 60 and 300.

**Requests** of all kinds, valid and invalid, are used to measure memory.

**Traffic** (:class:`Trace`) is the arrival times and lengths of light curves: Poisson arrivals, visits of a survey
telescope (all alerts of an exposure at once, every 37 seconds), and recorded traces. A trace is a text file with a line
``seconds length`` per light curve, in order of arrival; ``#`` begins a comment.
"""

import io
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import fastavro
import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from deploy.bench.http_load import HttpRequest, request
from nightjar_alerts.alerts import avro
from nightjar_alerts.alerts.avro import non_null
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS, REDSHIFTS
from nightjar_alerts.models.photometry import BANDS, filter_index

MEDIAN_LENGTH = 50
LOG_SIGMA = 0.745  # mean 66, 95th percentile 170
LONGEST = 390
DEEP_SHARE = 0.01
DEEP_MEDIAN_LENGTH = 700.0
DEEP_LOG_SIGMA = 0.4
SPAN_DAYS = 300.0

CurveColumns = dict[str, Any]


def alert_mix(count: int, seed: int) -> list[CurveColumns]:
    """Draw light curves as in JSON requests (MJD, nJy), with the lengths of real alerts."""
    rng = np.random.default_rng(seed)
    return [_curve(index, int(length), rng) for index, length in enumerate(draw_lengths(count, LONGEST, rng))]


def _curve(index: int, length: int, rng: np.random.Generator) -> CurveColumns:
    days = np.sort(rng.uniform(0, SPAN_DAYS, length))
    error = rng.lognormal(np.log(300.0), 0.4, length)
    rise_and_fall = (days / 20.0) * np.exp(1.0 - days / 20.0)
    flux = rng.lognormal(np.log(8000.0), 0.8) * rise_and_fall + rng.normal(0.0, error)
    flux[0] = 10.0 * error[0]  # the first detection
    return {
        "object_id": f"bench-{index}",
        "mjd": _apart(60_000.0 + days).tolist(),
        "flux": flux.round(2).tolist(),
        "flux_err": error.round(2).tolist(),
        "band": [BANDS[band] for band in rng.permutation(np.arange(length) % len(BANDS))],
        "metadata": _metadata(rng) if index % 2 else {},
    }


def _apart(mjd: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round increasing times to six decimals so that they stay distinct."""
    place = np.arange(len(mjd))
    return ((np.maximum.accumulate((mjd * 1e6).round() - place) + place) / 1e6).round(6)


def _metadata(rng: np.random.Generator) -> dict[str, float]:
    values = dict(zip(METADATA_COLUMNS, rng.uniform(0.01, 25.0, len(METADATA_COLUMNS)).round(3).tolist(), strict=True))
    return values | {name: values[name] / 10 for name in METADATA_COLUMNS if name in REDSHIFTS}


SCHEMA: Final = "lsst/11.1"
SCHEMA_ID: Final = 1101
MIX: Final = ((0.70, 0, 0), (0.20, 5, 20), (0.08, 20, 80), (0.02, 60, 300))
LONGEST_HISTORY: Final = (60, 300)
_FILL: Final[Mapping[str, Any]] = {
    "float": 1.5, "double": 2.5, "int": 3, "long": 170_094_456_272_322_680, "boolean": False, "string": "g",
    "bytes": b"",
}  # fmt: skip


def visit(count: int, seed: int = 1, first: int = 0, latest: float | None = None) -> list[bytes]:
    """Return the packets of a visit, in random order, numbered from ``first``; ``latest`` as for :func:`packet`."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(len(MIX), size=count, p=[share for share, *_ in MIX])
    return [packet(first + number, *MIX[kind][1:], rng, latest) for number, kind in enumerate(kinds.tolist())]


def packet(number: int, detections: int, forced: int, rng: np.random.Generator, latest: float | None = None) -> bytes:
    """Make a packet with its detection, earlier detections and forced photometry, within 300 days.

    Parameters
    ----------
    latest : time of the newest point (MJD, TAI); None for any time.
    """
    times = np.sort(rng.uniform(61_000, 61_300, detections + forced + 1))
    if latest is not None:
        times += latest - times[-1]
    rows = [_photometry(time, rng) for time in times.tolist()]
    ids = {"diaSourceId": 10**17 + number, "diaObjectId": 2 * 10**17 + number, "ssObjectId": None}
    record = {
        **_record(""),
        "diaSourceId": ids["diaSourceId"],
        "diaSource": _record("diaSource") | ids | rows[-1],
        "prvDiaSources": [_record("prvDiaSources") | ids | row for row in rows[:detections]] or None,
        "prvDiaForcedSources": [_record("prvDiaForcedSources") | row for row in rows[detections:-1]] or None,
        "diaObject": _record("diaObject") | {"diaObjectId": ids["diaObjectId"]},
    }
    stream = io.BytesIO()
    stream.write(b"\0" + SCHEMA_ID.to_bytes(4, "big"))
    fastavro.schemaless_writer(stream, avro.load(SCHEMA).parsed, record)
    return stream.getvalue()


def _photometry(time: float, rng: np.random.Generator) -> dict[str, Any]:
    values = {"midpointMjdTai": time, "band": "ugrizy"[rng.integers(6)], "timeWithdrawnMjdTai": None, "visit": 0}
    return values | {"psfFlux": float(rng.normal(3000, 2000)), "psfFluxErr": float(rng.lognormal(5.7, 0.4))}


@cache
def _record(path: str) -> dict[str, Any]:
    """Return a record with values in nearly all fields, as the survey sends them; lists and records are null."""
    schema = avro.load(SCHEMA)
    root = schema.fields(schema.root)
    fields = schema.fields(root[path]) if path else root
    return {
        name: _FILL.get(str(non_null(kind))) if isinstance(non_null(kind), str) else None
        for name, kind in fields.items()
    }


def columns_of(curve: LightCurve) -> CurveColumns:
    """Convert a light curve to columns as in JSON requests."""
    return {
        "object_id": curve.object_id,
        "mjd": curve.mjd.tolist(),
        "flux": curve.flux.tolist(),
        "flux_err": curve.flux_err.tolist(),
        "band": [BANDS[index] for index in curve.band.tolist()],
        "metadata": dict(curve.metadata),
    }


OCTETS = "application/octet-stream"
POOL = 400


def broken(curve: CurveColumns, rng: random.Random) -> bytes:
    """Return a body that must be rejected: a valid light curve with one of many errors."""
    text = orjson.dumps(curve)
    faults = [
        b"",
        text[: len(text) // 2],
        text.replace(b'"flux":[', b'"flux":[NaN,', 1),
        text.replace(b'"flux":[', b'"flux":[1e999,', 1),
        text.replace(b'"flux":[', b'"flux":[true,', 1),
        text.replace(b'"band":[', b'"band":["q",', 1),
        orjson.dumps({**curve, "mjd": []}),
        orjson.dumps({**curve, "flux_err": [-error for error in curve["flux_err"]]}),
        orjson.dumps({**curve, "mjd": [2_400_000.5 + mjd for mjd in curve["mjd"]]}),
        orjson.dumps({**curve, "surprise": 1}),
        b"[" * 5_000 + b"]" * 5_000,
    ]
    return rng.choice(faults) or b" "


def _batch(pool: Sequence[CurveColumns], rng: random.Random) -> bytes:
    curves = rng.sample(pool, rng.randint(2, 12))
    return orjson.dumps({"light_curves": curves, "options": {"embedding": rng.random() < 0.2}})


def requests(count: int, packets: Sequence[bytes], seed: int) -> list[HttpRequest]:
    """Draw requests: curves, batches, whole and truncated packets, invalid bodies, disconnecting clients, look-ups."""
    rng = random.Random(seed)
    pool = alert_mix(POOL, seed)
    return [_one(pool, packets, rng) for _ in range(count)]


def _one(pool: Sequence[CurveColumns], packets: Sequence[bytes], rng: random.Random) -> HttpRequest:
    curve, packet, kind = rng.choice(pool), rng.choice(packets), rng.random()
    if kind < 0.55:
        return request("/v1/classify", orjson.dumps(curve))
    if kind < 0.63:
        return request("/v1/classify", _batch(pool, rng))
    if kind < 0.78:
        return request("/v1/alerts", packet, OCTETS)
    if kind < 0.82:
        return request("/v1/alerts", packet[: rng.randrange(1, len(packet))], OCTETS)
    if kind < 0.92:
        return request("/v1/classify", broken(curve, rng))
    if kind < 0.95:
        return HttpRequest(request("/v1/classify", orjson.dumps(curve)).data, vanish=True)
    return request(rng.choice(["/v1/models", "/healthz", "/readyz", "/metrics", "/nowhere"]))


VISIT_SECONDS = 37.0
"""Mean time between exposures of the LSST survey during a night."""


class Trace(NamedTuple):
    """Light curves in order of arrival.

    Attributes
    ----------
    arrival : seconds since the start, shape (n,), not decreasing.
    length : observations, shape (n,), at least 1.
    """

    arrival: NDArray[np.float64]
    length: NDArray[np.int64]


class TraceError(ValueError):
    """Invalid trace file."""


def draw_lengths(count: int, longest: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw the numbers of observations of ``count`` light curves, shape (count,), from 1 to ``longest``."""
    deep = rng.random(count) < DEEP_SHARE
    centre = np.where(deep, np.log(DEEP_MEDIAN_LENGTH), np.log(MEDIAN_LENGTH))
    drawn = rng.lognormal(centre, np.where(deep, DEEP_LOG_SIGMA, LOG_SIGMA))
    return np.clip(np.rint(drawn), 1, longest).astype(np.int64)


def poisson(rate: float, count: int, longest: int, rng: np.random.Generator) -> Trace:
    """Draw ``count`` light curves with Poisson arrivals at ``rate`` per second."""
    return Trace(np.cumsum(rng.exponential(1 / rate, count)), draw_lengths(count, longest, rng))


def visits(alerts: int, number: int, longest: int, rng: np.random.Generator) -> Trace:
    """Make ``number`` visits of ``alerts`` light curves, which arrive at once in each visit."""
    arrival = np.repeat(VISIT_SECONDS * np.arange(number), alerts)
    return Trace(arrival, draw_lengths(alerts * number, longest, rng))


def read_trace(path: Path, longest: int) -> Trace:
    """Read a recorded trace; lengths are limited to ``longest`` observations.

    Raises
    ------
    TraceError
        If the file cannot be read or a line is not ``seconds length`` in order of arrival.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    arrivals, lengths = [0.0], list[int]()
    for number, line in enumerate(lines, start=1):
        if not (fields := line.partition("#")[0].split()):
            continue
        try:
            arrival, length = float(fields[0]), int(fields[1])
        except (ValueError, IndexError):
            raise TraceError(f"{path}, line {number}: not `seconds length`") from None
        if len(fields) > 2 or length < 1 or not arrivals[-1] <= arrival < np.inf:
            raise TraceError(f"{path}, line {number}: two numbers, seconds in order and a length of 1 or more")
        arrivals.append(arrival)
        lengths.append(length)
    if not lengths:
        raise TraceError(f"{path}: holds no light curve")
    return Trace(np.array(arrivals[1:]), np.minimum(lengths, longest).astype(np.int64))


MSGPACK: Final = "application/msgpack"
BATCH: Final = 64


def packed_request(curves: Sequence[CurveColumns]) -> HttpRequest:
    """Return a MessagePack request for light curves, with binary columns."""
    document = {"light_curves": [_packed(curve) for curve in curves]}
    return request("/v1/classify", msgspec.msgpack.encode(document), MSGPACK)


def _packed(curve: CurveColumns) -> dict[str, Any]:
    packed = {
        "object_id": curve["object_id"],
        "mjd": np.asarray(curve["mjd"], "<f8").tobytes(),
        "flux": np.asarray(curve["flux"], "<f4").tobytes(),
        "flux_err": np.asarray(curve["flux_err"], "<f4").tobytes(),
        "band": np.array([filter_index(name) for name in curve["band"]], "u1").tobytes(),
    }
    values = [curve["metadata"].get(name, np.nan) for name in METADATA_COLUMNS]
    return packed | ({"metadata": np.asarray(values, "<f4").tobytes()} if curve["metadata"] else {})
