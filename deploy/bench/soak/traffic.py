"""What is asked during a soak, and what has to be answered.

Every right answer is known beforehand from bare runs, one light curve at a time, of each network that may answer; a
reply names the version that gave it, and is held to that one's. The two versions are different networks, so that an
answer of the wrong one cannot pass.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from deploy.bench.bare import Bare
from deploy.bench.curves import Columns, alert_mix
from deploy.bench.load import Reply, Request, request
from deploy.bench.mixed import broken
from deploy.bench.wire import MSGPACK, TOLERANCE, packed_request

Kind = Literal["one", "batch", "bad", "cancelled", "look-up"]
SHARES: Final[Mapping[Kind, float]] = {"one": 0.62, "batch": 0.15, "bad": 0.10, "cancelled": 0.08, "look-up": 0.05}
CURVES, REQUESTS = 200, 2000  # prepared; requests are then drawn from them
LARGEST_BATCH: Final = 12
REFUSALS: Final = (429, 503, 504)
LATE: Final = "deadline_exceeded"
LOOK_UPS: Final = ("/v1/models", "/healthz", "/readyz", "/metrics")
SEED: Final = 20260104

Verdict = Literal["right", "refused", "wrong"]
Golden = Mapping[str, NDArray[np.float32]]
"""Probabilities of every curve by the version that gives them, shape (curves, classes)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request; ``curves`` are the numbers of the light curves in it."""

    kind: Kind
    request: Request
    curves: tuple[int, ...] = ()


def golden(bundles: Mapping[str, Path], curves: Sequence[Columns]) -> Golden:
    """Bare answers of the bundle of each version."""
    return {version: Bare.of(path, curves).probabilities() for version, path in bundles.items()}


def drawn() -> list[Columns]:
    """Return the light curves that everything is about."""
    return alert_mix(CURVES, SEED)


def prepared(curves: Sequence[Columns]) -> list[Asked]:
    """Return requests of every kind, in their shares."""
    rng = random.Random(SEED)
    kinds = rng.choices(list(SHARES), list(SHARES.values()), k=REQUESTS)
    return [_one(kind, curves, rng) for kind in kinds]


def _one(kind: Kind, curves: Sequence[Columns], rng: random.Random) -> Asked:
    number = rng.randrange(len(curves))
    alone = request("/v1/classify", orjson.dumps(curves[number]))
    match kind:
        case "one":
            return Asked(kind, alone, (number,))
        case "batch":
            chosen = tuple(rng.sample(range(len(curves)), rng.randint(2, LARGEST_BATCH)))
            return Asked(kind, packed_request([curves[index] for index in chosen]), chosen)
        case "bad":
            return Asked(kind, request("/v1/classify", broken(curves[number], rng)))
        case "cancelled":
            return Asked(kind, Request(alone.data, vanish=True))
        case "look-up":
            return Asked(kind, request(rng.choice(LOOK_UPS)))


def judge(asked: Asked, reply: Reply, golden: Golden) -> Verdict:
    """Whether a reply is what it has to be. A refusal for want of room is none to a request that is bad anyway."""
    if asked.kind == "bad":
        return "right" if 400 <= reply.status < 500 or reply.status in REFUSALS else "wrong"
    if reply.status in REFUSALS:
        return "refused"
    if reply.status != 200:
        return "wrong"
    return _compared(asked, reply, golden) if asked.curves else "right"


def _compared(asked: Asked, reply: Reply, golden: Golden) -> Verdict:
    """Light curves of a batch that came too late are refused one by one; the others have to be right all the same."""
    document: Any = msgspec.msgpack.decode(reply.body) if _is_packed(asked) else json.loads(reply.body)
    expected, results = golden.get(document["model"]["version"]), document["results"]
    if expected is None or len(results) != len(asked.curves):
        return "wrong"
    late = [result.get("reason") == LATE for result in results]
    for result, curve, is_late in zip(results, asked.curves, late, strict=True):
        if not is_late and not _agrees(result, expected[curve]):
            return "wrong"
    return "refused" if any(late) else "right"


def _agrees(result: Mapping[str, Any], expected: NDArray[np.float32]) -> bool:
    if result["status"] != "classified":
        return False
    return bool(np.abs(np.array(list(result["probabilities"].values())) - expected).max() <= TOLERANCE)


def _is_packed(asked: Asked) -> bool:
    return MSGPACK.encode() in asked.request.data.partition(b"\r\n\r\n")[0]
