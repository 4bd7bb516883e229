"""The bench of lean graphs, where it needs no export: what it compares, and what it counts."""

import numpy as np
import pytest

from deploy.bench import lean
from models.bundle import DEFAULT_BUNDLE, load_bundle
from models.runtime import open_session
from training.export.profile import random_inputs


def test_a_graph_answers_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "COMPARED", 60)
    session = open_session(load_bundle(DEFAULT_BUNDLE).model)
    assert lean.differences(session, session) == (0.0, 0.0)


def test_what_runs_is_counted() -> None:
    assert lean.nodes_run(load_bundle(DEFAULT_BUNDLE).model) > 300


def test_ragged_light_curves_keep_one_of_full_length_and_hold_nothing_in_padding() -> None:
    inputs = lean.ragged(random_inputs(6, 20, metadata=True), np.random.default_rng(0))
    assert inputs["mask"][0].all()
    assert (inputs["mask"].sum(1) >= 1).all()
    assert not inputs["flux"][~inputs["mask"]].any()
    assert np.isnan(inputs["metadata"][::3]).all()
    assert np.isfinite(inputs["metadata"][1::3]).all()
