"""Simulated, labelled light curves of all classes of a survey: the entry point of the simulator.

    from nightjar_alerts.training.simulate.generate import simulate
    simulate(Path("build/sim.parquet"), n_per_class=3000, seed=1, workers=2)

Classes are the 20 of ELAsTiCC: ``rubin`` as observed by Rubin, ``any`` at every brightness, as observed by random
surveys (`training.simulate.anywhere`).

Work is divided into chunks of `CHUNK` objects of one class, each with a random stream derived from (seed, class,
chunk). The output is therefore the same for any number of workers, and a larger set starts with the objects of a
smaller one, class by class. Inside a chunk everything is vectorised over a flat list of visits. Only objects that a
survey would alert on are kept (see `training.simulate.cadence`), without saturated points. docs/populations.md compares
the populations with real ones.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from nightjar_alerts.models.photometry import njy_of_magnitude
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.dataset import LabelledObject, write_dataset
from nightjar_alerts.training.simulate import anywhere, cadence, galactic, host, photometry, transients
from nightjar_alerts.training.simulate.cadence import (
    DEEP_FRACTION,
    SURVEY_NIGHTS,
    SURVEY_START,
    MeasuredPoints,
    Signal,
    Visits,
    objects,
)
from nightjar_alerts.training.simulate.photometry import Floats
from nightjar_alerts.training.simulate.transient_classes import KINDS

VERSION = "2.1.0"  # increased if the same seed gives other objects
CHUNK = 64
SATURATION: Floats = njy_of_magnitude(np.array([14.7, 15.7, 15.8, 15.8, 15.3, 13.9]))  # total flux, one 30 s visit
VARIABLES: dict[str, Callable[[np.random.Generator, Visits, Floats], Signal]] = {
    "AGN": galactic.active_nucleus,
    "Cepheid": galactic.cepheid,
    "Delta Scuti": galactic.delta_scuti,
    "Dwarf Novae": galactic.dwarf_nova,
    "EB": galactic.eclipsing_binary,
    "M-dwarf Flare": galactic.dwarf_flare,
    "RR Lyrae": galactic.rr_lyrae,
    "uLens": galactic.microlensing,
}


Survey = Literal["rubin", "any"]


@dataclass(frozen=True)
class _Task:
    class_index: int
    chunk: int
    count: int
    seed: int
    survey: Survey = "rubin"


def simulate(
    out: Path,
    n_per_class: int,
    seed: int,
    workers: int = 1,
    progress: bool = True,
    *,
    classes: Sequence[str] = (),
    survey: Survey = "rubin",
) -> Path:
    """Write ``n_per_class`` objects of each class to the Parquet file ``out`` and return it.

    Parameters
    ----------
    classes : names of classes to simulate; default: all. Objects do not depend on this choice.

    Raises
    ------
    ValueError
        If a class is not in the taxonomy, the number of objects is 0 or the seed is negative.
    """
    class_names = ELASTICC.names
    if unknown := sorted(set(classes) - set(class_names)):
        raise ValueError(f"no class {', '.join(unknown)}; there are {', '.join(class_names)}")
    names = [name for name in class_names if name in classes or not classes]
    tasks = [
        replace(task, survey=survey)
        for name in names
        for task in _class_tasks(class_names.index(name), n_per_class, seed)
    ]
    about = provenance(dict.fromkeys(names, n_per_class), seed, survey)
    with tqdm(total=n_per_class * len(names), unit="curve", disable=None if progress else True) as bar:

        def counted() -> Iterator[LabelledObject]:
            for chunk in _chunks(tasks, workers):
                bar.update(len(chunk))
                yield from chunk

        write_dataset(out, counted(), classes=class_names, notes=lambda: {"simulation": json.dumps(about)})
    return out


def provenance(counts: Mapping[str, int], seed: int, survey: Survey = "rubin") -> dict[str, Any]:
    """Describe a simulated file, key ``simulation`` of `training.data.dataset.read_notes`.

    It contains everything that is needed to reproduce the file with the same version of the simulator.
    """
    options = {"deep_fraction": DEEP_FRACTION} if survey == "rubin" else {"survey": survey}
    return {
        "simulator": "nightjar_alerts.training.simulate",
        "version": VERSION,
        "seed": seed,
        "objects": dict(counts),
        "options": options,
    }


def simulate_objects(n_per_class: int, seed: int) -> Iterator[LabelledObject]:
    """Yield ``n_per_class`` objects of every class, class by class in taxonomy order."""
    for index in range(len(ELASTICC.names)):
        for task in _class_tasks(index, n_per_class, seed):
            yield from _run(task)


def simulate_class(name: str, n: int, seed: int) -> Iterator[LabelledObject]:
    """Yield the ``n`` objects of class ``name`` that `simulate_objects` yields for the seed."""
    for task in _class_tasks(ELASTICC.names.index(name), n, seed):
        yield from _run(task)


def _class_tasks(class_index: int, n: int, seed: int) -> list[_Task]:
    if n < 1 or seed < 0:
        raise ValueError(f"the number of objects must be at least 1 and the seed at least 0, not {n} and {seed}")
    return [_Task(class_index, chunk, min(CHUNK, n - chunk * CHUNK), seed) for chunk in range(-(-n // CHUNK))]


def _chunks(tasks: list[_Task], workers: int) -> Iterator[list[LabelledObject]]:
    if workers <= 1:
        yield from map(_run, tasks)
        return
    # spawned, not forked: a fork of a process that already runs threads (torch, pyarrow) may deadlock
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_run, tasks)


def _run(task: _Task) -> list[LabelledObject]:
    """Return the first ``task.count`` objects of a chunk, which is always drawn in full rounds of the same size."""
    rng = np.random.default_rng(np.random.SeedSequence(task.seed, spawn_key=(task.class_index, task.chunk)))
    taxon = ELASTICC.classes[task.class_index]
    prefix = (task.seed % 100_000 * 10_000 + taxon.id) * 10_000_000 + task.chunk * CHUNK
    objects: list[LabelledObject] = []
    while len(objects) < task.count:
        if task.survey == "any":
            objects += anywhere.candidates(rng, taxon.name, prefix + len(objects), VARIABLES.get(taxon.name))
        else:
            objects += _round(rng, taxon.name, prefix + len(objects))
    return objects[: task.count]


def _round(rng: np.random.Generator, name: str, first_id: int) -> list[LabelledObject]:
    """Draw 2 `CHUNK` candidates of class ``name`` and return those that a survey would detect."""
    milky_way = photometry.milky_way_dust(rng, 2 * CHUNK, galactic=name not in host.HOSTS)
    visits, signal = _scene(rng, name, milky_way)
    flux, error = cadence.observe(rng, visits, signal.difference, signal.steady)
    usable = signal.difference + signal.steady < SATURATION[visits.band]
    detected = cadence.detect(rng, flux, error) & usable
    inside, trigger = cadence.history(visits, detected)
    metadata = host.metadata(rng, name, signal.redshift, milky_way)
    measured = MeasuredPoints(visits, flux, error, detected, inside & usable, trigger, metadata, signal.redshift)
    return objects(name, first_id, measured)


def _scene(rng: np.random.Generator, name: str, milky_way: Floats) -> tuple[Visits, Signal]:
    """Return the visits of one batch of candidates and their true fluxes."""
    if name not in KINDS:
        visits = cadence.visits(rng, len(milky_way))
        return visits, VARIABLES[name](rng, visits, milky_way)
    events = transients.draw(rng, KINDS[name], milky_way, SURVEY_START - 30.0, SURVEY_START + SURVEY_NIGHTS)
    visits = cadence.visits(rng, len(milky_way), *transients.window(events))
    difference = transients.flux(events, visits)
    return visits, Signal(difference, np.zeros_like(difference), events.redshift)
