"""Layouts of public tables are read without an option, as arithmetic from their documentation says."""

import numpy as np
import pytest

from nightjar_alerts.tables import TableOptions, read_table
from support.table_corpus import CORPUS, NOT_OPENED, Entry


def test_corpus_has_at_least_sixty_layouts() -> None:
    assert len({entry.name for entry in CORPUS}) >= 60
    assert all(entry.source.startswith("http") for entry in CORPUS)
    assert sum(entry.opened != NOT_OPENED for entry in CORPUS) >= 70


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.name)
def test_read_table_public_layout_is_read_as_documented(entry: Entry) -> None:
    table = read_table(entry.text().encode(), TableOptions(**entry.options), name=entry.file)  # type: ignore[arg-type]
    items = list(table)
    assert tuple(item.object_id for item in items) == entry.objects
    (item,) = items
    keep = item.usable()
    expected = entry.points()
    assert list(item.band[keep]) == [band for band, *_ in expected]
    np.testing.assert_allclose(item.mjd[keep], [mjd for _, mjd, *_ in expected], rtol=0, atol=2e-6)
    np.testing.assert_allclose(item.flux[keep], [flux for *_, flux, _ in expected], rtol=2e-4)
    np.testing.assert_allclose(item.flux_err[keep], [error for *_, error in expected], rtol=1e-3)
    assert int((~keep).sum()) == entry.left_out
