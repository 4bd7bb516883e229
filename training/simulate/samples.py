"""The sample alerts that ship with the service: a dozen packets of simulated objects, four per survey layout.

    python -m training.simulate.samples --schemas models/alerts/schemas --out service/samples

Notable: the command reproduces the shipped files, byte for byte on one machine. The objects come from a seed that no
training set uses; its ids also exceed 2^53, which a careless reader would round.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from training.data.dataset import LabelledObject
from training.simulate.generate import simulate_class
from training.simulate.packets import (
    Schema,
    at_ztf_depth,
    elasticc_packet,
    lsst_packet,
    read_schema,
    ztf_name,
    ztf_packet,
)

SEED = 98_765
CANDIDATES = 512  # objects of a class to choose from

Packet: TypeAlias = Callable[[LabelledObject, int, Schema], bytes]


@dataclass(frozen=True)
class Sample:
    """One packet: the alert of detection number ``alert`` (from 1) of the first object with ``points`` before it."""

    class_name: str
    alert: int
    points: int


SAMPLES: dict[str, tuple[Sample, ...]] = {
    "lsst": (Sample("Ia", 1, 0), Sample("II", 12, 25), Sample("SLSN", 20, 40), Sample("AGN", 150, 400)),
    "elasticc": (Sample("KN", 2, 5), Sample("Ib/c", 8, 20), Sample("TDE", 25, 50), Sample("EB", 60, 80)),
    "ztf": (Sample("Ia", 3, 4), Sample("Dwarf Novae", 4, 8), Sample("RR Lyrae", 12, 20), Sample("uLens", 8, 12)),
}
SCHEMAS = {"lsst": "lsst/10.0.avsc", "elasticc": "elasticc/0.9.1.avsc", "ztf": "ztf/4.02.avsc"}


def write_samples(schemas: Path, out: Path) -> list[Path]:
    """Write every sample to ``out`` as ``<survey>_<object>.avro`` and return the paths.

    Raises LookupError when no simulated object fits a sample.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for survey, samples in SAMPLES.items():
        schema = read_schema(schemas / SCHEMAS[survey])
        for number, sample in enumerate(samples):
            source, point = _choose(survey, sample)
            name = ztf_name(source.object_id) if survey == "ztf" else source.object_id
            path = out / f"{survey}_{name}.avro"
            path.write_bytes(_writer(survey, number)(source, point, schema))
            written.append(path)
    return written


def _writer(survey: str, number: int) -> Packet:
    """Return the packet writer of a survey; every second ELAsTiCC sample is in a container."""
    if survey == "elasticc":
        return partial(elasticc_packet, contained=number % 2 == 1)
    return lsst_packet if survey == "lsst" else ztf_packet


def _choose(survey: str, sample: Sample) -> tuple[LabelledObject, int]:
    for source in _candidates(survey, sample.class_name):
        alerts = np.flatnonzero(source.detected)
        if len(alerts) >= sample.alert and (point := int(alerts[sample.alert - 1])) >= sample.points:
            return source, point
    raise LookupError(f"no simulated {sample.class_name} has {sample.alert} detections and {sample.points} points")


def _candidates(survey: str, class_name: str) -> Iterator[LabelledObject]:
    rng = np.random.default_rng(SEED)
    for source in simulate_class(class_name, CANDIDATES, SEED):
        seen = at_ztf_depth(rng, source) if survey == "ztf" else source
        if seen is not None:
            yield seen


def main() -> None:
    """Command line: where the schemas are, where the packets go."""
    parser = argparse.ArgumentParser(description="Write the sample alerts.")
    parser.add_argument(
        "--schemas", type=Path, required=True, help="folder with lsst/, elasticc/ and ztf/ schema files"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the packets")
    arguments = parser.parse_args()
    write_samples(arguments.schemas, arguments.out)


if __name__ == "__main__":
    main()
