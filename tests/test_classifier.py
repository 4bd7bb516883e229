"""Classification in process, with the shipped models, against the service and against itself."""

import io
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, assert_type, cast

import numpy as np
import pytest
from msgspec import structs

from nightjar_alerts import Classifier, LightCurve, LightCurveError, ModelFailedError, Result, Results
from nightjar_alerts.classifier import BLOCK
from nightjar_alerts.core.adapter import Arrays
from nightjar_alerts.core.result import PhotometryWarning
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, BundleError
from nightjar_alerts.models.photometry import magnitude_of
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.service import SAMPLES
from nightjar_alerts.tables import TableError
from support import alerts
from support.children import assert_raises_in_child
from support.curves import NO_TABLES, close, csv_text, rows, supernovae
from support.edge import Live, curve

PACKETS = sorted(SAMPLES.glob("*.avro"))


@pytest.fixture(scope="module")
def classifier() -> Iterator[Classifier]:
    with Classifier(native="off", threads=2) as made:
        yield made


def test_classify_list_of_bodies_equals_json_of_the_service(classifier: Classifier, default_edge: Live) -> None:
    sent = supernovae(40)
    sent[3] = sent[3] | {"flux_err": [0.0] * len(sent[3]["mjd"])}
    sent[5] = {"object_id": "no band", "mjd": [60_000.0], "flux": [1.0], "flux_err": [1.0]}
    sent[7] = sent[7] | {"survey": "ztf"}
    sent[9] = sent[9] | {"band": ["V"] * len(sent[9]["mjd"])}
    options = {"embedding": True, "coverage": 0.5}
    status, reply = default_edge.classify({"light_curves": sent, "options": options})
    assert status == 200
    results = classifier.classify(sent, embedding=True, coverage=0.5)
    assert len(results) == len(sent)
    for result, expected in zip(results, reply["results"], strict=True):
        assert close(result.to_dict(), expected), (result.to_dict(), expected)
        assert dict(result.model) == expected.get("model", reply["model"])
    assert {result.status for result in results} >= {"classified", "rejected"}
    assert results[3].errors[0]["pointer"] == "/light_curves/3/flux_err/0"
    assert results[5].errors[0]["pointer"] == "/light_curves/5/band"


def test_classify_light_curves_of_ztf_have_the_subtypes_of_the_service(
    classifier: Classifier, default_edge: Live
) -> None:
    sent = [body | {"survey": "ztf"} for body in supernovae(40)]
    _, reply = default_edge.classify({"light_curves": sent})
    results = [result.to_dict() for result in classifier.classify(sent)]
    assert all(close(result, expected) for result, expected in zip(results, reply["results"], strict=True))
    assert {"subtype" in result for result in results} == {True, False}


@pytest.mark.parametrize("packet", PACKETS, ids=lambda path: path.stem)
def test_classify_packet_equals_json_of_the_service(classifier: Classifier, default_edge: Live, packet: Path) -> None:
    status, reply = default_edge.post("/v1/alerts", packet.read_bytes())
    assert status == 200 or default_edge.ask("POST", "/v1/alerts")
    results = classifier.classify(packet.read_bytes())
    assert [close(result.to_dict(), each) for result, each in zip(results, reply["results"], strict=True)] == [True]


def test_classify_unreadable_packet_is_rejected_as_by_the_service(classifier: Classifier, default_edge: Live) -> None:
    good, bad = PACKETS[0].read_bytes(), b"no packet at all"
    first, second = classifier.classify([bad, good])
    _, reply = default_edge.post("/v1/alerts", bad)
    assert close(first.to_dict(), reply["results"][0])
    assert (first.status, second.status) == ("rejected", "classified")


def test_classify_container_of_two_alerts_gives_two_results(classifier: Classifier) -> None:
    packet = alerts.container("ztf/4.02", [alerts.ztf_alert(), alerts.ztf_alert()])
    assert len(classifier.classify([packet, PACKETS[0].read_bytes()])) == 3


