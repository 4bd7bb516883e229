"""The posterior under other class shares, and what else is known of an object."""

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import AssumedPrior, Manifest, MeasuredPrior, load_bundle
from nightjar_alerts.models.metadata import (
    HOST_BY_CHANCE,
    WRONG_GALAXY,
    WRONG_PARALLAX,
    WRONG_SCORE,
    Context,
    Evidence,
    host_redshift,
    spectroscopic_redshift,
)
from nightjar_alerts.models.posterior import (
    CurveSummary,
    Novelty,
    Posterior,
    PosteriorResult,
    PredictionSets,
    PriorError,
    SetThresholds,
    normalised,
)
from nightjar_alerts.models.taxonomy import ELASTICC

PLAIN = Path(__file__).parents[1] / "assets" / "astro-moe-elasticc-1.2.0"  # assumes equal shares, has no named priors
CLASSES = ELASTICC.names
C = len(CLASSES)
GALACTIC = [CLASSES.index(name) for name in ("Cepheid", "RR Lyrae", "EB", "uLens", "M-dwarf Flare", "Dwarf Novae")]

probabilities = hnp.arrays(
    np.float32, C, elements=st.floats(2.0**-20, 1.0, width=32)
).map(lambda p: (p / p.sum()).astype(np.float32))  # fmt: skip
weights = hnp.arrays(np.float64, C, elements=st.floats(1e-6, 1e6))


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return load_bundle(PLAIN).manifest


def changed(manifest: Manifest, **fields: object) -> Manifest:
    """The manifest with other fields, validated."""
    document: dict[str, Any] = manifest.model_dump(mode="json")
    return Manifest.model_validate({**document, **fields})


def named(values: NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(CLASSES, values.tolist(), strict=True))


