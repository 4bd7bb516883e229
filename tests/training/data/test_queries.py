"""Queries: counted from the history's origin in double precision, sorted, padded."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.models.lightcurve import LightCurve, Limits, Tokens, featurise
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.data.targets import Queries, pad_queries
from nightjar_alerts.training.data.targets import make_queries as of_columns


def make_queries(tokens: Tokens, mjd: Any, band: Any) -> Queries:
    """Queries of lists of times and of bands, by name or index."""
    indices = [BANDS.index(name) if isinstance(name, str) else name for name in band]
    return of_columns(tokens, np.asarray(mjd, np.float64), np.array(indices, np.int64))


def history(first_mjd: float = 60_000.0, n: int = 4) -> Tokens:
    days = first_mjd + np.arange(n)
    curve = LightCurve.from_columns(days, np.full(n, 900.0), np.full(n, 30.0), ["g", "r"] * (n // 2))
    return featurise(curve, Limits(), "nJy", ())


def test_times_count_from_the_first_kept_observation_in_double_precision() -> None:
    asked = 60_000.3 + 3.0 + np.array([0.0, 1e-4, 2e-4])  # one float32 grain of an MJD is 5.6 minutes, 4e-3 days
    queries = make_queries(history(60_000.3), asked, ["g", "g", "r"])
    np.testing.assert_allclose(queries.time, [3.0, 3.0001, 3.0002], atol=3e-7)
    assert queries.time.dtype == np.float32
    assert queries.band.tolist() == [1, 1, 2]


def test_the_origin_is_that_of_what_was_kept() -> None:
    curve = LightCurve.from_columns([59_000.0, 60_000.0], [1.0, 900.0], [30.0, 30.0], ["g", "g"])
    tokens = featurise(curve, Limits(pre_trigger_days=30.0), "nJy", ())
    assert (tokens.truncated, tokens.origin_mjd) == (True, 60_000.0)
    assert make_queries(tokens, [60_002.0], ["r"]).time.tolist() == [2.0]


def test_queries_before_and_within_the_history_are_allowed() -> None:
    queries = make_queries(history(), [60_001.5, 59_990.0, 60_100.0], ["u", "g", "Y"])
    assert queries.time.tolist() == [-10.0, 1.5, 100.0]
    assert queries.band.tolist() == [1, 0, 5]


columns = st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 5)), min_size=1, max_size=12)


@given(columns, st.randoms())
def test_the_network_sees_the_same_queries_whatever_their_order(asked: list[tuple[int, int]], random: Any) -> None:
    shuffled = random.sample(asked, len(asked))
    a, b = (np.array(pairs, dtype=np.float64).T for pairs in (asked, shuffled))
    first, second = (make_queries(history(), 60_000 + days, band.astype(np.int64)) for days, band in (a, b))
    np.testing.assert_array_equal(first.time, second.time)
    np.testing.assert_array_equal(first.band, second.band)
    answers = np.empty(len(shuffled))
    answers[np.lexsort((b[1], b[0]))] = second.time
    np.testing.assert_array_equal(answers, b[0])


def test_padding_is_masked() -> None:
    one, three = make_queries(history(), [60_009.0], ["Y"]), make_queries(history(), [60_001.0] * 3, ["u", "g", "r"])
    padded = pad_queries([one, three])
    assert {name: (value.dtype.name, value.shape) for name, value in padded.items()} == {
        "query_time": ("float32", (2, 3)),
        "query_band": ("int64", (2, 3)),
        "query_mask": ("bool", (2, 3)),
    }
    assert padded["query_mask"].tolist() == [[True, False, False], [True, True, True]]
    assert padded["query_time"].tolist() == [[9.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    assert padded["query_band"].tolist() == [[5, 0, 0], [0, 1, 2]]
