"""The forecaster: what an answer may depend on, where it starts from, and its graph."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nightjar_alerts.models.lightcurve import Limits, RaggedBatch, featurise
from nightjar_alerts.models.networks.informer import (
    InformerConfig,
    InformerForecaster,
    PaddedHistory,
    PaddedQueries,
    object_scale,
)
from nightjar_alerts.models.networks.network import FluxDistribution, Forecast
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.data.targets import make_queries, pad_queries
from nightjar_alerts.training.export.graph import write_graph
from support.bundles import random_curves

TINY: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_ff": 24, "n_blocks": 2, "dropout": 0.0, "flux_scale": 100.0}
TINY |= {"n_decoder_blocks": 1, "start_tokens": 8}
NAMES = InformerForecaster.input_names


def network(seed: int = 0, **changes: Any) -> InformerForecaster:
    torch.manual_seed(seed)
    model = InformerForecaster(InformerConfig.model_validate(TINY | changes)).eval()
    nn.init.normal_(model.head.weight, std=0.5)  # fresh heads repeat the anchors
    return model


def padded_inputs(count: int = 5, length: int | None = None, asked: int = 4) -> dict[str, Tensor]:
    """Histories of random lengths, the first of one point; ``asked`` or fewer queries each."""
    tokens = [featurise(curve, Limits(), "FLUXCAL", ()) for curve in random_curves(2, count)]
    rng = np.random.default_rng(1)
    queries = []
    for number, history in enumerate(tokens):
        newest, some = history.origin_mjd + float(history.time[-1]), max(1, asked - number)
        mjd = newest + np.sort(rng.uniform(-20, 60, some))
        queries.append(make_queries(history, mjd, rng.integers(0, len(BANDS), some)))
    arrays = RaggedBatch.collate(tokens).padded(length) | pad_queries(queries)
    return {name: torch.from_numpy(arrays[name]) for name in NAMES}


def forward(model: nn.Module, inputs: dict[str, Tensor]) -> Forecast:
    with torch.no_grad():
        forecast: Forecast = model(*inputs.values())
    return forecast


def padded_history(inputs: dict[str, Tensor]) -> PaddedHistory:
    return PaddedHistory(*(inputs[name] for name in NAMES[:5]))


def distribution(model: InformerForecaster, inputs: dict[str, Tensor]) -> FluxDistribution:
    return model.distribution(padded_history(inputs), PaddedQueries(*(inputs[name] for name in NAMES[5:])))


def close(left: Forecast, right: Forecast, asked_BQ: Tensor) -> None:
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a[asked_BQ], b[asked_BQ], rtol=2e-4, atol=1e-3)


READINGS: list[dict[str, Any]] = [
    {},
    {"query_context": "causal"},
    {"anchor": False, "norm_order": "post", "distilling": "released"},
    {"time_encoding": "trainable", "pe_two_pi": True, "attention": {"kind": "exact"}},
]


@pytest.mark.parametrize("changes", READINGS)
def test_every_reading_ignores_padding_and_batch_mates(changes: dict[str, Any]) -> None:
    model, inputs = network(**changes), padded_inputs()
    asked_BQ, expected = inputs["query_mask"], forward(model, inputs)
    assert all(column[asked_BQ].isfinite().all() for column in expected)
    assert (expected.flux_err_BQ[asked_BQ] > 0).all()
    longer = padded_inputs(length=inputs["flux"].shape[1] + 5)
    close(forward(model, longer), expected, asked_BQ)
    for row in range(5):
        alone = forward(model, {name: column[row : row + 1] for name, column in inputs.items()})
        close(alone, Forecast(*(column[row : row + 1] for column in expected)), asked_BQ[row : row + 1])


def test_an_answer_depends_on_its_own_question_only() -> None:
    inputs = padded_inputs(asked=6)
    together = forward(network(), inputs)
    for place in range(6):
        single = inputs | {name: inputs[name][:, place : place + 1] for name in NAMES[5:]}
        expected = Forecast(*(column[:, place : place + 1] for column in together))
        close(forward(network(), single), expected, single["query_mask"])


def test_the_published_decoder_lets_earlier_questions_change_later_answers() -> None:
    model, inputs = network(query_context="causal"), padded_inputs()
    before = forward(model, inputs).flux_BQ[0]
    inputs["query_band"][0, 1] = (inputs["query_band"][0, 1] + 1) % 6
    moved = (forward(model, inputs).flux_BQ[0] - before).abs() > 1e-3
    assert moved.tolist() == [False, True, True, True]


def test_padding_of_the_history_is_not_seen() -> None:
    """Padded places of the history may hold anything."""
    model, inputs = network(), padded_inputs()
    expected = forward(model, inputs)
    for name, value in (("flux", 1e4), ("flux_err", 3.0), ("time", 500.0), ("band", 2)):
        inputs[name][~inputs["mask"]] = value
    close(forward(model, inputs), expected, inputs["query_mask"])


def test_only_times_relative_to_each_other_count() -> None:
    model, inputs = network(), padded_inputs()
    expected = forward(model, inputs)
    shifted = inputs | {"time": inputs["time"] + 64.0, "query_time": inputs["query_time"] + 64.0}
    close(forward(model, shifted), expected, inputs["query_mask"])


def test_an_untrained_network_is_between_its_anchors() -> None:
    """Halfway, in asinh, between the band's newest flux and its inverse-variance mean; 0 where the band has neither."""
    torch.manual_seed(0)
    model, inputs = InformerForecaster(InformerConfig.model_validate(TINY)).eval(), padded_inputs()
    with torch.no_grad():
        likely = distribution(model, inputs)
    for row, place in inputs["query_mask"].nonzero().tolist():
        in_band = (inputs["mask"][row] & (inputs["band"][row] == inputs["query_band"][row, place])).numpy()
        expected = 0.0
        if in_band.any():
            flux, flux_err = (inputs[name][row].double().numpy()[in_band] for name in ("flux", "flux_err"))
            anchors = np.array([flux[-1], np.average(flux, weights=flux_err**-2)]) / float(likely.scale_B1[row, 0])
            expected = np.arcsinh(anchors).mean()
        assert float(likely.mean_BQ[row, place]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_tail_of_a_history() -> None:
    columns = [torch.arange(10.0).view(2, 5) for _ in range(3)]
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    flux, flux_err, time = columns
    tail = PaddedHistory(flux, flux_err, time, torch.arange(10).view(2, 5), mask).tail(3)
    assert tail.flux_BL[tail.mask_BL].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert tail.mask_BL.tolist() == [[True, True, True], [True, True, False]]
    assert tail.flux_BL[1, 2] == 6.0  # masked, and finite


def test_the_scale_of_an_object_is_the_rms_of_its_history() -> None:
    history = padded_history(padded_inputs())
    with torch.no_grad():
        scale_B1 = object_scale(history)
    for row, mask in enumerate(history.mask_BL.numpy()):
        flux, flux_err = (column[row].double().numpy()[mask] for column in (history.flux_BL, history.flux_err_BL))
        assert float(scale_B1[row, 0]) == pytest.approx(np.sqrt(np.mean(flux**2 + flux_err**2)), rel=1e-5)


def test_shape_and_brightness_are_told_apart() -> None:
    """Every answer scales with the light curve once its brightness is not looked at."""
    model, inputs = network(), padded_inputs()
    brighter = inputs | {"flux": 7.0 * inputs["flux"], "flux_err": 7.0 * inputs["flux_err"]}
    asked_BQ = inputs["query_mask"]
    assert (forward(model, brighter).flux_BQ / forward(model, inputs).flux_BQ - 7.0).abs()[asked_BQ].max() > 0.1
    nn.init.zeros_(model.brightness.weight)
    seven = Forecast(*(7.0 * column for column in forward(model, inputs)))
    close(forward(model, brighter), seven, asked_BQ)


def test_every_reading_trains() -> None:
    for changes in READINGS:
        model, inputs = network(**changes).train(), padded_inputs()
        likely = distribution(model, inputs)
        likely.negative_log_likelihood(torch.zeros_like(likely.mean_BQ))[inputs["query_mask"]].mean().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())


