"""Result cache: keys cover all inputs of a result, and the size is bounded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nightjar_alerts.core.adapter import ModelInput, Row
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.service.cache import OVERHEAD_BYTES, ModelCache, ResultCache
from nightjar_alerts.service.observe.metrics import Metrics
from support.graphs import echo_manifest, model_input

BUNDLE = Bundle(Path("echo"), echo_manifest(), "ab" * 32)


def row(value: float, width: int = 20) -> Row:
    return {"probabilities": np.full(width, value, np.float32)}


def cache(max_bytes: int = 1_000_000) -> ResultCache:
    return ResultCache(max_bytes, Metrics())


def changed(name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> ModelInput:
    tokens = model_input(1.0).tokens
    new: dict[str, Any] = {name: change(getattr(tokens, name).copy())}
    return ModelInput(replace(tokens, **new))


def bump(values: NDArray[Any]) -> NDArray[Any]:
    """Change one value by the smallest step."""
    flat = values.reshape(-1)
    if flat.dtype == np.bool_:
        flat[-1] = not flat[-1]
    elif np.issubdtype(flat.dtype, np.integer):
        flat[-1] += 1
    else:
        flat[-1] = 0.5 if np.isnan(flat[-1]) else np.nextafter(flat[-1], np.float32(9e9), dtype=flat.dtype)
    return values


@pytest.mark.parametrize("name", ["time", "flux", "flux_err", "band", "detected", "metadata"])
def test_cache_key_depends_on_every_input_value(name: str) -> None:
    results = ModelCache(cache(), BUNDLE, "cpu")
    assert results.key(changed(name, bump)) != results.key(model_input(1.0))
    assert results.key(changed(name, lambda values: values)) == results.key(model_input(1.0))


def test_cache_key_depends_on_bundle_provider_and_task() -> None:
    asked, shared = model_input(1.0), cache()
    keys = {
        ModelCache(shared, BUNDLE, "cpu").key(asked),
        ModelCache(shared, BUNDLE, "cuda").key(asked),
        ModelCache(shared, replace(BUNDLE, sha256="cd" * 32), "cpu").key(asked),
        ModelCache(shared, BUNDLE, "cpu").key(model_input(1.0, length=11)),
    }
    assert len(keys) == 4
    assert {len(key) for key in keys} == {32}


def test_cache_evicts_the_least_recently_used_entry() -> None:
    size = OVERHEAD_BYTES + 80
    kept = cache(3 * size)
    kept.add([(bytes([i]), row(i)) for i in range(3)])
    kept.find([b"\0"])
    kept.add([(b"\3", row(3))])
    found = kept.find([b"\0", b"\1", b"\2", b"\3"])
    assert [None if each is None else each["probabilities"][0] for each in found] == [0, None, 2, 3]
    assert kept.size_bytes == 3 * size
    kept.add([(b"\4", row(4, width=100_000))])
    assert (len(kept), kept.size_bytes) == (3, 3 * size)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 400)), max_size=80))
def test_cache_size_is_bounded(stored: list[tuple[int, int]]) -> None:
    kept = cache(5_000)
    for key, width in stored:
        kept.add([(bytes([key]), row(key, width))])
        assert kept.size_bytes <= 5_000
    rows = [found for found in kept.find([bytes([key]) for key in range(31)]) if found is not None]
    assert len(rows) == len(kept)
    assert kept.size_bytes == sum(OVERHEAD_BYTES + each["probabilities"].nbytes for each in rows)


def test_cache_entries_are_read_only() -> None:
    kept, mine = cache(), row(1)
    kept.add([(b"k", mine)])
    [found] = kept.find([b"k"])
    assert found is not None
    for values in (mine["probabilities"], found["probabilities"]):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 2
