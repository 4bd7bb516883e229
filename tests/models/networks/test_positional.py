"""Every time encoding against a float64 restatement of its formula."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightjar_alerts.models.networks.parts.attention import SelfAttention
from nightjar_alerts.models.networks.parts.packing import Packing
from nightjar_alerts.models.networks.parts.positional import Rotary, TimeEncodingFields, UntiedPositions, time_encoding
from nightjar_alerts.models.networks.parts.positional_content import (
    Added,
    AddedAfter,
    Concatenated,
    Fourier,
    Recurrent,
    TimeModulation,
    TokenTimes,
)

Array = NDArray[np.float64]

WIDTH, HEADS = 8, 2
MASK = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 1, 0, 0, 0]], dtype=bool)  # holes as well as a tail


def build(name: str, n_bands: int = 1, **fields: Any) -> Any:
    torch.manual_seed(0)
    chosen = TimeEncodingFields.model_validate({"time_encoding": name, "n_harmonics": 5, **fields})
    return time_encoding(chosen, WIDTH, HEADS, n_bands).double()


def observed(leading: bool = False, n_bands: int = 1) -> tuple[Array, TokenTimes]:
    """Random tokens, and when they were observed; empty places hold nonsense."""
    rng = np.random.default_rng(0)
    time_BL = np.where(MASK, np.sort(rng.uniform(0, 300, MASK.shape), axis=1), 1e7)
    band_BL = rng.integers(0, n_bands, MASK.shape)
    times = TokenTimes(torch.from_numpy(time_BL), torch.from_numpy(band_BL), torch.from_numpy(MASK), leading)
    return rng.normal(size=(int(MASK.sum()), WIDTH)), times


def pe(time: Array, width: int = WIDTH, base: float = 1000.0, c: float = 2.0, factor: float = 1.0) -> Array:
    """Sinusoids from their definition, one number at a time."""
    out = np.empty((*time.shape, width))
    for place in np.ndindex(time.shape):
        for i in range(width):
            angle = factor * time[place] / base ** (c * i / width)
            out[(*place, i)] = math.sin(angle) if i % 2 == 0 else math.cos(angle)
    return out


def embedded(encoding: Any, x_ND: Array, times: TokenTimes) -> Array:
    result: Array = encoding.embed(torch.from_numpy(x_ND), times).detach().numpy()
    return result


def weights(module: torch.nn.Module) -> dict[str, Array]:
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def attention_of(encoding: Any, times: TokenTimes) -> tuple[Array, Array, dict[str, Array]]:
    """A random attention layer under an encoding: tokens in, the grid out, and the layer's weights."""
    layer = SelfAttention(WIDTH, HEADS).double()
    packing = Packing.of(times.packed_BL, times.leading)
    x_MD = torch.randn(packing.place_M.shape[0], WIDTH, dtype=torch.float64)
    out = layer(x_MD, packing, encoding.position(times))
    return packing.unpack(x_MD).numpy(), packing.unpack(out).detach().numpy(), weights(layer)


def attend(x_SD: Array, w: dict[str, Array], score: Any) -> Array:
    """One row of multi-head attention; ``score(head, query, key)`` are the scores [S, S] before the softmax."""
    query, key, value = np.split(x_SD @ w["qkv.weight"].T + w["qkv.bias"], 3, axis=1)
    heads = []
    for head in range(HEADS):
        part = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
        scores = score(head, query[:, part], key[:, part])
        share = np.exp(scores - scores.max(1, keepdims=True))
        heads.append(share / share.sum(1, keepdims=True) @ value[:, part])
    return np.concatenate(heads, axis=1) @ w["out.weight"].T + w["out.bias"]


@pytest.mark.parametrize("name", ["baseline", "trainable"])
@pytest.mark.parametrize(("base", "c", "two_pi"), [(1000.0, 2.0, False), (1000.0, 1.0, True), (10_000.0, 2.0, False)])
def test_sinusoids_are_added(name: str, base: float, c: float, two_pi: bool) -> None:
    encoding = build(name, pe_base=base, pe_exponent=c, pe_two_pi=two_pi)
    assert isinstance(encoding, Added)
    x_ND, times = observed()
    expected = x_ND + pe(times.time_N.numpy(), base=base, c=c, factor=2 * math.pi if two_pi else 1.0)
    np.testing.assert_allclose(embedded(encoding, x_ND, times), expected, atol=2e-4)  # frequencies in single precision
    assert [*weights(encoding)] == (["encoding.omega_D"] if name == "trainable" else [])


