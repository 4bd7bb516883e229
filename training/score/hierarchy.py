"""Scores at every level of the taxonomy: a Type Ia taken for a Type Ib/c is right about "SN-like".

Two readings, both reported:

- macro-F1 of a level: probabilities are summed into the groups of that level (`Taxonomy.rollup`) and the most probable
  group is the prediction, which need not be the group of the most probable leaf;
- hierarchical F1 (Kiritchenko et al. 2006): true and predicted leaf are each replaced by the set of themselves and
  their ancestors; precision and recall count shared members, summed over all objects. The root that everything shares
  is left out, since it would be right for free.

Legend: B objects, C leaf classes, G groups of a level.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import Int64
from models.taxonomy import Taxonomy
from training.score.metrics import Float, confusion, macro_f1, scores


class Level(NamedTuple):
    """Groups of one depth of the taxonomy, and the group of every leaf, int64 (C,)."""

    key: str
    groups: tuple[str, ...]
    group_C: Int64


def levels(taxonomy: Taxonomy) -> list[Level]:
    """Levels above the leaves that hold more than one group, from the coarsest; a shallow leaf is its own group."""
    deepest = max(len(leaf.path) for leaf in taxonomy.classes)
    found = []
    for depth in range(deepest):
        names = [leaf.path[depth] if depth < len(leaf.path) else leaf.name for leaf in taxonomy.classes]
        groups = tuple(dict.fromkeys(names))
        if 1 < len(groups) < len(names):
            group_C = np.array([groups.index(name) for name in names], dtype=np.int64)
            found.append(Level(f"macro_f1_of_{len(groups)}_groups", groups, group_C))
    return found


def roll_up(probabilities_BC: Float, level: Level) -> NDArray[np.float64]:
    """Probability of every group of a level, shape (B, G)."""
    member_CG = np.eye(len(level.groups))[level.group_C]
    return np.asarray(probabilities_BC.astype(np.float64) @ member_CG)


def level_f1(probabilities_BC: Float, label_B: Int64, level: Level) -> float:
    """Macro-F1 over the groups of a level."""
    predicted_B = roll_up(probabilities_BC, level).argmax(1)
    return macro_f1(confusion(level.group_C[label_B], predicted_B, len(level.groups)))


def ancestry(taxonomy: Taxonomy) -> NDArray[np.int64]:
    """Whether a node contains a leaf, int64 (C, nodes): every leaf and every ancestor, roots that hold all left out."""
    names = list(dict.fromkeys(name for leaf in taxonomy.classes for name in (*leaf.path, leaf.name)))
    member = np.array([[name in (*leaf.path, leaf.name) for name in names] for leaf in taxonomy.classes])
    return member[:, ~member.all(0)].astype(np.int64)


def hierarchical_f1(label_B: Int64, predicted_B: Int64, taxonomy: Taxonomy) -> float:
    """Harmonic mean of hierarchical precision and recall, micro-averaged over objects."""
    member = ancestry(taxonomy)
    truth, predicted = member[label_B], member[predicted_B]
    return float(2 * (truth & predicted).sum() / (truth.sum() + predicted.sum()))


def all_scores(probabilities_BC: Float, label_B: Int64, taxonomy: Taxonomy) -> dict[str, float]:
    """Every reported score of one set of predictions; all NaN without objects."""
    found = scores(probabilities_BC, label_B)
    above = levels(taxonomy)
    if not len(label_B):
        return found | dict.fromkeys(["hierarchical_f1", *(level.key for level in above)], float("nan"))
    found["hierarchical_f1"] = hierarchical_f1(label_B, probabilities_BC.argmax(1), taxonomy)
    return found | {level.key: level_f1(probabilities_BC, label_B, level) for level in above}
