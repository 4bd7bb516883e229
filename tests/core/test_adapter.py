"""Task adapter: model inputs, padded batches, rows of the outputs."""

from typing import Any

import numpy as np
import pytest

from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.core.failures import InferenceFailed
from nightjar_alerts.models.bundle import Manifest
from nightjar_alerts.models.lightcurve import LightCurveError, Limits
from support.graphs import curve, echo_manifest


def manifest(**changes: Any) -> Manifest:
    document = echo_manifest(Limits(max_points_per_band=20)).model_dump() | changes
    return Manifest.model_validate(document)


def test_assemble_several_lengths_pads_to_the_longest() -> None:
    adapter = Adapter(manifest(flux_unit="FLUXCAL"))
    inputs = [adapter.prepare(curve(100, 3)), adapter.prepare(curve(200, 7))]
    arrays = adapter.assemble(inputs)
    columns = ("flux", "flux_err", "time", "band", "mask")
    assert {name: arrays[name].shape for name in columns} == dict.fromkeys(columns, (2, 7))
    assert arrays["mask"].sum(axis=1).tolist() == [3, 7]
    assert [len(each) for each in inputs] == [3, 7]
    assert arrays["flux"][0, 0] == pytest.approx(100 * 10 ** (-0.4 * 3.9))


@pytest.mark.parametrize("length", [1, 5, 120, 500])
def test_max_length_is_never_below_the_length_of_the_input(length: int) -> None:
    adapter, light_curve = Adapter(manifest()), curve(1, length)
    assert adapter.max_length(light_curve) >= len(adapter.prepare(light_curve))


def test_max_length_of_a_long_curve_is_the_limit_of_the_network() -> None:
    assert Adapter(manifest()).max_length(curve(1, 5_000)) == 6 * 20
    assert Adapter(manifest(bands=("r",))).max_length(curve(1, 5_000)) == 20


def test_split_copies_rows_and_marks_those_that_are_not_finite() -> None:
    adapter = Adapter(manifest())
    probabilities = np.array([[0.5, 0.5], [np.nan, 1.0], [0.1, 0.9]], np.float32)
    embedding = np.array([[1.0] * 4, [2.0] * 4, [np.inf] * 4], np.float32)
    first, second, third = adapter.split({"probabilities": probabilities, "embedding": embedding}, 3)
    assert isinstance(second, InferenceFailed)
    assert isinstance(third, InferenceFailed)
    assert not isinstance(first, InferenceFailed)
    assert (first["probabilities"].tolist(), first["probabilities"].base) == ([0.5, 0.5], None)


def test_split_of_finite_values_whose_squares_overflow_keeps_them() -> None:
    adapter = Adapter(manifest())
    outputs = {"probabilities": np.ones((1, 2), np.float32), "embedding": np.full((1, 4), 3e38, np.float32)}
    [row] = adapter.split(outputs, 1)
    assert row is not None


def test_split_of_another_number_of_rows_raises() -> None:
    outputs = {"probabilities": np.ones((1, 2), np.float32), "embedding": np.ones((1, 4), np.float32)}
    with pytest.raises(ValueError, match="1 rows of probabilities for 2 light curves"):
        Adapter(manifest()).split(outputs, 2)


def test_prepare_without_a_point_in_a_known_band_raises() -> None:
    with pytest.raises(LightCurveError) as caught:
        Adapter(manifest(bands=("g",))).prepare(curve(1))
    assert caught.value.reason == "no_usable_points"
