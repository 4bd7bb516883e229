"""``nightjar catalog`` on folders of Parquet and of packets: the columns, and what is not classified."""

# ruff: noqa: E402
import contextlib
import errno
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is missing: pip install 'nightjar-alerts[tables]'")
pq = pytest.importorskip("pyarrow.parquet")

from nightjar_alerts import Classifier
from nightjar_alerts.catalog.columns import Columns
from nightjar_alerts.catalog.partition import MAX_NOTES, MORE, Notes, add_note
from nightjar_alerts.catalog.run import STATE, CatalogError, Summary
from nightjar_alerts.catalog_command import main
from nightjar_alerts.core.request import Options
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.tables import TableError, TableOptions
from support.alerts import container, lsst_alert, schema
from support.catalogs import COMMAND, content, nested_folder, rubin_rows, write_nested, write_observations, ztf_rows


def expected(classifier: Classifier, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of each row by its name, of a call with arrays."""
    found = classifier.classify(
        [
            {
                "object_id": str(row["diaObjectId"]),
                "mjd": row["diaSource"]["midpointMjdTai"],
                "flux": row["diaSource"]["psfFlux"],
                "flux_err": row["diaSource"]["psfFluxErr"],
                "band": row["diaSource"]["band"],
            }
            for row in rows
        ]
    )
    return {result.object_id: result for result in found}


def check(table: Any, results: dict[str, Any]) -> None:
    """Check every row of a table of classes against results."""
    rows = table.to_pylist()
    assert [row["object_id"] for row in rows] == list(results)
    for row in rows:
        result = results[row["object_id"]]
        assert row["class"] == result.class_name
        assert row["status"] == "classified"
        assert row["prediction_set"] == result.prediction_set
        assert row["p_Ia"] == pytest.approx(result.probabilities["Ia"], abs=2e-5)
        assert row["novelty"] == pytest.approx(result.novelty, abs=2e-3)
        assert row["points_g"] == result.points_per_band.get("g", 0)
        assert row["model_sha256"] == result.model.sha256


def test_catalog_nested_folder_has_the_classes_of_classifier(tmp_path: Path, catalog: Any, classifier: Any) -> None:
    source = nested_folder(tmp_path / "in", [30, 20])
    summary = catalog(source)
    assert summary.counts == {("classified", ""): 50}
    assert sorted(path.name for path in (tmp_path / "out").glob("*.parquet")) == [
        "night-00.parquet",
        "night-01.parquet",
    ]
    check(content(tmp_path / "out"), expected(classifier, rubin_rows(50)))


def test_catalog_nested_rows_keep_names_and_positions_of_the_input(tmp_path: Path, catalog: Any) -> None:
    rows = rubin_rows(3)
    write_nested(tmp_path / "in" / "a.parquet", rows)
    catalog(tmp_path / "in")
    table = content(tmp_path / "out")
    assert table["diaObjectId"].to_pylist() == [row["diaObjectId"] for row in rows]
    assert table["ra"].to_pylist() == [row["ra"] for row in rows]


@pytest.mark.parametrize("scale", [0, 1])
def test_catalog_names_that_are_decimals_are_kept(tmp_path: Path, catalog: Any, scale: int) -> None:
    path = write_nested(tmp_path / "in" / "a.parquet", [row | {"diaObjectId": 1234} for row in rubin_rows(1)])
    table = pq.read_table(path)
    names = table["diaObjectId"].cast(pa.decimal128(30, scale))
    pq.write_table(table.set_column(0, "diaObjectId", names), path)
    assert catalog(tmp_path / "in").failed == []
    (row,) = content(tmp_path / "out").to_pylist()
    assert (row["object_id"], row["diaObjectId"]) == ("1234", 1234)


@pytest.mark.parametrize("name", ["n" * 246, "ü" * 123, "v1." + "n" * 243, ".".join("abcdefgh" * 12)])
def test_catalog_long_name_of_a_file_is_kept(tmp_path: Path, catalog: Any, name: str) -> None:
    write_nested(tmp_path / "in" / f"{name}.parquet", rubin_rows(1))
    assert catalog(tmp_path / "in").failed == []
    assert (tmp_path / "out" / f"{name}.parquet").exists()


def test_catalog_table_of_observations_has_a_row_for_each_object(tmp_path: Path, catalog: Any, classifier: Any) -> None:
    rows = rubin_rows(20)
    write_observations(tmp_path / "in" / "a.parquet", rows)
    catalog(tmp_path / "in")
    table = content(tmp_path / "out")
    check(table, expected(classifier, rows))
    assert table["ra"].to_pylist() == pytest.approx([row["ra"] for row in rows])


def test_catalog_row_without_a_class_has_the_reason(tmp_path: Path, catalog: Any) -> None:
    rows = rubin_rows(4)
    rows[0] |= {"diaObjectId": 0, "ssObjectId": 77}
    rows[1]["diaSource"]["timeWithdrawnMjdTai"] = [61_200.0] * len(rows[1]["diaSource"]["band"])
    rows[2] |= {"diaObjectId": 0}
    write_nested(tmp_path / "in" / "a.parquet", rows)
    catalog(tmp_path / "in")
    table = content(tmp_path / "out")
    assert table["reason"].to_pylist() == ["solar_system_object", "withdrawn", "no_object_id", None]
    assert table["status"].to_pylist() == ["abstained"] * 3 + ["classified"]
    assert table["class"].to_pylist()[:3] == [None] * 3


def test_catalog_observations_without_an_object_are_counted_in_a_row(tmp_path: Path, catalog: Any) -> None:
    rows = rubin_rows(3)
    rows[0] |= {"diaObjectId": 0, "ssObjectId": 77}
    write_observations(tmp_path / "in" / "a.parquet", rows)
    catalog(tmp_path / "in")
    last = content(tmp_path / "out").to_pylist()[-1]
    assert (last["reason"], last["observations"]) == ("solar_system_object", len(rows[0]["diaSource"]["band"]))


def test_catalog_object_in_two_files_of_observations_is_counted(tmp_path: Path, catalog: Any) -> None:
    rows = rubin_rows(3)
    write_observations(tmp_path / "in" / "a.parquet", rows)
    write_observations(tmp_path / "in" / "b.parquet", rows[:1])
    assert catalog(tmp_path / "in").repeated == 1


def test_catalog_rows_of_one_name_stay_apart(tmp_path: Path, catalog: Any) -> None:
    rows = rubin_rows(2)
    rows[1]["diaObjectId"] = rows[0]["diaObjectId"]
    write_nested(tmp_path / "in" / "a.parquet", rows)
    catalog(tmp_path / "in")
    lengths = [len(row["diaSource"]["band"]) for row in rows]
    assert content(tmp_path / "out")["observations"].to_pylist() == lengths


def test_catalog_object_metadata_is_that_of_the_row(tmp_path: Path, catalog: Any) -> None:
    rows = rubin_rows(2)
    write_nested(tmp_path / "in" / "a.parquet", rows)
    known = {str(rows[1]["diaObjectId"]): {"zspec": 0.02}}
    catalog(tmp_path / "in", "plain")
    catalog(tmp_path / "in", "known", table_options=TableOptions(object_metadata=known))
    plain, with_redshift = (content(tmp_path / name)["p_Ia"].to_pylist() for name in ("plain", "known"))
    assert plain[0] == pytest.approx(with_redshift[0], abs=2e-5)
    assert plain[1] != pytest.approx(with_redshift[1], abs=1e-4)


def test_catalog_embedding_adds_a_column(tmp_path: Path, catalog: Any, classifier: Any) -> None:
    catalog(nested_folder(tmp_path / "in", [3]), options=Options(embedding=True))
    (first, *_) = content(tmp_path / "out")["embedding"].to_pylist()
    assert len(first) > 8


def packet(number: int) -> bytes:
    alert = lsst_alert()
    alert["diaSourceId"] = 10**17 + number
    return container(schema("lsst/10.0"), [alert])


@pytest.mark.parametrize("in_archive", [False, True])
def test_catalog_packets_have_a_row_each(tmp_path: Path, catalog: Any, in_archive: bool) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.avro").write_bytes(packet(number))
    (folder / "bad.avro").write_bytes(b"Obj\x01 and no more")
    if in_archive:
        with tarfile.open(tmp_path / "night.tar", "w") as archive:
            archive.add(folder, "alerts")
        folder = tmp_path / "night.tar"
    catalog(folder)
    table = content(tmp_path / "out")
    assert len(table) == 4
    assert sorted(table["status"].to_pylist())[-1] == "rejected"
    assert all(source for source in table["source"].to_pylist())
    assert len({name for name in table["alert_id"].to_pylist() if name}) == 3


def test_catalog_warnings_are_those_of_classifier(tmp_path: Path, catalog: Any, classifier: Any) -> None:
    rows = rubin_rows(3)
    write_observations(tmp_path / "in" / "a.parquet", [*rows, rows[0]])
    catalog(tmp_path / "in", table_options=TableOptions(survey="lssst"), flat=tmp_path / "flat.parquet")
    wanted = [row["warnings"] for row in classifier.classify(tmp_path / "in" / "a.parquet", survey="lssst").rows()]
    assert content(tmp_path / "out")["warnings"].to_pylist() == wanted
    assert pq.read_table(tmp_path / "flat.parquet")["warnings"].to_pylist() == [";".join(each) for each in wanted]
    assert all("unknown_survey" in each for each in wanted)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_catalog_flat_has_all_rows_without_lists(tmp_path: Path, catalog: Any, suffix: str) -> None:
    from pyarrow import csv

    catalog(nested_folder(tmp_path / "in", [4, 3]), flat=tmp_path / f"flat{suffix}")
    table = (csv.read_csv if suffix == ".csv" else pq.read_table)(tmp_path / f"flat{suffix}")
    assert len(table) == 7
    assert not any(pa.types.is_nested(kind) for kind in table.schema.types)
    assert str(table["object_id"][0]) == str(10**17)


# Continued runs


def test_catalog_finished_answers_so_and_classifies_nothing(tmp_path: Path, catalog: Any) -> None:
    source = nested_folder(tmp_path / "in", [3, 2])
    catalog(source)
    before = [path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")]
    summary: Summary = catalog(source)
    assert (summary.was_finished, summary.rows) == (True, 5)
    assert [path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")] == before


def interrupted(tmp_path: Path, catalog: Any) -> Path:
    """Return the input of a run of which a partition is missing and another one was being written."""
    source = nested_folder(tmp_path / "in", [3, 2])
    (source / "night-01.parquet").rename(tmp_path / "aside")
    (source / "night-01.parquet").write_bytes(b"PAR1 and no more")
    assert len(catalog(source).failed) == 1
    (tmp_path / "aside").rename(source / "night-01.parquet")
    (tmp_path / "out" / ".night-01.parquet.1.2.0123.part.parquet").write_bytes(b"half")
    return source


def test_catalog_interrupted_is_continued_without_repeats(tmp_path: Path, catalog: Any) -> None:
    source = interrupted(tmp_path, catalog)
    summary = catalog(source)
    assert (summary.earlier, summary.partitions, summary.rows) == (1, 1, 5)
    assert content(tmp_path / "out")["object_id"].to_pylist() == [str(10**17 + number) for number in range(5)]
    assert not list((tmp_path / "out").glob(".*.part*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"options": Options(coverage=0.5)}, "coverage was not given and is now 0.5"),
        ({"model": "astro-moe-ztf"}, "default was astro-moe-elasticc .* and is now astro-moe-ztf"),
        ({"options": Options(embedding=True)}, "embedding was False and is now True"),
        ({"table_options": TableOptions(zero_point=25.0)}, "zero_point was not given and is now 25.0"),
    ],
)
def test_catalog_of_other_options_is_refused(
    tmp_path: Path, catalog: Any, options: dict[str, Any], message: str
) -> None:
    source = interrupted(tmp_path, catalog)
    with pytest.raises(CatalogError, match=f"of another run: .*{message}"):
        catalog(source, **options)


def test_catalog_of_an_output_with_other_columns_is_refused(tmp_path: Path, catalog: Any) -> None:
    source = interrupted(tmp_path, catalog)
    state = json.loads((tmp_path / "out" / STATE).read_text())
    state["fingerprint"]["columns"] = [one for one in state["fingerprint"]["columns"] if "warnings" not in one]
    (tmp_path / "out" / STATE).write_text(json.dumps(state))
    with pytest.raises(CatalogError, match="of another run: the output has other columns: warnings list"):
        catalog(source)


def test_catalog_of_a_changed_partition_is_refused(tmp_path: Path, catalog: Any) -> None:
    source = interrupted(tmp_path, catalog)
    write_nested(source / "night-00.parquet", rubin_rows(4))
    with pytest.raises(CatalogError, match=r"changed partitions of the input: night-00.parquet"):
        catalog(source)


def test_catalog_of_a_new_partition_is_refused(tmp_path: Path, catalog: Any) -> None:
    source = interrupted(tmp_path, catalog)
    write_nested(source / "night-02.parquet", rubin_rows(4))
    with pytest.raises(CatalogError, match=r"there are new partitions of the input: night-02.parquet"):
        catalog(source)


def test_catalog_partition_of_another_run_is_refused(tmp_path: Path, catalog: Any) -> None:
    source = interrupted(tmp_path, catalog)
    catalog(source, "other", options=Options(coverage=0.5))
    (tmp_path / "other" / "night-01.parquet").rename(tmp_path / "out" / "night-01.parquet")
    with pytest.raises(CatalogError, match=r"night-01.parquet is of another run"):
        catalog(source)


def test_catalog_folder_with_other_files_is_refused(tmp_path: Path, catalog: Any) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(CatalogError, match="name another folder"):
        catalog(nested_folder(tmp_path / "in", [3]))


def test_catalog_killed_while_its_state_was_written_can_be_started_again(tmp_path: Path, catalog: Any) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f".{STATE}.1.2.0123.part.json").write_text("{")
    assert catalog(nested_folder(tmp_path / "in", [3])).rows == 3
    assert not list((tmp_path / "out").glob(".*.part*"))


def test_catalog_finished_whose_file_is_gone_or_damaged_is_not_called_finished(tmp_path: Path, catalog: Any) -> None:
    source = nested_folder(tmp_path / "in", [3, 2])
    catalog(source)
    (tmp_path / "out" / "night-01.parquet").unlink()
    summary = catalog(source)
    assert (summary.was_finished, summary.partitions, summary.rows) == (False, 1, 5)
    (tmp_path / "out" / "night-00.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(CatalogError, match=r"night-00.parquet is damaged"):
        catalog(source)


def test_catalog_first_file_was_damaged_is_continued_with_other_first_rows(tmp_path: Path, catalog: Any) -> None:
    rows = rubin_rows(6)
    for row in rows[:3]:
        row["diaSource"]["band"] = ["y"] * len(row["diaSource"]["band"])
    write_nested(tmp_path / "in" / "b.parquet", rows[3:])
    (tmp_path / "in" / "a.parquet").write_bytes(b"PAR1 and no more")
    assert len(catalog(tmp_path / "in").failed) == 1
    write_nested(tmp_path / "in" / "a.parquet", rows[:3])
    assert catalog(tmp_path / "in").rows == 6


def test_catalog_file_replaced_while_it_is_read_fails_and_is_read_again(
    tmp_path: Path, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = nested_folder(tmp_path / "in", [3])
    original = Columns.table

    def replace_file(self: Columns, rows: Any) -> Any:
        write_nested(source / "night-00.parquet", rubin_rows(4))
        return original(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Columns, "table", replace_file)
        (error,) = catalog(source).failed
    assert "changed while it was read" in error
    assert catalog(source).rows == 4


@pytest.mark.parametrize("text", ['{"rows": 3}', "[]", "{"])
def test_catalog_damaged_state_is_named(tmp_path: Path, catalog: Any, text: str) -> None:
    source = nested_folder(tmp_path / "in", [3])
    catalog(source)
    (tmp_path / "out" / STATE).write_text(text)
    with pytest.raises(CatalogError, match=f"{STATE} is damaged"):
        catalog(source)


def test_catalog_folder_of_parquet_is_read_as_one_dataset(tmp_path: Path, catalog: Any) -> None:
    catalog(nested_folder(tmp_path / "in", [3, 2]))
    assert len(pq.read_table(tmp_path / "out")) == 5


# Bad input


@pytest.mark.parametrize("options", [{"output": "in/classes"}, {"flat": "in/flat.csv"}, {"flat": "out/flat.csv"}])
def test_catalog_output_in_input_or_output_is_refused(tmp_path: Path, catalog: Any, options: dict[str, str]) -> None:
    source = nested_folder(tmp_path / "in", [3])
    (tmp_path / "out").mkdir()
    arguments = {name: tmp_path / value if name == "flat" else value for name, value in options.items()}
    with pytest.raises(CatalogError, match="of which it would be a part"):
        catalog(source, **arguments)


@pytest.mark.parametrize("target", ["folder", "nothing"])
def test_catalog_link_that_is_not_followed_is_named(tmp_path: Path, catalog: Any, target: str) -> None:
    nested_folder(tmp_path / "folder", [2])
    source = nested_folder(tmp_path / "in", [3])
    (source / "more").symlink_to(tmp_path / target)
    with pytest.raises(TableError, match=r"in/more is a link to a folder or to nothing"):
        catalog(source)


def test_catalog_unknown_prior_is_refused_before_the_run(tmp_path: Path, catalog: Any) -> None:
    with pytest.raises(PriorError, match="no prior 'sky'"):
        catalog(nested_folder(tmp_path / "in", [3]), options=Options(prior="sky"))
    assert not (tmp_path / "out").exists()


def test_catalog_join_bands_of_rows_with_several_filters_is_refused(tmp_path: Path, catalog: Any) -> None:
    with pytest.raises(TableError, match="here a row has several"):
        catalog(nested_folder(tmp_path / "in", [3]), join_radius=1.0)


def test_catalog_join_bands_in_a_folder_knows_the_positions_of_ztf(tmp_path: Path, catalog: Any) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(ztf_rows([(10.0, 5.0), (11.0, 5.0)])), tmp_path / "in" / "a.parquet")
    summary = catalog(tmp_path / "in", join_radius=1.0)
    assert (summary.joined, summary.objects_joined) == (6, 2)


def test_catalog_truncated_file_is_named_and_the_others_are_written(tmp_path: Path, catalog: Any) -> None:
    source = nested_folder(tmp_path / "in", [3, 2])
    whole = (source / "night-01.parquet").read_bytes()
    (source / "night-01.parquet").write_bytes(whole[:-100])
    (error,) = catalog(source).failed
    assert "partition night-01.parquet" in error
    assert len(content(tmp_path / "out")) == 3


def test_catalog_missing_column_is_named(tmp_path: Path, catalog: Any) -> None:
    source = nested_folder(tmp_path / "in", [3, 2])
    table = pq.read_table(source / "night-01.parquet").drop_columns(["diaObjectId"])
    pq.write_table(table, source / "night-01.parquet")
    (error,) = catalog(source).failed
    assert (
        error == "partition night-01.parquet: night-01.parquet has no column 'diaObjectId', unlike the table before it"
    )


def test_catalog_unknown_filter_is_the_reason_of_the_row(tmp_path: Path, catalog: Any) -> None:
    rows = rubin_rows(2)
    rows[0]["diaSource"]["band"] = ["strange"] * len(rows[0]["diaSource"]["band"])
    write_nested(tmp_path / "in" / "a.parquet", rows)
    catalog(tmp_path / "in")
    first = content(tmp_path / "out").to_pylist()[0]
    assert (first["status"], first["reason"]) == ("rejected", "no_usable_points")
    assert "strange" in first["detail"]


def test_catalog_full_disk_ends_the_run_and_keeps_what_is_finished(
    tmp_path: Path, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = nested_folder(tmp_path / "in", [3, 2])

    def write(writer: Any, table: Any) -> None:
        if len(table) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(writer, table)

    original = pq.ParquetWriter.write_table
    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", write)
        with pytest.raises(CatalogError, match=r"night-01.parquet.*No space left.*free some space"):
            catalog(source)
    assert sorted(path.name for path in (tmp_path / "out").glob("*night-*")) == ["night-00.parquet"]
    assert catalog(source).earlier == 1


def test_catalog_mixed_folder_is_refused(tmp_path: Path, catalog: Any) -> None:
    source = nested_folder(tmp_path / "in", [3])
    (source / "notes.txt").write_text("a, b\n1, 2\n")
    with pytest.raises(TableError, match=r"Parquet files and others, such as notes.txt"):
        catalog(source)


def test_catalog_two_processes_cannot_write_one_output(tmp_path: Path, catalog: Any) -> None:
    from nightjar_alerts.catalog.run import locked

    source = nested_folder(tmp_path / "in", [3])
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out"), pytest.raises(CatalogError, match="another process is writing"):
        catalog(source)


# The command


def test_catalog_command_names_twenty_failed_partitions_and_counts_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = nested_folder(tmp_path / "in", [1])
    for number in range(25):
        (source / f"x-{number:02d}.parquet").write_bytes(b"PAR1 and no more")
    assert main([str(source), str(tmp_path / "out"), "--quiet"]) == 1
    found = capsys.readouterr()
    assert "failed: 25 partitions" in found.out
    assert len(found.err.splitlines()) == 21
    assert found.err.endswith("and 5 more partitions\n")


def test_catalog_command_guesses_of_a_table_among_packets_name_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("object,mjd,filter,mag,mag_err\nSN1,60310.1,g,19.8,.05\n")
    assert main([str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert "a.csv: the time is column 'mjd' (--columns time=mjd)" in capsys.readouterr().err


@pytest.mark.parametrize("write", [write_nested, write_observations])
def test_catalog_command_prints_what_is_left_out_of_tables_once_for_each_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path, Any], Path]
) -> None:
    rows = rubin_rows(3)
    rows[0]["diaSource"] = {name: [*values, values[0]] for name, values in rows[0]["diaSource"].items()}
    rows[1]["diaSource"]["psfFluxErr"][2] = None
    for number in range(4):
        write(tmp_path / "in" / f"{number}.parquet", rows)
    assert main([str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().err.splitlines()
    assert [line for line in printed if "points left out" in line] == [
        "0.parquet: points left out: 1 no error; the option --mag-err sets one for magnitudes",
        "0.parquet: repeated points left out: 1 with the time and filter of another one of their object, of which the "
        "most precise one is used",
        "3 more files: points left out",
        "3 more files: repeated points left out",
    ]


def test_catalog_command_guesses_of_many_tables_are_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        text = "object,mjd,filter,mag,mag_err\nSN1,60310.1,g,19.8,.05\n"
        (tmp_path / "in" / f"{number}.csv").write_text(text)
    assert main([str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    printed = [line for line in capsys.readouterr().err.splitlines() if "the time is" in line]
    assert printed == [
        "part-000000.parquet: 0.csv: the time is column 'mjd' (--columns time=mjd)",
        "2 more files: the time is column 'mjd' (--columns time=mjd)",
    ]


def test_add_note_of_many_kinds_keeps_some_and_counts_the_others() -> None:
    notes: Notes = {}
    for number in range(MAX_NOTES + 10):
        add_note(notes, f"{number}.csv", f"kind {number}: text")
    assert len(notes) == MAX_NOTES + 1
    assert notes[MORE] == (10, f"{MAX_NOTES}.csv", MORE)


def test_catalog_command_states_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = nested_folder(tmp_path / "in", [3, 2])
    assert main([str(source), str(tmp_path / "out"), "--quiet"]) == 0
    assert capsys.readouterr().out == f"2 partitions: 5 classified\n5 rows written to {tmp_path / 'out'}\n"
    assert main([str(source), str(tmp_path / "out"), "--quiet"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out'} is finished: 5 rows\n"


def test_catalog_command_unknown_survey_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = nested_folder(tmp_path / "in", [3, 2])
    assert main([str(source), str(tmp_path / "out"), "--quiet", "--survey", "lssst"]) == 0
    warning = f"warning: 5 of 5 ({rubin_rows(1)[0]['diaObjectId']}, ...): the survey lssst is not known: send lsst"
    assert warning in capsys.readouterr().out


def test_catalog_command_missing_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"nightjar: {tmp_path / 'nowhere'} does not exist\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reclassify"], "--reclassify needs --since"),
        (["--scheduler", "tcp://x", "--workers", "2"], "a scheduler has its own workers"),
    ],
)
def test_catalog_command_wrong_usage_exits_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["in", "out", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_catalog_command_question_names_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rubin_rows(2)
    write_nested(tmp_path / "in" / "a.parquet", rows)
    table = pq.read_table(tmp_path / "in" / "a.parquet").rename_columns(["diaObjectId", "ra", "dec", "ss", "lc"])
    lists = table["lc"].combine_chunks()
    names = ["t", "f", "e", "w", "b"]
    struct = pa.StructArray.from_arrays([lists.field(index) for index in range(5)], names)
    pq.write_table(pa.table({"id": table["diaObjectId"], "lc": struct}), tmp_path / "in" / "a.parquet")
    assert main([str(tmp_path / "in"), str(tmp_path / "out")]) == 1
    assert "--" in capsys.readouterr().err


def chunks(terminal: Any) -> Iterator[bytes]:
    """Yield what a terminal has been sent; reading ends with an error when nobody else has it open."""
    with contextlib.suppress(OSError):
        while data := terminal.read(65_536):
            yield data


def test_catalog_command_shows_a_bar_with_rate_and_time_left(tmp_path: Path) -> None:
    import pty
    import termios

    source = nested_folder(tmp_path / "in", [20, 20])
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 100))
    with open(master, "rb", buffering=0) as terminal:  # noqa: PTH123  # a file descriptor
        done = subprocess.run([*COMMAND, source, tmp_path / "out"], stderr=slave, stdout=subprocess.DEVNULL, check=True)
        os.close(slave)
        text = b"".join(chunks(terminal)).decode()
    assert done.returncode == 0
    assert "rows," in text
    assert "/s" in text
    assert "left" in text


@pytest.mark.slow
def test_catalog_workers_write_what_one_process_writes(tmp_path: Path, catalog: Any) -> None:
    source = nested_folder(tmp_path / "in", [5, 4, 3])
    catalog(source, "one")
    subprocess.run([*COMMAND, source, tmp_path / "two", "--workers", "2", "--quiet"], check=True, capture_output=True)
    one, two = content(tmp_path / "one"), content(tmp_path / "two")
    assert one["object_id"] == two["object_id"]
    assert one["p_Ia"].to_pylist() == pytest.approx(two["p_Ia"].to_pylist(), abs=2e-5)
