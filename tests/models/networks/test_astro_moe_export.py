"""Time encodings and kinds of attention as they are in Astro-MoE, as one ONNX graph, against torch.

Each encoding is paired with a kind, so that one trace covers both. The modulation, the sinusoids (whose learned twin is
the same graph) and the mixtures are in the bundles that ``tests/training/export`` makes of the whole network.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nightjar_alerts.models.networks.astro_moe import AstroMoEConfig, LightCurveBranch
from nightjar_alerts.models.networks.network import INPUTS
from nightjar_alerts.models.networks.parts.positional_content import TokenTimes
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export.graph import write_graph
from nightjar_alerts.training.export.served import AXES, parity_batches
from support.bundles import random_tokens

pytestmark = pytest.mark.nightly

PAIRS = {
    "fourier": "probsparse",
    "recurrent": "linformer",
    "tupe": "grouped_query",
    "concat": "performer",
    "pea": "reformer",
    "rotary": "exact",
}
LIGHT_CURVE = INPUTS[:5]
SIZES = {"d_model": 16, "n_heads": 4, "n_blocks": 1, "d_ff": 16, "n_experts": 0, "n_input_experts": 0, "dropout": 0.0}


class EveryPair(nn.Module):
    """Light-curve branches side by side, each to its [CLS]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.branches = nn.ModuleList(
            LightCurveBranch(
                AstroMoEConfig.model_validate(
                    {**SIZES, "time_encoding": encoding, "attention": {"kind": kind, "max_length": 260}}
                )
            )
            for encoding, kind in PAIRS.items()
        )

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(encode(branch, *inputs) for branch in self.branches if isinstance(branch, LightCurveBranch))


def encode(
    branch: LightCurveBranch, flux_BL: Tensor, flux_err_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor
) -> Tensor:
    times = TokenTimes(time_BL, band_BL, mask_BL, branch.light_curve.leading)
    x_ND, _ = branch.embed_observations(times.pack(branch.observations(flux_BL, flux_err_BL, mask_BL)))
    x_MD, packing, _ = branch.encode(x_ND, times, mask_BL)
    return branch.light_curve.pool(x_MD, packing)


def test_graph_and_network_agree(tmp_path: Path) -> None:
    network, pairs = EveryPair().eval(), [f"{encoding}-{kind}" for encoding, kind in PAIRS.items()]
    batches = [{name: batch[name] for name in LIGHT_CURVE} for batch in parity_batches(random_tokens(1, 24))]
    tensors = [{name: torch.from_numpy(value) for name, value in batch.items()} for batch in batches]
    write_graph(network, tensors[0], {name: AXES[name] for name in LIGHT_CURVE}, pairs, tmp_path / "model.onnx")
    session = open_session(tmp_path / "model.onnx")
    for batch, inputs in zip(batches, tensors, strict=True):
        with torch.no_grad():
            expected = network(*inputs.values())
        actual = run(session, batch)
        for name, value in zip(pairs, expected, strict=True):
            np.testing.assert_allclose(actual[name], value.numpy(), atol=1e-5, err_msg=name)
