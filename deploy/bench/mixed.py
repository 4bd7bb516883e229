"""Requests of every kind, good and bad, for the measurement of memory: fixed by a seed."""

import random
from collections.abc import Sequence

import orjson

from deploy.bench.curves import Columns, columns
from deploy.bench.load import Request, request

OCTETS = "application/octet-stream"
POOL = 400


def broken(curve: Columns, rng: random.Random) -> bytes:
    """Return a body that must be refused: one fault of many in an otherwise good curve."""
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


def _batch(pool: Sequence[Columns], rng: random.Random) -> bytes:
    curves = rng.sample(pool, rng.randint(2, 12))
    return orjson.dumps({"light_curves": curves, "options": {"embedding": rng.random() < 0.2}})


def requests(count: int, packets: Sequence[bytes], seed: int) -> list[Request]:
    """`count` requests: curves, batches, packets whole and cut short, faults, vanishing clients, look-ups."""
    rng = random.Random(seed)
    pool = columns(POOL, seed)
    return [_one(pool, packets, rng) for _ in range(count)]


def _one(pool: Sequence[Columns], packets: Sequence[bytes], rng: random.Random) -> Request:
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
        return Request(request("/v1/classify", orjson.dumps(curve)).data, vanish=True)
    return request(rng.choice(["/v1/models", "/healthz", "/readyz", "/metrics", "/nowhere"]))
