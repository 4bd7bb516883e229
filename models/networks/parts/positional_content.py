"""Time encodings that modify tokens before or after the blocks; ``parts.positional`` lists all time encodings.

This module also has an LSTM and a GRU that train like torch's and export as one ONNX operator each. torch's exporter
infers the shapes of a recurrent layer by unrolling it over every step of the example, several times (minutes at 200
steps), and fails if the length is computed. During export these layers are therefore custom operators, which
``training.export.graph`` translates.

Legend: B batch, L length, N tokens, M tokens with the leading [CLS]s, D width, H harmonics (in recurrent layers the
hidden width), P = 2 H (sine and cosine), G bands (there gates * H), S steps, I input width.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nightjar_alerts.models.networks.parts.attention import PositionEncoding
from nightjar_alerts.models.networks.parts.packing import apply_grouped, pack_values


@torch.library.custom_op("nightjar::lstm", mutates_args=())
def lstm(x_SBI: Tensor, input_GI: Tensor, hidden_GH: Tensor, input_bias_G: Tensor, hidden_bias_G: Tensor) -> Tensor:
    """Return the states [S, B, H] of an LSTM with zero initial state; gates in torch's order (i, f, g, o)."""
    start_1BH = x_SBI.new_zeros(1, x_SBI.shape[1], hidden_GH.shape[1])
    weights = [input_GI, hidden_GH, input_bias_G, hidden_bias_G]
    state_SBH: Tensor = torch.lstm(x_SBI, [start_1BH, start_1BH], weights, True, 1, 0.0, False, False, False)[0]
    return state_SBH


@torch.library.custom_op("nightjar::gru", mutates_args=())
def gru(x_SBI: Tensor, input_GI: Tensor, hidden_GH: Tensor, input_bias_G: Tensor, hidden_bias_G: Tensor) -> Tensor:
    """Return the states [S, B, H] of a GRU with zero initial state; gates in torch's order (reset, update, new)."""
    start_1BH = x_SBI.new_zeros(1, x_SBI.shape[1], hidden_GH.shape[1])
    weights = [input_GI, hidden_GH, input_bias_G, hidden_bias_G]
    state_SBH: Tensor = torch.gru(x_SBI, start_1BH, weights, True, 1, 0.0, False, False, False)[0]
    return state_SBH


@lstm.register_fake
@gru.register_fake
def _state(x_SBI: Tensor, input_GI: Tensor, hidden_GH: Tensor, input_bias_G: Tensor, hidden_bias_G: Tensor) -> Tensor:
    return x_SBI.new_empty(x_SBI.shape[0], x_SBI.shape[1], hidden_GH.shape[1])


class Lstm(nn.LSTM):
    """One LSTM layer, batch first, with zero initial state, which returns the state after each step."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden, batch_first=True)

    def forward(self, x_BSI: Tensor) -> Tensor:  # type: ignore[override]  # fewer arguments and results than torch's, on purpose
        """Return the states [B, S, H] after each step."""
        if torch.compiler.is_exporting():
            state_SBH: Tensor = lstm(x_BSI.transpose(0, 1), *self._flat_weights)
            return state_SBH.transpose(0, 1)
        state_BSH: Tensor = super().forward(x_BSI)[0]
        return state_BSH


class Gru(nn.GRU):
    """One GRU layer, batch first, with zero initial state, which returns the state after each step."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden, batch_first=True)

    def forward(self, x_BSI: Tensor) -> Tensor:  # type: ignore[override]  # fewer arguments and results than torch's, on purpose
        """Return the states [B, S, H] after each step."""
        if torch.compiler.is_exporting():
            state_SBH: Tensor = gru(x_BSI.transpose(0, 1), *self._flat_weights)
            return state_SBH.transpose(0, 1)
        state_BSH: Tensor = super().forward(x_BSI)[0]
        return state_BSH