def test_classify_one_light_curve_in_any_form_gives_the_same_result(classifier: Classifier) -> None:
    body = supernovae(1, seed=3)[0]
    expected = classifier.classify(body)
    assert isinstance(expected, Result)
    arrays = {name: np.array(value) for name, value in body.items()}
    record = LightCurve.from_columns(body["mjd"], body["flux"], body["flux_err"], body["band"], object_id="SN0000")
    for same in (
        classifier.classify(**body),
        classifier.classify(arrays),
        classifier.classify(body | {"flux": np.float32(body["flux"])}),
        classifier.classify(body | {"flux_err": [np.float64(error) for error in body["flux_err"]]}),
        classifier.classify(record),
        *classifier.classify([record]),
        *cast(Results, classifier.classify({"light_curves": [body]})),
        *classifier.classify(iter([arrays])),
    ):
        assert close(same.to_dict(), expected.to_dict())
    assert expected.light_curve is not None
    assert len(expected.light_curve) == len(body["mjd"])


@pytest.mark.parametrize(
    ("changes", "pointer", "reason"),
    [
        ({"flux": [1.0, float("nan")]}, "/flux/1", "not_finite"),
        ({"flux": [1.0, "x"]}, "/flux/1", "not_a_number"),
        ({"flux": [1.0, None]}, "/flux/1", "not_a_number"),
        ({"mjd": [2_460_000.5, 2_460_001.5]}, "/mjd/0", "time_out_of_range"),
        ({"band": ["g", "q"]}, "/band/1", "unknown_band"),
        ({"band": None}, "/band", "not_a_list"),
        ({"flux_err": [1.0]}, "/flux_err", "length_mismatch"),
        ({"fluxes": [1.0]}, "/fluxes", "unknown_field"),
        ({"metadata": {"redshift": 0.1}}, "/metadata/redshift", "unknown_field"),
    ],
)
def test_classify_invalid_light_curve_raises_with_pointer(
    classifier: Classifier, changes: dict[str, Any], pointer: str, reason: str
) -> None:
    body = {"mjd": [60_000.0, 60_001.0], "flux": [1.0, 2.0], "flux_err": [1.0, 1.0], "band": ["g", "r"]} | changes
    with pytest.raises(LightCurveError) as caught:
        classifier.classify(body)
    assert (caught.value.pointer, caught.value.reason) == (pointer, reason)
    (result,) = classifier.classify([body])
    assert (result.status, result.errors[0]["pointer"]) == ("rejected", f"/light_curves/0{pointer}")


def test_classify_names_of_surveys_and_metadata_are_understood(classifier: Classifier) -> None:
    body = supernovae(1)[0]
    upper = classifier.classify(body | {"survey": "ZTF", "metadata": {"zspec": 0.1}})
    assert upper == classifier.classify(body | {"survey": "ztf", "metadata": {"zspec": 0.1}})
    for name, meant in (("redshift", "zspec"), ("mwebw", "mwebv")):
        (result,) = classifier.classify([body | {"metadata": {name: 0.1}}])
        assert result.errors[0]["pointer"] == f"/light_curves/0/metadata/{name}"
        assert meant in result.errors[0]["detail"]


