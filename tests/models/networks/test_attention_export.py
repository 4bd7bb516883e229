"""Every kind of attention as one ONNX graph with open batch and length, against torch."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from torch import Tensor, nn

from nightjar_alerts.models.networks.parts.packing import Packing
from nightjar_alerts.training.export.graph import write_graph
from support.attention import WIDTH, layer, ragged

pytestmark = pytest.mark.nightly

CASES = [
    *(("exact", False), ("grouped_query", False), ("linformer", False), ("performer", False), ("performer", True)),
    *(("probsparse", False), ("probsparse-paper", True), ("reformer", True)),
]
NAMES = [f"{kind}{'-causal' if causal else ''}" for kind, causal in CASES]

Run = Callable[[Tensor, Tensor], dict[str, Tensor]]


class EveryKind(nn.Module):
    """All kinds side by side on the same padded grid: one trace instead of eight."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer(kind, causal) for kind, causal in CASES])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        x_BSD, mask_BS = inputs
        place_BS = torch.arange(mask_BS.shape[0] * mask_BS.shape[1]).view(mask_BS.shape)
        row_M = torch.arange(mask_BS.shape[0])[:, None].expand(mask_BS.shape).flatten()
        packing = Packing(row_M, place_BS.flatten(), place_BS, mask_BS, leading=True)  # every place holds a token
        x_MD = x_BSD.flatten(0, 1)
        return tuple(attention(x_MD, packing).view(x_BSD.shape) * mask_BS[..., None] for attention in self.layers)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return EveryKind().eval()


@pytest.fixture(scope="module")
def run(network: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path: Path = tmp_path_factory.mktemp("graph") / "attention.onnx"
    inputs = {"x": torch.randn(3, 40, WIDTH), "mask": ragged(40, 7, 22)}
    write_graph(network, inputs, dict.fromkeys(inputs, ("batch", "length")), NAMES, path)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def outputs(x_BSD: Tensor, mask_BS: Tensor) -> dict[str, Tensor]:
        arrays = session.run(None, {"x": x_BSD.numpy(), "mask": mask_BS.numpy()})
        return {name: torch.from_numpy(array) for name, array in zip(NAMES, arrays, strict=True)}

    return outputs


@pytest.mark.parametrize("lengths", [(1,), (50,), (3, 37, 1), (130, 5, 64, 65, 129)])
def test_graph_agrees_with_torch(network: nn.Module, run: Run, lengths: tuple[int, ...]) -> None:
    mask_BS = ragged(*lengths)
    x_BSD = torch.randn(*mask_BS.shape, WIDTH, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = dict(zip(NAMES, network(x_BSD, mask_BS), strict=True))
    for name, actual in run(x_BSD, mask_BS).items():
        np.testing.assert_allclose(actual, expected[name], atol=2e-5, rtol=1e-4, err_msg=name)


def test_graph_takes_holes(network: nn.Module, run: Run) -> None:
    mask_BS = torch.rand(4, 60, generator=torch.Generator().manual_seed(4)) < 0.6
    x_BSD = torch.randn(4, 60, WIDTH, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = dict(zip(NAMES, network(x_BSD, mask_BS), strict=True))
    for name, actual in run(x_BSD, mask_BS).items():
        np.testing.assert_allclose(actual, expected[name], atol=2e-5, rtol=1e-4, err_msg=name)


def test_graph_refuses_rows_longer_than_linformer_projects(run: Run) -> None:
    with pytest.raises(InvalidArgument, match="out of data bounds"):
        run(torch.randn(1, 151, WIDTH), ragged(151))
