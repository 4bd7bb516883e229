"""A classifier for the expected results, and a run in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: pip install 'nightjar-alerts[tables]'")

from nightjar_alerts import Classifier
from nightjar_alerts.catalog.run import Request, Summary, run
from nightjar_alerts.catalog_command import ProgressBar

Run = Callable[..., Summary]


@pytest.fixture(scope="session")
def classifier() -> Classifier:
    return Classifier()


@pytest.fixture
def catalog(tmp_path: Path) -> Run:
    """Run in this process: ``catalog(input, "output", flat=...)``."""

    def classify(source: Path, output: str = "out", **options: Any) -> Summary:
        return run(Request(str(source), tmp_path / output, **options), ProgressBar(quiet=True))

    return classify