@pytest.mark.parametrize("source", ["encoding", "time"])
def test_fourier_is_a_perceptron_on_the_sinusoids_or_on_days(source: str) -> None:
    encoding = build("fourier", fourier_hidden=6, fourier_input=source)
    assert isinstance(encoding, Fourier)
    x_ND, times = observed()
    w, time_N = weights(encoding), times.time_N.numpy()
    hidden = (pe(time_N) if source == "encoding" else time_N[:, None]) @ w["layers.0.weight"].T + w["layers.0.bias"]
    gelu = np.vectorize(lambda h: h * 0.5 * (1 + math.erf(h / math.sqrt(2))))(hidden)
    expected = x_ND + gelu @ w["layers.2.weight"].T + w["layers.2.bias"]
    np.testing.assert_allclose(embedded(encoding, x_ND, times), expected, atol=1e-4)


def gru(x_SD: Array, w: dict[str, Array]) -> Array:
    """Cho et al. 2014 in the form with the reset gate after the product (Keras's ``reset_after``, torch's only one)."""
    state, states = np.zeros(WIDTH), []
    for x in x_SD:
        of_x = np.split(w["weight_ih_l0"] @ x + w["bias_ih_l0"], 3)
        of_h = np.split(w["weight_hh_l0"] @ state + w["bias_hh_l0"], 3)
        reset, update = (1 / (1 + np.exp(-of_x[i] - of_h[i])) for i in (0, 1))
        new = np.tanh(of_x[2] + reset * of_h[2])
        state = (1 - update) * new + update * state
        states.append(state)
    return np.array(states)


def test_recurrent_reads_each_row_in_order_and_no_padding() -> None:
    encoding = build("recurrent")
    assert isinstance(encoding, Recurrent)
    x_ND, times = observed()
    w = weights(encoding.recurrence)
    rows = [gru(pe(times.time_BL.numpy()[row][MASK[row]]), w) for row in range(len(MASK))]
    project = weights(encoding.project)
    expected = x_ND + np.concatenate(rows) @ project["weight"].T + project["bias"]
    np.testing.assert_allclose(embedded(encoding, x_ND, times), expected, atol=1e-4)


@pytest.mark.parametrize("leading", [False, True])
@pytest.mark.parametrize("halved", [False, True])
def test_tupe_adds_positional_scores_to_those_of_content(leading: bool, halved: bool) -> None:
    encoding = build("tupe", tupe_halved=halved)
    assert isinstance(encoding, UntiedPositions)
    _, times = observed(leading)
    x_BSD, out_BSD, w = attention_of(encoding, times)
    u = weights(encoding)
    scale = math.sqrt((2 if halved else 1) * WIDTH / HEADS)
    for row in range(len(MASK)):
        places = np.flatnonzero(np.concatenate([[True] * leading, MASK[row]]))
        position = pe(times.time_BL.numpy()[row][MASK[row]])
        query, key = position @ u["query.weight"].T, position @ u["key.weight"].T
        if leading:
            query, key = (np.concatenate([np.zeros((1, WIDTH)), x]) for x in (query, key))

        def score(head: int, q: Array, k: Array, pq: Array = query, pk: Array = key) -> Array:
            part = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
            return (q @ k.T + pq[:, part] @ pk[:, part].T) / scale

        expected = attend(x_BSD[row, places], w, score)
        np.testing.assert_allclose(out_BSD[row, places], expected, atol=1e-5)


@pytest.mark.parametrize("leading", [False, True])
def test_rotary_turns_queries_and_keys_by_their_times(leading: bool) -> None:
    encoding = build("rotary", rotary_p=1.0, rotary_base=100.0)
    assert isinstance(encoding, Rotary)
    _, times = observed(leading)
    x_BSD, out_BSD, w = attention_of(encoding, times)
    half = WIDTH // HEADS // 2
    for row in range(len(MASK)):
        places = np.flatnonzero(np.concatenate([[True] * leading, MASK[row]]))
        time = np.concatenate([[0.0] * leading, times.time_BL.numpy()[row][MASK[row]]])
        phase = np.exp(1j * time[:, None] * 100.0 ** (-np.arange(half) / half))

        def score(head: int, q: Array, k: Array, phase: NDArray[np.complex128] = phase) -> Array:
            turned = [(x[:, :half] + 1j * x[:, half:]) * phase for x in (q, k)]
            product: Array = (turned[0] @ turned[1].conj().T).real
            return product / math.sqrt(WIDTH / HEADS)

        np.testing.assert_allclose(out_BSD[row, places], attend(x_BSD[row, places], w, score), atol=1e-4)


