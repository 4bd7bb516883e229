"""Alert rules: each has a runbook entry and a test that sees it fire, and asks for metrics that exist."""

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from support.dashboard import CONSTANT_FALLBACK, ROOT, declared, metric_names

GROUPS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
NAMES = [rule["alert"] for rule in ALERTS]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
TESTS = ["tests/deploy/alerts.yml", "tests/deploy/alerts_over_days.yml"]
OF_PROMETHEUS = {"up", "process_start_time_seconds", "ALERTS"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt-get install prometheus)")
def test_rules_fire_when_they_should() -> None:
    done = subprocess.run(["promtool", "test", "rules", *TESTS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_is_seen_to_fire() -> None:
    tests = [test for path in TESTS for test in yaml.safe_load((ROOT / path).read_text())["tests"]]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == set(NAMES)


def test_every_rule_has_a_runbook_entry_and_every_entry_a_rule() -> None:
    runbook = (ROOT / "docs" / "operations.md").read_text().partition("\n## Runbook\n")[2]
    assert re.findall(r"^### (\w+)$", runbook, re.MULTILINE) == NAMES


@pytest.mark.parametrize("rule", ALERTS, ids=NAMES)
def test_a_rule_says_how_bad_it_is_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
    assert rule["annotations"]["summary"]


def test_rules_use_metrics_that_are_declared() -> None:
    known = declared() | RECORDED | OF_PROMETHEUS
    assert {
        rule["expr"]: metric_names(rule["expr"]) - known for rule in RULES if metric_names(rule["expr"]) - known
    } == {}


def test_recorded_series_are_used_by_rules() -> None:
    assert set().union(*(metric_names(rule["expr"]) for rule in ALERTS)) >= RECORDED


def test_rules_have_no_constant_fallback() -> None:
    assert [rule["expr"] for rule in RULES if CONSTANT_FALLBACK.search(rule["expr"])] == []


def test_rules_name_a_job_only_for_targets_that_never_responded() -> None:
    assert [rule["alert"] for rule in ALERTS if re.search(r"\bjob=", rule["expr"])] == ["NightjarDown"]
