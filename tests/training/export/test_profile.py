"""Costs of a network's modules: events added up by module and operator, and a whole bundle timed."""

from typing import Any

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.training.export.profile import profile, summary


def event(name: str, operator: str, microseconds: int) -> dict[str, Any]:
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": microseconds, "args": {"op_name": operator}}


def test_the_quickest_run_of_every_node_counts() -> None:
    events = [
        *(event("network.head/Gemm_1", "Gemm", time) for time in (30, 20, 90)),
        *(event("network.head/Add_1", "Add", time) for time in (5, 5, 6)),
        *(event("network.tail/Add_1/fused", "Add", time) for time in (15, 16, 17)),
        {"cat": "Session", "name": "model_run", "dur": 1000},
    ]
    told = summary(events, 3)
    assert told["nodes"] == 3
    assert told["microseconds"] == 40
    assert told["share_of_products"] == 0.5
    assert told["modules"] == {
        "network.head": {"nodes": 2, "microseconds": 25, "share": 0.625},
        "network.tail": {"nodes": 1, "microseconds": 15, "share": 0.375},
    }
    assert list(told["operators"]) == ["Gemm", "Add"]


def test_a_bundle_is_timed() -> None:
    told = profile(DEFAULT_BUNDLE, 2, 12, rounds=2)
    assert told["nodes"] > 100
    assert told["microseconds"] > 0
    assert 0 < told["share_of_products"] < 1
