"""The sub-commands end to end: tiny files of every layout, and samples of the real sets where they are present."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar_alerts.models.photometry import NJY_PER_UNIT
from nightjar_alerts.models.taxonomy import ELASTICC, MALLORN, ZTF_SUPERNOVAE
from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.data.dataset import DatasetError, read_dataset, read_notes, split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.export.describe import origin_of
from nightjar_alerts.training.fit.checkpoints import load_network
from nightjar_alerts.training.fit.train import train
from nightjar_alerts.training.recipes.astro_moe import debug
from nightjar_alerts.training.recipes.schema import ScheduleConfig
from support.importers import write_alerts, write_hats, write_snana, write_text, ztf_alert
from support.mallorn import write_mallorn
from support.shared import needs_shared, shared

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, out: Path, *arguments: str | Path) -> tuple[Sample, dict[str, Any]]:
    main(["import", *map(str, arguments), "--out", str(out), "--progress", "false"])
    report = json.loads(capsys.readouterr().out)
    assert report.pop("out") == str(out)
    stored = json.loads(read_notes(out)["import"])
    assert stored["report"] == report
    return read_dataset(out), stored


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out" / "data.parquet"


def test_snana(tmp_path: Path, out: Path, capsys: Capture) -> None:
    write_snana(tmp_path / "in" / "ELASTICC_TRAIN_SNIa-SALT2")
    write_snana(tmp_path / "in" / "ELASTICC_TRAIN_SNIIb+HostXT_V19", first_id=50)
    data, stored = run(capsys, out, "snana", tmp_path / "in", "--licence", "CC BY 4.0")
    assert data.classes == ELASTICC.names
    assert stored["report"]["classes"] == {"SN-like/Other": 3, "Ia": 3}
    assert (stored["survey"], stored["licence"], stored["columns"]["hostgal_zphot"]) == (
        "ELAsTiCC",
        "CC BY 4.0",
        "HOSTGAL_PHOTOZ",
    )
    data, _ = run(capsys, out, "snana", tmp_path / "in", "--classes", "SNIIb+HostXT_V19=II", "--window", "false")
    assert sorted(set(data.label.tolist())) == [ELASTICC.names.index("Ia"), ELASTICC.names.index("II")]
    assert len(data.mjd) == 6 * 5
    data, _ = run(capsys, out, "snana", tmp_path / "in", "--label-column", "SIM_TYPE_INDEX")
    assert data.classes == ("90",)


PLASTICC = """object_id,mjd,passband,flux,flux_err,detected
615,59750.4,2,-544.8,3.6,1
615,59750.5,5,1,2,0
713,59751,0,9,1,1
"""


def test_plasticc(tmp_path: Path, out: Path, capsys: Capture) -> None:
    points = write_text(tmp_path / "training_set.csv.gz", PLASTICC)
    header = "object_id,ra,hostgal_specz,hostgal_photoz,hostgal_photoz_err,mwebv,target\n"
    objects = write_text(tmp_path / "meta.csv", header + "615,1,0.5,0.4,0.1,0.02,92\n713,1,-9,0.4,0.1,0.02,88\n")
    data, _ = run(capsys, out, "plasticc", points, "--objects", objects)
    assert data.classes == ("AGN", "RR Lyrae")
    assert data.label.tolist() == [1, 0]
    assert data.band.tolist() == [2, 5, 0]
    assert data.detected.tolist() == [True, False, True]
    np.testing.assert_allclose(data.flux[0], -544.8 * NJY_PER_UNIT["FLUXCAL"], rtol=1e-6)
    assert dict(data.curve(1).metadata) == pytest.approx(
        {"hostgal_zphot": 0.4, "hostgal_zphot_err": 0.1, "mwebv": 0.02}
    )
    unlabelled, _ = run(capsys, out, "plasticc", points)
    assert unlabelled.label.tolist() == [-1, -1]


def test_the_unblinded_plasticc_gives_the_truth(tmp_path: Path, out: Path, capsys: Capture) -> None:
    points = write_text(tmp_path / "test_set.csv", PLASTICC.replace("detected", "detected_bool"))
    objects = write_text(tmp_path / "meta.csv", "object_id,target,true_target,true_z\n615,0,90,0.7\n713,0,994,1.5\n")
    data, _ = run(capsys, out, "plasticc", points, "--objects", objects, "--taxonomy", "elasticc-20")
    assert [ELASTICC.names[label] for label in data.label] == ["Ia", "PISN"]


def test_mallorn(tmp_path: Path, out: Path, capsys: Capture) -> None:
    folder = write_mallorn(tmp_path / "mallorn")
    data, stored = run(capsys, out, "mallorn", folder)
    assert data.classes == MALLORN.names
    assert stored["report"]["dropped_points"] == {"no brightness": 6}
    assert (len(data), len(data.mjd)) == (6, 48)
    assert data.flux[0] == 1500.0
    assert dict(data.curve(0).metadata) == pytest.approx({"z_final": 0.1, "mwebv": 0.05})
    types, _ = run(capsys, out, "mallorn", folder, "--types", "true")
    assert "SN Ia-91T-like" in types.classes
    unlabelled, _ = run(capsys, out, "mallorn", folder, "--part", "test")
    assert unlabelled.label.tolist() == [-1] * 3


def write_supernovae(folder: Path, count: int, points: int = 12) -> Path:
    """A folder of typed ZTF supernovae of two classes: one fades, the other stays; each has a limit before it."""
    objects, rows = ["object_id,type"], ["object_id,mjd,band,mag,magerr,upperlimit"]
    for n in range(count):
        objects.append(f"ZTF{n},{('SN Ia', 'SLSN-II')[n % 2]}")
        rows.append(f"ZTF{n},58999.5,r,20.5,,1")
        rows += [f"ZTF{n},{59_000 + d}.5,{'gr'[d % 2]},{18 + 0.2 * d * (1 - n % 2)},0.05,0" for d in range(points)]
    write_text(folder / "objects.csv", "\n".join([*objects, "ZTFx,SN Ia|SN II", ""]))
    rows.append("ZTFx,59000.5,g,18,0.1,0")
    write_text(folder / "photometry.csv.gz", "\n".join([*rows, ""]))
    return folder


def test_typed_ztf_supernovae(tmp_path: Path, out: Path, capsys: Capture) -> None:
    folder = write_supernovae(tmp_path / "sn", 4)
    data, stored = run(capsys, out, "ztf-supernovae", folder)
    assert data.classes == ZTF_SUPERNOVAE.names
    assert data.label.tolist() == [0, 5, 0, 5]
    assert stored["format"] == "ztf-supernovae"
    assert stored["report"]["dropped_objects"] == {"label 'SN Ia|SN II' is not imported": 1}
    assert stored["report"]["dropped_points"] == {"upper limit": 4}
    types, _ = run(capsys, out, "ztf-supernovae", folder, "--types", "true")
    assert types.classes == ("SLSN-II", "SN Ia", "SN Ia|SN II")


def test_an_import_trains_with_its_own_classes(tmp_path: Path, out: Path, capsys: Capture) -> None:
    """A recipe made for 20 classes takes those of the survey's files, to the weights and the manifest."""
    run(capsys, out, "ztf-supernovae", write_supernovae(tmp_path / "sn", 60), "--licence", "CC0")
    recipe = debug().model_copy(update={"schedule": ScheduleConfig(steps=2), "threads": 1})
    assert train(recipe, out, tmp_path / "run", progress=False).finished
    network, config = load_network(tmp_path / "run")
    assert config.recipe.network.n_classes == network.n_classes == 6
    provenance = origin_of(out)
    assert (provenance["source"], provenance["import"]["licence"]) == ("ZTF", "CC0")
    unlabelled, _ = run(capsys, tmp_path / "x.parquet", "ztf-supernovae", tmp_path / "sn", "--classes", "SN Ia=*")
    assert set(unlabelled.label.tolist()) == {-1, 5}
    with pytest.raises(DatasetError, match="30 unlabelled"):
        train(recipe, tmp_path / "x.parquet", tmp_path / "other", progress=False)