def test_classify_quantities_are_converted_and_masked_values_are_missing(classifier: Classifier) -> None:
    units = pytest.importorskip("astropy.units", reason=NO_TABLES)
    body = supernovae(1)[0]
    flux, count = np.array(body["flux"]), len(body["flux"])
    expected = classifier.classify(body).to_dict()
    for same in (flux / 1e3 * units.uJy, np.ma.array(flux), flux * units.nJy):
        assert close(classifier.classify(body | {"flux": same}).to_dict(), expected)
    wrong = {"flux": flux * units.m}, {"mjd": np.ma.array(body["mjd"], mask=[False, True] + [False] * (count - 2))}
    for changes, pointer in zip(wrong, ("/flux", "/mjd/1"), strict=True):
        with pytest.raises(LightCurveError) as caught:
            classifier.classify(body | changes)
        assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        ({"light_curves": 5}, {}, "light_curves must be a list"),
        ({"options": 5}, {}, "options must be a dictionary"),
        (np.zeros(3), {}, "cannot read light curves from ndarray"),
        (io.StringIO("mjd,flux"), {}, "cannot read light curves from StringIO"),
        ("curves.csv", {"flux_units": "nJy"}, "no option of tables: flux_units; they are format, columns"),
        ({}, {"prior": 5}, "prior must be a name"),
        ({}, {"coverage": "0.9"}, "coverage must be a number"),
    ],
)
def test_classify_arguments_of_a_wrong_type_are_a_sentence(
    classifier: Classifier, data: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TypeError, match=sentence):
        classifier.classify(data, **options)


def test_classify_integer_object_id_keeps_every_digit(classifier: Classifier) -> None:
    number = 2**63 + 1
    assert classifier.classify(supernovae(1)[0] | {"object_id": number}).object_id == str(number)


def test_classify_tables_in_memory_gives_a_result_per_object(classifier: Classifier, tmp_path: Path) -> None:
    pandas, pyarrow = (
        pytest.importorskip("pandas", reason=NO_TABLES),
        pytest.importorskip("pyarrow", reason=NO_TABLES),
    )
    table = pytest.importorskip("astropy.table", reason=NO_TABLES)
    curves = supernovae(5)
    expected = {result.object_id: result.class_name for result in classifier.classify(curves)}
    long = rows(curves)
    nested = {name: [curve[name] for curve in curves] for name in ("object_id", "mjd", "flux", "flux_err", "band")}
    (tmp_path / "five.csv").write_text(csv_text(curves))
    options: dict[str, Any] = {"flux_unit": "nJy", "flux_kind": "difference"}
    for data in (pandas.DataFrame(long), pyarrow.table(long), table.Table(long), pyarrow.table(nested),
                 pandas.DataFrame(nested), tmp_path / "five.csv", str(tmp_path / "five.csv")):  # fmt: skip
        results = classifier.classify(data, **options)
        assert isinstance(results, Results)
        assert {result.object_id: result.class_name for result in results} == expected


def test_classify_options_that_fit_nothing_raise(classifier: Classifier) -> None:
    with pytest.raises(PriorError, match="no-such-prior"):
        classifier.classify(supernovae(1)[0], prior="no-such-prior")
    with pytest.raises(TypeError, match="unknown options: speed"):
        classifier.classify(supernovae(1)[0] | {"options": {"speed": 1}})
    with pytest.raises(TypeError, match="cannot read light curves from int"):
        classifier.classify(7)  # type: ignore[call-overload]  # what mypy refuses, too
    with pytest.raises(TypeError, match="unexpected keyword arguments: band"):
        classifier.classify([], band="g")
    with pytest.raises(ValueError, match="threads"):
        Classifier(threads=0)
    with pytest.raises(
        BundleError, match=r"no model 'no-such-model': .* one of astro-moe-elasticc, astro-moe-ztf, romae"
    ):
        Classifier("no-such-model")


@pytest.mark.parametrize("coverage", [0, 1, 2, -0.5, float("nan")])
def test_classify_with_a_coverage_that_is_no_probability_raises(classifier: Classifier, coverage: float) -> None:
    with pytest.raises(ValueError, match=r"coverage must be (greater than 0|less than 1|finite)"):
        classifier.classify([supernovae(1)[0]], coverage=coverage)


def test_classify_nothing_gives_no_results(classifier: Classifier) -> None:
    assert list(classifier.classify([])) == []
    assert list(classifier.stream([])) == []


