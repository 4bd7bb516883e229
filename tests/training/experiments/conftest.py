"""`make test` runs a small test of each published experiment, `make nightly PART=experiments` the others."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SMALL = (
    "test_astro_moe.py::test_each_arm_changes_one_thing_and_shares_the_rest",
    "test_attention.py::test_a_run_prints_a_row_and_records_each_kind",
    "test_catalina.py::test_a_window_holds_the_first_observations",
    "test_encodings.py::test_pretraining_batches_are_a_function_of_seed_and_step",
    "test_interpolation.py::test_the_plan_is_the_published_run",
    "test_mallorn.py::test_labelled_objects_are_in_njy_with_redshift_and_extinction",
    "test_pendulum.py::test_one_frame_is_a_hundred_semi_implicit_steps",
    "test_position.py::test_a_run_ends_in_a_record",
    "test_results.py::",
    "test_spirals.py::test_curves_are_the_definition_point_by_point",
    "test_uea.py::test_padding_is_at_the_end_and_positions_are_step_numbers",
    "test_uea_archive.py::test_ts_files_of_unequal_length",
)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder that is not in :data:`SMALL` as nightly."""
    for item in items:
        if FOLDER in item.path.parents and not item.nodeid.rpartition("/")[2].startswith(SMALL):
            item.add_marker(pytest.mark.nightly)
