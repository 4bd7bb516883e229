"""The whole network against a float64 end-to-end oracle of the recommended reading (skipped without the data)."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.networks.astro_moe import AstroMoE, AstroMoEConfig
from support.shared import needs_shared, shared

Arrays = dict[str, NDArray[Any]]


def _arrays() -> Arrays:
    with np.load(shared("parity", "astromoe_spec.npz")) as file:
        return {key: file[key] for key in file.files}


def _network(arrays: Arrays, time_encoding: str) -> AstroMoE:
    config = AstroMoEConfig.model_validate(
        {"d_model": 12, "n_heads": 2, "d_ff": 24, "n_harmonics": 8, "d_tab": 8, "tab_heads": 2, "tab_ff": 16}
        | {"n_metadata": 7, "time_encoding": time_encoding, "flux_transform": "none", "dropout": 0.0}
    )
    network = AstroMoE(config).double().eval()
    network.load_state_dict(_state(arrays, network), strict=True)
    return network


def _state(arrays: Arrays, network: AstroMoE) -> dict[str, torch.Tensor]:
    """Map the oracle's weight names to ours; buffers (the identity quantile transform) come from the network."""
    state = dict(network.state_dict())

    def put(ours: str, value: NDArray[Any]) -> None:
        assert state[ours].shape == value.shape, (ours, state[ours].shape, value.shape)
        state[ours] = torch.from_numpy(np.ascontiguousarray(value))

    weights = {key.removeprefix("w/"): value for key, value in arrays.items() if key.startswith("w/")}
    put("embed.weight_EID", weights["input_experts.W"].transpose(0, 2, 1))
    put("embed.router.gate.weight", weights["input_gate.W"])
    put("embed.router.gate.bias", weights["input_gate.b"])
    if "time.weight_GPQ" in state:
        sin1, cos1, sin2, cos2 = (weights["tm"][:, index] for index in range(4))
        gamma1, gamma2 = np.concatenate([sin1, cos1], 1), np.concatenate([sin2, cos2], 1)
        put("time.weight_GPQ", np.concatenate([gamma1, gamma2], 2))
    put("light_curve.cls_1D", weights["cls"][None])
    put("metadata.encoder.cls_1D", weights["tab.cls"][None])
    put("metadata.weight_CD", weights["tab.W"])
    put("metadata.bias_CD", weights["tab.b"])
    for ours, theirs in (("light_curve.blocks", "block"), ("metadata.encoder.blocks", "tab.block")):
        for index in range(3):
            _put_block(put, f"{ours}.{index}.", f"{theirs}{index}.", weights)
    for name in ("lc", "tab"):
        for ours, theirs in (("0.weight", "g"), ("0.bias", "b"), ("1.weight", "W"), ("1.bias", "c")):
            put(f"head_{name}.{ours}", weights[f"head.{name}.{theirs}"])
    for ours, theirs in (("0.weight", "g"), ("0.bias", "b")):
        put(f"head_mix.{ours}", weights[f"head.mix.{theirs}"])
    for layer, index in enumerate((1, 3, 5)):
        put(f"head_mix.{index}.weight", weights[f"head.mix.W{layer}"])
        put(f"head_mix.{index}.bias", weights[f"head.mix.c{layer}"])
    return state


def _put_block(put: Any, ours: str, theirs: str, weights: Arrays) -> None:
    w = {key.removeprefix(theirs): value for key, value in weights.items() if key.startswith(theirs)}
    put(ours + "attention.qkv.weight", np.concatenate([w["Wq"], w["Wk"], w["Wv"]]))
    put(ours + "attention.qkv.bias", np.concatenate([w["bq"], w["bk"], w["bv"]]))
    put(ours + "attention.out.weight", w["Wo"])
    put(ours + "attention.out.bias", w["bo"])
    for index in (1, 2):
        put(f"{ours}norm{index}.weight", w[f"ln{index}.g"])
        put(f"{ours}norm{index}.bias", w[f"ln{index}.b"])
    if "gate.W" in w:
        put(ours + "feed_forward.router.gate.weight", w["gate.W"])
        put(ours + "feed_forward.router.gate.bias", w["gate.b"])
        put(ours + "feed_forward.w1_EDF", w["W1"].transpose(0, 2, 1))
        put(ours + "feed_forward.b1_EF", w["b1"])
        put(ours + "feed_forward.w2_EFD", w["W2"].transpose(0, 2, 1))
        put(ours + "feed_forward.b2_ED", w["b2"])
    else:
        for layer, index in ((1, 0), (2, 2)):
            put(f"{ours}feed_forward.layers.{index}.weight", w[f"W{layer}"])
            put(f"{ours}feed_forward.layers.{index}.bias", w[f"b{layer}"])


def _inputs(arrays: Arrays) -> tuple[torch.Tensor, ...]:
    """The oracle's per-band grids [objects, epochs, bands] as time-sorted tokens."""
    n_objects, _, n_bands = arrays["flux"].shape
    band = np.broadcast_to(np.arange(n_bands), arrays["flux"].shape).reshape(n_objects, -1)
    flat = {name: arrays[name].reshape(n_objects, -1) for name in ("flux", "flux_err", "time", "mask")}
    order = np.argsort(flat["time"] * flat["mask"] + (1 - flat["mask"]) * 9999999.0, axis=1, kind="stable")
    columns = {name: np.take_along_axis(value, order, 1) for name, value in (flat | {"band": band}).items()}
    mask = torch.from_numpy(columns["mask"] > 0)
    values = [torch.from_numpy(columns[name]) for name in ("flux", "flux_err", "time")]
    return (*values, torch.from_numpy(columns["band"]), mask, torch.from_numpy(arrays["metadata"]))


@needs_shared
@pytest.mark.parametrize(("variant", "time_encoding"), [("tm", "modulation"), ("pe", "baseline")])
def test_whole_network_agrees_with_the_oracle(
    variant: str, time_encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = _arrays()
    if f"{variant}/logits_mix" not in arrays:
        pytest.skip(f"the reference file holds no {variant} variant")
    network = _network(arrays, time_encoding)
    monkeypatch.setattr(network.metadata.quantiles, "forward", lambda x, column: x)
    with torch.no_grad():
        output = network(*_inputs(arrays))
    expected = {
        key.removeprefix(f"{variant}/"): value for key, value in arrays.items() if key.startswith(f"{variant}/")
    }
    for name, value in (
        ("logits_lc", output.other_logits[0]),
        ("logits_tab", output.other_logits[1]),
        ("logits_mix", output.logits_BC),
        ("tab_embedding", output.embedding_BE[:, :8]),
        ("lc_embedding", output.embedding_BE[:, 8:]),
    ):
        np.testing.assert_allclose(value.numpy(), expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(float(output.aux_loss), expected["aux_B"].sum(), rtol=1e-4)
    np.testing.assert_array_equal(output.expert_load_SX.numpy(), expected["expert_counts"])
