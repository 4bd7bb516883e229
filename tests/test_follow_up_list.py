"""``nightjar classify --select``: the ranked list, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from nightjar_alerts.classify_command import main
from nightjar_alerts.client import Client
from nightjar_alerts.follow_up_list import FollowUpList, SelectionError
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.follow_up import FollowUp, Horizon
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.results import Result
from nightjar_alerts.service.registry.loader import load_one
from support.curves import csv_text, supernovae
from support.edge import HOST, live
from support.graph_bundles import classifier_bundle
from support.results import MODEL, classified

PURE, IMPURE = (0.9, 0.8, 0.95), (0.3, 0.2, 0.4)


def lists(*classes: str) -> FollowUp:
    """Lists whose purity is .9 from a probability of .7 on, for complete light curves only."""
    early = Horizon(days=10.0, objects=50, purity=(IMPURE, IMPURE), completeness=(IMPURE, IMPURE))
    done = Horizon(days=None, objects=50, purity=(IMPURE, PURE), completeness=(PURE, IMPURE))
    few = Horizon(days=None, objects=3)
    return FollowUp(
        thresholds=(0.05, 0.7),
        classes={name: (early, done) if name == classes[0] else (few,) for name in classes},
        measured_on="tests",
    )


def result(name: str, probability: float, days: float = 50.0, unusual: bool = False) -> Result:
    mjd, flux = np.array([60000.0, 60000.0 + days]), np.ones(2, np.float32)
    curve = LightCurve(mjd, flux, flux, np.zeros(2, np.int64), np.ones(2, np.bool_))
    shares = {"Ia": probability, "II": 1 - probability}
    model = replace(MODEL, prior="own")
    return Result(classified(object_id=name, probabilities=shares, unusual=unusual), model, curve)


def listed(*results: Result) -> FollowUpList:
    made = FollowUpList({MODEL.sha256: {"own": lists("Ia", "II")}}, "Ia", 0.8)
    made.add(results, "file")
    return made


def test_list_of_a_purity_that_is_text_names_the_argument() -> None:
    with pytest.raises(TypeError, match=r"purity must be a number above 0 and below 1, such as 0\.8, not '0\.8'"):
        FollowUpList({MODEL.sha256: {"own": lists("Ia")}}, "Ia", "0.8")  # type: ignore[arg-type]  # a text, which is the fault


def test_list_is_ranked_and_says_how_many_are_true() -> None:
    lines = list(listed(result("b", 0.75), result("a", 0.95), result("c", 0.6)).lines())
    assert [line.split()[1] for line in lines[1:3]] == ["a", "b"]
    assert lines[3] == (
        "Ia: 2 of 3 classified light curves, of which 1.8 (1.6 to 1.9) are expected to be true under the class shares "
        "own"
    )
    assert lines[4].startswith("longer light curves: probability of at least 0.7, purity 0.90 (0.80 to 0.95)")


def test_list_counts_what_it_leaves_out() -> None:
    other = Result(classified(), replace(MODEL, sha256="1" * 64), result("x", 0.9).light_curve)
    unread = Result(classified(), replace(MODEL, prior="own"))
    lines = list(listed(result("early", 0.9, days=2.0), result("odd", 0.9, unusual=True), other, unread).lines())
    assert lines[0].startswith("Ia: 0 of 4 classified light curves")
    assert lines[1] == "up to 10 days: no threshold has a purity of 0.8; 1 light curve not listed"
    assert sorted(lines[2:]) == [
        "not listed: 1 by a model that states no purity for the class",
        "not listed: 1 unusual, so no purity is stated",
        "not listed: 1 without a light curve, so their duration is not known",
    ]


@pytest.mark.parametrize("purity", [0.0, 1.0, 80, float("nan")])
def test_list_of_a_purity_that_is_no_fraction_is_refused(purity: float) -> None:
    with pytest.raises(SelectionError, match="is not above 0 and below 1"):
        FollowUpList({MODEL.sha256: {"own": lists("Ia")}}, "Ia", purity)


def test_list_counts_results_under_other_class_shares() -> None:
    made = FollowUpList({MODEL.sha256: {"own": lists("Ia"), "other": lists("Ia")}}, "Ia", 0.8, "other")
    made.add([result("a", 0.95)])
    assert made.selected == []
    assert list(made.lines())[-1] == "not listed: 1 under other class shares than those of the list"


@pytest.mark.parametrize(
    ("name", "prior", "error"),
    [
        ("II", "", "3 measured objects, fewer than 30 objects"),
        ("KN", "", "KN is no class of the model; its classes are Ia, II"),
        ("Ia", "uniform", "no model states purity under the class shares uniform, but for own"),
    ],
)
def test_list_of_a_purity_that_is_not_stated_is_refused(name: str, prior: str, error: str) -> None:
    with pytest.raises(SelectionError, match=error):
        FollowUpList({MODEL.sha256: {"own": lists("Ia", "II")}}, name, 0.8, prior)


def test_list_of_models_without_lists_is_refused() -> None:
    with pytest.raises(SelectionError, match="no model states the purity of lists"):
        FollowUpList({MODEL.sha256: {}}, "Ia", 0.8)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    names = ELASTICC.names
    stated = {"uniform": lists(*sorted(names, key=lambda name: name != "Ia"))}
    return classifier_bundle(tmp_path_factory.mktemp("bundle"), follow_up=stated)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "night.csv"
    path.write_text(csv_text(supernovae(3)))
    return path


SELECT = ("--flux-kind", "difference", "--quiet", "--select", "Ia", "--prior", "uniform", "--purity")


def test_select_prints_the_list_in_process_and_from_a_service(
    bundle: Bundle, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(table), "--model", str(bundle.path), *SELECT, "0.2"]) == 0
    printed = capsys.readouterr().out
    with live(load_one, bundle=bundle.path) as edge:
        assert main([str(table), "--url", f"http://{HOST}:{edge.port}", *SELECT, "0.2"]) == 0
    assert capsys.readouterr().out == printed
    assert "are expected to be true under the class shares uniform" in printed


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--select", "Ia"), "--select CLASS and --purity P belong together"),
        (("--purity", "0.8"), "--select CLASS and --purity P belong together"),
        (("--select", "Ia", "--purity", "0.8", "-o", "-"), "name a file with --output"),
        (("--select", "Ia", "--purity", "0.8", "-o", "x.csv", "--resume"), "does not go with --resume"),
        (("--select", "Ia", "--purity", "0.8", "--prior", '{"Ia": 1}'), "needs class shares by name"),
        (("--select", "Ia", "--purity", "0.8", "--prior", "lsst-alerts"), "but for uniform"),
    ],
)
def test_select_with_options_that_do_not_fit_is_refused(
    bundle: Bundle, table: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], error: str
) -> None:
    assert main([str(table), "--model", str(bundle.path), *arguments]) == 2
    assert error in capsys.readouterr().err


def test_select_with_a_purity_that_is_no_number_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["night.csv", "--select", "Ia", "--purity", "high"])
    assert "--purity: high is not a number above 0 and below 1" in capsys.readouterr().err


def test_select_from_a_service_with_lists_that_cannot_be_read_names_it(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "models", lambda _: [{"sha256": "0" * 64, "follow_up": {"uniform": {}}}])
    assert main([str(table), "--url", f"http://{HOST}:9", *SELECT, "0.2"]) == 1
    assert f"http://{HOST}:9 describes its models in an unknown way" in capsys.readouterr().err
