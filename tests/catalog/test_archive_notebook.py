"""The notebook on archives runs from top to bottom on a small catalogue."""

# ruff: noqa: E402
import json
from pathlib import Path

import pytest

pytest.importorskip("lsdb", reason="lsdb is missing: pip install 'nightjar-alerts[catalog]'")
matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is missing: pip install 'nightjar-alerts[plot]'")

from support.catalogs import rubin_rows, write_hats

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "examples" / "archive.ipynb"


def test_archive_notebook_plots_the_most_unusual_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    write_hats(tmp_path / "archive", rubin_rows(30), ("ra", "dec"), 10, 60.0)
    monkeypatch.chdir(tmp_path)
    pyplot.close("all")
    names: dict[str, object] = {}
    try:
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}:{cell['id']}", "exec"), names)
                assert cell["outputs"] == [], "committed without outputs"
        assert len(pyplot.get_fignums()) == 4
        assert len(names["results"]) == 3  # type: ignore[arg-type]  # names of a notebook are objects
    finally:
        pyplot.close("all")
