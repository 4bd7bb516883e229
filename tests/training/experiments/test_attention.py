"""The costs of the kinds of attention: the table and records of a tiny run, and the errors' limits."""

from pathlib import Path

import pytest

from nightjar_alerts.models.networks.parts.attention import AttentionConfig
from nightjar_alerts.training.experiments import attention
from nightjar_alerts.training.experiments.attention import COLUMNS, KINDS, AttentionExperiment
from nightjar_alerts.training.experiments.runner import read_records

TINY = {"tokens": 60, "width": 16, "rounds": 1}


def test_a_run_prints_a_row_and_records_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = AttentionExperiment.model_validate(TINY | {"lengths": [20, 30], "records": tmp_path, "bfloat16": True})
    command.cli_cmd()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 2 * len(KINDS)
    assert [cell.strip() for cell in lines[2].split("|")[1:3]] == ["20", "exact"]
    records = read_records("attention", tmp_path)
    assert len(records) == len(KINDS)
    assert set(records[0].metrics) == {
        f"{name}_L{length}" for name in COLUMNS if not name.endswith("_mb") for length in (20, 30)
    }
    exact = next(record for record in records if record.variant.startswith("exact"))
    assert exact.metrics["forward_ratio_L20"] == exact.metrics["step_ratio_L30"] == 1
    assert exact.command.endswith("attention --lengths 20,30 --tokens 60 --width 16 --rounds 1 --bfloat16 true")


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_vanishes_where_a_kind_is_exact(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every query attends, groups of one head, one bucket; the approximations proper keep an error."""
    limits = {"factor": 30, "n_groups": 4, "chunk": 20}
    assert set(limits) < set(AttentionConfig.model_fields)
    monkeypatch.setitem(KINDS, kind, KINDS[kind] | limits)
    command = AttentionExperiment.model_validate(TINY)
    errors = attention._errors(command, kind, 20)
    if kind in ("linformer", "performer"):
        assert 0.01 < errors["error_1"] < 10
    else:
        assert max(errors.values()) < 1e-5
