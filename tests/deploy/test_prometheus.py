"""A real Prometheus scrapes a real service and a real worker under load and faults: every panel has data."""

import math
import shutil
import time

import pytest

from deploy.monitoring import Prometheus, copy_bundle, scaled, scene
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from support.dashboard import queries

PATIENCE_SECONDS = 900.0
SECONDS = {"m": 0.5, "h": 5.0, "d": 10.0}
"""A day is short, since one panel compares today with yesterday."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Prometheus is not installed (apt-get install prometheus)"
    ),
    pytest.mark.skipif(
        shutil.which("redis-server") is None, reason="Redis is not installed (apt-get install redis-server)"
    ),
]


def has_data(prometheus: Prometheus, query: str) -> bool:
    """Whether a query returns a number."""
    return any(math.isfinite(float(series["value"][1])) for series in prometheus.query(scaled(query, SECONDS)))


def test_every_panel_has_data_under_load_and_faults() -> None:
    missing = dict(queries())
    give_up = time.monotonic() + PATIENCE_SECONDS
    with scene(DEFAULT_BUNDLE) as running:
        copy_bundle(DEFAULT_BUNDLE, running.repository / "damaged", "999.0.0", damage=True)
        running.sink.kill()
        while missing and time.monotonic() < give_up:
            time.sleep(1)
            missing = {title: query for title, query in missing.items() if not has_data(running.prometheus, query)}
            if not any("retries" in query for query in missing.values()):
                running.sink.start()
    assert missing == {}
