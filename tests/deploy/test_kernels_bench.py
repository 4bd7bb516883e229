"""The benchmarks of kernels and of GPUs, as far as a machine without a GPU can run them."""

from pathlib import Path

import onnxruntime as ort
import pytest
import torch

from deploy.bench import gpu, kernels
from deploy.bench.workload import alert_mix
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, load_bundle
from nightjar_alerts.models.networks.parts.transformer import FeedForwardExperts
from nightjar_alerts.training.export.weights import random_inputs


def test_every_expert_gives_the_output_of_the_chosen_experts() -> None:
    torch.manual_seed(0)
    experts = FeedForwardExperts(16, 24, 8, 2)
    x_ND = torch.randn(40, 16)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_()
        expected_ND, _ = experts(x_ND)
        actual_ND, _ = kernels.EveryExpert(experts)(x_ND)
    torch.testing.assert_close(actual_ND, expected_ND, atol=1e-3, rtol=1e-4)


@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="there is a GPU")
def test_gpu_part_without_a_gpu_measures_nothing() -> None:
    lines: list[str] = []
    assert gpu.measure(DEFAULT_BUNDLE, lines.append) == {}
    assert lines[0].startswith("no GPU")


def test_gpu_part_stages_batches_on_the_cpu(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ROUNDS", 2)
    bundle = load_bundle(tiny_bundle)
    paces = gpu.real_mix(bundle.model, "cpu", alert_mix(12, seed=0), bundle.manifest)
    bound = gpu.device_run(bundle.model, "cpu")
    for seconds in (paces, gpu.timed_runs(bound, random_inputs(3, 20))):
        assert len(seconds) == 2
        assert min(seconds) > 0
