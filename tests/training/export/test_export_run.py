"""Export of runs: what `fit` trains, `export` exports."""

from pathlib import Path

import pytest

from nightjar_alerts.models.bundle import CARD, verify_golden
from nightjar_alerts.models.runtime import open_session
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.export import parity
from nightjar_alerts.training.export.bundle import export_run
from nightjar_alerts.training.fit.checkpoints import RunError
from nightjar_alerts.training.fit.train import train
from support.referee import mixture, small


@pytest.mark.slow
def test_export_run_of_a_mixture_states_the_class_shares_of_its_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CURVES", "NOISE"):  # without experts, a few light curves reach every part
        monkeypatch.setattr(parity, name, 40)
    data = mixture(tmp_path)
    train(small(), data, tmp_path / "run", progress=False)
    bundle = export_run(tmp_path / "run", tmp_path / "bundle", name="mixed", version="1.0.0", data=data)
    manifest = bundle.manifest
    assert manifest.prior is not None
    assert set(manifest.prior.shares) == set(ELASTICC.names)
    assert manifest.prior.shares["Ia"] == max(manifest.prior.shares.values())  # its weight in the mixture is 2
    assert manifest.data["mixture"] == pytest.approx({"sim.parquet": 0.6, "made.npz": 0.4})
    assert verify_golden(bundle, open_session(bundle.model)) < 1e-4
    assert "60% sim.parquet, 40% made.npz" in (bundle.path / CARD).read_text(encoding="utf-8")


def test_export_run_without_light_curves_for_the_fits_raises(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="name either the data file"):
        export_run(tmp_path / "run", tmp_path / "bundle", name="none", version="1.0.0")


@pytest.mark.parametrize(("name", "version"), [("My Model", "1.0.0"), ("mine", "1")])
def test_export_run_under_a_wrong_name_refuses_before_the_fits(name: str, version: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="of a bundle has"):
        export_run(tmp_path / "run", tmp_path / "bundle", name=name, version=version, data=tmp_path / "none")


def test_export_run_into_a_file_refuses(tmp_path: Path) -> None:
    (tmp_path / "bundle").touch()
    with pytest.raises(RunError, match="is not an empty folder"):
        export_run(tmp_path / "run", tmp_path / "bundle", name="mine", version="1.0.0", data=tmp_path / "none")
