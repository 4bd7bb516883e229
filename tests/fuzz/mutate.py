"""Small changes of good input, for where no coverage-guided fuzzer is installed and for a moment in the tests."""

import random
from collections.abc import Sequence

EDGES = (
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"9" * 400,
    b"[" * 50,
    b"{",
    b'"',
    b"null",
    b"NaN",
)
MOST_BYTES = 1 << 16


def mutated(known: Sequence[bytes], rng: random.Random) -> bytes:
    """One of the known inputs with a few pieces changed, doubled, cut or taken from another."""
    data = bytearray(rng.choice(known))
    for _ in range(rng.randint(1, 6)):
        at = rng.randint(0, len(data))
        end = min(len(data), at + rng.randint(0, 1 << rng.randint(0, 8)))
        match rng.randint(0, 6):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randint(0, 7)
            case 1:
                data[at:end] = rng.randbytes(rng.randint(0, 8))
            case 2:
                data[at:at] = data[at:end] * rng.randint(1, 4)
            case 3:
                del data[at:end]
            case 4:
                data[at:end] = rng.choice(EDGES)
            case 5:
                other = rng.choice(known)
                start = rng.randint(0, len(other))
                data[at:end] = other[start : start + rng.randint(0, 64)]
            case _:
                data[at:end] = str(rng.choice([0, -1, 2**31, 2**63, 2**64, 1e308])).encode()
    return bytes(data[:MOST_BYTES])
