"""LineSplitter, with any division into chunks."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise, takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.http.edge.errors import ProblemError
from nightjar_alerts.service.http.edge.lines import IDLE_BUDGET_SECONDS, STEP_BYTES, LineBody, LineSplitter
from support.edge import settings


@given(st.lists(st.binary(max_size=12), max_size=12), st.lists(st.integers(0, 80)))
def test_line_splitter_any_chunks_give_the_same_lines(lines: list[bytes], cuts: list[int]) -> None:
    body = b"\n".join(lines)
    places = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    cutter = LineSplitter(100)
    found: list[bytes] = []
    for start, end in pairwise(places):
        found += cutter.feed(body[start:end])
    found += cutter.rest()
    assert found == [line for line in body.split(b"\n") if line.strip()]
    assert cutter.pending == 0
    assert cutter.blank == sum(not line.strip() for line in body.split(b"\n")[:-1])


@given(st.lists(st.sampled_from([b"", b" ", b"ab", b"abcd", b"     "]), max_size=12), st.integers(0, 60))
def test_line_splitter_long_line_raises_in_any_chunks(lines: list[bytes], cut: int) -> None:
    body, cutter, found = b"\n".join([*lines, b""]), LineSplitter(3), list[bytes]()
    with suppress(ProblemError):
        for piece in (body[:cut], body[cut:]):
            for line in cutter.feed(piece):
                found.append(line)
    assert found == [line for line in takewhile(lambda line: len(line) <= 3, lines) if line.strip()]


def test_line_body_long_line_raises_after_earlier_lines() -> None:
    lines = LineSplitter(3).feed(b"abc\n \n\n12\nabcd")
    assert [next(lines), next(lines)] == [b"abc", b"12"]
    with pytest.raises(ProblemError) as caught:
        next(lines)
    assert (caught.value.kind.status, caught.value.limit) == (413, 3)


def test_line_splitter_endless_line_is_not_kept() -> None:
    lines = LineSplitter(1000)
    for _ in range(10):
        assert list(lines.feed(b"x" * 100)) == []
    with pytest.raises(ProblemError):
        list(lines.feed(b"x"))


def line_body(*pieces: bytes, **limits: Any) -> LineBody:
    """Return the lines of a body that arrives in these chunks."""
    left = list(pieces)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return LineBody(receive, settings(**limits))


async def groups(body: LineBody) -> list[list[bytes]]:
    found = []
    while (group := await body.group(64, 256 * 1024)) is not None:
        found.append(group)
    return found


async def test_line_body_too_many_blank_lines_raise() -> None:
    assert await groups(line_body(b"7\n\n7\n \n", max_stream_curves=2)) == [[b"7", b"7"]]
    for blank in (b"\n" * 3, b"\n \n\r\n"):
        body = line_body(b"7\n" + blank + b"7\n", max_stream_curves=2)
        assert await body.group(64, 1000) == [b"7", b"7"]
        with pytest.raises(ProblemError, match="more than 2 blank lines") as caught:
            await body.group(64, 1000)
        assert (caught.value.kind.status, caught.value.limit) == (413, 2)


async def test_line_body_large_chunk_is_split_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A body of line ends must not block the event loop."""
    fed, turns, feed = list[int](), list[int](), LineSplitter.feed

    def noted(self: LineSplitter, data: bytes) -> Iterator[bytes]:
        fed.append(len(data))
        turns.append(others)
        return feed(self, data)

    monkeypatch.setattr(LineSplitter, "feed", noted)
    others, data = 0, b"\n" * (20 * STEP_BYTES) + b"7\n"
    asking = asyncio.create_task(groups(line_body(data)))
    while not asking.done():
        others += 1
        await asyncio.sleep(0)
    assert await asking == [[b"7"]]
    assert (max(fed), sum(fed)) == (STEP_BYTES, len(data))
    assert len(set(turns)) == len(turns)


async def test_line_body_blank_lines_add_no_idle_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk arrives half of the idle budget after the one before; one of other bytes restores the budget."""
    now = 0.0
    monkeypatch.setattr("nightjar_alerts.service.http.edge.lines.monotonic", lambda: now)

    def slow_body(chunk: bytes) -> LineBody:
        chunks = [chunk] * 6

        async def receive() -> dict[str, Any]:
            nonlocal now
            now += IDLE_BUDGET_SECONDS / 2
            await asyncio.sleep(0)
            return {"type": "http.request", "body": chunks.pop(), "more_body": bool(chunks)}

        return LineBody(receive, settings(stream_rate=len(chunk) / IDLE_BUDGET_SECONDS))

    assert len(await groups(slow_body(b"7" * 1000 + b"\n"))) == 6
    with pytest.raises(ProblemError, match="slower than") as caught:
        await groups(slow_body(b"\n" * 1000 + b"7\n"))
    assert caught.value.kind.status == 408


@given(st.lists(st.lists(st.sampled_from([b"", b"ab", b"c" * 9000]), max_size=9), min_size=1, max_size=4))
def test_line_body_held_counts_all_bytes_not_returned(pieces: list[list[bytes]]) -> None:
    chunks = [*(b"\n".join(piece) for piece in pieces), b"\nend"]
    received = list[bytes]()

    async def receive() -> dict[str, Any]:
        received.append(chunks[len(received)])
        return {"type": "http.request", "body": received[-1], "more_body": len(received) < len(chunks)}

    async def ask() -> None:
        body, returned = LineBody(receive, settings()), 0
        while (group := await body.group(2, 10_000)) is not None:
            text = sum(len(chunk) - chunk.count(b"\n") for chunk in received)
            # Line ends count until their chunk is split.
            assert text - returned <= body.held <= text - returned + received[-1].count(b"\n")
            returned += sum(map(len, group))
        assert body.held == 0

    asyncio.run(ask())
