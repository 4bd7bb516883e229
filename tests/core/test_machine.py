"""Number of usable cores."""

from pathlib import Path

import pytest

from nightjar_alerts.core.machine import usable_cores


@pytest.mark.parametrize(
    ("limit", "most"),
    [("max 100000\n", 10**6), ("100000 100000\n", 1), ("150000 100000", 1), ("50000 100000", 1), ("nonsense", 10**6)],
)
def test_usable_cores_in_a_container_respects_its_quota(tmp_path: Path, limit: str, most: int) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    assert usable_cores(tmp_path) == min(usable_cores(tmp_path / "none"), most) >= 1
