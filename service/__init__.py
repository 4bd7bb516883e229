"""The service: HTTP and stream worker, from light curves and alert packets to class probabilities and embeddings."""

from pathlib import Path
from typing import Final

SAMPLES: Final = Path(__file__).resolve().parent / "samples"
"""Alert packets shipped with the package."""
