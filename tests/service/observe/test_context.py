"""Trace context: continued and new traces, and response headers."""

import re

import pytest

from nightjar_alerts.service.observe.tracing import RequestTrace, Tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def read(parent: str) -> RequestTrace:
    return Tracing().start_request("GET", [(b"traceparent", parent.encode("latin-1"))], 0.0)


@pytest.mark.parametrize("parent", [PARENT, f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-what-the-future-holds"])
def test_valid_parent_is_continued_and_not_sampled_without_an_exporter(parent: str) -> None:
    assert re.fullmatch(rf"00-{TRACE}-(?!{SPAN})[0-9a-f]{{16}}-00", read(parent).response.decode())


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"0x-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}0-{SPAN}-01",
        f"00-{TRACE[:-1]}G-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00_{TRACE}_{SPAN}_01",
        "\xe9" * 55,
        "0" * 60_000,
    ],
)
def test_anything_else_starts_a_new_random_trace(parent: str) -> None:
    trace = read(parent)
    assert trace.trace_id not in (TRACE, "0" * 32)
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-02", trace.response.decode())


def test_new_traces_differ() -> None:
    assert len({Tracing().start_request("GET", [], 0.0).trace_id for _ in range(1000)}) == 1000