def test_classifier_with_a_named_model_classifies_everything_with_it() -> None:
    with Classifier("astro-moe-elasticc", native="off") as named, Classifier(DEFAULT_BUNDLE, native="off") as by_path:
        packet = next(path for path in PACKETS if path.name.startswith("ztf"))
        for classifier in (named, by_path):
            (result,) = classifier.classify(packet.read_bytes())
            assert result.model["name"] == "astro-moe-elasticc"
        assert "Ia" in named.classes
        assert "astro-moe-elasticc" in repr(named)


def test_prior_changes_probabilities_as_in_the_service(classifier: Classifier, default_edge: Live) -> None:
    body = supernovae(1, seed=8)[0]
    _, reply = default_edge.classify(body | {"options": {"prior": {"Ia": 1, "II": 3}}})
    assert close(classifier.classify(body, prior={"Ia": 1, "II": 3}).to_dict(), reply["results"][0])


@pytest.mark.parametrize("prior", ["ztf-alerts", {"AGN": 1, "Ia": 1}])
def test_prior_that_the_model_of_subtypes_lacks_applies_to_the_class(classifier: Classifier, prior: Any) -> None:
    body = supernovae(1, seed=8)[0] | {"survey": "ztf"}
    by_itself, result = classifier.classify(body).to_dict(), classifier.classify(body, prior=prior).to_dict()
    assert result["probabilities"] != by_itself["probabilities"]


def test_classifier_from_several_threads_gives_the_results_of_one(classifier: Classifier) -> None:
    curves = supernovae(60, seed=5)
    expected = classifier.classify(curves)
    with ThreadPoolExecutor(6) as pool:
        for results in pool.map(lambda _: classifier.classify(curves), range(6)):
            assert [r.object_id for r in results] == [r.object_id for r in expected]
            assert all(close(r.to_dict(), e.to_dict()) for r, e in zip(results, expected, strict=True))


def test_model_of_a_result_is_its_own(classifier: Classifier) -> None:
    body = supernovae(1)[0]
    classifier.classify(body).model.version = "changed"
    assert classifier.classify(body).model.version == classifier.version


def test_options_of_another_type_are_refused(classifier: Classifier) -> None:
    wrongs: list[dict[str, Any]] = [{"options": []}, {"prior": np.array([1.0])}]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            classifier.classify(**supernovae(1)[0], **wrong)


def test_classifier_pickled_opens_its_models_again(classifier: Classifier) -> None:
    body = supernovae(1)[0]
    with pickle.loads(pickle.dumps(classifier)) as other:
        assert close(other.classify(body).to_dict(), classifier.classify(body).to_dict())


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs os.fork: run on Linux or macOS")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_classifier_after_fork_gives_the_same_results(classifier: Classifier) -> None:
    curves = supernovae(20)
    expected = classifier.classify(curves)
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            classifier.classify(curves)

    thread = threading.Thread(target=keep_busy)  # a lock may be held, and a run be under way, at the time of the fork
    thread.start()
    try:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        children = [context.Process(target=_classify_in_child, args=(classifier, curves, sender)) for _ in range(2)]
        for child in children:
            child.start()
        for _ in children:
            assert receiver.poll(120)
            documents = receiver.recv()
            assert all(close(d, e.to_dict()) for d, e in zip(documents, expected, strict=True))
        for child in children:
            child.join(60)
            assert child.exitcode == 0
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: run on Linux or macOS")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_classifier_stream_continued_after_a_fork_raises(classifier: Classifier) -> None:
    stream = classifier.stream(supernovae(600))
    next(stream)
    assert_raises_in_child(stream)
    assert sum(1 for _ in stream) == 599


def test_classifier_stream_yields_what_came_before_an_error_of_the_iterator(classifier: Classifier) -> None:
    def items() -> Iterator[Any]:
        yield from supernovae(300)
        yield ("a", "tuple")

    results: list[Any] = []
    with pytest.raises(TypeError, match="cannot read a light curve from a tuple"):
        results.extend(classifier.stream(items()))
    assert len(results) == 300


