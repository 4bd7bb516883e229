"""Populations beside each other: measures by hand, distances between 0 and 1, and what each survey lacks."""

from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.training.simulate.generate import simulate
from nightjar_alerts.training.sky.population import (
    MEASURES,
    compare,
    compare_classes,
    draw,
    measures,
    missing,
    read_simulated,
)
from nightjar_alerts.training.sky.record import collect
from support.sky import bump, pulsator


def of(name: str, values: np.ndarray) -> np.ndarray:
    column: np.ndarray = values[:, MEASURES.index(name)]
    return column


def test_measures_are_those_of_the_curve() -> None:
    sky = collect([bump("A", points=200, noise=20.0, peak=20_000.0, bands="g"), pulsator("B", period=0.5)])
    values = measures(sky)
    assert of("points", values).tolist() == [200, 80]
    assert of("magnitude", values)[0] == pytest.approx(31.4 - 2.5 * np.log10(20_000), abs=0.15)
    assert 5 < of("rise", values)[0] < 12
    assert 18 < of("decline", values)[0] < 30
    assert of("period", values)[1] == 0.5


def test_errors_that_are_too_small_show_in_pairs_of_a_night() -> None:
    honest, wrong = bump("A", points=300, bands="r", noise=100.0), bump("B", points=300, bands="r", noise=100.0)
    for row in (honest, wrong):
        row.mjd = 59_970 + np.repeat(np.arange(150) * 0.7, 2) + np.tile([0.0, 0.01], 150)
        row.flux = np.random.default_rng(1).normal(0.0, 100.0, 300)
    wrong.flux_err = np.full(300, 50.0)
    scatter = of("scatter / error", measures(collect([honest, wrong])))
    assert scatter[0] == pytest.approx(1.0, rel=0.25)
    assert scatter[1] == pytest.approx(2.0, rel=0.25)


def test_equal_populations_are_near_and_fainter_ones_far(tmp_path: Path) -> None:
    def many(peak: float, seed: int) -> list[object]:
        return [bump(f"{seed}-{i}", seed=seed + i, peak=peak * (1 + 0.1 * i)) for i in range(20)]

    real, same, faint = (collect(many(*how)) for how in ((20_000.0, 0), (20_000.0, 100), (2_000.0, 200)))  # type: ignore[arg-type]  # bump's
    near, far = (compare(real, other)["Ia"]["one"]["magnitude"]["distance"] for other in (same, faint))
    assert near < 0.5
    assert far == pytest.approx(1.0)
    (path,) = draw(real, {"views": same}, tmp_path)
    assert path.name == "Ia.png"


def test_inputs_that_a_survey_lacks_are_told() -> None:
    sky = collect([bump("A", z=0.1, bands="gr"), pulsator("B")])
    shares = missing(sky)
    assert shares["one"]["redshift"] == 1.0
    assert shares["var"]["redshift"] == 0.0
    assert shares["one"]["g"] == 1.0
    assert shares["one"]["i"] == 0.0
    assert shares["var"]["total flux"] == 1.0


def test_simulated_objects_are_compared_class_by_class(tmp_path: Path) -> None:
    simulate(tmp_path / "sim.parquet", 12, seed=3, progress=False, classes=["Ia"], survey="any")
    simulated = read_simulated(tmp_path / "sim.parquet")
    assert set(simulated.source) == {"simulated"}
    assert len(simulated) == 12
    real = collect([bump(str(n), seed=n, peak=20_000.0) for n in range(12)])
    comparison = compare_classes(real, simulated)["Ia"]["all surveys"]
    assert comparison["real"] == comparison["other"] == 12
    assert {"magnitude", "significance"} <= set(comparison)