def test_concat_gives_time_half_of_the_width() -> None:
    encoding = build("concat")
    assert isinstance(encoding, Concatenated)
    assert encoding.content_width == WIDTH // 2
    x_ND, times = observed()
    expected = np.concatenate([x_ND[:, : WIDTH // 2], pe(times.time_N.numpy(), WIDTH // 2)], axis=1)
    np.testing.assert_allclose(embedded(encoding, x_ND[:, : WIDTH // 2], times), expected, atol=1e-4)
    assert [*weights(encoding)] == ["encoding.omega_D"]


def test_pea_adds_after_the_blocks_and_gives_cls_the_mean() -> None:
    encoding = build("pea")
    assert isinstance(encoding, AddedAfter)
    x_ND, times = observed()
    np.testing.assert_array_equal(embedded(encoding, x_ND, times), x_ND)
    by_token = pe(times.time_N.numpy())
    finished = encoding.finish(torch.from_numpy(x_ND), times).numpy()
    np.testing.assert_allclose(finished, x_ND + by_token, atol=1e-4)
    means = np.stack([pe(times.time_BL.numpy()[row][MASK[row]]).mean(0) for row in range(len(MASK))])
    x_MD = np.concatenate([np.ones_like(means), x_ND])
    finished = encoding.finish(torch.from_numpy(x_MD), times._replace(leading=True)).numpy()
    np.testing.assert_allclose(finished, x_MD + np.concatenate([means, by_token]), atol=1e-3)


def test_modulation_is_equation_7() -> None:
    encoding = build("modulation", n_bands=3)
    assert isinstance(encoding, TimeModulation)
    x_ND, times = observed(n_bands=3)
    weight_GPQ, band_N = encoding.weight_GPQ.detach().numpy(), times.band_N.numpy()
    expected = np.empty_like(x_ND)
    for n, time in enumerate(times.time_N.numpy()):
        gamma1, gamma2 = np.zeros(WIDTH), np.zeros(WIDTH)
        for m in range(5):
            a = 2 * np.pi * m * time / 1500.0
            sine, cosine = weight_GPQ[band_N[n], m], weight_GPQ[band_N[n], 5 + m]
            gamma1 += np.sin(a) * sine[:WIDTH] + np.cos(a) * cosine[:WIDTH]
            gamma2 += np.sin(a) * sine[WIDTH:] + np.cos(a) * cosine[WIDTH:]
        expected[n] = x_ND[n] * gamma1 + gamma2
    np.testing.assert_allclose(embedded(encoding, x_ND, times), expected, atol=1e-5)


def test_harmonic_zero_is_a_constant() -> None:
    encoding = build("modulation", n_harmonics=1)
    row = torch.ones(1, 2, dtype=torch.bool)
    times = TokenTimes(torch.tensor([[0.0, 900.0]]), torch.zeros(1, 2, dtype=torch.int64), row)
    early, late = encoding.embed(torch.ones(2, WIDTH), times)
    torch.testing.assert_close(early, late)


def test_an_encoding_leaves_unused_inputs_alone() -> None:
    x_ND, times = observed()
    tokens: Tensor = torch.from_numpy(x_ND)
    for name in ("baseline", "trainable", "fourier", "recurrent", "concat", "modulation"):
        encoding = build(name)
        assert encoding.position(times) is None
        assert encoding.finish(tokens, times) is tokens
    for name in ("tupe", "rotary"):
        assert build(name).embed(tokens, times) is tokens


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="does not halve"):
        time_encoding(TimeEncodingFields(time_encoding="concat"), 7, 1)
    with pytest.raises(ValueError, match="even length"):
        time_encoding(TimeEncodingFields(time_encoding="rotary"), 6, 2)