def test_classifier_folder_is_read_as_on_the_command_line(classifier: Classifier, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv_text(supernovae(2)))
    (tmp_path / "b.csv").write_text("name,t,f,brightness,error\nA,60310.1,g,21.4,0.3\nA,60312.2,r,18.2,0.3\n")
    (tmp_path / "c.md").write_text("no light curves")
    results = classifier.classify(tmp_path, flux_kind="difference")
    assert [result.input for result in results] == ["a.csv: SN0000", "a.csv: SN0001"]
    assert results.to_pandas()["input"][1] == "a.csv: SN0001"
    assert any(note.startswith("not read: b.csv: ") for note in results.notes)
    assert "no light curves in c.md" in results.notes
    assert not any("--" in note for note in results.notes)
    with pytest.raises(TableError, match=r"^b\.csv: "):
        list(classifier.stream(str(tmp_path)))
    (tmp_path / "a.csv").unlink()
    with pytest.raises(TableError, match=r"^b\.csv: "):
        classifier.classify(tmp_path)


def test_classifier_option_of_tables_for_packets_is_refused(classifier: Classifier) -> None:
    with pytest.raises(TableError, match="survey is given and changes nothing, because no table is read"):
        classifier.classify(PACKETS[0], survey="ztf")


def test_classifier_arguments_in_the_wrong_place_are_named(classifier: Classifier) -> None:
    body = supernovae(1)[0]
    with pytest.raises(TypeError, match=r"model is an argument of Classifier"):
        classifier.classify(**body, model="astro-moe-ztf")
    with pytest.raises(TypeError, match="survey; fields of a light curve go into the dictionary"):
        classifier.classify(body, survey="ztf")


def test_evolution_of_a_misspelt_field_names_it(classifier: Classifier) -> None:
    body = supernovae(1)[0]
    body["fluxerr"] = body.pop("flux_err")
    with pytest.raises(LightCurveError, match=r"^fluxerr: unknown field; send flux_err$") as raised:
        classifier.evolution(body)
    assert raised.value.pointer == "/fluxerr"


def test_results_and_evolutions_of_equal_light_curves_are_equal(classifier: Classifier) -> None:
    curves = supernovae(3)
    assert classifier.classify(curves) == classifier.classify(curves)
    assert classifier.classify(curves) != classifier.classify(curves[:2])
    assert classifier.evolution(curves[0]) == classifier.evolution(curves[0])
    assert classifier.evolution(curves[0]) != classifier.evolution(curves[1])


def test_results_written_twice_need_overwrite(classifier: Classifier, tmp_path: Path) -> None:
    results = classifier.classify(supernovae(2))
    results.write(tmp_path / "out.csv")
    with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
        results.write(tmp_path / "out.csv")
    results.write(tmp_path / "out.csv", overwrite=True)


def _classify_in_child(classifier: Classifier, curves: list[dict[str, Any]], sender: Any) -> None:
    sender.send([result.to_dict() for result in classifier.classify(curves)])


