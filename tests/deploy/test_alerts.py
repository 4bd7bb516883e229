"""Alert rules: each has a runbook entry and a test that sees it fire, and asks for metrics that exist."""

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from support.dashboard import ROOT, declared, metric_names

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
NAMES = [rule["alert"] for rule in RULES]
OF_PROMETHEUS = {"up", "process_start_time_seconds"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt-get install prometheus)")
def test_rules_fire_when_they_should() -> None:
    command = ["promtool", "test", "rules", "tests/deploy/alerts.yml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_is_seen_to_fire() -> None:
    tests = yaml.safe_load((ROOT / "tests" / "deploy" / "alerts.yml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == set(NAMES)


def test_every_rule_has_a_runbook_entry_and_every_entry_a_rule() -> None:
    runbook = (ROOT / "docs" / "operations.md").read_text().partition("\n## Runbook\n")[2]
    assert re.findall(r"^### (\w+)$", runbook, re.MULTILINE) == NAMES


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_says_how_bad_it_is_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
    assert rule["annotations"]["summary"]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_asks_for_metrics_that_the_service_declares(rule: dict[str, Any]) -> None:
    assert metric_names(rule["expr"]) - declared() - OF_PROMETHEUS == set()