class TokenTimes(NamedTuple):
    """Times and bands of the observations behind the tokens.

    Attributes
    ----------
    time_BL : days since the first observation kept; any finite number where there is no token.
    band_BL : int64 band index.
    packed_BL : True where there is a token; tokens are packed in this order.
    leading : whether each row begins with a [CLS] token.
    """

    time_BL: Tensor
    band_BL: Tensor
    packed_BL: Tensor
    leading: bool = False

    def pack(self, values_BLK: Tensor) -> Tensor:
        """Return the tokens' values [N, K] of a padded grid."""
        return pack_values(values_BLK, self.packed_BL)

    @property
    def time_N(self) -> Tensor:
        """Time of each token, days."""
        return self.pack(self.time_BL)

    @property
    def band_N(self) -> Tensor:
        """Band index of each token."""
        return self.pack(self.band_BL)


class TimeEncoding(nn.Module):
    """Base class of time encodings, whose three hooks do nothing; each encoding overrides some of them.

    Attributes
    ----------
    content_width : width of the tokens that ``embed`` expects; the width of the network except for ``concat``.
    in_blocks : whether the encoding acts within or after the blocks.
    """

    def __init__(self, content_width: int) -> None:
        super().__init__()
        self.content_width = content_width

    @property
    def in_blocks(self) -> bool:
        """See the class docstring."""
        return type(self).position is not TimeEncoding.position or type(self).finish is not TimeEncoding.finish

    def embed(self, x_ND: Tensor, times: TokenTimes) -> Tensor:
        """Return the tokens [N, D] for the first block from embedded observations [N, content_width]."""
        return x_ND

    def position(self, times: TokenTimes) -> PositionEncoding | None:
        """Return the function that every block's attention applies to its query and key, or None."""
        return None

    def finish(self, x_MD: Tensor, times: TokenTimes) -> Tensor:
        """Return the tokens [M, D] after the last block; with ``times.leading`` the first B are the [CLS]s."""
        return x_MD


class Sinusoids(nn.Module):
    """PE(t): sine of the even and cosine of the odd of D angles omega_i t, omega_i = (2 pi) base^(-c i / D)."""

    omega_D: Tensor
    even_D: Tensor

    def __init__(self, width: int, base: float, exponent: float, two_pi: bool, trainable: bool = False) -> None:
        super().__init__()
        index_D = torch.arange(width, dtype=torch.float64)
        omega_D = (base ** (-exponent * index_D / width) * (2.0 * math.pi if two_pi else 1.0)).float()
        if trainable:
            self.omega_D = nn.Parameter(omega_D)
        else:
            self.register_buffer("omega_D", omega_D, persistent=False)
        self.register_buffer("even_D", index_D % 2 == 0, persistent=False)

    def forward(self, time: Tensor) -> Tensor:
        """Encode days [...] as [..., D]."""
        angle = time[..., None] * self.omega_D
        return torch.where(self.even_D, angle.sin(), angle.cos())


class Added(TimeEncoding):
    """``baseline`` and ``trainable``: x + PE(t)."""

    def __init__(self, encoding: Sinusoids, width: int) -> None:
        super().__init__(width)
        self.encoding = encoding

    def embed(self, x_ND: Tensor, times: TokenTimes) -> Tensor:
        """Add the encoding of each token's time."""
        encoding_ND: Tensor = self.encoding(times.time_N)
        return x_ND + encoding_ND


class Fourier(TimeEncoding):
    """``fourier``: x + W2 GELU(W1 PE(t)); without ``encoding`` the input of the perceptron is the time in days."""

    def __init__(self, encoding: Sinusoids | None, width: int, hidden: int) -> None:
        super().__init__(width)
        self.encoding = encoding
        n_inputs = 1 if encoding is None else width
        self.layers = nn.Sequential(nn.Linear(n_inputs, hidden), nn.GELU(), nn.Linear(hidden, width))

    def embed(self, x_ND: Tensor, times: TokenTimes) -> Tensor:
        """Add the perceptron's output for each token's time."""
        time_N = times.time_N
        encoding_ND: Tensor = self.layers(time_N[:, None] if self.encoding is None else self.encoding(time_N))
        return x_ND + encoding_ND


