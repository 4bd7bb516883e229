"""W3C Trace Context: the trace that a request belongs to, read from its headers and named in its reply.

``traceparent`` and ``tracestate`` are read as Level 2 of the specification has them. What is not valid to the letter
(upper case, an id of zeros, two ``traceparent`` headers) starts a new trace, as the specification demands; a bad
``tracestate`` is dropped alone. Level 2 defines no header for the reply: the one it had, ``traceresponse``, moved to
the draft of Level 3, and that is what :attr:`TraceContext.response` holds.
"""

import re
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

SAMPLED, RANDOM = 0x01, 0x02
_KNOWN_FLAGS = SAMPLED | RANDOM  # others are reserved: they are not passed on

# Version 00 ends after the flags; a later one may append fields, but not ff, which is forbidden.
_PARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16

_MOST_MEMBERS = 32
_MEMBER = re.compile(
    rb"([a-z0-9][a-z0-9_\-*/@]{0,255})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)

Headers = Iterable[tuple[bytes, bytes]]
"""Names in lower case, and values, as ASGI has them."""

_random = Random()  # seeded by the system; ids have to be different, not secret


class TraceContext(NamedTuple):
    """Where a request stands in a trace.

    Attributes
    ----------
    trace_id, span_id : lower-case hex, 32 and 16 digits; the span is the request as this service sees it.
    parent_id : the caller's span, empty when the trace begins here.
    flags : :data:`SAMPLED` and :data:`RANDOM`.
    state : the caller's ``tracestate``, empty when there is none worth keeping.
    """

    trace_id: str
    span_id: str
    parent_id: str
    flags: int
    state: str

    @property
    def sampled(self) -> bool:
        """Whether the request's spans are recorded."""
        return bool(self.flags & SAMPLED)

    @property
    def response(self) -> bytes:
        """Value of ``traceresponse``: version, trace, this service's span and flags."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}".encode()


def continued(headers: Headers, ratio: float = 0.0) -> TraceContext:
    """The context of a request: its caller's trace where one is named, else a new one.

    Parameters
    ----------
    ratio : share of new traces that are sampled; whether a caller's trace is, the caller has decided.
    """
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value)
        elif name == b"tracestate":
            states.append(value)
    parsed = _parsed(parents[0]) if len(parents) == 1 else None
    if parsed is None:
        sampled = SAMPLED if ratio > 0 and _random.random() < ratio else 0
        return TraceContext(new_trace_id(), new_span_id(), "", RANDOM | sampled, "")
    trace_id, parent_id, flags = parsed
    return TraceContext(trace_id, new_span_id(), parent_id, flags, _checked(states) if states else "")


def new_trace_id() -> str:
    """Thirty-two hex digits, not all of them zero."""
    return f"{_nonzero(128):032x}"


def new_span_id() -> str:
    """Sixteen hex digits, not all of them zero."""
    return f"{_nonzero(64):016x}"


def _nonzero(bits: int) -> int:
    return _random.getrandbits(bits) or 1


def _parsed(value: bytes) -> tuple[str, str, int] | None:
    match = _PARENT.fullmatch(value)
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if trace_id == _NO_TRACE or parent_id == _NO_SPAN or (version == b"00" and more is not None):
        return None
    # Of a later version nothing is certain but the sampled bit.
    known = _KNOWN_FLAGS if version == b"00" else SAMPLED
    return str(trace_id, "ascii"), str(parent_id, "ascii"), int(flags, 16) & known


def _checked(values: Iterable[bytes]) -> str:
    """Members of all the headers in one list; empty when any of them is not valid."""
    members = [member for value in values for part in value.split(b",") if (member := part.strip(b" \t"))]
    matches = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    if len(members) > _MOST_MEMBERS or len(keys) < len(members):  # one is malformed, or two have the same key
        return ""
    return str(b",".join(members), "ascii")
