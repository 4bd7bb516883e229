"""The notebook of docs/examples runs from top to bottom, cell by cell."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "examples" / "unusual.ipynb"


def test_notebook_cells_run_and_plot_the_most_unusual_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    monkeypatch.chdir(NOTEBOOK.parent)
    pyplot.close("all")
    names: dict[str, object] = {}
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}:{cell['id']}", "exec"), names)
            assert cell["outputs"] == [], "committed without outputs"
    try:
        ranked = names["ranked"]
        assert isinstance(ranked, list)
        assert [result.novelty for result in ranked] == sorted((r.novelty for r in ranked), reverse=True)
        assert len(pyplot.get_fignums()) == 4
    finally:
        pyplot.close("all")
