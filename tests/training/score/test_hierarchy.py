"""Scores by level of the taxonomy, against sets of ancestors counted one by one."""

import numpy as np
import pytest
import sklearn.metrics as sk

from nightjar_alerts.models.taxonomy import ELASTICC, TaxonClass, Taxonomy
from nightjar_alerts.training.metrics import (
    SCORES,
    all_scores,
    ancestry,
    hierarchical_f1,
    level_f1,
    levels,
    roll_up,
)

CLASSES = len(ELASTICC.names)
UNEVEN = Taxonomy(
    name="uneven",
    version="1",
    classes=(
        TaxonClass(name="a", id=1, path=("root", "left")),
        TaxonClass(name="b", id=2, path=("root", "left")),
        TaxonClass(name="c", id=3, path=("root",)),
    ),
)


def drawn(seed: int, n: int = 200) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(CLASSES, 0.3), n), rng.integers(0, CLASSES, n)


def test_levels_of_elasticc_from_the_coarsest() -> None:
    coarse, fine = levels(ELASTICC)
    assert coarse.groups == ("Recurring", "Non-Recurring")
    assert set(fine.groups) == {"Non-Periodic", "Long", "Periodic", "Fast", "SN-like"}


def test_a_shallow_leaf_is_its_own_group() -> None:
    (level,) = levels(UNEVEN)
    assert level.groups == ("left", "c")
    assert level.group_C.tolist() == [0, 0, 1]


def test_roll_up_is_that_of_the_taxonomy() -> None:
    probabilities_BC, _ = drawn(0, 7)
    for level in levels(ELASTICC):
        for row, rolled in zip(probabilities_BC, roll_up(probabilities_BC, level), strict=True):
            expected = ELASTICC.rollup(row.tolist())
            assert rolled == pytest.approx([expected[name] for name in level.groups])


@pytest.mark.parametrize("seed", range(3))
def test_f1_of_a_level_agrees_with_scikit_learn(seed: int) -> None:
    probabilities_BC, label_B = drawn(seed)
    for level in levels(ELASTICC):
        predicted_B = roll_up(probabilities_BC, level).argmax(1)
        expected = sk.f1_score(level.group_C[label_B], predicted_B, average="macro")
        assert level_f1(probabilities_BC, label_B, level) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
def test_hierarchical_f1_by_sets_of_ancestors(seed: int) -> None:
    probabilities_BC, label_B = drawn(seed)
    predicted_B = probabilities_BC.argmax(1)
    nodes = [{leaf.name, *leaf.path} - {"Variable"} for leaf in ELASTICC.classes]
    shared = sum(len(nodes[a] & nodes[b]) for a, b in zip(label_B, predicted_B, strict=True))
    precision = shared / sum(len(nodes[b]) for b in predicted_B)
    recall = shared / sum(len(nodes[a]) for a in label_B)
    expected = 2 * precision * recall / (precision + recall)
    assert hierarchical_f1(label_B, predicted_B, ELASTICC) == pytest.approx(expected)


def test_hierarchical_f1_prefers_classes_of_the_same_group() -> None:
    ia, ibc, agn = (np.array([ELASTICC.names.index(name)]) for name in ("Ia", "Ib/c", "AGN"))
    assert hierarchical_f1(ia, ia, ELASTICC) == 1.0
    assert hierarchical_f1(ia, ibc, ELASTICC) == pytest.approx(2 / 3)
    assert hierarchical_f1(ia, agn, ELASTICC) == 0.0


def test_hierarchical_f1_ignores_the_root() -> None:
    assert ancestry(UNEVEN).sum(1).tolist() == [2, 2, 1]


def test_all_scores_of_one_class_and_of_nothing() -> None:
    probabilities_BC, _ = drawn(1, 5)
    alone = all_scores(probabilities_BC, np.zeros(5, dtype=np.int64), ELASTICC)
    assert np.isnan(alone.pop("auroc"))
    assert all(np.isfinite(value) for value in alone.values())
    empty = all_scores(np.zeros((0, CLASSES)), np.zeros(0, dtype=np.int64), ELASTICC)
    assert {*SCORES, "hierarchical_f1"} < empty.keys()
    assert np.isnan(list(empty.values())).all()
