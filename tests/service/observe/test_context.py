"""Trace context to the letter: what is read, what starts a new trace, what is said back."""

import re

import pytest

from nightjar_alerts.service.observe.tracing import RANDOM, SAMPLED, TraceContext, continued

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def read(*parents: str, state: tuple[str, ...] = (), ratio: float = 0.0) -> TraceContext:
    headers = [(b"traceparent", parent.encode("latin-1")) for parent in parents]
    return continued([*headers, *((b"tracestate", value.encode("latin-1")) for value in state)], ratio)


@pytest.mark.parametrize(
    ("parent", "flags"),
    [
        (PARENT, SAMPLED),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-03", SAMPLED | RANDOM),
        (f"00-{TRACE}-{SPAN}-ff", SAMPLED | RANDOM),  # unknown flags are not passed on
        (f"cc-{TRACE}-{SPAN}-01", SAMPLED),  # a later version, which may say more
        (f"cc-{TRACE}-{SPAN}-03-what-the-future-holds", SAMPLED),
        (f"cc-{TRACE}-{SPAN}-02-", 0),
    ],
)
def test_a_valid_parent_is_followed(parent: str, flags: int) -> None:
    context = read(parent)
    assert (context.trace_id, context.parent_id, context.flags) == (TRACE, SPAN, flags)
    assert context.span_id not in ("", SPAN)


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT.upper(),
        f" {PARENT}",
        f"{PARENT} ",
        f"{PARENT}\n",
        f"{PARENT}-",
        f"{PARENT}-more",
        f"{PARENT}, {PARENT}",
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"0x-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}0-{SPAN}-01",
        f"00-{TRACE[:-1]}G-{SPAN}-01",
        f"00-{TRACE}-{SPAN[:-1]}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{TRACE}-{SPAN}",
        f"00_{TRACE}_{SPAN}_01",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"cc-{TRACE}-{SPAN}-0",
        "é" * 55,
        "0" * 60_000,
    ],
)
def test_anything_else_starts_a_new_trace(parent: str) -> None:
    context = read(parent, state=("a=1",))
    assert TRACE not in context.trace_id
    assert (context.parent_id, context.state, context.flags) == ("", "", RANDOM)


def test_two_parents_are_none() -> None:
    assert read(PARENT, PARENT).parent_id == ""


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (("congo=t61rcWkgMzE",), "congo=t61rcWkgMzE"),
        (("a=1", "b=2"), "a=1,b=2"),  # headers of one name are one list
        (("a=1 ,\t b=2,,", ""), "a=1,b=2"),
        (("0tenant@system=x", "a_-*/@=~!"), "0tenant@system=x,a_-*/@=~!"),
        (("a= inner space",), "a= inner space"),
        (("k" * 256 + "=" + "v" * 256,), "k" * 256 + "=" + "v" * 256),
        ((",".join(f"k{i}=v" for i in range(32)),), ",".join(f"k{i}=v" for i in range(32))),
        (("",), ""),
        ((" , ,\t",), ""),
    ],
)
def test_a_valid_state_is_kept(sent: tuple[str, ...], kept: str) -> None:
    assert read(PARENT, state=sent).state == kept


@pytest.mark.parametrize(
    "sent",
    [
        ("a",),
        ("=1",),
        ("a=",),
        ("A=1",),
        ("_a=1",),
        ("a=1=2",),
        ("a=é",),
        ("a=\x07",),
        ("a b=1",),
        ("a=1", "a=2"),
        ("good=1,BAD=2",),
        ("k" * 257 + "=v",),
        ("k=" + "v" * 257,),
        (",".join(f"k{i}=v" for i in range(33)),),
    ],
)
def test_a_bad_state_is_dropped_alone(sent: tuple[str, ...]) -> None:
    context = read(PARENT, state=sent)
    assert (context.trace_id, context.state) == (TRACE, "")


def test_state_without_a_parent_is_not_looked_at() -> None:
    assert read(state=("a=1",)).state == ""


def test_new_traces_are_random_and_sampled_in_the_share_asked_for() -> None:
    contexts = [read(ratio=0.25) for _ in range(2000)]
    assert len({context.trace_id for context in contexts} | {context.span_id for context in contexts}) == 4000
    assert all(context.flags & RANDOM for context in contexts)
    assert 350 < sum(context.sampled for context in contexts) < 650
    assert not any(read(ratio=0.0).sampled for _ in range(100))
    assert all(read(ratio=1.0).sampled for _ in range(100))


def test_a_callers_decision_stands() -> None:
    assert not read(f"00-{TRACE}-{SPAN}-00", ratio=1.0).sampled
    assert read(PARENT, ratio=0.0).sampled


def test_the_reply_names_the_trace_and_the_span_of_this_service() -> None:
    context = read(PARENT)
    assert re.fullmatch(rf"00-{TRACE}-(?!{SPAN})[0-9a-f]{{16}}-01", context.response.decode())