class Recurrent(TimeEncoding):
    """``recurrent``: x + W GRU(PE(t_1), PE(t_2), ...), in the stored order of each row, which is that of time.

    Rows are left-aligned first, so that padding comes last.
    """

    def __init__(self, encoding: Sinusoids, width: int) -> None:
        super().__init__(width)
        self.encoding = encoding
        self.recurrence, self.project = Gru(width, width), nn.Linear(width, width)

    def embed(self, x_ND: Tensor, times: TokenTimes) -> Tensor:
        """Add the projected GRU state after each token's time."""
        count_B1 = times.packed_BL.sum(1, keepdim=True)
        step_L = torch.arange(times.packed_BL.shape[1], device=x_ND.device)
        filled_BL = step_L < count_B1
        token_BL = torch.where(filled_BL, count_B1.cumsum(0) - count_B1 + step_L, 0)
        state_BLD = self.recurrence(self.encoding(times.time_N[token_BL]))
        encoding_ND: Tensor = self.project(pack_values(state_BLD, filled_BL))
        return x_ND + encoding_ND


class Concatenated(TimeEncoding):
    """``concat``: [x || PE(t)], each half of the width."""

    def __init__(self, encoding: Sinusoids, content_width: int) -> None:
        super().__init__(content_width)
        self.encoding = encoding

    def embed(self, x_ND: Tensor, times: TokenTimes) -> Tensor:
        """Concatenate tokens of half the width with the encoding of their times."""
        return torch.cat([x_ND, self.encoding(times.time_N)], dim=1)


class AddedAfter(TimeEncoding):
    """``pea``: x + PE(t) after the last block; a [CLS] gets the mean PE(t) of its row, as a mean over tokens would."""

    def __init__(self, encoding: Sinusoids, width: int) -> None:
        super().__init__(width)
        self.encoding = encoding

    def finish(self, x_MD: Tensor, times: TokenTimes) -> Tensor:
        """Add the encoding of each token's time."""
        encoding_BLD = self.encoding(times.time_BL)
        encoding_ND = times.pack(encoding_BLD)
        if not times.leading:
            return x_MD + encoding_ND
        weight_BL1 = times.packed_BL[..., None].to(encoding_BLD.dtype)
        mean_BD = (encoding_BLD * weight_BL1).sum(1) / weight_BL1.sum(1)
        return x_MD + torch.cat([mean_BD, encoding_ND])


class TimeModulation(TimeEncoding):
    """``modulation``: per-band affine modulation by truncated Fourier series of time (Astro-MoE eq 7).

    ``weight_GPQ[b]`` maps [sin a_0 .. sin a_{H-1}, cos a_0 .. cos a_{H-1}] to [gamma1, gamma2], a_m = 2 pi m t / T_max.
    """

    harmonic_H: Tensor

    def __init__(self, n_bands: int, width: int, n_harmonics: int, t_max: float, init_std: float = 1.0) -> None:
        super().__init__(width)
        self.n_bands, self.t_max = n_bands, t_max
        self.weight_GPQ = nn.Parameter(torch.empty(n_bands, 2 * n_harmonics, 2 * width))
        self.register_buffer("harmonic_H", torch.arange(n_harmonics, dtype=torch.float32), persistent=False)
        nn.init.normal_(self.weight_GPQ, std=init_std)

    def embed(self, x_ND: Tensor, times: TokenTimes) -> Tensor:
        """Modulate each token by the Fourier series of its band at its time."""
        gammas_NQ = apply_grouped(times.time_N[:, None], times.band_N, self.n_bands, self._series, self._waves)
        gamma1_ND, gamma2_ND = gammas_NQ.chunk(2, dim=1)
        return x_ND * gamma1_ND + gamma2_ND

    def _waves(self, time_N1: Tensor) -> Tensor:
        angle_NH = (2.0 * math.pi / self.t_max) * time_N1 * self.harmonic_H
        return torch.cat([angle_NH.sin(), angle_NH.cos()], dim=1)

    def _series(self, band: int, wave_NP: Tensor) -> Tensor:
        return wave_NP @ self.weight_GPQ[band]