@pytest.mark.parametrize("labels", [("Ia", "II"), ("nan", "")])
def test_import_of_objects_without_one_label_learns_none(
    labels: tuple[str, str], tmp_path: Path, out: Path, capsys: Capture
) -> None:
    rows = "".join(f"{n},{60000 + day},g,9,1,{labels[day] if n else 'AGN'}\n" for n in range(2) for day in range(2))
    points = write_text(tmp_path / "x.csv", f"id,t,b,f,e,type\n{rows}")
    columns = "id=id,mjd=t,band=b,flux=f,flux_err=e,label=type"
    data, stored = run(capsys, out, "table", points, "--columns", columns)
    assert data.classes == ("AGN",)
    assert stored["report"]["dropped_objects"] == ({"with several labels": 1} if "Ia" in labels else {})


def test_parents_come_from_either_table(tmp_path: Path, out: Path, capsys: Capture) -> None:
    rows = "".join(f"{n},60000,g,9,1,h{n % 5}\n" for n in range(50))
    points = write_text(tmp_path / "x.csv", f"id,t,b,f,e,host\n{rows}")
    columns = "id=id,mjd=t,band=b,flux=f,flux_err=e"
    data, stored = run(capsys, out, "table", points, "--columns", f"{columns},parent=host")
    assert stored["report"]["parents"] == 5
    sides = {side: {data.group[row] for row in rows} for side, rows in split_indices(data, (0.4, 0.3, 0.3)).items()}
    assert sum(map(len, sides.values())) == 5
    objects = write_text(tmp_path / "o.csv", "id,host\n0,h0\n1,h0\n")
    beside = ("--objects", objects, "--object-columns", "id=id,parent=host")
    data, _ = run(capsys, out, "table", points, "--columns", columns, *beside)
    assert data.group[:3].tolist() == ["h0", "h0", "2"]


