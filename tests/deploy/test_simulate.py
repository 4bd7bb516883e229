"""``python -m deploy.bench.simulation``, with a given cost model and against the real engine."""

import json
from pathlib import Path

import pytest

from deploy.bench.simulation.__main__ import main

COST = {"c0": 1.2e-3, "c1": 1.8e-5, "c2": 5e-9, "c3": 4e-4, "c4": 0.0}


def run(tmp_path: Path, *arguments: str) -> int:
    """Exit status of a small simulation."""
    outputs = ("--output", str(tmp_path / "new" / "out.json"), "--picture", str(tmp_path / "out.svg"))
    try:
        main(["--alerts", "150", "--rates", "[100, 300]", "--visits", "[200]", *outputs, *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def cost(tmp_path: Path) -> str:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(COST))
    return str(path)


def test_a_cost_model_is_enough(tmp_path: Path, cost: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--cost", cost, "--workers", "3") == 0
    document = json.loads((tmp_path / "new" / "out.json").read_text())
    assert document["workers"] == 3
    assert document["cost"]["predicted"] == COST
    assert len(document["results"]) == 5 * (1 + 2 + 1)
    assert "<svg" in (tmp_path / "out.svg").read_text()
    assert "window_5ms, 200 every 37 s" in capsys.readouterr().out


def test_a_recorded_trace_is_simulated_and_replayed(
    tmp_path: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "night.txt"
    trace.write_text("".join(f"{0.01 * number:.2f} {10 + number}\n" for number in range(40)))
    assert run(tmp_path, "--bundle", str(tiny_bundle), "--trace", str(trace), "--replay") == 0
    document = json.loads((tmp_path / "new" / "out.json").read_text())
    assert [result["traffic"] for result in document["results"]] == ["night.txt"] * 5
    assert set(document["replay"]) == {"simulated", "simulated, runs as measured", "measured"}
    assert document["replay"]["measured"]["expired"] == 0
    assert "measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", "[]", '{"c0": 1}', '{"c9": 1}', '{"c0": -1, "c1": 0, "c2": 0}', '{"c0": 0, "c1": 0, "c2": 0}']
)
def test_a_file_without_a_cost_model_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.json").write_text(text)
    assert run(tmp_path, "--cost", str(tmp_path / "wrong.json")) == 1
    assert "wrong.json" in capsys.readouterr().err


def test_a_file_without_a_trace_is_refused(tmp_path: Path, cost: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--cost", cost, "--trace", str(tmp_path / "nowhere.txt")) == 1
    assert "nowhere.txt" in capsys.readouterr().err
