"""PE(t) of ASTROMER's released code, v0, v2 and the branch of the encodings' paper (skipped without the values)."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.networks.parts.positional import TimeEncodingFields, time_encoding
from nightjar_alerts.models.networks.parts.positional_content import TokenTimes
from support.shared import needs_shared, shared

Arrays = dict[str, NDArray[Any]]

WIDTH = 16
ATOL = 5e-5  # single-precision angles of several hundred radians


def _arrays() -> Arrays:
    with np.load(shared("parity", "astromer.npz")) as file:
        return {key: file[key] for key in file.files}


def _encoded(name: str, times_BL1: NDArray[Any], weights: Arrays, **fields: Any) -> NDArray[Any]:
    """Return the sums that the encoding adds to tokens of zero, on the grid; ``weights`` by our names."""
    module = time_encoding(TimeEncodingFields.model_validate({"time_encoding": name, **fields}), WIDTH, 1)
    state = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in weights.items()}
    module.load_state_dict(state, strict=True)
    time_BL = torch.from_numpy(times_BL1[..., 0])
    times = TokenTimes(
        time_BL, torch.zeros_like(time_BL, dtype=torch.int64), torch.ones_like(time_BL, dtype=torch.bool)
    )
    zeros_ND = torch.zeros(time_BL.numel(), WIDTH)
    with torch.no_grad():
        added: NDArray[Any] = (module.finish(module.embed(zeros_ND, times), times)).view(*time_BL.shape, WIDTH).numpy()
    return added


@needs_shared
@pytest.mark.parametrize(
    ("times", "expected", "base", "c"),
    [
        ("v0/pe/times", "v0/pe/out_d16", 10_000.0, 2.0),
        ("v2/times", "v2/pe/out_d16_base1000_c1_requested", 10_000.0, 2.0),  # asked for 1,000 and 1, and was not heard
        ("pe7/times", "pe7/baseline/pe_of_t", 1000.0, 1.0),
    ],
)
def test_sinusoids(times: str, expected: str, base: float, c: float) -> None:
    arrays = _arrays()
    actual = _encoded("baseline", arrays[times], {}, pe_base=base, pe_exponent=c)
    np.testing.assert_allclose(actual, arrays[expected], atol=ATOL)


@needs_shared
def test_pea() -> None:
    arrays = _arrays()
    actual = _encoded("pea", arrays["pe7/times"], {}, pe_exponent=1.0)
    np.testing.assert_allclose(actual, arrays["pe7/pea/pe_of_t"], atol=ATOL)


@needs_shared
def test_recurrent() -> None:
    """Keras keeps kernels as [in, out] and gates as update, reset, new; torch as reset, update, new."""
    arrays = _arrays()

    def gates(value: NDArray[Any]) -> NDArray[Any]:
        update, reset, new = np.split(value, 3, axis=-1)
        return np.concatenate([reset, update, new], axis=-1).T

    cell = "pe7/recurrent/w/{}:pos_embbeding_rnn/pos_rnn_emb/gru_cell/"
    bias_2G = gates(arrays[cell.format("05") + "bias:0"]).T
    weights = {
        "recurrence.weight_ih_l0": gates(arrays[cell.format("03") + "kernel:0"]),
        "recurrence.weight_hh_l0": gates(arrays[cell.format("04") + "recurrent_kernel:0"]),
        "recurrence.bias_ih_l0": bias_2G[0],
        "recurrence.bias_hh_l0": bias_2G[1],
        "project.weight": arrays["pe7/recurrent/w/06:proj_w/kernel:0"].T,
        "project.bias": arrays["pe7/recurrent/w/07:proj_w/bias:0"],
    }
    actual = _encoded("recurrent", arrays["pe7/times"], weights, pe_exponent=1.0)
    np.testing.assert_allclose(actual, arrays["pe7/recurrent/pe_of_t"], atol=ATOL)


@needs_shared
def test_perceptron_on_bare_days() -> None:
    arrays = _arrays()
    weights = {
        "layers.0.weight": arrays["pe7/mlp/w/02:dense_48/kernel:0"].T,
        "layers.0.bias": arrays["pe7/mlp/w/03:dense_48/bias:0"],
        "layers.2.weight": arrays["pe7/mlp/w/04:dense_49/kernel:0"].T,
        "layers.2.bias": arrays["pe7/mlp/w/05:dense_49/bias:0"],
    }
    fields = {"fourier_input": "time", "fourier_hidden": 12}
    actual = _encoded("fourier", arrays["pe7/times"], weights, **fields)
    np.testing.assert_allclose(actual, arrays["pe7/mlp/pe_of_t"], rtol=1e-5, atol=ATOL)