def test_classify_light_curve_that_breaks_the_network_harms_no_other(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is missing: pip install '.[train]'")
    from support.trouble import FAILING, faulty_bundle

    with Classifier(faulty_bundle(tmp_path / "faulty").path, native="off", threads=2) as classifier:
        curves = [curve(8, flux=[100.0 * number] * 8, band=["r"] * 8) for number in range(30)]
        expected = classifier.classify(curves)
        results = classifier.classify([*curves[:4], curve(8, flux=[FAILING["flux"]] * 8, band=["r"] * 8), *curves[5:]])
        assert (results[4].status, results[4].reason) == ("failed", "inference_failed")
        others = [(r, e) for index, (r, e) in enumerate(zip(results, expected, strict=True)) if index != 4]
        assert all(close(r.to_dict(), e.to_dict()) and r.status == "classified" for r, e in others)


def test_classify_light_curve_without_memory_for_it_harms_no_other(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is missing: pip install '.[train]'")
    from support.trouble import GREEDY, faulty_bundle

    with Classifier(faulty_bundle(tmp_path / "faulty").path, native="off", threads=2) as classifier:
        flux = [100.0, GREEDY["flux"], 100.0]
        results = classifier.classify([curve(8, flux=[value] * 8, band=["r"] * 8) for value in flux])
    assert [result.reason for result in results] == ["", "out_of_memory", ""]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("CUDA error 999"), "the execution provider fails every run; restart the process"),
        (MemoryError(), "there is no memory left for inference; restart the process"),
    ],
)
def test_classifier_whose_model_fails_every_run_raises(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(arrays: Arrays) -> Arrays:
        raise error

    with Classifier(native="off", threads=2) as classifier:
        model = classifier._default
        monkeypatch.setattr(model, "loaded", replace(model.open(), graph=lost))
        for classify in (classifier.classify, lambda curves: list(classifier.stream(curves)), classifier.evolution):
            with pytest.raises(ModelFailedError, match=message) as caught:
                classify(supernovae(20) if classify != classifier.evolution else supernovae(1)[0])
            assert caught.value.__cause__ is error
            assert "service" not in "".join(traceback.format_exception(caught.value))
        monkeypatch.undo()
        classifier.close()
        assert classifier.classify(supernovae(1)[0]).classified


def test_stream_reads_no_further_than_two_blocks(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BLOCK > 16
    for name in ("BLOCK", "FIRST_BLOCK"):
        monkeypatch.setattr(f"nightjar_alerts.classifier.{name}", 16)
    read = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal read
        while True:
            read += 1
            yield supernovae(1)[0] | {"object_id": str(read)}

    stream = classifier.stream(endless())
    assert [next(stream).object_id for _ in range(40)] == [str(number + 1) for number in range(40)]
    assert read <= 40 + 2 * 16


BLOCKED = (
    "nightjar_alerts.service", "confluent_kafka", "fastapi", "httpx", "opentelemetry", "prometheus_client",
    "pydantic_settings", "redis", "starlette", "uvicorn", "uvloop", "pandas", "pyarrow", "astropy", "matplotlib",
    "torch",
)  # fmt: skip
PROGRAM = f"""
import sys
for name in {BLOCKED!r}:
    sys.modules[name] = None  # makes every import of it fail
from nightjar_alerts import Classifier
assert "onnxruntime" not in sys.modules
result = Classifier().classify(mjd=[60000.0, 60003.0], flux=[900.0, 1500.0], flux_err=[30.0, 30.0], band=["g", "r"])
assert abs(sum(result.probabilities.values()) - 1) < 1e-5
assert result.to_svg().startswith("<svg")
print(result)
"""


def test_classifier_needs_numpy_msgspec_pydantic_and_onnxruntime_only() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Result('', ")


def test_classifier_without_onnxruntime_names_the_command_that_installs_it() -> None:
    program = "import sys; sys.modules['onnxruntime'] = None; import nightjar_alerts; nightjar_alerts.Classifier()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "pip install '.[onnxruntime]'" in done.stderr


def test_evolution_classifies_each_prefix(classifier: Classifier) -> None:
    curve = supernovae(3)[2] | {"detected": [True] * len(supernovae(3)[2]["mjd"])}
    evolution = classifier.evolution(curve)
    assert len(evolution.steps) == min(100, len(curve["mjd"]))
    whole = classifier.classify(curve)
    assert evolution.steps[-1].probabilities == pytest.approx(whole.probabilities, abs=2e-5)
    assert evolution.to_dict()["steps"] == [dict(step) for step in evolution.steps]
    assert repr(evolution).startswith("Evolution('SN0002', ")
    assert list(evolution.to_pandas()["mjd"]) == [step.mjd for step in evolution.steps]
    axes = evolution.plot()
    assert axes.get_title() == "SN0002"
    import_module("matplotlib.pyplot").close("all")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (supernovae(2), ValueError),
        (supernovae(1)[0] | {"flux": []}, LightCurveError),
        (b"nonsense", LightCurveError),
    ],
)
def test_evolution_of_wrong_input_raises(classifier: Classifier, data: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        classifier.evolution(data)


def test_results_of_a_table_say_how_it_was_read(classifier: Classifier, tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"
    path.write_text(csv_text(supernovae(3)) + "SN9,60001.0,,5.0,g\n")
    results = classifier.classify(path)
    assert any("columns.time=mjd" in note for note in results.notes)
    assert any("points left out: 1 no brightness" in note for note in results.notes)
    assert results[:2].notes == results.notes
    assert "columns.time=mjd" in results._repr_html_()
    assert classifier.classify(supernovae(2)).notes == []


def test_results_of_a_table_without_names_say_that_it_is_one_object(classifier: Classifier) -> None:
    pandas = pytest.importorskip("pandas", reason=NO_TABLES)
    columns = rows(supernovae(2))
    del columns["object_id"]
    results = classifier.classify(pandas.DataFrame(columns), flux_unit="nJy")
    assert len(results) == 1
    assert any("one object" in note for note in results.notes)


def test_warnings_of_a_result_are_a_column_of_every_table(classifier: Classifier, tmp_path: Path) -> None:
    curve = supernovae(1)[0]
    faint = {
        **curve,
        "survey": "ztf",
        "flux": [value / 1e4 for value in curve["flux"]],
        "flux_err": [0.01] * len(curve["mjd"]),
    }
    results = classifier.classify([curve, faint])
    assert [row["warnings"] for row in results.rows()] == [[], ["implausible_depth"]]
    results.write(tmp_path / "classes.csv")
    assert [line.rpartition(",")[2] for line in (tmp_path / "classes.csv").read_text().splitlines()] == [
        "warnings",
        "",
        "implausible_depth",
    ]
    assert results.to_arrow().column("warnings").to_pylist() == [[], ["implausible_depth"]]
    assert list(results.to_astropy()["warnings"]) == ["", "implausible_depth"]


def test_light_curve_in_filters_without_a_band_abstains_and_names_them(classifier: Classifier) -> None:
    result = classifier.classify(mjd=[60310.1, 60312.2], band=["BP", "RP"], flux=[310.0, 1250.5], flux_err=[55.0] * 2)
    assert (result.status, result.reason) == ("abstained", "outside_domain")
    assert "not used, as no band stands for them: BP (1), RP (1). Send other bands, or" in result.detail
    assert "name the model" not in result.detail


def test_result_picture_names_filters_not_used_and_warnings_and_draws_symbols(classifier: Classifier) -> None:
    mjd = [60310.1, 60312.2, 60315.3, 60318.1, 60319.0]
    result = classifier.classify(
        mjd=mjd, band=["g", "r", "g", "r", "BP"], flux=[310.0, 1250.5, 2980.0, 3105.2, 3000.0], flux_err=[55.0] * 5
    )
    assert result.other_filters == {"BP": 1}
    picture = result.to_svg()
    assert "not used: BP" in picture
    assert "#2b5fd9" in picture
    warning = PhotometryWarning(reason="total_flux", detail="looks like total flux")
    warned = Result(structs.replace(result.fields, warnings=[warning]), result.model)
    assert "warnings=['total_flux']" in repr(warned)
    assert "looks like total flux" in warned._repr_html_()
    assert "total_flux" in Results([warned])._repr_html_()


def star() -> dict[str, Any]:
    """Return the columns of a variable star between 14.2 and 15.1 magnitudes."""
    mjd = 55_000.3 + 7.13 * np.arange(90)
    mag = 14.65 + 0.45 * np.sin(2 * np.pi * mjd / 0.57)
    return {"mjd": mjd, "band": ["V"] * 90, "mag": mag, "mag_err": [0.03] * 90, "flux_kind": "total"}


@pytest.mark.parametrize("as_table", [True, False])
def test_result_picture_of_total_flux_shows_the_magnitudes_that_were_given(
    classifier: Classifier, tmp_path: Path, as_table: bool
) -> None:
    columns = star()
    rows = zip(columns["mjd"], columns["mag"], strict=True)
    text = "mjd,band,mag,mag_err\n" + "".join(f"{mjd},V,{mag},0.03\n" for mjd, mag in rows)
    (tmp_path / "star.csv").write_text(text)
    result = classifier.classify(tmp_path / "star.csv")[0] if as_table else classifier.classify(**columns)
    assert result.light_curve is not None
    total = result.light_curve.total_flux()
    assert total is not None
    offset = 0.02 if as_table else 0.0  # V of a table is a Vega magnitude
    np.testing.assert_allclose(np.sort(magnitude_of(total)), np.sort(columns["mag"]) + offset, atol=1e-5)
    picture = result.to_svg()
    assert "AB magnitude" in picture
    assert "not detected" not in picture
    assert [f">{mag}<" in picture for mag in ("14.5", "15.0")] == [True, True]


def test_result_picture_of_faint_total_flux_has_open_symbols_below_5_sigma(classifier: Classifier) -> None:
    columns = star()
    flux = np.where(np.arange(90) % 9, 3000.0, 100.0)
    picture = classifier.classify(
        mjd=columns["mjd"], band=["g"] * 90, flux=flux, flux_err=[100.0] * 90, flux_kind="total"
    ).to_svg()
    assert ">flux (nJy)<" in picture
    assert picture.count('fill="#fff"') == 10 + 1  # and the legend


def test_evolution_in_a_notebook_lists_its_steps(classifier: Classifier) -> None:
    evolution = classifier.evolution(
        mjd=[60310.1, 60312.2, 60315.3], band=["g", "r", "g"], flux=[1310.0, 1250.5, 2980.0], flux_err=[55.0] * 3
    )
    html = evolution._repr_html_()
    assert html.count("<tr>") == 1 + len(evolution.steps)


def test_results_are_found_by_the_name_of_the_object(classifier: Classifier) -> None:
    results = classifier.classify(supernovae(3))
    assert results["SN0001"] is results[1]
    with pytest.raises(KeyError, match="no results have the object_id 'SN9'"):
        results["SN9"]


def test_results_of_a_table_say_that_it_was_guessed(classifier: Classifier, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(csv_text(supernovae(2)))
    assert re.search(
        r"\d+ notes on how the table was read, see \.notes", repr(classifier.classify(tmp_path / "table.csv"))
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "model is an argument of Classifier"),
        ({}, "model is an argument of Classifier"),
        ("x.csv", "model is an argument of Classifier"),
    ],
)
def test_classify_with_a_model_names_the_right_place(classifier: Classifier, data: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        classifier.classify(data, model="astro-moe-ztf")


def test_classify_of_a_dictionary_of_tables_says_what_to_pass(classifier: Classifier) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match="pass one table, or a list of tables"):
        classifier.classify({"a": pandas.DataFrame({"mjd": [1.0]})})


def test_classify_is_typed_by_its_input(classifier: Classifier, tmp_path: Path) -> None:
    body = supernovae(1)[0]
    (tmp_path / "table.csv").write_text(csv_text([body]))
    mjd, band, flux, flux_err = (body[name] for name in ("mjd", "band", "flux", "flux_err"))
    assert_type(classifier.classify(mjd=mjd, band=band, flux=flux, flux_err=flux_err), Result)
    assert_type(classifier.classify(body), Result)
    assert_type(classifier.classify([body]), Results)
    assert_type(classifier.classify(tmp_path / "table.csv"), Results)
