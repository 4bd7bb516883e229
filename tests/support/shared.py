"""Reference data kept outside the repository (real alerts, parity tensors); tests that need it skip without it."""

import os
from pathlib import Path

import pytest

_CANDIDATES = (os.environ.get("NIGHTJAR_TEST_DATA", ""), str(Path(__file__).resolve().parents[3] / "shared"))
SHARED: Path | None = next((Path(c) for c in _CANDIDATES if c and (Path(c) / "parity").is_dir()), None)

needs_shared = pytest.mark.skipif(SHARED is None, reason="no reference data (not published): set NIGHTJAR_TEST_DATA")


def shared(*parts: str) -> Path:
    """Path inside the reference data; call only under ``needs_shared``."""
    assert SHARED is not None
    return SHARED.joinpath(*parts)
