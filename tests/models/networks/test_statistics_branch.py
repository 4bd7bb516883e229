"""The branch for statistics: its scales, what it makes of the unknown, and the network with it as one ONNX graph."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.network import INPUTS
from nightjar_alerts.models.networks.statistics.curve_statistics import LEAST_SPREAD, StatisticsBranch, count
from nightjar_alerts.models.networks.statistics.points import Statistics
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export.graph import write_graph
from nightjar_alerts.training.export.served import AXES, parity_batches
from support.bundles import random_tokens, tiny_network

N_BANDS, WIDTH = 2, 5


def drawn(objects: int = 500) -> Statistics:
    """Each column with a scale of its own; the first is always known, the second never, the third hardly varies."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.linspace(0.5, 3.0, count(N_BANDS))
    value = torch.randn(objects, count(N_BANDS), generator=generator) * scale + scale
    known = torch.rand(value.shape, generator=generator) < 0.7
    known[:, 0], known[:, 1], value[:, 2] = True, False, 1.0
    return Statistics(torch.where(known, value, 0.0), known)


def test_scales_are_those_of_the_known_values() -> None:
    branch, told = StatisticsBranch(count(N_BANDS), WIDTH, 0.0), drawn()
    branch.fit(told)
    for column in (0, 3, count(N_BANDS) - 1):
        values = told.value_BK[told.mask_BK[:, column], column].double().numpy()
        np.testing.assert_allclose(branch.mean_K[column], values.mean(), rtol=1e-5)
        np.testing.assert_allclose(branch.spread_K[column], values.std(), rtol=1e-5)
    assert (float(branch.mean_K[1]), float(branch.spread_K[1])) == (0.0, 1.0)
    np.testing.assert_allclose(branch.spread_K[2], LEAST_SPREAD)


def test_unknown_values_mean_nothing() -> None:
    branch, told = StatisticsBranch(count(N_BANDS), WIDTH, 0.0), drawn()
    branch.fit(told)
    other = told._replace(value_BK=torch.where(told.mask_BK, told.value_BK, 1e6))
    np.testing.assert_array_equal(branch(other).detach(), branch(told).detach())


class Ends(nn.Module):
    """The exported outputs of a classifier, as plain tensors."""

    def __init__(self, network: AstroMoE) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        output = self.network(*inputs)
        return output.logits_BC, output.embedding_BE


@pytest.mark.slow
def test_graph_and_network_agree(tmp_path: Path) -> None:
    dense = {"n_blocks": 1, "n_experts": 0, "n_input_experts": 0}  # experts take most of the time of an export
    # tests/training/fit/test_heads.py exports lags, periods, shapes and folds
    network = tiny_network(d_statistics=12, head_width=24, head_dropout=0.3, head_copies=2, **dense)
    assert network.statistics is not None
    batches = parity_batches(random_tokens(1, 48))
    tensors = [{name: torch.from_numpy(batch[name]) for name in INPUTS} for batch in batches]
    with torch.no_grad():
        network.statistics.fit(network.statistics_of(*tensors[0].values()))
    write_graph(Ends(network), tensors[0], {name: AXES[name] for name in INPUTS}, ["a", "b"], tmp_path / "model.onnx")
    session = open_session(tmp_path / "model.onnx")
    for batch, inputs in zip(batches, tensors, strict=True):
        with torch.no_grad():
            output = network(*inputs.values())
        told = run(session, batch)
        assert output.embedding_BE.shape[1] == network.embedding_dim == 32 + 16 + 12
        assert len(output.other_logits) == 3 + 2
        np.testing.assert_allclose(told["a"], output.logits_BC, atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(told["b"], output.embedding_BE, atol=1e-4, rtol=1e-4)
