"""The abstention curve against scores of the objects it keeps."""

import numpy as np
import pytest
import sklearn.metrics as sk

from nightjar_alerts.training.metrics import COVERAGES, abstention


@pytest.mark.parametrize("seed", range(3))
def test_every_point_is_the_score_of_the_most_confident(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probabilities_BC, label_B = rng.dirichlet(np.ones(4), 137), rng.integers(0, 4, 137)
    curve = abstention(probabilities_BC, label_B)
    order = sorted(range(137), key=lambda index: -probabilities_BC[index].max())
    for place, coverage in enumerate(COVERAGES):
        answered = order[: int(np.ceil(round(coverage * 137, 9)))]
        predicted = probabilities_BC[answered].argmax(1)
        assert curve.accuracy[place] == pytest.approx(sk.accuracy_score(label_B[answered], predicted))
        assert curve.macro_f1[place] == pytest.approx(sk.f1_score(label_B[answered], predicted, average="macro"))
        assert curve.threshold[place] == probabilities_BC[answered[-1]].max()
        assert curve.classes[place] == len(set(label_B[answered]))


def test_full_coverage_answers_everything() -> None:
    probabilities_BC = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]])
    curve = abstention(probabilities_BC, np.array([0, 0, 1]), (1 / 3, 1.0))
    assert curve.accuracy.tolist() == [1.0, pytest.approx(2 / 3)]
    assert curve.threshold.tolist() == [0.9, 0.6]


def test_one_object_of_one_class() -> None:
    curve = abstention(np.array([[0.2, 0.8]]), np.array([1]))
    assert curve.accuracy.tolist() == [1.0] * len(COVERAGES)


def test_nothing_to_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs objects"):
        abstention(np.zeros((0, 3)), np.zeros(0, dtype=np.int64))
