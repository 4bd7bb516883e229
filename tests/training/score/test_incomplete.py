"""Tables of incomplete light curves: the points of each row, and the pattern score."""

import numpy as np
import pytest

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.models.lightcurve import Limits, RaggedBatch, featurise
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.drawn import drawn_sample
from nightjar_alerts.training.data.sample import LABELS, PARTS, Sample, collect
from nightjar_alerts.training.score.incomplete import (
    SUBSETS,
    band_table,
    early_table,
    flat_table,
    metadata_changes,
    pattern_score,
    rare_table,
)
from nightjar_alerts.training.score.report import ServedPredictions
from nightjar_alerts.training.score.survey_scores import open_bundle
from support.surveys import bump

IA, II = (ELASTICC.names.index(name) for name in ("Ia", "II"))
TEST = PARTS.index("test")


def sky(**changes: object) -> Sample:
    rows = [bump(f"S{number}", source="snls", seed=number, z=0.3, **changes) for number in range(4)]  # type: ignore[arg-type]  # options of bump
    return collect(rows, [row.object_id for row in rows], [TEST] * len(rows))


def always_ia(shown: list[Sample]) -> object:
    def predict(objects: Sample) -> ServedPredictions:
        shown.append(objects)
        p_NC = np.full((len(objects), len(ELASTICC.names)), 0.1 / 19)
        p_NC[:, IA] = 0.9
        usual = np.zeros(len(objects), np.bool_)
        return ServedPredictions(np.arange(len(objects)), p_NC, p_NC > 0.5, np.zeros(len(objects)), usual, usual)

    return predict


def test_band_table_every_row_shows_its_bands_alone() -> None:
    shown: list[Sample] = []
    table = band_table(always_ia(shown), sky(bands="griz"))  # type: ignore[arg-type]  # a plain function
    assert set(table) == {"all", *SUBSETS}
    assert table["iz"]["SN-like"]["recall"] == {"Ia": 1.0}
    assert table["zY"] == {}, "a pair needs points in both of its bands"
    assert {"".join("ugrizY"[n] for n in np.unique(objects.band)) for objects in shown} >= {
        "g",
        "gr",
        "iz",
        "gri",
        "griz",
    }


def with_supernova_probabilities(p_N: list[float]) -> object:
    def predict(objects: Sample) -> ServedPredictions:
        p_NC = np.full((len(objects), len(ELASTICC.names)), 0.01)
        p_NC[:, ELASTICC.names.index("SLSN")] = p_N
        usual = np.zeros(len(objects), np.bool_)
        return ServedPredictions(np.arange(len(objects)), p_NC, p_NC > 0.5, np.zeros(len(objects)), usual, usual)

    return predict


def two_superluminous_of_four() -> Sample:
    names = ("SLSN", "Ia", "SLSN", "Ia")
    return collect([bump(f"S{i}", source="snls", seed=i, label=LABELS[name]) for i, name in enumerate(names)])


def test_rare_table_ranked_objects_have_precision_and_completeness() -> None:
    table = rare_table(with_supernova_probabilities([0.9, 0.8, 0.7, 0.1]), two_superluminous_of_four())  # type: ignore[arg-type]  # a plain function
    assert set(table) == {"SLSN"}, "no other rare class has an object"
    assert set(table["SLSN"]) == {"3 days", "10 days", "30 days", "complete"}
    complete = table["SLSN"]["complete"]
    assert complete["average_precision"] == pytest.approx((1 / 1 + 2 / 3) / 2), "the mean purity at each true one"
    assert complete["completeness"] == {"0.5": 1.0, "0.8": 0.5}
    assert (complete["objects"], complete["share"]) == (2, 0.5)


def test_rare_table_purity_out_of_reach_has_completeness_zero() -> None:
    table = rare_table(with_supernova_probabilities([0.1, 0.8, 0.2, 0.9]), two_superluminous_of_four())  # type: ignore[arg-type]  # a plain function
    assert table["SLSN"]["complete"]["completeness"] == {"0.5": 1.0, "0.8": 0.0}


def test_early_table_ends_at_the_detection_of_its_row() -> None:
    shown: list[Sample] = []
    early_table(always_ia(shown), sky(bands="gr"))  # type: ignore[arg-type]  # a plain function
    counts = [objects.count(objects.detected) for objects in shown]
    assert (counts[0] == 1).all()
    assert (counts[2] == 3).all()


def test_flat_table_shows_constant_flux_in_the_first_detections() -> None:
    shown: list[Sample] = []
    table = flat_table(always_ia(shown), sky(bands="gr"))  # type: ignore[arg-type]  # a plain function
    assert set(shown[0].lengths) == {3}
    for objects, ratio in zip(shown, (5.0, 20.0), strict=False):
        error = np.repeat([np.median(objects.flux_err[objects.points(n)]) for n in range(4)], objects.lengths)
        assert np.abs((objects.flux - ratio * error) / objects.flux_err).max() < 5
    row = table["3 detections, flux 5 times the error"]
    assert (row["objects"], row["supernova"], row["ia"], row["sure_ia"], row["withheld"]) == (4, 1.0, 1.0, 1.0, 0.0)


def test_metadata_changes_of_the_bundled_model_are_shares() -> None:
    changes = metadata_changes(open_bundle(DEFAULT_BUNDLE), sky(bands="griz"))
    assert {row["objects"] for row in changes.values()} == {4}
    assert all(0 <= row["median change"] <= 1 for row in changes.values())


def light_curves(bands_of: dict[int, str], number: int, seed: int) -> Sample:
    rng = np.random.default_rng(seed)
    tokens, labels = [], []
    for place in range(number):
        label = (IA, II)[place % 2]
        row = bump(f"S{place}", source="snls", seed=int(rng.integers(1_000_000)), z=0.3, bands=bands_of[label])
        curve = collect([row], ["S"], [TEST]).curve(0, "nothing")
        tokens.append(featurise(curve, Limits(), "FLUXCAL", METADATA_COLUMNS))
        labels.append(label)
    return drawn_sample(
        RaggedBatch.collate(tokens), np.array(labels), np.full(number, "snls"), np.arange(number, dtype=np.int64)
    )


@pytest.mark.parametrize(
    ("bands", "least", "most"), [({IA: "gr", II: "iz"}, 0.9, 1.0), ({IA: "gr", II: "gr"}, 0.2, 0.8)]
)
def test_pattern_score_is_high_where_bands_name_the_class(bands: dict[int, str], least: float, most: float) -> None:
    scores = pattern_score(light_curves(bands, 200, 0), light_curves(bands, 100, 1))
    assert least <= scores["balanced_accuracy"] <= most
