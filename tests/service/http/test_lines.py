"""Lines, however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.edge.errors import ProblemError
from service.http.edge.receive import Lines


@given(st.lists(st.binary(max_size=12), max_size=12), st.lists(st.integers(0, 80)))
def test_lines_may_be_cut_anywhere(lines: list[bytes], cuts: list[int]) -> None:
    body = b"\n".join(lines)
    places = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    cutter = Lines(100)
    found: list[bytes] = []
    for start, end in pairwise(places):
        found += cutter.feed(body[start:end])
    found += cutter.rest()
    assert found == [line for line in body.split(b"\n") if line.strip()]
    assert cutter.pending == 0


def test_a_line_that_is_too_long_comes_after_those_before_it() -> None:
    lines = Lines(3).feed(b"abc\n \n\n12\nabcd")
    assert [next(lines), next(lines)] == [b"abc", b"12"]
    with pytest.raises(ProblemError) as caught:
        next(lines)
    assert (caught.value.kind.status, caught.value.limit) == (413, 3)


def test_a_line_without_end_is_not_kept() -> None:
    lines = Lines(1000)
    for _ in range(10):
        assert list(lines.feed(b"x" * 100)) == []
    with pytest.raises(ProblemError):
        list(lines.feed(b"x"))
