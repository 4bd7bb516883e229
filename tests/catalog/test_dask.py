"""Classes computed by Dask: ``nightjar_alerts.integrations.lsdb.classify``, and ``nightjar catalog --scheduler``."""

# ruff: noqa: E402
import os
import pickle
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

lsdb = pytest.importorskip("lsdb", reason="lsdb is missing: pip install 'nightjar-alerts[catalog]'")
distributed = pytest.importorskip("distributed", reason="dask is missing: pip install 'nightjar-alerts[catalog]'")

from nightjar_alerts.catalog.partition import Model, PartitionError, classifier_of
from nightjar_alerts.integrations.lsdb import classify
from nightjar_alerts.models.posterior import PriorError
from support.catalogs import COMMAND, content, nested_folder, rubin_rows, write_hats
from support.once import common_folder, made_once

SIZE = 400


@pytest.fixture(scope="session")
def rubin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = common_folder(tmp_path_factory) / "dask" / "rubin"
    return made_once(folder, lambda path: write_hats(path, rubin_rows(SIZE), ("ra", "dec"), 20, 60.0))


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Cluster of two worker processes of this machine."""
    options = {"dashboard_address": None, "memory_limit": None}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield cluster


def test_classify_is_lazy_and_gives_the_columns_of_the_command(rubin: Path, tmp_path: Path, catalog: Any) -> None:
    lazy = classify(lsdb.open_catalog(rubin))
    catalog(rubin)
    frame = lazy.compute(progress_bar=False).sort_index()
    command = lsdb.open_catalog(tmp_path / "out").compute(progress_bar=False).sort_index()
    assert list(lazy.meta.columns) == list(frame.columns) == list(command.columns)
    assert list(frame["object_id"]) == list(command["object_id"])
    assert frame["p_Ia"].to_numpy() == pytest.approx(command["p_Ia"].to_numpy(), abs=2e-5)


def test_classify_embedding_and_selection_of_rows(rubin: Path) -> None:
    few = classify(lsdb.open_catalog(rubin).query("ra > 2"), embedding=True)
    frame = few.compute(progress_bar=False)
    assert 0 < len(frame) < SIZE
    assert len(frame["embedding"].iloc[0]) > 8


def test_classify_error_names_partition_and_object(rubin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nightjar_alerts.catalog import reading

    def fail(items: Any) -> None:
        raise RuntimeError(f"broken by {items[0].object_id}")

    lazy = classify(lsdb.open_catalog(rubin))
    monkeypatch.setattr(reading, "table_light_curves", fail)
    with pytest.raises(Exception, match=r"Norder=\d+/Npix=\d+.*broken by 1000") as caught:
        lazy.compute(progress_bar=False)
    assert caught.value


def test_classify_unknown_prior_is_refused_at_once(rubin: Path) -> None:
    with pytest.raises(PriorError, match="no prior 'sky'"):
        classify(lsdb.open_catalog(rubin), prior="sky")


def test_partition_error_survives_pickling() -> None:
    error = PartitionError("Norder=1/Npix=3", "17", "no column 'band'")
    assert str(pickle.loads(pickle.dumps(error))) == "partition Norder=1/Npix=3, after object 17: no column 'band'"


def test_classifier_of_threads_share_one_runtime() -> None:
    found: set[int] = set()
    threads = [threading.Thread(target=lambda: found.add(id(classifier_of(Model(None, 7))))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1


@pytest.mark.slow
def test_catalog_on_a_cluster_of_which_a_worker_is_killed_has_every_row_once(
    rubin: Path, tmp_path: Path, cluster: Any, catalog: Any
) -> None:
    arguments = [rubin, tmp_path / "cluster", "--scheduler", cluster.scheduler_address, "--quiet"]
    running = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while running.poll() is None and not list((tmp_path / "cluster").rglob("Npix*.parquet")):
        time.sleep(0.01)
    with distributed.Client(cluster) as client:
        os.kill(client.run(os.getpid).popitem()[1], signal.SIGKILL)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 0, errors
    catalog(rubin, "one")
    one, many = (content(tmp_path / name) for name in ("one", "cluster"))
    assert Counter(many["object_id"].to_pylist()) == Counter(one["object_id"].to_pylist())
    assert many["p_Ia"].to_pylist() == pytest.approx(one["p_Ia"].to_pylist(), abs=2e-5)


@pytest.mark.slow
def test_classify_on_a_cluster_of_which_a_worker_is_killed_has_every_row_once(rubin: Path, cluster: Any) -> None:
    lazy = classify(lsdb.open_catalog(rubin))
    alone = lazy.compute(progress_bar=False).set_index("object_id").sort_index()
    with distributed.Client(cluster) as client:
        victim = client.run(os.getpid).popitem()[1]
        threading.Timer(1.0, os.kill, [victim, signal.SIGKILL]).start()
        frame = lazy.compute(progress_bar=False).set_index("object_id").sort_index()
        runtimes = client.run(lambda: len({id(classifier_of(Model(None, 1))) for _ in range(3)}))
    assert list(frame.index) == list(alone.index)
    assert frame["p_Ia"].to_numpy() == pytest.approx(alone["p_Ia"].to_numpy(), abs=2e-5)
    assert set(runtimes.values()) == {1}


@pytest.mark.slow
def test_catalog_whose_cluster_is_lost_says_so_and_is_taken_up_again(tmp_path: Path, catalog: Any) -> None:
    source = nested_folder(tmp_path / "in", [60] * 12)
    options = {"dashboard_address": None, "memory_limit": None}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster:
        arguments = [source, tmp_path / "out", "--scheduler", cluster.scheduler_address, "--quiet"]
        running = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while running.poll() is None and not list((tmp_path / "out").glob("*.parquet")):
            time.sleep(0.01)
    _, errors = running.communicate(timeout=120)
    finished = len(list((tmp_path / "out").glob("night-*.parquet")))
    assert running.returncode == (0 if finished == 12 else 1)
    assert finished == 12 or "the same command" in errors
    summary = catalog(source)
    assert summary.was_finished or summary.earlier == finished
    assert len(content(tmp_path / "out")) == 720


def test_catalog_without_a_scheduler_says_so(tmp_path: Path, catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from nightjar_alerts.catalog import run

    monkeypatch.setattr(run, "CONNECT_SECONDS", 1)
    with pytest.raises(run.CatalogError, match=r"there is no scheduler of Dask at tcp://127\.0\.0\.1:1"):
        catalog(nested_folder(tmp_path / "in", [2]), scheduler="tcp://127.0.0.1:1")
