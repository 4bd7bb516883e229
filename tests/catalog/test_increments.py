"""``nightjar catalog --since``: only what is new or changed is classified."""

# ruff: noqa: E402
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is missing: pip install 'nightjar-alerts[tables]'")
pq = pytest.importorskip("pyarrow.parquet")

from nightjar_alerts.catalog.run import CatalogError
from nightjar_alerts.classifier import Classifier
from nightjar_alerts.core.request import Options
from support.catalogs import content, rubin_rows, write_nested, write_observations


def next_night(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of which the first is new, the second has one more source, the third is withdrawn, the last gone."""
    (new,) = rubin_rows(1, seed=9)
    changed, withdrawn, *others = rubin_rows(len(rows))
    sources = changed["diaSource"]
    for name, value in {"midpointMjdTai": 61_130.0, "psfFlux": 900.0, "psfFluxErr": 100.0, "band": "g"}.items():
        sources[name].append(value)
    sources["timeWithdrawnMjdTai"].append(None)
    withdrawn["diaSource"]["timeWithdrawnMjdTai"] = [61_200.0] * len(withdrawn["diaSource"]["band"])
    return [new | {"diaObjectId": 5}, changed, withdrawn, *others[:-1]]


@pytest.fixture
def classified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of inputs of each run."""
    counts: list[int] = []
    original = Classifier.classify_each

    def classify_each(self: Classifier, inputs: Any, options: Any) -> Any:
        counts.append(0)

        def counted() -> Any:
            for each in inputs:
                counts[-1] += 1
                yield each

        return original(self, counted(), options)

    monkeypatch.setattr(Classifier, "classify_each", classify_each)
    return counts


def test_since_equals_a_whole_run_and_classifies_what_changed(
    tmp_path: Path, catalog: Any, classified: list[int]
) -> None:
    rows = rubin_rows(8)
    write_nested(tmp_path / "in" / "a.parquet", rows)
    catalog(tmp_path / "in", "old")
    write_nested(tmp_path / "in" / "a.parquet", next_night(rows))
    summary = catalog(tmp_path / "in", "new", since=tmp_path / "old")
    assert classified[-1] == 2
    assert (summary.unchanged, summary.gone) == (5, 1)
    catalog(tmp_path / "in", "whole")
    new, whole = content(tmp_path / "new"), content(tmp_path / "whole")
    assert new["object_id"] == whole["object_id"]
    assert new["reason"] == whole["reason"]
    assert new["reason"].to_pylist()[2] == "withdrawn"
    assert new["class"].to_pylist()[2] is None
    assert new["class"] == whole["class"]
    assert new["p_Ia"].to_numpy() == pytest.approx(whole["p_Ia"].to_numpy(), abs=2e-5, nan_ok=True)


def test_since_unchanged_file_is_copied(tmp_path: Path, catalog: Any, classified: list[int]) -> None:
    write_nested(tmp_path / "in" / "a.parquet", rubin_rows(3))
    catalog(tmp_path / "in", "old")
    write_nested(tmp_path / "in" / "b.parquet", rubin_rows(2, seed=3))
    summary = catalog(tmp_path / "in", "new", since=tmp_path / "old")
    assert classified == [3, 2]
    assert (summary.rows, summary.unchanged) == (5, 3)
    assert content(tmp_path / "new").slice(0, 3) == content(tmp_path / "old")


def test_since_of_another_model_is_refused_unless_reclassified(
    tmp_path: Path, catalog: Any, classified: list[int]
) -> None:
    write_nested(tmp_path / "in" / "a.parquet", rubin_rows(3))
    catalog(tmp_path / "in", "old")
    model = "astro-moe-elasticc"
    with pytest.raises(CatalogError, match=r"cannot be continued: ztf was .* and is now not given.*--reclassify"):
        catalog(tmp_path / "in", "new", since=tmp_path / "old", model=model)
    catalog(tmp_path / "in", "new", since=tmp_path / "old", model=model, reclassify=True)
    assert classified == [3, 3]


def test_since_of_other_options_is_refused(tmp_path: Path, catalog: Any) -> None:
    write_nested(tmp_path / "in" / "a.parquet", rubin_rows(3))
    catalog(tmp_path / "in", "old")
    with pytest.raises(CatalogError, match=r"coverage was not given and is now 0.5"):
        catalog(tmp_path / "in", "new", since=tmp_path / "old", options=Options(coverage=0.5))


def test_since_of_an_unfinished_catalogue_is_refused(tmp_path: Path, catalog: Any) -> None:
    write_nested(tmp_path / "in" / "a.parquet", rubin_rows(3))
    with pytest.raises(CatalogError, match="not a finished catalogue"):
        catalog(tmp_path / "in", "new", since=tmp_path / "in")


def test_since_numbers_in_a_column_called_object_id_are_found(tmp_path: Path, catalog: Any) -> None:
    for name, count in {"in": 3, "later": 4}.items():
        rows = write_nested(tmp_path / name / "a.parquet", rubin_rows(count))
        names = ["object_id", *pq.read_schema(rows).names[1:]]
        pq.write_table(pq.read_table(rows).rename_columns(names), rows)
    catalog(tmp_path / "in", "old")
    summary = catalog(tmp_path / "later", "new", since=tmp_path / "old")
    assert (summary.unchanged, summary.gone) == (3, 0)


def test_since_columns_that_mean_something_else_is_refused(tmp_path: Path, catalog: Any) -> None:
    path = write_observations(tmp_path / "in" / "a.parquet", rubin_rows(3))
    catalog(tmp_path / "in", "old")
    table = pq.read_table(path)
    pq.write_table(
        table.rename_columns(["mjd" if name == "midpointMjdTai" else name for name in table.column_names]), path
    )
    with pytest.raises(CatalogError, match=r"the columns mean something else: .*columns.time=mjd"):
        catalog(tmp_path / "in", "new", since=tmp_path / "old")


def test_since_failed_rows_are_classified_again(tmp_path: Path, catalog: Any, classified: list[int]) -> None:
    write_nested(tmp_path / "in" / "a.parquet", rubin_rows(3))
    catalog(tmp_path / "in", "old")
    file = tmp_path / "old" / "a.parquet"
    table = pq.read_table(file)
    status = pa.array(["failed", *["classified"] * 2])
    pq.write_table(table.set_column(table.column_names.index("status"), "status", status), file)
    write_nested(tmp_path / "in" / "a.parquet", rubin_rows(4))
    assert catalog(tmp_path / "in", "new", since=tmp_path / "old").unchanged == 2


def test_since_of_packets_does_not_state_what_is_gone(tmp_path: Path, catalog: Any) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("object,mjd,filter,mag,mag_err\nSN1,60310.1,g,19.8,.05\n")
    catalog(tmp_path / "in", "old")
    (tmp_path / "in" / "b.csv").write_text("object,mjd,filter,mag,mag_err\nSN2,60310.1,g,19.8,.05\n")
    assert catalog(tmp_path / "in", "new", since=tmp_path / "old").gone is None
