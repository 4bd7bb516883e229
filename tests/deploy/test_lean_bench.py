"""The bench of lean graphs, where it needs no export: what it compares, and what it counts."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch

from deploy.bench import lean
from deploy.bench.workload import columns
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, load_bundle
from nightjar_alerts.models.networks.parts.transformer import FeedForwardExperts
from nightjar_alerts.models.runtime import open_session
from nightjar_alerts.training.export.profile import random_inputs


def test_a_graph_answers_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "COMPARED", 60)
    session = open_session(load_bundle(DEFAULT_BUNDLE).model)
    assert lean.differences(session, session) == (0.0, 0.0)


def test_operations_that_run_are_counted() -> None:
    assert lean.nodes_run(load_bundle(DEFAULT_BUNDLE).model) > 300


def test_ragged_light_curves_keep_one_of_full_length_and_hold_nothing_in_padding() -> None:
    inputs = lean.ragged(random_inputs(6, 20, metadata=True), np.random.default_rng(0))
    assert inputs["mask"][0].all()
    assert (inputs["mask"].sum(1) >= 1).all()
    assert not inputs["flux"][~inputs["mask"]].any()
    assert np.isnan(inputs["metadata"][::3]).all()
    assert np.isfinite(inputs["metadata"][1::3]).all()


def test_every_expert_computed_gives_what_the_chosen_ones_do() -> None:
    torch.manual_seed(0)
    experts = FeedForwardExperts(16, 24, 8, 2)
    x_ND = torch.randn(40, 16)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_()
        expected_ND, _ = experts(x_ND)
        actual_ND, _ = lean.EveryExpert(experts)(x_ND)
    torch.testing.assert_close(actual_ND, expected_ND, atol=1e-3, rtol=1e-4)


@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="there is a GPU")
def test_without_a_gpu_the_part_says_so_and_measures_nothing() -> None:
    lines: list[str] = []
    assert lean.measure_gpu(DEFAULT_BUNDLE, lines.append) == {}
    assert lines[0].startswith("no GPU")


def test_batches_staged_as_for_a_gpu_run_on_the_cpu(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "ROUNDS", 2)
    bundle = load_bundle(tiny_bundle)
    paces = lean.real_mix(bundle.model, "cpu", columns(12, seed=0), bundle.manifest)
    bound = lean.device_run(bundle.model, "cpu", {"batch": 3, "length": 20})
    for seconds in (paces, lean.timed_runs(bound, random_inputs(3, 20))):
        assert len(seconds) == 2
        assert min(seconds) > 0


def test_the_reference_bundle_is_version_1_2_0() -> None:
    assert load_bundle(lean.REFERENCE).manifest.version == "1.2.0"
