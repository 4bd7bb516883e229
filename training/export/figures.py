"""The picture of the model card: a confusion matrix that can be read."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from models.lightcurve import Int64
from training.score.maps import confusion_figure


def draw_confusion(path: Path, confusion_CC: Int64, classes: Sequence[str], title: str) -> None:
    """Write the confusion matrix as a PNG, rows normalised to percent of the true class."""
    support_C1 = confusion_CC.sum(1, keepdims=True)
    percent_CC = 100 * confusion_CC / np.maximum(support_C1, 1)
    confusion_figure(percent_CC, classes, support_C1[:, 0].tolist(), title).savefig(path)
