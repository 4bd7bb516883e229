"""The classifier: what its answer may depend on, its readings, its size and its graph."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nightjar_alerts.models.lightcurve import Limits, RaggedBatch, featurise
from nightjar_alerts.models.networks.informer import InformerClassifier, InformerConfig
from nightjar_alerts.models.networks.network import NetworkOutput
from nightjar_alerts.models.networks.zoo import count_parameters
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export.graph import write_graph
from support.bundles import random_curves

TINY: dict[str, Any] = {"n_classes": 5, "d_model": 16, "n_heads": 2, "d_ff": 24, "dropout": 0.0, "n_harmonics": 4}
NAMES = InformerClassifier.input_names


def network(seed: int = 0, **changes: Any) -> InformerClassifier:
    torch.manual_seed(seed)
    return InformerClassifier(InformerConfig.model_validate(TINY | changes)).eval()


def padded_inputs(count: int = 6, length: int | None = None) -> tuple[Tensor, ...]:
    tokens = [featurise(curve, Limits(), "FLUXCAL", ()) for curve in random_curves(2, count)]
    padded = RaggedBatch.collate(tokens).padded(length)
    return tuple(torch.from_numpy(padded[name]) for name in NAMES)


def forward(model: nn.Module, columns: tuple[Tensor, ...]) -> NetworkOutput:
    with torch.no_grad():
        output: NetworkOutput = model(*columns)
    return output


READINGS: list[dict[str, Any]] = [
    {},
    {"norm_order": "post", "distilling": "released", "attention": {"kind": "probsparse", "sparsity": "released"}},
    {"distilling": None, "attention": {"kind": "exact"}},
    {"n_blocks": 1},
    {"time_encoding": "modulation"},
    {"time_encoding": "concat"},
    {"time_encoding": "recurrent"},
    {"time_encoding": "tupe"},
    {"time_encoding": "rotary"},
    {"time_encoding": "pea"},
]


@pytest.mark.parametrize("changes", READINGS)
def test_every_reading_ignores_padding_and_batch_mates(changes: dict[str, Any]) -> None:
    model, columns = network(**changes), padded_inputs()
    expected = forward(model, columns).logits_BC
    assert expected.isfinite().all()
    longer = forward(model, padded_inputs(length=columns[0].shape[1] + 5)).logits_BC
    torch.testing.assert_close(longer, expected, atol=2e-5, rtol=1e-4)
    alone = [forward(model, tuple(column[row : row + 1] for column in columns)).logits_BC for row in range(6)]
    torch.testing.assert_close(torch.cat(alone), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", READINGS)
def test_every_reading_trains(changes: dict[str, Any]) -> None:
    model = network(**changes).train()
    model(*padded_inputs()).logits_BC.square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())


def test_an_answer_is_the_same_at_every_call() -> None:
    """The released code draws the sampled keys at inference too."""
    model, columns = network(attention={"kind": "probsparse", "factor": 1.0}), padded_inputs()
    assert torch.equal(forward(model, columns).logits_BC, forward(model, columns).logits_BC)


def test_bands_and_times_matter() -> None:
    model, columns = network(), list(padded_inputs())
    before = forward(model, tuple(columns)).logits_BC
    for place, changed in ((2, columns[2] * 1.5), (3, (columns[3] + 1) % 6)):
        other = [*columns[:place], changed, *columns[place + 1 :]]
        assert (forward(model, tuple(other)).logits_BC - before).abs()[1:].max() > 1e-3


def test_brightness_range_of_the_survey_stays_finite() -> None:
    model, columns = network(), list(padded_inputs(count=2))
    for scale in (0.0, 1e-12, 1e12, -1e30):
        columns[0] = torch.full_like(columns[0], scale)
        assert forward(model, tuple(columns)).logits_BC.isfinite().all()


def test_attributes_of_the_contract() -> None:
    model = network()
    model.fit_inputs(np.zeros((0, 0)))
    output = forward(model, padded_inputs())
    assert output.logits_BC.shape == (6, model.n_classes)
    assert output.embedding_BE.shape == (6, model.embedding_dim)
    assert "metadata" not in model.input_names


def test_size_of_the_defaults() -> None:
    counts = count_parameters(InformerClassifier(InformerConfig()))
    assert counts.total == 499_988


@pytest.mark.nightly
def test_exported_graph_is_the_network(tmp_path: Path) -> None:
    """Circular distilling is the harder kind to trace."""

    class Served(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network(n_blocks=2, distilling="released", attention={"kind": "exact"})

        def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
            output = self.network(*inputs)
            return output.logits_BC, output.embedding_BE

    served, path = Served().eval(), tmp_path / "graph.onnx"
    axes = dict.fromkeys(NAMES, ("batch", "length"))
    write_graph(served, dict(zip(NAMES, padded_inputs(), strict=True)), axes, ["logits", "embedding"], path)
    session = open_session(path)
    columns = padded_inputs()
    one_point = tuple(column[:1, :1] for column in columns)
    for case in (columns, padded_inputs(length=columns[0].shape[1] + 3), tuple(c[3:4] for c in columns), one_point):
        actual = run(session, {name: column.numpy() for name, column in zip(NAMES, case, strict=True)})
        with torch.no_grad():
            expected = served(*case)
        np.testing.assert_allclose(actual["logits"], expected[0].numpy(), atol=2e-5, rtol=1e-4)
        np.testing.assert_allclose(actual["embedding"], expected[1].numpy(), atol=2e-5, rtol=1e-4)
