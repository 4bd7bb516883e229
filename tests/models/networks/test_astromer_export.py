"""The exported graph against the network: any batch, any length, both classifiers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nightjar_alerts.models.networks.astromer import Astromer
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export.graph import write_graph
from support.astromer import curves, tiny

pytestmark = pytest.mark.nightly


class Served(nn.Module):
    def __init__(self, network: Astromer) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        output = self.network(*inputs)
        return output.logits_BC, output.embedding_BE


@pytest.mark.parametrize(
    "changes",
    [
        {"head": "lstm", "time_encoding": "recurrent", "band": 1},
        {"head": "pool", "version": "v2", "layer_mix": True},
    ],
)
def test_graph_and_network_agree(changes: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Served(Astromer(tiny(n_blocks=1, **changes))).eval()
    axes = dict.fromkeys(curves(), ("batch", "length"))
    write_graph(network, curves(rows=3, length=9), axes, ["logits", "embedding"], tmp_path / "model.onnx")
    session = open_session(tmp_path / "model.onnx")
    # Windows are 20 long: shorter, as long and longer rows; one row, one observation, and a row without its band.
    for rows, length in ((3, 9), (1, 1), (1, 2), (5, 4), (4, 20), (2, 21), (6, 70)):
        inputs = curves(rows, max(length, 2), seed=length)
        inputs = {name: column[:, :length] for name, column in inputs.items()}
        inputs["band"][0] = 0
        with torch.no_grad():
            expected = network(*inputs.values())
        actual = run(session, {name: column.numpy() for name, column in inputs.items()})
        for name, value in zip(("logits", "embedding"), expected, strict=True):
            np.testing.assert_allclose(actual[name], value, atol=1e-5)