def test_ztf(tmp_path: Path, out: Path, capsys: Capture) -> None:
    archive = write_alerts(tmp_path / "night.tar.gz", [ztf_alert(f"ZTF{n}", 2_459_000.5 + n) for n in range(3)])
    labels = write_text(tmp_path / "labels.csv", "name,type\nZTF1,SN Ia\n")
    data, _ = run(capsys, out, "ztf", archive, "--objects", labels, "--object-columns", "id=name,label=type")
    assert (data.classes, sorted(data.label.tolist())) == (("SN Ia",), [-1, -1, 0])


def test_panstarrs(tmp_path: Path, out: Path, capsys: Capture) -> None:
    """Five bands of four points for object 1; object 2 has three in i, and three bad rows."""
    rows = ["objID,obsTime,filterID,psfFlux,psfFluxErr,infoFlag,psfQfPerfect"]
    for day in range(4):
        for band in range(1, 6):
            rows += [f"{object_id},{55_000 + day}.{band},{band},1e-5,1e-7,0,0.99" for object_id in (2**56 + 1, 2)]
    rows = [row for row in rows if not row.startswith("2,55003.3")]
    rows += ["2,55010.1,3,-999,-999,0,0.99", "2,55011.1,3,1e-5,1e-7,4096,0.99", "2,55012.1,3,1e-5,1e-7,0,0.5"]
    table = write_text(tmp_path / "ps1.csv", "\n".join(rows) + "\n")
    data, stored = run(capsys, out, "panstarrs", table)
    assert data.object_id.tolist() == [str(2**56 + 1)]
    np.testing.assert_allclose(data.flux, 1e4, rtol=1e-6)  # 1e-5 Jy is 21.4 mag AB
    report = stored["report"]
    assert report["dropped_objects"] == {"fewer than 4 points in i": 1}
    assert report["dropped_points"] == {
        "flagged by the survey": 1,
        "no brightness": 1,
        "quality is too low": 1,
    }
    data, _ = run(capsys, out, "panstarrs", table, "--min-per-band", "3", "--bad-flags", "0")
    assert len(data) == 2


def test_hats(tmp_path: Path, out: Path, capsys: Capture) -> None:
    columns = "id=id,mjd=lc.t,band=lc.b,flux=lc.f,flux_err=lc.e,label=kind"
    data, stored = run(capsys, out, "hats", write_hats(tmp_path / "cat", collection=True), "--columns", columns)
    assert (len(data), data.classes) == (3, ("x",))
    assert stored["columns"]["time"] == "lc.t"


