"""One batch, from waiting light curves to predictions: assemble, run, isolate what fails. Runs in a worker thread.

A run that raises is bisected until the light curve that causes it fails alone, so that one poisonous curve never
costs its batch mates their answers. A row that comes back not finite fails alone as well.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import RaggedBatch, Tokens
from service.inference.failures import InferenceFailed
from service.inference.scheduling import QueueItem

Arrays = dict[str, NDArray[Any]]
RunGraph = Callable[[Arrays], Arrays]
"""Graph inputs to graph outputs, both by name; called from several threads at once."""

EXPERT_LOADS = ("input_expert_load", "expert_load")


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The network's answer for one light curve, and how long it took to get it.

    Attributes
    ----------
    probabilities : float32, shape (classes,).
    embedding : float32, shape (dim,).
    batch_size : light curves in the run that gave the answer.
    queue_seconds, assemble_seconds, run_seconds : waiting for a worker; padding the batch; inference of the batch.
    """

    probabilities: NDArray[np.float32]
    embedding: NDArray[np.float32]
    batch_size: int
    queue_seconds: float
    assemble_seconds: float
    run_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Waiting(QueueItem):
    """A light curve in the engine: its tokens, the future of its answer, its predicted seconds when run alone."""

    tokens: Tokens
    future: asyncio.Future[Prediction]
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class RunReport:
    """What one run of the graph did: for metrics and for the live cost model.

    ``length`` is what the sequences were padded to. ``expert_load`` holds assignments of real tokens to experts by
    graph output name, integers of shape (experts,) or (layers, experts).
    """

    sequences: Sequence[Tokens]
    answers: Sequence["Answer"]
    length: int
    assemble_seconds: float
    run_seconds: float
    expert_load: Mapping[str, NDArray[np.int64]]

    @property
    def size(self) -> int:
        """Light curves in the run."""
        return len(self.sequences)

    @property
    def tokens(self) -> int:
        """Real observations in the run."""
        return sum(map(len, self.sequences))


Answer = Prediction | InferenceFailed


def answer(run: RunGraph, group: Sequence[Waiting]) -> tuple[list[Answer], list[RunReport]]:
    """Answers in the order of ``group``, and a report of every run that succeeded."""
    try:
        report = _run_once(run, group)
        return list(report.answers), [report]
    except Exception as error:  # whatever the runtime raises: its exceptions share no useful base class
        if len(group) == 1:
            failure = InferenceFailed()
            failure.__cause__ = error
            return [failure], []
    middle = len(group) // 2
    first, first_reports = answer(run, group[:middle])
    second, second_reports = answer(run, group[middle:])
    return first + second, first_reports + second_reports


def _run_once(run: RunGraph, group: Sequence[Waiting]) -> RunReport:
    started = monotonic()
    sequences = [entry.tokens for entry in group]
    inputs = RaggedBatch.collate(sequences).padded()
    assembled = monotonic()
    outputs = run(inputs)
    ended = monotonic()
    return RunReport(
        sequences=sequences,
        answers=_split(outputs, group, started, assembled, ended),
        length=inputs["mask"].shape[1],
        assemble_seconds=assembled - started,
        run_seconds=ended - assembled,
        expert_load={name: outputs[name] for name in EXPERT_LOADS if name in outputs},
    )


def _split(outputs: Arrays, group: Sequence[Waiting], started: float, assembled: float, ended: float) -> list[Answer]:
    """Rows of the outputs, copied so that no answer keeps the whole batch in memory."""
    probabilities, embedding = outputs["probabilities"], outputs["embedding"]
    if not len(probabilities) == len(embedding) == len(group):
        raise ValueError(f"the graph answered {len(probabilities)} rows to {len(group)} light curves")
    finite = np.logical_and(np.isfinite(probabilities).all(axis=1), np.isfinite(embedding).all(axis=1))
    return [
        Prediction(
            probabilities=probabilities[row].copy(),
            embedding=embedding[row].copy(),
            batch_size=len(group),
            queue_seconds=started - entry.enqueued,
            assemble_seconds=assembled - started,
            run_seconds=ended - assembled,
        )
        if finite[row]
        else InferenceFailed()
        for row, entry in enumerate(group)
    ]
