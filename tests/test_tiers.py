"""The tiers: what is listed exists, and every test is in `make test`."""

from pathlib import Path

import pytest

from support.tiers import ALONE, CLUSTER, KAFKA, SLOW

TESTS = Path(__file__).parent


@pytest.mark.parametrize("entry", [*SLOW, *ALONE, *(CLUSTER + entry for entry in KAFKA)])
def test_listed_tests_exist(entry: str) -> None:
    file, _, test = entry.partition("::")
    found = [path for path in TESTS.rglob(Path(file).name) if str(path).endswith(file)]
    assert found, "no such file"
    assert not test or any(f"def {test.partition('[')[0]}" in path.read_text() for path in found)


def test_make_test_leaves_nothing_out() -> None:
    makefile = (TESTS.parent / "Makefile").read_text().partition("\ntest:")[2].partition("\n\n")[0]
    assert '-m "not alone"' in makefile
    assert "-m alone" in makefile
