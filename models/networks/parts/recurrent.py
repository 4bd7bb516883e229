"""LSTM and GRU that train as torch's own and export as one ONNX operator each.

Notable: torch's exporter learns the shapes of a recurrent layer by unrolling it over every step of the example, several
times (minutes at 200 steps), and cannot do it at all where the length is computed. While exporting, the layers here are
therefore operators of their own, with a shape but no inside, which ``training.export.graph`` translates.

Legend: S steps, B batch, I input width, H hidden width, G gates * H.
"""

import torch
from torch import Tensor, nn


@torch.library.custom_op("nightjar::lstm", mutates_args=())
def lstm(x_SBI: Tensor, input_GI: Tensor, hidden_GH: Tensor, input_bias_G: Tensor, hidden_bias_G: Tensor) -> Tensor:
    """States [S, B, H] of an LSTM that starts from zero; gates in torch's order (input, forget, cell, output)."""
    start_1BH = x_SBI.new_zeros(1, x_SBI.shape[1], hidden_GH.shape[1])
    weights = [input_GI, hidden_GH, input_bias_G, hidden_bias_G]
    state_SBH: Tensor = torch.lstm(x_SBI, [start_1BH, start_1BH], weights, True, 1, 0.0, False, False, False)[0]
    return state_SBH


@torch.library.custom_op("nightjar::gru", mutates_args=())
def gru(x_SBI: Tensor, input_GI: Tensor, hidden_GH: Tensor, input_bias_G: Tensor, hidden_bias_G: Tensor) -> Tensor:
    """States [S, B, H] of a GRU that starts from zero; gates in torch's order (reset, update, new)."""
    start_1BH = x_SBI.new_zeros(1, x_SBI.shape[1], hidden_GH.shape[1])
    weights = [input_GI, hidden_GH, input_bias_G, hidden_bias_G]
    state_SBH: Tensor = torch.gru(x_SBI, start_1BH, weights, True, 1, 0.0, False, False, False)[0]
    return state_SBH


@lstm.register_fake
@gru.register_fake
def _state(x_SBI: Tensor, input_GI: Tensor, hidden_GH: Tensor, input_bias_G: Tensor, hidden_bias_G: Tensor) -> Tensor:
    return x_SBI.new_empty(x_SBI.shape[0], x_SBI.shape[1], hidden_GH.shape[1])


class Lstm(nn.LSTM):
    """One layer, batch first, that starts from zero and returns its states."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden, batch_first=True)

    def forward(self, x_BSI: Tensor) -> Tensor:  # type: ignore[override]  # fewer arguments and results than torch's, on purpose
        """States [B, S, H] after each step."""
        if torch.compiler.is_exporting():
            state_SBH: Tensor = lstm(x_BSI.transpose(0, 1), *self._flat_weights)
            return state_SBH.transpose(0, 1)
        state_BSH: Tensor = super().forward(x_BSI)[0]
        return state_BSH


class Gru(nn.GRU):
    """One layer, batch first, that starts from zero and returns its states."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden, batch_first=True)

    def forward(self, x_BSI: Tensor) -> Tensor:  # type: ignore[override]  # fewer arguments and results than torch's, on purpose
        """States [B, S, H] after each step."""
        if torch.compiler.is_exporting():
            state_SBH: Tensor = gru(x_BSI.transpose(0, 1), *self._flat_weights)
            return state_SBH.transpose(0, 1)
        state_BSH: Tensor = super().forward(x_BSI)[0]
        return state_BSH
