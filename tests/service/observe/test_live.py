"""The feed of the live view."""

import json
from typing import Any

import pytest

from nightjar_alerts.core.result import UNCLASSIFIED, Classified, PhotometryWarning, ResultFields, Status
from nightjar_alerts.service.observe.live import (
    MAX_READERS,
    MAX_RECENT,
    MAX_SHOWN,
    MAX_UNUSUAL,
    LiveEvents,
    LiveFeed,
    LiveFilter,
    read_filter,
)
from support.results import classified


class Clock:
    """A clock that is set manually."""

    def __init__(self) -> None:
        self.now = 1_000_000_020.0

    def __call__(self) -> float:
        return self.now


def result(number: int, **changes: Any) -> Classified:
    members = {"object_id": f"o{number}", "survey": "ztf", "confidence": 0.9, "probabilities": {"Ia": 0.9, "II": 0.1}}
    return classified(**members | {"novelty": number % 100 / 100, "unusual": number % 100 > 95} | changes)


def failed(status: Status) -> ResultFields:
    return UNCLASSIFIED[status](object_id="x", reason="no", detail="nothing")


def read(event: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in event.decode().splitlines() if line.startswith("data: ")]


def ids(document: dict[str, Any]) -> list[str]:
    return [each["object_id"] for each in document["results"]]


def test_since_returns_what_came_after_a_number_in_order() -> None:
    feed = LiveFeed()
    feed.publish([result(0), result(1)])
    feed.publish([result(2), failed("rejected"), result(4)])
    document = feed.since(1, LiveFilter(), 2.0)
    assert ids(document) == ["o1", "o2", "o4"]
    assert (document["count"], document["per_second"], document["matching"]) == (4, 1.5, 3)
    assert feed.since(document["count"], LiveFilter(), 1.0)["results"] == []


def test_since_with_many_results_shows_a_sample_with_the_newest_and_counts_all() -> None:
    feed = LiveFeed()
    feed.publish([result(number) for number in range(1234)])
    document = feed.since(0, LiveFilter(), 1.0)
    assert (document["per_second"], document["matching"]) == (1234, 1234)
    assert len(document["results"]) <= MAX_SHOWN
    assert ids(document)[-1] == "o1233"


def test_since_beyond_what_is_held_counts_the_rest() -> None:
    feed = LiveFeed()
    feed.publish([result(number) for number in range(MAX_RECENT + 7)])
    document = feed.since(0, LiveFilter(), 1.0)
    assert (document["count"], document["per_second"], document["matching"]) == (
        MAX_RECENT + 7,
        MAX_RECENT + 7,
        MAX_RECENT,
    )


def test_since_has_the_details_of_results_without_large_members() -> None:
    feed = LiveFeed()
    warnings = [PhotometryWarning(reason="total_flux", detail="looks like total flux")]
    more = {"prediction_set": ["Ia", "II"], "coverage": 0.9, "warnings": warnings}
    feed.publish([result(0, probabilities={"Ia": 0.912345, "II": 0.087655}, embedding=[0.0] * 256, **more), result(1)])
    first, second = feed.since(0, LiveFilter(), 1.0)["results"]
    assert first["probabilities"] == {"Ia": 0.9123, "II": 0.0877}
    assert {name: first[name] for name in more} == more
    assert "embedding" not in first
    assert set(first) - set(second) == set(more)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ([], ["o0", "o1", "o2", "o3"]),
        ([("class", "II")], ["o1"]),
        ([("survey", "lsst")], ["o2"]),
        ([("min_confidence", "0.5")], ["o0", "o1", "o2"]),
        ([("unusual", "true")], ["o3"]),
        ([("min_novelty", "0.03"), ("unusual", "false")], ["o3"]),
    ],
)
def test_filter_selects_results_before_the_sample(parameters: list[tuple[str, str]], expected: list[str]) -> None:
    feed = LiveFeed()
    rows = [result(0), result(1, class_name="II"), result(2, survey="lsst"), result(3, confidence=0.4, unusual=True)]
    feed.publish(rows)
    assert ids(feed.since(0, read_filter(parameters), 1.0)) == expected


@pytest.mark.parametrize(
    "parameters",
    [
        [("klass", "II")],
        [("class", "II"), ("class", "Ia")],
        [("min_confidence", "2")],
        [("min_novelty", "nan")],
        [("unusual", "yes")],
    ],
)
def test_read_filter_of_wrong_parameters_names_them(parameters: list[tuple[str, str]]) -> None:
    with pytest.raises(ValueError, match=parameters[-1][0]):
        read_filter(parameters)


def test_summary_covers_the_last_hour() -> None:
    clock = Clock()
    feed = LiveFeed(clock)
    feed.publish([result(99)])
    clock.now += 3000
    feed.publish([result(number) for number in range(50)] + [result(7, class_name="II")])
    feed.publish([failed("abstained")] * 3)
    summary = feed.summary()
    assert summary["classes"] == {"Ia": 51, "II": 1}
    assert summary["without_class"] == {"abstained": 3}
    assert (summary["per_minute"][-1], summary["per_minute"][-51], sum(summary["per_minute"])) == (51, 1, 52)
    names = [each["object_id"] for each in summary["unusual"]]
    assert names == ["o99", *(f"o{number}" for number in range(49, 49 - MAX_UNUSUAL + 1, -1))]
    clock.now += 1000
    assert feed.summary()["classes"] == {"Ia": 50, "II": 1}
    clock.now += 10_000
    assert feed.summary() == {"classes": {}, "without_class": {}, "per_minute": [0] * 60, "unusual": []}


def test_summary_lists_an_object_with_several_alerts_once() -> None:
    feed = LiveFeed()
    feed.publish([result(98, object_id="same"), result(99, object_id="same"), result(5)])
    assert [(each["object_id"], each["novelty"]) for each in feed.summary()["unusual"]] == [
        ("same", 0.99),
        ("o5", 0.05),
    ]


def test_readers_are_bounded() -> None:
    feed = LiveFeed()
    assert all(feed.add_reader() for _ in range(MAX_READERS))
    assert not feed.add_reader()
    feed.remove_reader()
    assert feed.add_reader()


def test_events_start_with_a_summary_and_the_latest_results() -> None:
    feed = LiveFeed()
    feed.publish([result(number) for number in range(60)])
    events = LiveEvents(feed, LiveFilter())
    summary, results = read(events.next())
    assert summary["classes"] == {"Ia": 60}
    assert (ids(results), results["per_second"]) == ([f"o{number}" for number in range(10, 60)], 0)
    feed.publish([result(60)])
    (results,) = read(events.next())
    assert ids(results) == ["o60"]
    assert results["per_second"] > 0
    assert [len(read(events.next())) for _ in range(5)] == [1, 1, 1, 2, 1]
