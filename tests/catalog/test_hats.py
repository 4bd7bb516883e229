"""``nightjar catalog`` on HATS catalogues, and bands that are joined."""

# ruff: noqa: E402
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

lsdb = pytest.importorskip("lsdb", reason="lsdb is missing: pip install 'nightjar-alerts[catalog]'")
pa = pytest.importorskip("pyarrow")

from hats.io.validation import is_valid_collection

from nightjar_alerts.tables import TableError
from support.catalogs import content, rubin_rows, write_hats, write_nested, ztf_rows
from support.once import common_folder, made_once


@pytest.fixture(scope="session")
def rubin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Collection like Rubin's archive, with a margin."""
    folder = common_folder(tmp_path_factory) / "hats" / "rubin"
    return made_once(folder, lambda path: write_hats(path, rubin_rows(60), ("ra", "dec"), 25, 600.0))


def stars() -> list[tuple[float, float]]:
    """Return places at corners of HEALPix pixels of order 3, which are on borders of partitions, and in between."""
    from cdshealpix import nested

    found = set()
    for pixel in (265, 266, 267, 268):
        lon, lat = nested.vertices(pixel, 3)
        centre = nested.healpix_to_lonlat([pixel], 3)
        found |= {(round(ra, 9), round(dec, 9)) for ra, dec in zip(lon.deg.ravel(), lat.deg.ravel(), strict=True)}
        found.add((float(centre[0].deg[0]), float(centre[1].deg[0])))
    return sorted(found)


@pytest.fixture(scope="session")
def ztf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Collection like a data release of ZTF, in which rows of one star are on both sides of a border."""
    folder = common_folder(tmp_path_factory) / "hats" / "ztf"
    return made_once(folder, lambda path: write_hats(path, ztf_rows(stars()), ("objra", "objdec"), 30, 10.0))


def computed(path: Path) -> Any:
    return lsdb.open_catalog(path).compute(progress_bar=False)


def test_hats_output_is_valid_and_opens_with_its_margin(rubin: Path, tmp_path: Path, catalog: Any) -> None:
    summary = catalog(rubin)
    assert is_valid_collection(tmp_path / "out", strict=True)
    opened = lsdb.open_catalog(tmp_path / "out")
    assert opened.get_healpix_pixels() == lsdb.open_catalog(rubin).get_healpix_pixels()
    frame, margin = (each.compute(progress_bar=False) for each in (opened, opened.margin))
    assert summary.rows == len(frame) == 60
    assert set(frame["object_id"]) == {str(row["diaObjectId"]) for row in rubin_rows(60)}
    before = lsdb.open_catalog(rubin).margin.compute(progress_bar=False)
    assert Counter(margin["diaObjectId"]) == Counter(before["diaObjectId"])
    same = frame.set_index("object_id").loc[margin["object_id"]]
    assert (same["p_Ia"].to_numpy() == margin["p_Ia"].to_numpy()).all()


def test_hats_classes_are_those_of_a_parquet_folder(rubin: Path, tmp_path: Path, catalog: Any) -> None:
    catalog(rubin)
    write_nested(tmp_path / "in" / "a.parquet", rubin_rows(60))
    catalog(tmp_path / "in", "plain")
    frame = computed(tmp_path / "out").set_index("object_id")
    plain = content(tmp_path / "plain").to_pandas().set_index("object_id").loc[frame.index]
    assert list(frame["class"]) == list(plain["class"])
    np.testing.assert_allclose(frame["p_Ia"].astype(float), plain["p_Ia"].astype(float), atol=2e-5)


def test_hats_interrupted_before_its_metadata_is_completed(rubin: Path, tmp_path: Path, catalog: Any) -> None:
    from nightjar_alerts.catalog.hats import HatsInput

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HatsInput, "_write_metadata", fail)
        with pytest.raises(KeyboardInterrupt):
            catalog(rubin)
    summary = catalog(rubin)
    assert (summary.partitions, summary.rows) == (0, 60)
    assert is_valid_collection(tmp_path / "out", strict=True)


def test_hats_since_finds_rows_whose_pixel_was_split(rubin: Path, tmp_path: Path, catalog: Any) -> None:
    catalog(rubin, "old")
    finer = write_hats(tmp_path / "rubin", rubin_rows(60), ("ra", "dec"), 10, 600.0)
    assert len(lsdb.open_catalog(finer).get_healpix_pixels()) > len(lsdb.open_catalog(rubin).get_healpix_pixels())
    assert catalog(finer, "new", since=tmp_path / "old").unchanged == 60


def test_join_bands_joins_rows_across_borders_once(ztf: Path, tmp_path: Path, catalog: Any) -> None:
    assert len(_pixels_of_rows(ztf)) > len(stars()), "rows of one star are in several partitions"
    summary = catalog(ztf, join_radius=1.0)
    joined = Counter(tuple(sorted(map(int, ids))) for ids in computed(tmp_path / "out")["joined_ids"])
    assert joined == Counter((10 * star + 1, 10 * star + 2, 10 * star + 3) for star in range(len(stars())))
    assert (summary.joined, summary.objects_joined) == (3 * len(stars()), len(stars()))
    assert is_valid_collection(tmp_path / "out", strict=True)


def _pixels_of_rows(folder: Path) -> list[tuple[int, str]]:
    """Return the star and the partition of each row, without repeats."""
    opened = lsdb.open_catalog(folder)
    found = set()
    for number, pixel in enumerate(opened.get_healpix_pixels()):
        frame = opened.partitions[number].compute(progress_bar=False)
        found |= {(int(name) // 10, str(pixel)) for name in frame["objectid"]}
    return sorted(found)


def test_join_bands_uses_the_light_curves_of_all_bands(ztf: Path, tmp_path: Path, catalog: Any) -> None:
    catalog(ztf, "joined", join_radius=1.0)
    catalog(ztf, "apart")
    joined, apart = (computed(tmp_path / name) for name in ("joined", "apart"))
    assert set(joined["observations"]) == {60}
    assert set(apart["observations"]) == {20}
    assert (joined["points_g"] > 0).all()


def test_join_bands_without_a_wide_margin_is_refused(ztf: Path, catalog: Any) -> None:
    with pytest.raises(TableError, match=r"needs a margin of 18 arcseconds; that of the catalogue has 10"):
        catalog(ztf, join_radius=3.0)


def test_join_bands_without_a_margin_is_refused(ztf: Path, catalog: Any) -> None:
    with pytest.raises(TableError, match="needs a catalogue with a margin"):
        catalog(ztf / "ztf", join_radius=1.0)


def test_hats_is_read_from_an_address(rubin: Path, tmp_path: Path, catalog: Any) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(rubin))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert catalog(address).rows == 60
        assert catalog(address).was_finished
        server.shutdown()
    assert is_valid_collection(tmp_path / "out", strict=True)
