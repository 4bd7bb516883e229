"""The commands of docs/published-networks.md, in tiny versions; all but the fastest run at night."""

import re
from pathlib import Path

import pytest

from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.training.__main__ import main
from support.toy_dataset import write_toy_dataset

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "published-networks.md"
WALKS = {
    title: [line for line in block.splitlines() if line.startswith("nightjar-train")]
    for title, block in re.findall(
        r"^## (\S[^\n]*)\n(?:(?!^## ).)*?<!-- walk-through -->.*?```bash\n(.*?)```", PAGE.read_text(), re.M | re.S
    )
}
RUN = "--steps 4 --threads 1 --set batch.size=8 --set validation.every=2 --set validation.objects=10"
MULTIBAND = "d_model=32 d_ff=32 n_blocks=1 n_heads=2 d_tab=32 tab_ff=32 tab_blocks=1 tab_heads=2"
SIZES = {
    "astro-moe": MULTIBAND,
    "multiband": MULTIBAND,
    "romae": "encoder.d_model=32 encoder.n_heads=2 encoder.depth=1 decoder.d_model=32 decoder.n_heads=2",
    "astromer": "d_model=32 n_heads=2 d_ff=32 lstm_width=32 n_blocks=1",
}


def test_every_published_network_has_a_walk_through() -> None:
    assert list(WALKS) == ["Astro-MoE", "RoMAE", "ASTROMER", "Multiband ASTROMER"]


@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=[] if title == "RoMAE" else [pytest.mark.nightly]) for title in WALKS]
)
def test_walk_through_leads_to_a_bundle(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("labelled", "unlabelled"):
        write_toy_dataset(tmp_path / "build" / f"{name}.parquet", 160)
    for command in WALKS[title]:
        _, *arguments = command.split()
        if arguments[0] == "fit":
            sizes = next(sizes for prefix, sizes in SIZES.items() if arguments[1].startswith(prefix))
            arguments += RUN.split()
            arguments += [part for size in sizes.split() for part in ("--set", f"network.{size}")]
        main(arguments)
    assert load_bundle(tmp_path / arguments[2]).manifest.name == arguments[-1]
    assert ("tensors are from" in capsys.readouterr().err) == ("--pretrained" in "".join(WALKS[title]))
