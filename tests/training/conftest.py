"""Fixtures of the training room."""

import pytest

from support.pipeline import Pipeline, run_pipeline


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Products of the debug pipeline, made once a session."""
    return run_pipeline(tmp_path_factory.mktemp("pipeline"))
