"""Multivariate series of the UEA archive: its ``.ts`` files, and ``.npz`` files of the same sets.

    BasicMotions/BasicMotions_TRAIN.ts, ..._TEST.ts     channels separated by ':', the class after the last one
    Epilepsy_mlmts.npz                                  X [series, steps, channels], y; the training block first

Notable: the archive's own split is kept. The ``.npz`` files do not say where it is; it is where the archive's published
counts put it (:data:`NPZ_TRAINING`), and the classes, which are sorted within each block, confirm it.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models.lightcurve import Float32, Int64

NPZ_TRAINING = {"Epilepsy": 137, "RacketSports": 151}


class ArchiveError(ValueError):
    """The folder does not hold the set, or a file of it is malformed."""


class Observed(NamedTuple):
    """The time steps of a series that are kept: ``step`` i64[n], ascending, and ``values`` f32[n, channels]."""

    step: Int64
    values: Float32


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One side of a set: series of equal channels and possibly unequal length, and class indices."""

    observed: tuple[Observed, ...]
    label: Int64

    def __len__(self) -> int:
        return len(self.observed)


@dataclass(frozen=True, slots=True, eq=False)
class SeriesSet:
    """A set with the archive's split."""

    name: str
    classes: tuple[str, ...]
    train: Series
    test: Series

    @property
    def channels(self) -> int:
        """Channels of every series."""
        return int(self.train.observed[0].values.shape[1])


def read_set(folder: Path, name: str) -> SeriesSet:
    """Read a set from its ``.ts`` files or, where there are none, from its ``.npz`` file.

    Raises
    ------
    ArchiveError
        When neither is there, or a file is malformed.
    """
    sides = [folder / name / f"{name}_{side}.ts" for side in ("TRAIN", "TEST")]
    if all(path.exists() for path in sides):
        (train_values, train_names), (test_values, test_names) = (_read_ts(path) for path in sides)
    elif (path := folder / f"{name}_mlmts.npz").exists():
        (train_values, train_names), (test_values, test_names) = _read_npz(path, name)
    else:
        raise ArchiveError(f"{folder} has no set {name}")
    classes = tuple(sorted(set(train_names)))
    return SeriesSet(
        name, classes, _series(train_values, train_names, classes), _series(test_values, test_names, classes)
    )


def drop_steps(data: SeriesSet, share: float, seed: int) -> SeriesSet:
    """Take away a share of the time steps of every series, all channels of a step together, once and for all."""
    rng = np.random.default_rng(seed)
    return replace(data, train=_dropped(data.train, share, rng), test=_dropped(data.test, share, rng))


def standardise(data: SeriesSet) -> SeriesSet:
    """Give every channel mean 0 and standard deviation 1 over the observed training steps."""
    values = np.concatenate([observed.values for observed in data.train.observed]).astype(np.float64)
    mean, deviation = values.mean(0), values.std(0)
    deviation[deviation == 0] = 1.0

    def scaled(series: Series) -> Series:
        parts = (Observed(o.step, ((o.values - mean) / deviation).astype(np.float32)) for o in series.observed)
        return Series(tuple(parts), series.label)

    return replace(data, train=scaled(data.train), test=scaled(data.test))


def _dropped(series: Series, share: float, rng: np.random.Generator) -> Series:
    parts = []
    for observed in series.observed:
        count = len(observed.step)
        kept = np.sort(rng.permutation(count)[: max(1, count - round(share * count))])
        parts.append(Observed(observed.step[kept], observed.values[kept]))
    return Series(tuple(parts), series.label)


def _series(values: list[Float32], names: list[str], classes: tuple[str, ...]) -> Series:
    if unknown := sorted(set(names) - set(classes)):
        raise ArchiveError(f"classes {', '.join(unknown)} are in the test block only")
    label = np.array([classes.index(name) for name in names], dtype=np.int64)
    return Series(tuple(Observed(np.arange(len(value)), value) for value in values), label)


def _read_ts(path: Path) -> tuple[list[Float32], list[str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.strip().lower() == "@data"]
    if not starts:
        raise ArchiveError(f"{path} has no @data")
    values, names = [], []
    for line in filter(None, lines[starts[0] + 1 :]):
        *channels, name = line.split(":")
        values.append(_channels(path, channels))
        names.append(name.strip())
    return values, names


def _channels(path: Path, channels: list[str]) -> Float32:
    columns = [np.array(channel.split(","), dtype=np.float32) for channel in channels]
    if len({len(column) for column in columns}) != 1:
        raise ArchiveError(f"{path}: a series without channels, or with channels of unequal length")
    return np.stack(columns, axis=1)


def _read_npz(path: Path, name: str) -> tuple[tuple[list[Float32], list[str]], tuple[list[Float32], list[str]]]:
    if name not in NPZ_TRAINING:
        raise ArchiveError(f"{path}: nothing says how many of its series are for training")
    with np.load(path) as stored:
        values = list(stored["X"].astype(np.float32))
        names = [str(int(label)) for label in stored["y"]]
    cut = NPZ_TRAINING[name]
    return (values[:cut], names[:cut]), (values[cut:], names[cut:])
