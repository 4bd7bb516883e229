"""The recurrent layers against torch's own, and as operators of an exported graph."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from nightjar_alerts.models.networks.parts.positional_content import Gru, Lstm, gru, lstm
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export.graph import write_graph

LAYERS: tuple[tuple[type[Lstm] | type[Gru], type[nn.LSTM] | type[nn.GRU]], ...] = ((Lstm, nn.LSTM), (Gru, nn.GRU))
OUTPUTS = ["lstm_state", "gru_state"]


class Recurrences(nn.Module):
    """Both layers, over a length that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = Lstm(5, 7), Gru(5, 6)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        x_BSI = inputs[0][:, :20]
        return self.lstm(x_BSI), self.gru(x_BSI)


@pytest.mark.parametrize(("ours", "theirs"), LAYERS)
def test_layers_are_torch_s(ours: type[Lstm], theirs: type[nn.LSTM]) -> None:
    torch.manual_seed(0)
    layer, reference = ours(5, 7), theirs(5, 7, batch_first=True)
    reference.load_state_dict(layer.state_dict())
    x_BSI = torch.randn(3, 4, 5)
    torch.testing.assert_close(layer(x_BSI), reference(x_BSI)[0])


def test_operators_are_the_layers() -> None:
    torch.manual_seed(0)
    network, x_BSI = Recurrences(), torch.randn(3, 4, 5)
    for operator, layer in ((lstm, network.lstm), (gru, network.gru)):
        weights = [value.detach() for value in layer.state_dict().values()]
        state_SBH = operator(x_BSI.transpose(0, 1), *weights)
        torch.testing.assert_close(state_SBH.transpose(0, 1), layer(x_BSI))
        torch.library.opcheck(operator, (x_BSI.transpose(0, 1), *weights), test_utils="test_faketensor")


@pytest.mark.slow
def test_layers_export_as_one_operator_each(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, path = Recurrences().eval(), tmp_path / "model.onnx"
    write_graph(network, {"x": torch.randn(3, 30, 5)}, {"x": ("batch", "length")}, OUTPUTS, path)
    operators = [node.op_type for node in onnx.load(path).graph.node]
    assert {"LSTM", "GRU"} < set(operators)
    assert not {"Loop", "Scan", "Sigmoid"} & set(operators)
    session = open_session(path)
    for rows, steps in ((1, 1), (2, 3), (4, 20), (3, 45)):
        x = torch.randn(rows, steps, 5)
        with torch.no_grad():
            expected = network(x)
        actual = run(session, {"x": x.numpy()})
        for name, value in zip(OUTPUTS, expected, strict=True):
            np.testing.assert_allclose(actual[name], value, atol=1e-6)
