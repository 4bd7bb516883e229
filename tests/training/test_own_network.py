"""The network of docs/extending/network.md, which is outside the package, from training to the service."""

import re
from pathlib import Path

import pytest
import torch

from nightjar_alerts.models.bundle import BundleError
from nightjar_alerts.models.networks.zoo import PythonNetworkConfig, build
from nightjar_alerts.service.registry.loader import load_one
from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.export.weights import read_network
from nightjar_alerts.training.fit.checkpoints import load_best
from support.edge import curve, live
from support.toy_dataset import write_toy_dataset

PAGE = Path(__file__).parents[2] / "docs" / "extending" / "network.md"
FILE = re.compile(r"<!-- test: file (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with the files of the page, on the path of modules."""
    for name, content in FILE.findall(PAGE.read_text()):
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_own_network_is_trained_resumed_exported_and_served(folder: Path) -> None:
    data = write_toy_dataset(folder / "toy.parquet", 160)
    command = f"fit {folder / 'deep-sets.toml'} --data {data} --threads 1 --out"
    main([*command.split(), str(folder / "whole")])
    main([*command.split(), str(folder / "parts"), "--max-minutes", "0.0001"])
    main([*command.split(), str(folder / "parts")])
    whole, parts = load_best(folder / "whole"), load_best(folder / "parts")
    assert all(torch.equal(parts[name], value) for name, value in whole.items())
    main(f"export {folder / 'whole'} {folder / 'bundle'} --data {data} --name deep-sets".split())
    with live(load_one, bundle=folder / "bundle") as edge:
        status, reply = edge.classify({"light_curves": [curve(points) for points in (4, 9, 40)]})
    assert status == 200
    assert [result["status"] for result in reply["results"]] == ["classified"] * 3
    with pytest.raises(BundleError, match="not part of Nightjar"):
        read_network(folder / "bundle")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("deep_set:DeepSets", "No module named 'deep_set'; add its folder to PYTHONPATH"),
        ("deep_sets:Deep", "has no attribute 'Deep'"),
        ("os:system", "is not a subclass of torch.nn.Module"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_build_of_what_is_no_network_raises(factory: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(PythonNetworkConfig(factory=factory))
