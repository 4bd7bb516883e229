"""Steps of a classification, with runs whose results the test gives."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nightjar_alerts.core.adapter import Adapter, ModelInput
from nightjar_alerts.core.classify import Steps, classify, grouped, in_order, overlapped
from nightjar_alerts.core.failures import InferenceFailed
from nightjar_alerts.core.items import OUTSIDE_DOMAIN, Item, Outcome, Prediction, RunResult, Skipped
from nightjar_alerts.core.runner import PendingRuns
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.routing import Route
from support.graphs import curve, echo_manifest


@dataclass(eq=False)
class Model:
    """A model whose runs give every light curve one class; None: every run fails."""

    name: str | None
    runs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bundle = Bundle(Path("echo"), echo_manifest(), "0" * 64)
        self.adapter = Adapter(self.bundle.manifest)


def start(model: Model, inputs: Sequence[ModelInput]) -> PendingRuns:
    model.runs.append(len(inputs))
    outputs = {"probabilities": np.array([name == model.name for name in ELASTICC.names], np.float32)}
    results: list[RunResult] = [InferenceFailed() if model.name is None else Prediction(outputs, 1) for _ in inputs]
    future: Future[list[RunResult]] = Future()
    future.set_result(results)
    return PendingRuns([(range(len(inputs)), future)])


def outcomes_of(items: Sequence[Item], routes: Sequence[Route[Model]]) -> list[Outcome]:
    (outcomes,) = overlapped([classify(items, routes, start)])
    return outcomes


def class_of(outcome: Outcome | None) -> str | None:
    if outcome is None or outcome.prediction is None:
        return None
    return ELASTICC.names[int(outcome.prediction.outputs["probabilities"].argmax())]


def test_classify_sends_each_light_curve_to_its_model_and_keeps_the_order() -> None:
    first, second = Model("AGN"), Model("EB")
    items: list[Item] = [curve(1), curve(2), Skipped("rejected", "nonsense"), curve(3)]
    outcomes = outcomes_of(items, [Route(first), Route(second), Route(first), Route(first)])
    assert list(map(class_of, outcomes)) == ["AGN", "EB", None, "AGN"]
    assert outcomes[2].reason == "nonsense"
    assert (first.runs, second.runs) == ([2], [1])


def test_classify_adds_subtypes_to_possible_supernovae_only() -> None:
    types, supernova, star, failing = Model("Ia"), Model("II"), Model("EB"), Model(None)
    models = [supernova, star, failing, supernova]
    outcomes = outcomes_of([curve(1)] * 4, [Route(model, types) for model in models])
    assert [class_of(outcome.subtype) for outcome in outcomes] == ["Ia", None, None, "Ia"]
    assert [outcome.reason for outcome in outcomes] == ["", "", "inference_failed", ""]
    assert types.runs == [2]


def test_classify_light_curve_outside_every_domain_abstains_without_a_run() -> None:
    model = Model("AGN")
    (outcome,) = outcomes_of([curve(1)], [Route(model, outside="too faint")])
    assert (outcome.status, outcome.reason, outcome.detail) == ("abstained", OUTSIDE_DOMAIN, "too faint")
    assert model.runs == []


def test_in_order_undoes_grouped() -> None:
    groups = grouped("abcab")
    assert groups == {"a": [0, 3], "b": [1, 4], "c": [2]}
    assert "".join(in_order(groups.values(), ["aa", "bb", "c"])) == "abcab"


def block(name: int, pauses: int, log: list[str]) -> Steps[int]:
    try:
        for _ in range(pauses):
            log.append(f"run {name}")
            yield
        return name
    finally:
        log.append(f"end {name}")


def test_overlapped_yields_in_order_and_prepares_the_next_block_first() -> None:
    log: list[str] = []
    assert list(overlapped(block(name, pauses, log) for name, pauses in enumerate([2, 1, 0, 1]))) == [0, 1, 2, 3]
    assert log == ["run 0", "run 1", "run 0", "end 2", "end 0", "end 1", "run 3", "end 3"]


def test_overlapped_closed_by_its_caller_ends_every_block() -> None:
    log: list[str] = []
    results = overlapped(block(name, 1, log) for name in range(9))
    assert next(results) == 0
    results.close()
    assert log == ["run 0", "run 1", "end 0", "end 1"]
