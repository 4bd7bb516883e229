"""Traffic: rates, bursts, the mix of lengths, and trace files that say where they are wrong."""

from pathlib import Path

import numpy as np
import pytest

from deploy.bench.workload import TraceError, draw_lengths, poisson, read_trace, visits


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_lengths_are_lognormal_with_a_tail_of_deep_fields() -> None:
    lengths = draw_lengths(50_000, 100_000, rng())
    assert np.median(lengths) == pytest.approx(50, rel=0.05)
    assert np.quantile(lengths, 0.95) == pytest.approx(180, rel=0.1)
    assert 0.007 < np.mean(lengths > 400) < 0.017
    assert lengths.min() >= 1
    cut = draw_lengths(50_000, 390, rng())
    assert (cut == np.minimum(lengths, 390)).all()


def test_poisson_arrivals_have_their_rate_and_spread() -> None:
    trace = poisson(200, 20_000, 390, rng())
    gaps = np.diff(trace.arrival)
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 200, rel=0.05)


def test_a_visit_comes_all_at_once() -> None:
    trace = visits(100, 3, 390, rng())
    moments, counts = np.unique(trace.arrival, return_counts=True)
    assert moments.tolist() == [0, 37, 74]
    assert counts.tolist() == [100, 100, 100]


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, trace = tmp_path / "night.txt", poisson(50, 200, 390, rng())
    path.write_text("".join(f"{arrival:.6f} {length}\n" for arrival, length in zip(*trace, strict=True)))
    read = read_trace(path, 390)
    assert np.allclose(read.arrival, trace.arrival, atol=1e-6)
    assert read.length.tolist() == trace.length.tolist()
    assert read_trace(path, 20).length.max() == 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no light curve"),
        ("# only a remark\n\n", "no light curve"),
        ("0.5 10\n0.4 10\n", "line 2"),
        ("-1 10\n", "line 1"),
        ("nan 10\n", "line 1"),
        ("inf 10\n", "line 1"),
        ("1 0\n", "line 1"),
        ("1\n", "line 1"),
        ("1 2.5\n", "line 1"),
        ("1 2 3\n", "line 1"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "night.txt"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(path, 390)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("binary", "nowhere"):
        with pytest.raises(TraceError, match=name):
            read_trace(tmp_path / name, 390)
