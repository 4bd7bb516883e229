"""The record of a run: what was measured, and how each test ended; ``make containers`` keeps it in docs/results."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.bench.report import run_facts
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from support.containers import ENGINE, engine

_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep how each test ended, with the reason where it was skipped."""
    if "tests/containers/" not in report.nodeid or (report.passed and report.when != "call"):
        return
    reason = f": {report.longrepr[2]}" if report.skipped and isinstance(report.longrepr, tuple) else ""
    _outcomes[report.nodeid.partition("tests/containers/")[2]] = report.outcome + reason


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, Any]]:
    """Figures by name, written with the outcomes to the file that ``NIGHTJAR_CONTAINER_RECORD`` names."""
    found: dict[str, Any] = {}
    yield found
    if path := os.environ.get("NIGHTJAR_CONTAINER_RECORD"):
        versions = {"engine": f"{ENGINE} {engine('version', '--format', '{{.Client.Version}}')}"}
        record = (
            run_facts(DEFAULT_BUNDLE)
            | versions
            | dict(sorted(found.items()))
            | {"tests": dict(sorted(_outcomes.items()))}
        )
        Path(path).write_text(json.dumps(record, indent=1) + "\n")