def exactly(p_C: NDArray[np.float32], new_C: NDArray[np.float64], old_C: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bayes' rule as it is written, one class at a time, with exact sums."""
    terms = [float(p) * float(new) / float(old) for p, new, old in zip(p_C, new_C, old_C, strict=True)]
    total = math.fsum(terms)
    return np.array([term / total for term in terms])


@given(p_C=probabilities, weight_C=weights)
def test_shares_multiply_the_posterior(p_C: NDArray[np.float32], weight_C: NDArray[np.float64]) -> None:
    posterior = Posterior(MANIFEST)
    found = posterior.apply_prior(p_C, prior=posterior.prior(named(weight_C))).probabilities
    old_C = np.full(C, 1 / C)
    assert found.dtype == np.float64
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(found, exactly(p_C, weight_C / weight_C.sum(), old_C), rtol=1e-9, atol=1e-300)


@given(p_C=probabilities, weight_C=weights, order=st.permutations(range(C)), scale=st.floats(1e-3, 1e3))
def test_neither_order_nor_scale_of_weights_matters(
    p_C: NDArray[np.float32], weight_C: NDArray[np.float64], order: list[int], scale: float
) -> None:
    posterior = Posterior(MANIFEST)
    first = posterior.apply_prior(p_C, prior=posterior.prior(named(weight_C)))
    shuffled = {CLASSES[place]: float(weight_C[place] * scale) for place in order}
    again = posterior.apply_prior(p_C, prior=posterior.prior(shuffled))
    np.testing.assert_allclose(first.probabilities, again.probabilities, rtol=1e-9)
    assert first.classes is not None
    assert again.classes is not None


@given(p_C=probabilities, other_C=probabilities)
@pytest.mark.parametrize("prior", [None, "uniform", "lsst-alerts"])
@pytest.mark.parametrize("coverage", [None, 0.5, 0.9999])
def test_apply_prior_to_each_equals_apply_prior(
    p_C: NDArray[np.float32], other_C: NDArray[np.float32], prior: str | None, coverage: float | None
) -> None:
    posterior = Posterior(MANIFEST)
    p_BC = np.array([p_C, other_C, p_C])
    seen_B = [
        CurveSummary(30, 4, 0.999),
        CurveSummary(3, 1, 0.5, {"z_final": 0.8, "z_final_err": 0.05}),
        CurveSummary(),
    ]
    together = posterior.apply_prior_to_each(p_BC.tolist(), seen_B, posterior.prior(prior), coverage)
    for found, one_C, seen in zip(together, p_BC, seen_B, strict=True):
        alone = posterior.apply_prior(one_C, **seen._asdict(), prior=posterior.prior(prior), coverage=coverage)
        for field in fields(PosteriorResult):
            np.testing.assert_array_equal(getattr(found, field.name), getattr(alone, field.name), field.name)


@given(p_C=probabilities, first_C=weights, second_C=weights)
def test_the_last_prior_counts_alone(
    p_C: NDArray[np.float32], first_C: NDArray[np.float64], second_C: NDArray[np.float64]
) -> None:
    """A bundle that was calibrated under other shares gives the same answer under a given prior."""
    posterior = Posterior(MANIFEST)
    assumed = AssumedPrior(name="first", shares=named(first_C), source="")
    moved = posterior.apply_prior(p_C, prior=posterior.prior(named(first_C))).probabilities
    other = Posterior(MANIFEST.model_copy(update={"prior": assumed}))
    direct = posterior.apply_prior(p_C, prior=posterior.prior(named(second_C))).probabilities
    twice = other.apply_prior(moved.astype(np.float64), prior=other.prior(named(second_C))).probabilities
    np.testing.assert_allclose(twice, direct, rtol=1e-6, atol=1e-30)


def test_without_a_prior_the_answer_is_the_graph_s_own(manifest: Manifest) -> None:
    p_C = np.random.default_rng(1).dirichlet(np.ones(C)).astype(np.float32)
    found = Posterior(manifest).apply_prior(p_C, detections=3, novelty=0.5)
    expected = p_C.astype(np.float64)
    np.testing.assert_array_equal(found.probabilities, expected / expected.sum())
    assert manifest.prediction_sets is not None
    assert found.classes == tuple(manifest.prediction_sets.named(found.probabilities, 3).classes.tolist())


def test_a_class_that_the_map_leaves_out_has_none(manifest: Manifest) -> None:
    posterior = Posterior(manifest)
    p_C = np.full(C, 1 / C, dtype=np.float32)
    found = posterior.apply_prior(p_C, prior=posterior.prior({"Ia": 3.0, "II": 1.0})).probabilities
    assert found[CLASSES.index("Ia")] == pytest.approx(0.75)
    assert np.count_nonzero(found) == 2


def test_a_prior_of_one_class_stands_against_a_graph_that_rules_it_out(manifest: Manifest) -> None:
    posterior = Posterior(manifest)
    p_C = np.zeros(C, dtype=np.float32)
    p_C[0] = 1.0
    found = posterior.apply_prior(p_C, prior=posterior.prior({"KN": 1.0})).probabilities
    assert found[CLASSES.index("KN")] == 1.0


@pytest.mark.parametrize(
    ("weights_given", "pointer", "reason"),
    [
        ({"Ia": 1.0, "SN/Ia": 1.0}, "/SN~1Ia", "unknown_class"),
        ({"Ia": -1.0}, "/Ia", "not_a_weight"),
        ({"Ia": math.nan}, "/Ia", "not_a_weight"),
        ({"Ib/c": math.inf}, "/Ib~1c", "not_a_weight"),
        ({"Ia": 10**400}, "/Ia", "not_a_weight"),
        ({"x" * 1_000_000: 1.0}, "/" + "x" * 60, "unknown_class"),
        ({"Ia": 0.0, "II": 0.0}, "", "no_weight"),
        ({}, "", "no_weight"),
    ],
)
def test_unusable_weights_are_pointed_at(
    manifest: Manifest, weights_given: dict[str, float], pointer: str, reason: str
) -> None:
    with pytest.raises(PriorError) as caught:
        Posterior(manifest).prior(weights_given)
    assert (caught.value.pointer, caught.value.reason) == (pointer, reason)


def test_an_unknown_name_is_answered_with_those_there_are(manifest: Manifest) -> None:
    with pytest.raises(PriorError, match=r"lsst-alerts, uniform, ztf-alerts, ztf-bright") as caught:
        Posterior(manifest).prior("nonsense")
    assert caught.value.reason == "unknown_prior"


def test_huge_weights_do_not_overflow() -> None:
    assert normalised({"a": 1e308, "b": 1e308}, ("a", "b")).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("name", ["uniform", "lsst-alerts", "ztf-alerts", "ztf-bright"])
def test_named_priors_of_the_default_model_sum_to_one(manifest: Manifest, name: str) -> None:
    prior = Posterior(manifest).prior(name)
    assert prior.share_C.sum() == pytest.approx(1.0)
    assert (prior.share_C >= 0).all()


def test_measured_priors_bring_their_own_sets(manifest: Manifest) -> None:
    sets = PredictionSets(
        coverages=(0.9,), default=0.9, groups=(SetThresholds(detections=0, largest=(0.999,), views=9),), split="v"
    )
    measured = MeasuredPrior(measured_on="nine objects", prediction_sets=sets)
    posterior = Posterior(manifest.model_copy(update={"priors": {"lsst-alerts": measured}}))
    p_C = np.full(C, 1 / C, dtype=np.float32)
    found = posterior.apply_prior(p_C, prior=posterior.prior("lsst-alerts"))
    assert found.measured_on == "nine objects"
    assert found.classes is not None
    assert len(found.classes) == np.count_nonzero(1 - found.probabilities <= 0.999)


def test_beyond_the_threshold_no_set_is_stated(manifest: Manifest) -> None:
    p_C = np.full(C, 0.1 / (C - 1), dtype=np.float32)
    p_C[3] = 0.9
    posterior = Posterior(manifest)
    unusual = posterior.apply_prior(p_C, detections=30, novelty=0.999)
    assert unusual.unusual
    assert unusual.classes is None
    assert unusual.coverage is None
    usual = posterior.apply_prior(p_C, detections=30, novelty=0.5)
    assert usual.unusual is False
    assert usual.classes == (3,)


def test_the_threshold_may_depend_on_detections() -> None:
    rule = Novelty(
        threshold=0.9, false_alarm_rate=0.1, split="v", objects=1, reference_objects=1,
        thresholds_by_detections={5: 0.95, 20: 0.99},
    )  # fmt: skip
    assert rule.unusual(0.94, 4)
    assert not rule.unusual(0.94, 5)
    assert not rule.unusual(0.98, 25)


def evidence(*learned: str) -> Evidence:
    return Evidence(CLASSES, Context.model_validate({"learned": learned}))


def factor(metadata: dict[str, float], name: str, *learned: str) -> float:
    found = evidence(*learned).factors(metadata)
    return 1.0 if found is None else math.exp(found.log_C[CLASSES.index(name)])


@pytest.mark.parametrize(("distance", "text"), [(1.25, "passed at 1.2 arcsec"), (0.0, "is at this place")])
@pytest.mark.parametrize("classes", [CLASSES, ("Ia", "II")])
def test_a_solar_system_object_is_evidence_that_changes_no_probability(
    distance: float, text: str, classes: tuple[str, ...]
) -> None:
    found = Evidence(classes, Context()).factors({"solar_system_distance": distance})
    assert found is not None
    assert found.texts == (f"a known Solar System object {text}: the newest detection may be its",)
    assert not found.log_C.any()


def test_a_spectroscopic_redshift_excludes_stars_and_nothing_else() -> None:
    found = evidence().factors({"zspec": 0.3})
    assert found is not None
    assert set(np.flatnonzero(np.isneginf(found.log_C))) >= set(GALACTIC)
    assert found.log_C[CLASSES.index("Ia")] == 0.0
    assert found.log_C[CLASSES.index("AGN")] == 0.0


@pytest.mark.parametrize(
    ("metadata", "excluded"),
    [
        ({"zspec": 0.0005}, False),  # a star of our Galaxy at 150 km/s
        ({"zspec": -0.001}, False),  # Andromeda
        ({"zspec": 0.02, "zspec_err": 0.004}, False),  # within five errors of zero
        ({"zspec": 0.05, "zspec_err": 0.004}, True),
        ({"z_final": 0.4, "z_final_err": 0.001}, True),
        ({"z_final": 0.4, "z_final_err": 0.3}, False),  # a photometric one
        ({"z_final": 0.4}, False),  # nothing says from what
        ({"hostgal_zspec": 0.4}, False),  # of a galaxy, which may be another
    ],
)
def test_only_a_spectrum_of_the_object_itself_excludes(metadata: dict[str, float], excluded: bool) -> None:
    assert (factor(metadata, "RR Lyrae") == 0.0) == excluded


@given(redshift=st.floats(-0.1, 5.0), error=st.floats(0.006, 3.0))
def test_a_wrong_photometric_redshift_costs_a_star_no_more_than_chance(redshift: float, error: float) -> None:
    metadata = {"z_final": redshift, "z_final_err": error}
    assert HOST_BY_CHANCE <= factor(metadata, "RR Lyrae") <= 1.0 + 1e-12
    assert factor(metadata, "Ia") == 1.0


def test_a_star_with_a_wrong_photometric_redshift_stays_a_star(manifest: Manifest) -> None:
    """A network that is sure of a star overrules a galaxy that lies behind it by chance."""
    p_C = np.full(C, 0.02 / (C - 1), dtype=np.float32)
    p_C[CLASSES.index("RR Lyrae")] = 0.98
    posterior = Posterior(manifest.model_copy(update={"context": Context()}))
    found = posterior.apply_prior(p_C, metadata={"z_final": 0.8, "z_final_err": 0.05})
    assert found.probabilities.argmax() == CLASSES.index("RR Lyrae")
    assert found.probabilities.max() < 0.98


def test_a_vague_redshift_says_little() -> None:
    assert factor({"hostgal_zphot": 0.3, "hostgal_zphot_err": 1.5}, "EB") > 0.4
    assert factor({"hostgal_zphot": 0.3, "hostgal_zphot_err": 0.02}, "EB") == pytest.approx(HOST_BY_CHANCE)


def test_evidence_that_the_network_learned_is_not_counted_twice() -> None:
    metadata = {"z_final": 0.3, "z_final_err": 0.05}
    assert factor(metadata, "EB", "redshift") == 1.0
    assert factor({"star_score": 1.0, "star_distance": 0.2}, "Ia", "star") == 1.0
    assert factor({"zspec": 0.3}, "EB", "redshift", "star") == 0.0  # ruling out twice is ruling out


def test_a_catalogue_s_star_speaks_against_galaxies_but_not_quasars() -> None:
    star = {"star_score": 1.0, "star_distance": 0.3}
    assert factor(star, "Ia") == pytest.approx(WRONG_SCORE)
    assert factor(star, "AGN") == 1.0
    assert factor(star, "RR Lyrae") == 1.0
    assert factor({"star_score": 1.0, "star_distance": 2.5}, "Ia") == 1.0
    assert factor({"star_score": 0.0, "star_distance": 0.3}, "RR Lyrae") == pytest.approx(WRONG_GALAXY)
    assert factor({"star_score": 0.5, "star_distance": 0.3}, "Ia") == 1.0
    assert factor({"star_score": -999.0, "star_distance": 0.3}, "Ia") == 1.0


def test_a_parallax_speaks_against_everything_beyond_our_galaxy() -> None:
    assert factor({"parallax": 2.0, "parallax_err": 0.1}, "AGN") == pytest.approx(WRONG_PARALLAX)
    assert factor({"parallax": 2.0, "parallax_err": 0.1}, "RR Lyrae") == 1.0
    assert factor({"parallax": 0.2, "parallax_err": 0.1}, "AGN") == 1.0
    assert factor({"parallax": -3.0, "parallax_err": 0.1}, "AGN") == 1.0
    both = evidence().factors({"zspec": 0.1, "parallax": 5.0, "parallax_err": 0.1})
    assert both is not None
    assert both.texts[-1].endswith("it contradicts the redshift")


def test_numbers_whose_square_is_no_float_are_weighed_all_the_same() -> None:
    assert factor({"parallax": 1.0, "parallax_err": 9e-158}, "AGN") == pytest.approx(WRONG_PARALLAX)
    assert 0 < factor({"hostgal_zphot": 1e200, "hostgal_zphot_err": 0.1}, "RR Lyrae") < 1


@given(
    metadata=st.dictionaries(
        st.sampled_from(["zspec", "zspec_err", "z_final", "z_final_err", "hostgal_zspec", "hostgal_zphot",
                         "hostgal_zphot_err", "parallax", "parallax_err", "star_score", "star_distance"]),
        st.floats(-1e6, 1e6),
    ),
    p_C=probabilities,
    weight_C=weights,
)  # fmt: skip
def test_whatever_is_known_the_posterior_is_one(
    metadata: dict[str, float], p_C: NDArray[np.float32], weight_C: NDArray[np.float64]
) -> None:
    posterior = Posterior(MANIFEST.model_copy(update={"context": Context()}))
    found = posterior.apply_prior(p_C, metadata=metadata, prior=posterior.prior(named(weight_C)))
    assert np.isfinite(found.probabilities).all()
    assert found.probabilities.sum() == pytest.approx(1.0)
    assert (found.probabilities >= 0).all()


def test_a_contradiction_is_told_and_left_out(manifest: Manifest) -> None:
    posterior = Posterior(manifest)
    p_C = np.full(C, 1 / C, dtype=np.float32)
    found = posterior.apply_prior(p_C, metadata={"zspec": 0.5}, prior=posterior.prior({"RR Lyrae": 1.0}))
    assert found.probabilities[CLASSES.index("RR Lyrae")] == 1.0
    assert "contradicts" in found.evidence[0]


def test_taxonomies_without_stars_need_no_evidence() -> None:
    assert Evidence(("Ia", "II"), Context()).factors({"zspec": 0.3}) is None


def test_the_redshift_that_counts() -> None:
    both = {"zspec": 0.1, "z_final": 0.4, "z_final_err": 0.2}
    spectrum = spectroscopic_redshift(both)
    assert spectrum is not None
    assert spectrum.value == 0.1
    host = host_redshift({"hostgal_zspec": 0.2, "hostgal_zphot": 0.9, "hostgal_zphot_err": 0.1})
    assert host is not None
    assert host.value == 0.2


MANIFEST = load_bundle(PLAIN).manifest


def test_a_network_that_rules_out_every_class_is_no_error() -> None:
    (result,) = Posterior(MANIFEST).apply_prior_to_each([[0.0] * C], [CurveSummary()])
    assert not any(result.values)
