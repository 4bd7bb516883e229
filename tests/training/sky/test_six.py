"""ZTF's six classes: paired with trees, on objects that neither has seen."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from models.bundle import DEFAULT_BUNDLE, ZTF_BUNDLE, load_bundle
from support.sky import bump
from training.sky.card import write_sky_card
from training.sky.page import write_page
from training.sky.record import PARTS, Sky, collect
from training.sky.six import NUMBER, left_for_testing, paired, six_report


def ztf() -> Sky:
    rows, parts = [], []
    for i in range(90):
        kind, width = ("SN Ia", 8.0) if i % 3 else ("SN II", 30.0)
        rows.append(bump(f"ZTF{i}", source="ztf_sn", seed=i, bands="gr", width=width, raw_label=kind))
        parts.append(PARTS.index("test" if i % 2 else "train"))
    rows.append(bump("ZTFx", source="ztf_sn", seed=1000, bands="gr", raw_label="SN I"))
    return collect(rows, [row.object_id for row in rows], [*parts, 0])


def test_equal_answers_differ_by_nothing() -> None:
    truth, named = np.array([0, 1, 0, 1] * 20), np.array([0, 1, 1, 1] * 20)
    assert paired(truth, named, named) == (0.0, 0.0, 0.0)
    better, low, high = paired(truth, truth, named)
    assert low < better < high + 1e-9
    assert low > 0


def test_trees_and_bundle_stand_side_by_side() -> None:
    report = six_report(ztf(), [ZTF_BUNDLE], seeds=(0,))
    assert report["objects"] == 45
    assert report["trees"]["macro-F1"] > 0.7
    (row,) = report["bundles"].values()
    assert 0 < row["objects"] < 45
    assert row["interval"][0] <= row["difference"] <= row["interval"][1]
    page = write_page({"prior": "p", "looks": "once", "table": [], "reports": {}, "six": report}, "sky.json")
    assert "## ZTF supernovae, six classes" in page


def test_a_card_tells_both_scores_and_who_was_ahead(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(ZTF_BUNDLE, tmp_path / "bundle"))
    manifest = load_bundle(bundle).manifest
    found = {"objects": 1089, "macro-F1": 0.4, "trees": 0.5, "difference": -0.1, "interval": [-0.2, 0.05]}
    write_sky_card(bundle, {"bundles": {f"{manifest.name} {manifest.version}": found}})
    card = (bundle / "CARD.md").read_text(encoding="utf-8")
    assert "**0.400**" in card
    assert "-0.100, from -0.200 to +0.050" in card
    assert "nothing but supernovae" in card
    assert "OGLE" not in card


def test_a_bundle_of_other_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="six classes"):
        six_report(ztf(), [DEFAULT_BUNDLE], seeds=(0,))


def test_a_bundle_left_its_own_share_for_testing() -> None:
    manifest = load_bundle(ZTF_BUNDLE).manifest
    names = np.array([f"ZTF{i}" for i in range(2000)])
    share = 1.0 - sum(manifest.recipe["data"]["fractions"][:2])
    assert left_for_testing(manifest, names).mean() == pytest.approx(share, abs=0.03)
    assert left_for_testing(manifest.model_copy(update={"recipe": {}}), names).all()
    assert len(NUMBER) == 6
