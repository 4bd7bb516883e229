"""Fixtures of the training tests."""

import pytest

from support.once import common_folder, made_once
from support.pipeline import Pipeline, files_of, run_pipeline


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Products of the debug pipeline, made once a session."""
    return files_of(made_once(common_folder(tmp_path_factory) / "pipeline", run_pipeline))
