"""Ragged Parquet: what is written comes back to the bit, splits are disjoint and stable, foreign files are refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.dataset import (
    DatasetError,
    LabelledObject,
    read_dataset,
    split_indices,
    write_dataset,
)
from nightjar_alerts.training.data.sample import Sample


def an_object(number: int = 0, points: int = 3, class_name: str = "Ia") -> LabelledObject:
    rng = np.random.default_rng(number)
    metadata = rng.normal(size=len(METADATA_COLUMNS)).astype(np.float32)
    metadata[:: 1 + number % 3] = np.nan
    return LabelledObject(
        object_id=f"object-{number}",
        class_name=class_name,
        mjd=60_000.123456789 + np.arange(points, dtype=np.float64),
        flux=rng.normal(0.0, 1e4, points).astype(np.float32),
        flux_err=rng.uniform(1.0, 9.0, points).astype(np.float32),
        band=(np.arange(points) % 6).astype(np.int8),
        detected=np.arange(points) % 2 == 0,
        trigger_mjd=60_000.123456789,
        metadata=metadata,
        redshift=0.1 * number,
    )


def many() -> list[LabelledObject]:
    return [an_object(n, 1 + n % 7, ELASTICC.names[n % 20]) for n in range(60)]


def written(path: Path, objects: list[LabelledObject]) -> Sample:
    assert write_dataset(path, objects) == len(objects)
    return read_dataset(path)


def test_everything_comes_back_to_the_bit(tmp_path: Path) -> None:
    objects = many()
    data = written(tmp_path / "data.parquet", objects)
    assert len(data) == len(objects)
    assert data.object_id.tolist() == [o.object_id for o in objects]
    assert [ELASTICC.names[label] for label in data.label] == [o.class_name for o in objects]
    stored = pq.read_table(tmp_path / "data.parquet", columns=["trigger_mjd"])
    assert stored["trigger_mjd"].to_pylist() == [o.trigger_mjd for o in objects]
    np.testing.assert_array_equal(data.metadata, np.stack([o.metadata for o in objects]))
    for index, original in enumerate(objects):
        points = slice(data.offsets[index], data.offsets[index + 1])
        for name in ("mjd", "flux", "flux_err", "band", "detected"):
            column, expected = getattr(data, name)[points], getattr(original, name)
            assert column.dtype == expected.dtype
            np.testing.assert_array_equal(column, expected)


def test_a_curve_is_the_canonical_record_without_the_missing_metadata(tmp_path: Path) -> None:
    original = an_object(1, points=5)
    curve = written(tmp_path / "data.parquet", [an_object(0), original]).curve(1)
    assert curve.object_id == "object-1"
    np.testing.assert_array_equal(curve.mjd, original.mjd)
    np.testing.assert_array_equal(curve.flux, original.flux)
    np.testing.assert_array_equal(curve.band, original.band)
    np.testing.assert_array_equal(curve.detected, original.detected)
    present = {name: float(v) for name, v in zip(METADATA_COLUMNS, original.metadata, strict=True) if not np.isnan(v)}
    assert dict(curve.metadata) == present


def test_a_curve_outside_the_set_does_not_exist(tmp_path: Path) -> None:
    data = written(tmp_path / "data.parquet", [an_object()])
    for index in (-1, 1):
        with pytest.raises(IndexError):
            data.curve(index)


def test_photometry_is_read_without_a_copy(tmp_path: Path) -> None:
    data = written(tmp_path / "data.parquet", many())
    for column in (data.mjd, data.flux, data.flux_err, data.band):
        assert not column.flags.owndata
        assert not column.flags.writeable


def test_objects_in_several_row_groups_stay_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.training.data.dataset.ROWS_PER_GROUP", 7)
    path = tmp_path / "data.parquet"
    data = written(path, many())
    assert pq.ParquetFile(path).num_row_groups == 9
    assert data.object_id.tolist() == [f"object-{n}" for n in range(60)]
    assert data.offsets[-1] == len(data.flux) == sum(1 + n % 7 for n in range(60))


def test_an_empty_set_is_a_set(tmp_path: Path) -> None:
    data = written(tmp_path / "data.parquet", [])
    assert len(data) == 0
    assert data.metadata.shape == (0, len(METADATA_COLUMNS))
    assert {name: len(rows) for name, rows in split_indices(data).items()} == {"train": 0, "validation": 0, "test": 0}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (replace(an_object(), class_name="Quark nova"), "Quark nova"),
        (replace(an_object(), band=np.zeros(2, np.int8)), "equally long"),
        (an_object(points=0), "not empty"),
        (replace(an_object(), metadata=np.zeros(63, np.float32)), "63 metadata"),
    ],
)
def test_a_broken_object_is_refused_and_leaves_nothing(tmp_path: Path, broken: LabelledObject, message: str) -> None:
    path = tmp_path / "data.parquet"
    with pytest.raises(DatasetError, match=message):
        write_dataset(path, [an_object(3), broken])
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_fails_does_not_replace_a_good_file(tmp_path: Path) -> None:
    def failing() -> Iterator[LabelledObject]:
        yield an_object(1)
        raise RuntimeError("power cut")

    path = tmp_path / "data.parquet"
    write_dataset(path, [an_object(0)])
    with pytest.raises(RuntimeError, match="power cut"):
        write_dataset(path, failing())
    assert read_dataset(path).object_id == ["object-0"]


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    text, foreign, other = (tmp_path / name for name in ("text", "foreign", "other"))
    text.write_text("not parquet")
    pq.write_table(pa.table({"mjd": [1.0]}), foreign)
    write_dataset(other, [an_object()])
    table = pq.read_table(other)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"metadata_columns": b"mwebv"}), other)
    for path in (text, foreign, other):
        with pytest.raises(DatasetError, match=str(path)):
            read_dataset(path)


def test_read_dataset_of_damaged_pages_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    write_dataset(path, [an_object()])
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"data\.parquet is damaged"):
        read_dataset(path)


def test_splits_are_disjoint_complete_and_of_the_right_size(tmp_path: Path) -> None:
    data = written(tmp_path / "data.parquet", [an_object(n, 1) for n in range(2000)])
    parts = split_indices(data)
    assert list(parts) == ["train", "validation", "test"]
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(2000))
    sizes = [len(rows) / 2000 for rows in parts.values()]
    np.testing.assert_allclose(sizes, [0.8, 0.1, 0.1], atol=0.03)


def test_an_object_keeps_its_side_whatever_stands_around_it(tmp_path: Path) -> None:
    objects = [an_object(n, 1) for n in range(300)]
    sides = []
    for number, selection in enumerate((objects, objects[::-1], objects[100:200])):
        data = written(tmp_path / f"{number}.parquet", selection)
        sides.append({data.object_id[row]: name for name, rows in split_indices(data).items() for row in rows})
    assert sides[0] == sides[1]
    assert sides[2].items() <= sides[0].items()


def test_the_split_hash_never_changes(tmp_path: Path) -> None:
    """Pinned: a change would move objects between the sides of every model trained before."""
    data = written(tmp_path / "data.parquet", [an_object(n, 1) for n in range(60)])
    parts = split_indices(data)
    assert parts["validation"].tolist() == [11, 16, 19, 27, 32, 33, 49, 59]
    assert parts["test"].tolist() == [48, 52]


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.2), (1.1, 0.0, -0.1), (0.0, 0.0, 0.0)])
def test_fractions_must_share_out_everything(tmp_path: Path, fractions: tuple[float, float, float]) -> None:
    data = written(tmp_path / "data.parquet", [an_object()])
    with pytest.raises(ValueError, match="sum to 1"):
        split_indices(data, fractions)


def test_turns_of_a_fifth_test_every_object_once_and_keep_families_together(tmp_path: Path) -> None:
    objects = [replace(an_object(n, 1), parent=f"parent-{n % 100}" if n < 900 else "") for n in range(1000)]
    data = written(tmp_path / "data.parquet", objects)
    folds = [split_indices(data, (0.7, 0.1, 0.2), turn) for turn in (0.0, 0.2, 0.4, 0.6, 0.8)]
    assert sorted(np.concatenate([fold["test"] for fold in folds])) == list(range(1000))
    for fold in folds:
        assert sorted(np.concatenate(list(fold.values()))) == list(range(1000))
        families = [{data.group[row] for row in rows} for rows in fold.values()]
        assert sum(map(len, families)) == len(set.union(*families))


def test_objects_of_one_parent_are_never_on_two_sides(tmp_path: Path) -> None:
    objects = [replace(an_object(n, 1), parent=f"parent-{n % 100}" if n < 900 else "") for n in range(1000)]
    data = written(tmp_path / "data.parquet", objects)
    assert data.group.tolist() == [o.parent or o.object_id for o in objects]
    sides: dict[str, set[str]] = {}
    for side, rows in split_indices(data).items():
        for row in rows:
            sides.setdefault(data.group[row], set()).add(side)
    assert len(sides) == 200
    assert all(len(parts) == 1 for parts in sides.values())
    assert set.union(*sides.values()) == {"train", "validation", "test"}


def test_files_from_before_there_were_parents_are_read_as_ever(tmp_path: Path) -> None:
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    data = written(new, many())
    pq.write_table(pq.read_table(new).drop_columns(["parent"]), old)
    again = read_dataset(old)
    assert again.object_id.tolist() == again.group.tolist() == data.object_id.tolist()
    np.testing.assert_array_equal(again.flux, data.flux)
    for part, rows in split_indices(data).items():
        np.testing.assert_array_equal(split_indices(again)[part], rows)


def test_a_fraction_of_zero_takes_nothing(tmp_path: Path) -> None:
    data = written(tmp_path / "data.parquet", [an_object(n, 1) for n in range(50)])
    assert [len(rows) for rows in split_indices(data, (1.0, 0.0, 0.0)).values()] == [50, 0, 0]