def test_brightness_range_of_the_survey_stays_finite() -> None:
    model, inputs = network(), padded_inputs(count=2)
    for scale in (0.0, 1e-12, 1e12, -1e30):
        inputs["flux"] = torch.full_like(inputs["flux"], scale)
        assert forward(model, inputs).flux_BQ[inputs["query_mask"]].isfinite().all()


@pytest.mark.nightly
def test_exported_graph_is_the_network(tmp_path: Path) -> None:
    class Served(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network(n_blocks=1, attention={"kind": "exact"})

        def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
            forecast = self.network(*inputs)
            return forecast.flux_BQ, forecast.flux_err_BQ

    served, path, example = Served().eval(), tmp_path / "graph.onnx", padded_inputs()
    axes = {name: ("batch", "queries") if name.startswith("query") else ("batch", "length") for name in NAMES}
    write_graph(served, example, axes, ["forecast_flux", "forecast_flux_err"], path)
    session = open_session(path)
    shortest = {name: column[:1, :1] for name, column in example.items()}
    for inputs in (example, padded_inputs(length=example["flux"].shape[1] + 3, asked=7), shortest):
        actual = run(session, {name: column.numpy() for name, column in inputs.items()})
        with torch.no_grad():
            expected = served(*inputs.values())
        asked = inputs["query_mask"].numpy()
        for name, value in zip(("forecast_flux", "forecast_flux_err"), expected, strict=True):
            np.testing.assert_allclose(actual[name][asked], value.numpy()[asked], rtol=1e-4, atol=1e-4)
