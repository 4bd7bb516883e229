"""Class names, ids and the hierarchy."""

import numpy as np
import pytest
from pydantic import ValidationError

from nightjar_alerts.models.taxonomy import (
    ELASTICC,
    MALLORN,
    TAXONOMIES,
    ZTF_SUPERNOVAE,
    TaxonClass,
    Taxonomy,
    taxonomy_of,
)


def test_elasticc_has_the_published_ids() -> None:
    ids = dict(zip(ELASTICC.names, ELASTICC.ids, strict=True))
    assert len(ids) == 20
    assert (ids["Ia"], ids["SN-like/Other"], ids["KN"], ids["AGN"], ids["uLens"]) == (2222, 2221, 2232, 2332, 2235)


def test_rollup_sums_leaves_into_every_ancestor() -> None:
    probabilities = np.zeros(20)
    probabilities[ELASTICC.names.index("Ia")] = 0.5
    probabilities[ELASTICC.names.index("II")] = 0.2
    probabilities[ELASTICC.names.index("EB")] = 0.3
    totals = ELASTICC.rollup(probabilities.tolist())
    assert totals["SN-like"] == pytest.approx(0.7)
    assert totals["Periodic"] == pytest.approx(0.3)
    assert totals["Variable"] == pytest.approx(1.0)
    assert totals["Fast"] == 0.0


def test_a_wrong_number_of_probabilities_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        ELASTICC.rollup([1.0])


def test_a_list_of_classes_finds_its_taxonomy() -> None:
    for taxonomy in TAXONOMIES:
        assert taxonomy_of(taxonomy.names) is taxonomy
    other = taxonomy_of(("b", "a"))
    assert (other.names, other.ids) == (("b", "a"), (1, 2))
    assert other.rollup([0.5, 0.5]) == {}
    for names in (("a",), ("a", "a")):
        with pytest.raises(ValidationError):
            taxonomy_of(names)


@pytest.mark.parametrize("taxonomy", [ZTF_SUPERNOVAE, MALLORN])
def test_ids_of_other_surveys_agree_with_those_of_elasticc(taxonomy: Taxonomy) -> None:
    """A class has the id and the group of its namesake, or the first digits of the class it divides or heads."""
    published = {leaf.name: leaf for leaf in ELASTICC.classes}
    for leaf in taxonomy.classes:
        if leaf.name in published and leaf.id == published[leaf.name].id:
            assert leaf.path == published[leaf.name].path
        else:
            digits = str(leaf.id).rstrip("0")
            assert any(
                str(class_id).startswith(digits) or digits.startswith(str(class_id)) for class_id in ELASTICC.ids
            )


def test_names_and_ids_must_be_unique() -> None:
    with pytest.raises(ValidationError, match="unique"):
        Taxonomy(name="x", version="1", classes=(TaxonClass(name="a", id=1), TaxonClass(name="a", id=2)))
