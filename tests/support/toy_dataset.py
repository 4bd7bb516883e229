"""A small data file whose classes are easy to tell apart: enough for a training loop, quick enough for a test."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.dataset import LabelledObject, write_dataset

TOY_CLASSES = ("AGN", "RR Lyrae", "Ia", "M-dwarf Flare")


def toy_object(number: int, seed: int = 0) -> LabelledObject:
    """One object of class ``TOY_CLASSES[number % 4]``: 8 to 40 points in six bands over 60 days, flux in nJy."""
    rng = np.random.default_rng((seed, number))
    kind = number % len(TOY_CLASSES)
    n = int(rng.integers(8, 40))
    mjd = np.sort(60_000 + rng.uniform(0, 60, n))
    phase = mjd - 60_020
    shapes = (np.sin(phase / 30), np.sin(phase * 11), np.exp(-0.5 * (phase / 8) ** 2), (phase > 0) * np.exp(-phase / 3))
    noise = rng.uniform(80, 120, n)
    flux = 5_000 * (1 + kind) * shapes[kind] + noise * rng.standard_normal(n)
    detected = np.abs(flux) > 5 * noise
    detected[n // 2] = True
    metadata = rng.standard_normal(len(METADATA_COLUMNS)) + kind
    metadata[rng.random(len(metadata)) < 0.2] = np.nan
    return LabelledObject(
        object_id=f"toy-{seed}-{number}",
        class_name=TOY_CLASSES[kind],
        mjd=mjd,
        flux=flux.astype(np.float32),
        flux_err=noise.astype(np.float32),
        band=rng.integers(0, 6, n).astype(np.int8),
        detected=detected,
        trigger_mjd=float(mjd[np.argmax(detected)]),
        metadata=metadata.astype(np.float32),
        redshift=0.0,
    )


def toy_objects(count: int, seed: int = 0) -> Iterator[LabelledObject]:
    """Objects of the toy classes in turn."""
    return (toy_object(number, seed) for number in range(count))


def write_toy_dataset(path: Path, count: int = 200, seed: int = 0) -> Path:
    """Write a toy data file and return its path."""
    write_dataset(path, toy_objects(count, seed))
    return path


TOY_LABELS = tuple(ELASTICC.names.index(name) for name in TOY_CLASSES)