@pytest.mark.parametrize("classes", ["1=one", "1.0=one"])
def test_table_of_a_label_that_is_a_whole_number_finds_it_in_the_class_map(
    classes: str, tmp_path: Path, out: Path, capsys: Capture
) -> None:
    points = write_text(tmp_path / "x.csv", "id,t,b,f,e,type\na,60000,g,9,1,1.0\nb,60000,g,9,1,2.0\n")
    columns = "id=id,mjd=t,band=b,flux=f,flux_err=e,label=type"
    data, _ = run(
        capsys, out, "table", points, "--columns", columns, "--flux-unit", "nJy", "--classes", f"{classes},2=2"
    )
    assert data.classes == ("2", "one")


def test_table_units(tmp_path: Path, out: Path, capsys: Capture) -> None:
    path = write_text(tmp_path / "x.csv", "id,t,b,f,e\n1,2460000.5,w,1,0.1\n")
    columns = ("--columns", "id=id,mjd=t,band=b,flux=f,flux_err=e", "--bands", "w=r", "--time-offset", "-2400000.5")
    for option, scale in ((("--flux-unit", "mJy"), 1e6), (("--zero-point", "25"), 10 ** (0.4 * 6.4))):
        data, _ = run(capsys, out, "table", path, *columns, *option)
        np.testing.assert_allclose(data.flux, [scale], rtol=1e-6)
        assert (data.mjd.tolist(), data.band.tolist()) == ([60_000.0], [2])
    run(
        capsys,
        out,
        "table",
        write_text(tmp_path / "y.csv", "id,t,b,f,e\n1,2,w,9,1\n1,3,g,9,1\n"),
        *columns[:2],
        "--bands",
        "w=",
    )


MAGNITUDES = """id,mjd,m,dm,filter
a,58039.30,-25.117,73.0,r
a,58039.31,20.191,0.946,r
a,58039.32,-20.110,0.819,r
a,58040.30,99.0,0.1,r
a,58041.30,19.0,9.9,r
a,58042.30,18.0,0.1,r
"""


@pytest.mark.parametrize(
    ("signed", "flux_njy", "dropped"),
    [
        (
            "false",
            [30450.9, 229086.8],
            {
                "negative magnitude": 2,
                "magnitude is not plausible": 1,
                "magnitude error is not plausible": 1,
            },
        ),
        ("true", [-326.0, 30450.9, -32810.5, 91201.1, 229086.8], {"magnitude is not plausible": 1}),
    ],
)
def test_implausible_magnitudes_are_left_out_and_counted(
    tmp_path: Path, out: Path, capsys: Capture, signed: str, flux_njy: list[float], dropped: dict[str, int]
) -> None:
    source = write_text(tmp_path / "atlas.csv", MAGNITUDES)
    columns = ("--columns", "id=id,mjd=mjd,band=filter,mag=m,mag_err=dm", "--min-detections", "0")
    data, stored = run(capsys, out, "table", source, *columns, "--signed-magnitudes", signed)
    np.testing.assert_allclose(data.flux, flux_njy, rtol=2e-3)
    assert stored["report"]["dropped_points"] == dropped


@pytest.mark.parametrize("same_id", [True, False])
def test_hats_rows_of_one_band_are_joined_by_id(tmp_path: Path, out: Path, capsys: Capture, same_id: bool) -> None:
    points = [{"t": 60_000.0 + n, "f": 9.0, "e": 1.0} for n in range(6)]
    rows = [{"id": 7, "b": 1, "lc": points}, {"id": 7 if same_id else 8, "b": 2, "lc": points}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "one.parquet")
    columns = ("--columns", "id=id,mjd=lc.t,band=b,flux=lc.f,flux_err=lc.e", "--bands", "1=g,2=r")
    data, stored = run(capsys, out, "table", tmp_path / "one.parquet", *columns)
    assert len(data) == (1 if same_id else 2)
    assert stored["report"]["bands"] == {"g": 6, "r": 6}


