"""Reading surveys: filters, groups and their split, labels that disagree, and the formats themselves."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.sample import PARTS, collect
from nightjar_alerts.training.data.survey_readers import assign_bands, read_real, read_ztf_supernovae
from nightjar_alerts.training.data.surveys import (
    as_observed,
    assemble,
    group_names,
    load_surveys,
    merge_duplicates,
    normalized_name,
    part_of,
)
from support.shared import needs_shared, shared
from support.surveys import bump


def test_assign_bands_maps_other_filters() -> None:
    band, foreign, wavelength = assign_bands(np.array(["B", "V", "r", "R", "I", "UVW1", "K"]))
    assert band.tolist() == [1, 2, 2, 2, 3, -1, -1]
    assert foreign.tolist() == [True, True, False, True, True, False, False]
    assert wavelength[:2] == pytest.approx([436.0, 545.0])


def test_normalized_name_removes_prefixes() -> None:
    assert normalized_name("ztf:ZTF18abc") == normalized_name("ZTF18abc")
    assert normalized_name("SN2018gft") == normalized_name("2018gft") == normalized_name("slsne:SN2018gft")
    assert normalized_name("CSS110329:133902-240114") == "CSS110329:133902-240114"
    assert normalized_name("crts_mantra:CSS110329:133902") == normalized_name("CSS110329:133902")


def test_group_names_joins_rows_with_a_common_name() -> None:
    groups = group_names([["A", "B"], ["C"], ["B", "D"], ["D"], ["", "E"]])
    assert groups[0] == groups[2] == groups[3] == "A"
    assert len({groups[0], groups[1], groups[4]}) == 3


def test_part_of_has_fixed_shares_and_is_stable() -> None:
    parts = np.bincount([part_of(f"object-{number}") for number in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(parts, [0.70, 0.15, 0.15], atol=0.02)
    assert [part_of(name) for name in ("A", "B", "C", "D")] == [part_of(name) for name in ("A", "B", "C", "D")]


def test_assemble_puts_evaluation_sets_and_their_groups_into_the_test_part() -> None:
    rows = [bump(f"X{number}", source="tdecat", label=18) for number in range(20)]
    twin = bump("Y", source="ztf_sn", label=18)
    twin.names = ("Y", "X3")
    sky = assemble([*rows, twin])
    assert (sky.part == PARTS.index("test")).all()


def test_assemble_drops_contradictory_labels() -> None:
    other = bump("A", source="two", label=16)
    sky = assemble([bump("A", source="one", label=13), other, bump("B")])
    assert sky.label.tolist() == [-1, -1, 13]
    assert sky.quality[0] == "conflicting"


def test_merge_duplicates_keeps_one_point_per_band_and_time() -> None:
    row = bump("A", points=4, bands="g")
    row.mjd = np.array([1.0, 1.0, 2.0, 3.0])
    row.flux_err = np.array([9.0, 5.0, 1.0, 1.0])
    merged = merge_duplicates(row)
    assert merged.mjd.tolist() == [1.0, 2.0, 3.0]
    assert merged.flux_err.tolist() == [5.0, 1.0, 1.0]


def test_as_observed_removes_foreign_points_and_limits() -> None:
    rich, poor = bump("A", points=20), bump("B", points=20)
    rich.foreign[:5] = True
    poor.foreign[:] = True
    poor.flux[0], poor.detected[0] = 0.0, False
    sent = as_observed(collect([rich, poor]))
    assert sent.lengths.tolist() == [15, 19]


def test_read_real_reads_the_common_schema(tmp_path: Path) -> None:
    row = {
        "source": "s", "object_id": "SN2001a", "label": "Ia", "raw_label": "Ia", "label_quality": "spectroscopic",
        "z": 0.1, "z_err": None, "z_phot": None, "z_phot_err": None, "mwebv": 0.02, "period_d": None,
        "aliases": "2001a", "also_in": "osc:2001a", "mjd": [2.0, 1.0, 3.0], "band": ["g", "K", "r"],
        "flux": [10.0, 5.0, 7.0], "flux_err": [1.0, 1.0, 1.0], "total_flux": None, "detected": [True, True, True],
    }  # fmt: skip
    schema = pa.schema([("total_flux", pa.list_(pa.float32()))])
    table = pa.Table.from_pylist([row])
    table = table.set_column(
        table.column_names.index("total_flux"), schema.field(0), pa.array([None], schema.field(0).type)
    )
    pq.write_table(table, tmp_path / "set.parquet")
    (sky_object,) = read_real(tmp_path)
    assert sky_object.mjd.tolist() == [2.0, 3.0]
    assert ELASTICC.names[sky_object.label] == "Ia"
    assert sky_object.total_flux is not None
    assert np.isnan(sky_object.total_flux).all()
    assert np.isnan(sky_object.z_err)
    assert sky_object.z == pytest.approx(0.1)


def test_read_ztf_supernovae_converts_magnitudes_and_limits(tmp_path: Path) -> None:
    with (tmp_path / "objects.csv").open("w", encoding="utf-8") as file:
        csv.writer(file).writerows([["object_id", "type"], ["Z1", "SN IIn"], ["Z2", "SN"]])
    lines = ["object_id,mjd,band,mag,magerr,upperlimit", "Z1,1.0,g,20.0,0.1,0", "Z1,2.0,r,20.0,,1", "Z2,1.0,g,,0.1,0"]
    with gzip.open(tmp_path / "photometry.csv.gz", "wt", encoding="utf-8") as packed:
        packed.write("\n".join(lines) + "\n")
    (sky_object,) = read_ztf_supernovae(tmp_path, frozenset())
    flux = 10 ** (-0.4 * (20.0 - 31.4))
    np.testing.assert_allclose(sky_object.flux, [flux, 0.0])
    np.testing.assert_allclose(sky_object.flux_err, [flux * 0.1 * 0.4 * np.log(10), flux / 5])
    assert ELASTICC.names[sky_object.label] == "II"


def test_load_surveys_of_an_empty_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds none of the sets"):
        load_surveys(tmp_path)


@pytest.mark.slow
@needs_shared
def test_real_sets_are_read_whole() -> None:
    rows = {(row.source, row.object_id): row for row in read_real(shared("data", "real"))}
    assert len(rows) > 20_000
    assert {source for source, _ in rows} >= {"yse_dr1", "spcc", "snls", "ogle_dn", "manytde", "gaia_alerts"}
