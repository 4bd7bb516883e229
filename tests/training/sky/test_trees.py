"""Trees beside the networks: features, what a left-out model may see, and one report of all columns."""

from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.networks.statistics.shape_statistics import count
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.sky.record import PARTS, SurveySample, collect
from nightjar_alerts.training.sky.trees import (
    GROUPS,
    FeatureCache,
    FeatureRows,
    asker,
    features_of,
    read_rows,
    rows_of,
    trees_report,
    weights_of,
)
from support.sky import bump, pulsator

IA, RRL = ELASTICC.names.index("Ia"), ELASTICC.names.index("RR Lyrae")


def part(number: int, source: str, star: str, side: int = 0, seed: int = 0) -> SurveySample:
    rows = [bump(f"{source}{side}{seed}{i}", source=source, seed=seed + i, z=0.1) for i in range(number)]
    rows += [pulsator(f"{star}{side}{seed}{i}", source=star, seed=seed + i) for i in range(number)]
    return collect(rows, [row.object_id for row in rows], [side] * len(rows))


def as_views(sky: SurveySample, origin: str) -> SurveySample:
    views = sky.take(np.arange(len(sky)))
    views.quality[:] = "view"
    values = {name: getattr(views, name) for name in views.__dataclass_fields__}
    return SurveySample(**{**values, "raw_label": np.full(len(views), origin)})


def test_shapes_do_not_depend_on_brightness_or_time() -> None:
    near, far = bump("A", points=50, noise=10.0), bump("A", points=50, noise=10.0)
    far.flux, far.flux_err, far.mjd = far.flux * 0.1, far.flux_err * 0.1, far.mjd + 300.0
    values, _ = features_of(collect([near, far]))
    shapes = values[:, -count(6) :]
    np.testing.assert_allclose(shapes[0], shapes[1], rtol=1e-3, atol=1e-3)


def test_a_redshift_reaches_features_only_where_it_is_revealed() -> None:
    sky = collect([bump("A", z=0.5)])
    hidden, with_redshift = features_of(sky, "nothing")[0], features_of(sky, "redshift")[0]
    assert hidden.shape == with_redshift.shape
    assert np.nansum(np.abs(np.nan_to_num(hidden) - np.nan_to_num(with_redshift))) > 0.1


def test_a_left_out_model_sees_nothing_of_a_survey_and_an_adapted_one_its_patterns() -> None:
    looks = np.array(["spcc", "spcc", "mallorn", "mallorn", "lowz"])
    origin = np.array(["spcc", "mallorn", "spcc", "mallorn", "cfa3"])
    rows = FeatureRows(
        np.zeros((5, 1), np.float32), np.zeros(5, np.int64), looks, origin, np.array([0, 1, 1, 0, 0], bool)
    )
    assert rows.allowed("left out", GROUPS["des"]).tolist() == [False, False, False, True, True]
    assert rows.allowed("adapted", GROUPS["des"]).tolist() == [False, True, False, True, True]
    assert rows.allowed("left out", GROUPS["near"]).tolist() == [True, True, True, True, False]
    assert rows.allowed("seen", ()).all()


def test_rare_classes_weigh_more_for_each_row_and_less_in_all() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    rows = FeatureRows(
        np.zeros((100, 1), np.float32), labels, np.full(100, "a"), np.full(100, "a"), np.zeros(100, bool)
    )
    weight = weights_of(rows)
    assert weight[95] > weight[0]
    assert weight[labels == 1].sum() < weight[labels == 0].sum()
    assert weight.mean() == pytest.approx(1.0)


def test_rows_hold_no_more_of_a_source_than_asked_and_come_back(tmp_path: Path) -> None:
    raw = part(8, "spcc", "css")
    rows = rows_of(raw, as_views(part(3, "mallorn", "css", seed=50), "spcc"), most=5)
    assert (~rows.view_N).sum() == 10
    assert set(rows.origin_N[rows.view_N].tolist()) == {"spcc"}
    rows.save(tmp_path / "rows.npz")
    np.testing.assert_array_equal(read_rows(tmp_path / "rows.npz").looks_N, rows.looks_N)


def test_sets_only_for_measuring_train_nothing() -> None:
    rows = rows_of(part(4, "tdecat", "css"), as_views(part(2, "spcc", "css", seed=9), "rubin"))
    assert set(rows.origin_N.tolist()) == {"css"}


def test_trees_are_scored_in_columns_and_answer_only_for_what_they_left_out() -> None:
    train, valid = part(40, "spcc", "css"), part(15, "spcc", "css", side=1, seed=100)
    test = part(12, "spcc", "s82_rrlyrae", side=PARTS.index("test"), seed=200)
    parts = {
        "train": rows_of(train, as_views(part(20, "mallorn", "eros1", seed=300), "mallorn")),
        "valid": rows_of(valid, as_views(part(10, "mallorn", "eros1", seed=400), "mallorn")),
    }
    report = trees_report(parts, test, test, seeds=(0, 1), left_out=["rest"], rounds=10)
    trees = report["reports"]["boosted trees"]
    assert set(trees) == {"seen", "left out", "adapted"}
    assert set(trees["seen"]["sets"]) == {"spcc", "s82_rrlyrae"}
    assert set(trees["left out"]["sets"]) == {"s82_rrlyrae"}
    assert trees["seen"]["sets"]["spcc"]["nothing"]["top_1"] > 0.8
    assert "boosted trees, seed 1" in report["reports"]


def test_features_are_worked_out_once() -> None:
    cache, sky = FeatureCache(), part(3, "spcc", "css")
    assert cache.features(sky, "nothing") is cache.features(sky, "nothing")
    assert len(asker({}, cache)(sky, "nothing")) == 0