def test_lists_of_a_fixed_size_are_read(tmp_path: Path, out: Path, capsys: Capture) -> None:
    fixed = {
        "id": pa.array(["a"]),
        "t": pa.array([[60_000.0, 60_001.0, 60_002.0]], pa.list_(pa.float64(), 3)),
        "f": pa.array([[9.0, 8.0, 7.0]], pa.list_(pa.float64(), 3)),
        "e": pa.array([[1.0, 1.0, 1.0]], pa.list_(pa.float64(), 3)),
        "b": pa.array([["g", "r", "g"]], pa.list_(pa.string(), 3)),
    }
    pq.write_table(pa.table(fixed), tmp_path / "fixed.parquet")
    data, _ = run(capsys, out, "table", tmp_path / "fixed.parquet", "--columns", "id=id,mjd=t,band=b,flux=f,flux_err=e")
    assert data.flux.tolist() == [9.0, 8.0, 7.0]


@needs_shared
def test_elasticc2_folders_are_read_under_their_model_names(out: Path, capsys: Capture) -> None:
    data, _ = run(capsys, out, "snana", shared("data", "bugs", "snana_elasticc2_names"), "--min-detections", "0")
    assert Counter(ELASTICC.names[label] for label in data.label.tolist()) == {"Ia": 2, "II": 2, "TDE": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["snana", "nowhere"], "no HEAD.FITS"),
        (["ztf", "nowhere"], "does not exist"),
        (["mallorn", "nowhere"], "train_log.csv is missing"),
        (["table", "nowhere", "--columns", "id=a,mjd=b,band=c"], "flux and flux_err"),
        (["ztf", "nowhere", "--object-columns", "id=a"], "--objects, which is missing"),
        (["ztf", "x", "--objects", "y", "--object-columns", "label=a"], "must name the id"),
        (["ztf", "x", "--objects", "y", "--object-columns", "id=a,kind=b"], "not kind"),
    ],
)
def test_problems_are_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        main(["import", *arguments, "--out", str(tmp_path / "x.parquet")])
    assert list(tmp_path.iterdir()) == []


@needs_shared
def test_real_elasticc_objects(out: Path, capsys: Capture) -> None:
    columns = "id=snid,mjd=mjd,flux=flux,flux_err=fluxerr,band=band,detected=detected,label=model,redshift=z_true"
    classes = "SNIa-SALT2=Ia,SNII-NMF=II,SNIIb+HostXT_V19=SN-like/Other"
    options = ("--columns", columns, "--metadata-struct", "diaObject", "--taxonomy", "elasticc-20")
    source = shared("data", "elasticc_objects", "elasticc_sn_kn_objects.parquet")
    data, stored = run(capsys, out, "table", source, *options, "--classes", classes, "--limit", "200")
    assert len(data) == 200
    assert stored["report"]["warnings"] == []
    assert np.isfinite(data.metadata).any(axis=1).all()
    assert 20 < stored["report"]["median_flux_err_njy"] < 2000
    assert sum(map(len, split_indices(data).values())) == 200


@needs_shared
def test_real_ztf_supernovae(out: Path, capsys: Capture) -> None:
    folder = shared("data", "ztf_sn")
    data, stored = run(capsys, out, "ztf-supernovae", folder, "--min-detections", "8", "--limit", "150")
    assert (len(data), data.classes) == (150, ZTF_SUPERNOVAE.names)
    assert set(data.band.tolist()) == {1, 2}
    assert (data.flux > 0).all()
    assert stored["report"]["dropped_points"]["upper limit"] > 1000


@needs_shared
def test_real_alerts_and_mallorn(out: Path, capsys: Capture) -> None:
    archive = shared("data", "alerts", "ztf", "ampel")
    data, stored = run(capsys, out, "ztf", archive)
    assert len(data) == stored["report"]["objects_read"] == 30
    data, stored = run(capsys, out, "mallorn", shared("data", "mallorn"), "--limit", "60")
    assert len(data) == 60
    assert 100 < stored["report"]["median_flux_err_njy"] < 1000
