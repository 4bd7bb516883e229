"""The page in a real browser with a real service: results, edits, downloads and links."""

import base64
import csv
import hashlib
import io
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Dialog, Locator, Page, expect

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.service.local import ServiceProcess
from nightjar_alerts.service.pages import FILES
from nightjar_alerts.service.registry.loader import load_one
from support.edge import Live, live

pytestmark = pytest.mark.slow

SAMPLES = sorted(name.removeprefix("samples/") for name in FILES if name.startswith("samples/"))
FIRST = "lsst_9876522240000007.avro"
HOSTILE = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>${alert(3)}"
PACKET, JSON = "application/octet-stream", "application/json"
SVG = "{http://www.w3.org/2000/svg}"

OpenPage = Callable[..., Page]
expect.set_options(timeout=120_000)


def ask(service: ServiceProcess, path: str, body: bytes, kind: str) -> dict[str, Any]:
    """Return the first result of a request, to compare the page with."""
    with urlopen(Request(f"{service.url}{path}", body, {"Content-Type": kind}), timeout=60) as reply:
        result: dict[str, Any] = json.load(reply)["results"][0]
        return result


def packet(name: str) -> bytes:
    return FILES[f"samples/{name}"].read_bytes()


def shown(page: Page) -> Locator:
    """Return the displayed class, once the page is idle."""
    expect(page.locator(".busy")).to_be_empty()
    return page.locator(".class-name")


def paste(page: Page, text: str) -> None:
    if not page.locator("#paste").is_visible():
        page.get_by_role("button", name="Paste text").click()
    page.fill("#paste", text)
    page.get_by_role("button", name="Classify", exact=True).click()


def save(page: Page, button: str) -> tuple[str, bytes]:
    """Return name and content of a download."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=button).click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def light_curve(**changes: Any) -> dict[str, Any]:
    """A supernova-like rise and fall in two bands."""
    mjd = np.arange(60_000.0, 60_060.0, 3.0)
    flux = 4000 * np.exp(-(((mjd - 60_018) / 12) ** 2)) + 20
    bands = ["g", "r"] * (len(mjd) // 2)
    columns = {"mjd": mjd.tolist(), "flux": flux.tolist(), "flux_err": [60.0] * len(mjd), "band": bands}
    return {"object_id": "SN 2099zz"} | columns | changes


def test_page_opened_shows_a_classified_sample_from_this_service_alone(
    open_page: OpenPage, service: ServiceProcess, browser: Any
) -> None:
    page = open_page("/healthz")
    requests: list[str] = []
    weights: list[int] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("requestfinished", lambda request: weights.append(request.sizes()["responseBodySize"]))
    page.goto(service.url)
    result = ask(service, "/v1/alerts", packet(FIRST), PACKET)
    expect(shown(page)).to_have_text(result["class"])
    expect(page.locator(".set")).to_have_text(
        f"90 %: {', '.join(result['prediction_set'][:-1])} or {result['prediction_set'][-1]}"
    )
    expect(page.locator("svg[data-plot=light-curve]")).to_be_visible()
    expect(page.locator("svg[data-plot=evolution]")).to_be_visible()
    assert all(url.startswith(f"{service.url}/") for url in requests)
    assert sum(weights) < 300_000


@pytest.mark.parametrize("name", SAMPLES)
def test_page_sample_chosen_shows_the_result_of_the_service(
    open_page: OpenPage, service: ServiceProcess, name: str
) -> None:
    result = ask(service, "/v1/alerts", packet(name), PACKET)
    page = open_page()
    expect(shown(page)).to_be_visible()
    page.select_option("select[name=sample]", name)
    expect(page.locator(".object")).to_have_text(result["object_id"])
    expect(shown(page)).to_have_text(result["class"])
    for each in result.get("prediction_set", []):
        expect(page.locator(".row.in-set .name", has_text=each).first).to_be_visible()
    assert page.locator(".warning", has_text="Out of distribution").count() == int(result["unusual"])
    left_out = page.locator(".account dd").all_inner_texts()
    for band, number in result.get("other_filters", {}).items():
        assert any(f"{number} observations in {band}: the model has no band" in text for text in left_out)
    expect(page.locator(".label-source")).to_contain_text("the model")
    expect(page.locator(".latency")).to_contain_text("ms in the service")


def test_page_shows_the_experts_of_a_model_that_returns_them(open_page: OpenPage, service: ServiceProcess) -> None:
    result = ask(service, "/v1/alerts?experts=true", packet(FIRST), PACKET)
    page = open_page()
    expect(shown(page)).to_be_visible()
    assert not page.locator(".experts table").first.is_visible()
    page.locator(".experts summary").click()
    for layer, expected in enumerate(result["experts"]["layers"]):
        table = page.locator(".experts table").nth(layer)
        expect(table.locator("caption")).to_contain_text(
            f"Layer {layer}: router entropy {expected['router_entropy']:.2f}"
        )
        assert table.locator("tbody th").all_inner_texts() == list(expected["bands"])
        for row, (band, counts) in enumerate(expected["bands"].items()):
            cells = map(int, table.locator("tbody tr").nth(row).locator("td").all_inner_texts())
            shares = [100 * count / result["points_per_band"][band] for count in counts]
            assert list(cells) == pytest.approx(shares, abs=0.5 + 1e-9)
    page.locator("input[name=night]").focus()
    page.keyboard.press("Home")
    expect(page.locator(".then")).to_be_visible()
    expect(page.locator(".experts")).to_have_count(0)  # they are those of the whole light curve


def test_page_shows_no_experts_of_a_model_without_them(open_page: OpenPage, service: ServiceProcess) -> None:
    page = open_page("/healthz")
    page.route(
        "**/v1/alerts?*", lambda route: route.continue_(url=route.request.url.replace("experts=true", "experts=false"))
    )
    page.goto(service.url)
    expect(shown(page)).to_be_visible()
    expect(page.locator(".account")).to_contain_text("Seen by the network")
    expect(page.locator(".experts")).to_have_count(0)


def test_page_file_opened_or_dropped_is_classified(open_page: OpenPage, service: ServiceProcess) -> None:
    page = open_page()
    expect(shown(page)).to_be_visible()
    page.set_input_files("input[name=files]", FILES[f"samples/{SAMPLES[0]}"])
    result = ask(service, "/v1/alerts", packet(SAMPLES[0]), PACKET)
    expect(page.locator(".object")).to_have_text(result["object_id"])
    content = json.dumps(light_curve(object_id="dropped"))
    page.evaluate(
        """(content) => {
            const data = new DataTransfer();
            data.items.add(new File([content], "curve.json", {type: "application/json"}));
            document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
        }""",
        content,
    )
    expect(page.locator(".object")).to_have_text("dropped")
    expect(shown(page)).to_have_text(ask(service, "/v1/classify", content.encode(), JSON)["class"])


def test_page_several_objects_can_be_chosen_from(open_page: OpenPage) -> None:
    page = open_page()
    wrong = light_curve(object_id="wrong", flux=[1.0])
    paste(page, json.dumps({"light_curves": [light_curve(object_id="a"), wrong, light_curve(object_id="b")]}))
    expect(page.locator(".object")).to_have_text("a")
    page.locator(".objects").get_by_role("button", name="wrong").click()
    expect(page.locator(".class-name")).to_have_text("No class: the input was rejected")
    expect(page.locator(".answer .errors")).to_contain_text("/light_curves/1/")
    page.locator(".objects").get_by_role("button", name="b", exact=True).click()
    expect(page.locator(".object")).to_have_text("b")


def test_page_hostile_names_are_shown_as_text(open_page: OpenPage) -> None:
    page = open_page()
    dialogs: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    body = light_curve(object_id=HOSTILE)
    body["band"] = [HOSTILE[:32] if band == "g" else band for band in body["band"]]
    body["filters"] = {HOSTILE[:32]: {"wavelength_nm": 480}}
    page.set_input_files("input[name=files]", {"name": HOSTILE, "mimeType": JSON, "buffer": json.dumps(body).encode()})
    expect(page.locator(".object")).to_have_text(HOSTILE)
    expect(shown(page)).to_be_visible()
    expect(page.locator(".legend button", has_text=HOSTILE[:32])).to_be_visible()
    assert page.locator("img").count() == 0
    assert page.locator("main script").count() == 0
    name, svg = save(page, "SVG")
    assert not set("<>\"'/$ ") & set(name)
    assert {element.tag for element in ElementTree.fromstring(svg).iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "g", "path", "line", "rect", "text", "circle")
    }
    command = page.locator("pre.command").inner_text()
    assert "<img" not in command
    page.set_input_files(
        "input[name=files]", {"name": HOSTILE, "mimeType": JSON, "buffer": b'{"mjd": "%s"}' % HOSTILE[:9].encode()}
    )
    expect(page.locator("#problem")).to_contain_text(HOSTILE)
    assert dialogs == []


@pytest.mark.parametrize(
    ("text", "title", "marked"),
    [
        (json.dumps(light_curve(survey="A B")), "Invalid request", '"A B"'),
        (json.dumps(light_curve(), indent=1).replace("60.0", '"sixty"', 1), "Invalid request", '"sixty"'),
        (json.dumps(light_curve(comment="x")), "Invalid request", "comment"),
        ('{"mjd": [1, 2,], "flux": [1]}', "Malformed request", "]"),
    ],
)
def test_page_bad_light_curve_shows_the_error_of_the_service_and_its_place(
    open_page: OpenPage, text: str, title: str, marked: str
) -> None:
    page = open_page()
    paste(page, text)
    expect(page.locator("#problem h2")).to_have_text(title)
    expect(page.locator("#problem mark").first).to_contain_text(marked)


@pytest.mark.parametrize(
    ("text", "reason"), [("hello world, this is no alert", "unknown_envelope"), ("[1, 2, 3]", "malformed_json")]
)
def test_page_text_that_is_nothing_known_is_rejected(open_page: OpenPage, text: str, reason: str) -> None:
    page = open_page()
    paste(page, text)
    expect(page.locator(".class-name")).to_contain_text("rejected")
    expect(page.locator(".answer")).to_contain_text(reason)
    expect(page.locator(".identity .chip")).to_have_count(0)


def test_page_packet_cut_short_shows_why_it_was_rejected(open_page: OpenPage, service: ServiceProcess) -> None:
    broken = packet(FIRST)[:-400]
    result = ask(service, "/v1/alerts", broken, PACKET)
    page = open_page()
    page.set_input_files("input[name=files]", {"name": "broken.avro", "mimeType": "", "buffer": broken})
    expect(page.locator(".class-name")).to_have_text("No class: the input was rejected")
    expect(page.locator(".answer")).to_contain_text(result["detail"])
    expect(page.locator(".answer")).to_contain_text(result["reason"])


def test_page_prior_coverage_and_metadata_change_the_result(open_page: OpenPage, service: ServiceProcess) -> None:
    page = open_page()
    body = light_curve()
    paste(page, json.dumps(body))
    expect(page.locator(".object")).to_have_text("SN 2099zz")
    options: dict[str, Any] = {"prior": "ztf-bright", "coverage": 0.8}
    page.select_option("select[name=prior]", "ztf-bright")
    page.select_option("select[name=coverage]", "0.8")
    expected = ask(service, "/v1/classify", json.dumps(body | {"options": options}).encode(), JSON)
    expect(page.locator(".account")).to_contain_text("ztf-bright")
    expect(page.locator(".confidence")).to_have_text(percent(expected["confidence"]))
    page.locator("summary", has_text="Metadata").click()
    page.fill("input[name=zspec]", "0.05")
    page.fill("input[name=zspec_err]", "0.001")
    body["metadata"] = {"zspec": 0.05, "zspec_err": 0.001}
    expected = ask(service, "/v1/classify", json.dumps(body | {"options": options}).encode(), JSON)
    expect(page.locator(".account")).to_contain_text(expected["evidence"][0])
    expect(page.locator(".confidence")).to_have_text(percent(expected["confidence"]))
    page.get_by_role("button", name="Back to the original").click()
    expected = ask(service, "/v1/classify", json.dumps(light_curve()).encode(), JSON)
    expect(page.locator(".account")).to_contain_text("None: no redshift")
    expect(page.locator(".confidence")).to_have_text(percent(expected["confidence"]))


def percent(value: float) -> str:
    """Return a probability as the page shows it."""
    return f"{100 * value:.1f} %" if value < 0.0995 or value > 0.995 else f"{100 * value:.0f} %"


def test_page_weights_of_ones_own_are_a_prior(open_page: OpenPage, service: ServiceProcess) -> None:
    page = open_page()
    paste(page, json.dumps(light_curve()))
    expect(page.locator(".object")).to_have_text("SN 2099zz")
    page.select_option("select[name=prior]", "own")
    page.fill("input[name='weight Ia']", "0")
    expect(page.locator(".account")).to_contain_text("given")
    expect(page.locator(".row.leaf", has_text="Ia").first).not_to_have_class("in-set")


def test_page_slider_shows_what_was_known_on_a_night(open_page: OpenPage, service: ServiceProcess) -> None:
    page = open_page()
    body = json.dumps(light_curve())
    paste(page, body)
    expect(page.locator(".object")).to_have_text("SN 2099zz")
    with urlopen(Request(f"{service.url}/v1/evolution", body.encode(), {"Content-Type": JSON}), timeout=60) as reply:
        steps = json.load(reply)["steps"]
    slider = page.locator("input[name=night]")
    expect(slider).to_have_attribute("max", str(len(steps)))
    slider.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".then")).to_contain_text(f"after {steps[1]['detections']} detection")
    expect(page.locator(".class-name")).to_have_text(steps[1]["class"])
    expect(page.locator(".confidence")).to_have_text(percent(steps[1]["confidence"]))
    spoken = page.locator("[data-reading=night]").inner_text()
    assert slider.get_attribute("aria-valuetext") == spoken
    page.keyboard.press("End")  # the answer from all observations, of which some are later than the last detection
    expect(page.locator(".then")).to_have_count(0)


def test_page_periodic_light_curve_is_folded_at_its_period(open_page: OpenPage) -> None:
    generator = np.random.default_rng(1)
    mjd = np.sort(generator.uniform(60_000, 60_100, 120))
    period, errors = 0.7351, np.full(120, 20.0)
    flux = 900 * np.sin(2 * np.pi * mjd / period) + generator.normal(0, errors)
    band = ["gri"[i % 3] for i in range(120)]
    page = open_page()
    columns = {"mjd": mjd.tolist(), "flux": flux.tolist(), "flux_err": errors.tolist(), "band": band}
    paste(page, json.dumps({"object_id": "periodic", **columns}))
    expect(page.locator(".object")).to_have_text("periodic")
    page.get_by_role("button", name="Fold", exact=True).click()
    field = page.locator("input[name=period]")
    expect(field).to_be_visible()
    assert abs(float(field.input_value()) - period) < 2e-4
    expect(page.locator("svg[data-plot=light-curve]")).to_contain_text("Phase")
    page.get_by_role("button", name="× 2").click()
    assert abs(float(field.input_value()) - 2 * period) < 4e-4
    page.get_by_role("button", name="÷ 2").click()
    before = float(field.input_value())
    page.get_by_label("Fine tuning of the period").focus()
    page.keyboard.press("ArrowRight")
    expect(field).not_to_have_value(str(before))
    assert abs(float(field.input_value()) / before - 1) < 0.01


def test_page_periodogram_agrees_with_astropy(open_page: OpenPage) -> None:
    lomb_scargle = pytest.importorskip(
        "astropy.timeseries", reason="astropy is missing: pip install 'nightjar-alerts[tables]'"
    ).LombScargle
    generator = np.random.default_rng(2)
    points = [
        {"mjd": float(mjd), "flux": float(300 * np.cos(2 * np.pi * mjd / 3.3) + generator.normal(0, 30)),
         "error": 30.0, "band": "r"}
        for mjd in np.sort(generator.uniform(60_000, 60_080, 90))
    ]  # fmt: skip
    page = open_page("/page/period.js")
    page.goto(f"{page.url.split('/page')[0]}/")
    found = page.evaluate("async (points) => (await import('./page/period.js')).bestPeriod(points)", points)
    mjd, flux, error = (np.array([point[name] for point in points]) for name in ("mjd", "flux", "error"))
    oracle = lomb_scargle(mjd, flux, error).power(1 / found["period"])
    assert found["power"] == pytest.approx(float(oracle), abs=1e-6)
    assert abs(found["period"] - 3.3) < 0.01


def test_page_magnitudes_have_upper_limits(open_page: OpenPage) -> None:
    page = open_page()
    flux = [*light_curve()["flux"][:-1], 10.0]
    paste(page, json.dumps(light_curve(flux=flux)))
    expect(page.locator(".object")).to_have_text("SN 2099zz")
    page.get_by_role("button", name="Magnitude").click()
    plot = page.locator("svg[data-plot=light-curve]")
    expect(plot).to_contain_text("AB magnitude")
    assert any(path.get_attribute("d") for path in plot.locator(".limits").all())
    expect(page.locator(".reading").first).to_contain_text("Upper limits")


def test_page_magnitudes_of_differences_show_every_upper_limit(open_page: OpenPage) -> None:
    page = open_page()
    expect(shown(page)).to_be_visible()
    page.select_option("select[name=sample]", "elasticc_9876523250000002.avro")
    expect(page.locator(".object")).to_have_text("9876523250000002")
    page.get_by_role("button", name="Magnitude").click()
    reading = page.locator(".reading").first
    expect(reading).to_contain_text("of 284 observations")
    said = re.search(r"Upper limits .*: (\d+) of", reading.inner_text())
    assert said is not None
    drawn = [path.get_attribute("d") or "" for path in page.locator("svg[data-plot=light-curve] .limits").all()]
    assert sum(path.count("M") for path in drawn) == int(said[1]) > 100


def test_page_variable_star_in_a_table_has_the_magnitudes_of_the_table(open_page: OpenPage) -> None:
    page = open_page()
    mjd = 55_000.3 + 7.13 * np.arange(90)
    mag = 14.65 + 0.45 * np.sin(2 * np.pi * mjd / 0.57)
    text = "mjd,band,mag,mag_err\n" + "".join(f"{t},V,{m},0.03\n" for t, m in zip(mjd, mag, strict=True))
    page.set_input_files("input[name=files]", {"name": "star.csv", "mimeType": "text/csv", "buffer": text.encode()})
    expect(page.locator(".object")).to_have_text("star")
    expect(page.locator(".identity")).to_contain_text("brightest at 14.22 mag in V")
    expect(page.locator(".identity")).not_to_contain_text("detection")
    page.get_by_role("button", name="Magnitude").click()
    plot = page.locator("svg[data-plot=light-curve]")
    assert (plot.locator(".full").get_attribute("d") or "").count("M") == 90
    assert not plot.locator(".limits").get_attribute("d")
    content = save(page, "Light curve (CSV)")[1].decode()
    shown_mag = sorted(float(row["mag_ab"]) for row in csv.DictReader(io.StringIO(content)))
    assert shown_mag == pytest.approx(sorted(mag + 0.02), abs=1e-3)  # AB of Vega magnitudes in V


def test_page_light_curve_of_thousands_of_points_shows_every_band(open_page: OpenPage) -> None:
    page = open_page()
    mjd = np.linspace(58_000, 60_000, 4000)
    flux = 3000 + 500 * np.sin(mjd)
    columns = {"mjd": mjd.tolist(), "flux": flux.tolist(), "flux_err": [100.0] * 4000, "band": ["g", "r"] * 2000}
    paste(page, json.dumps({"object_id": "many", **columns}))
    expect(page.locator(".object")).to_have_text("many")
    layers = page.locator("svg[data-plot=light-curve] .dense").evaluate_all(
        "all => all.map((one) => one.className.baseVal)"
    )
    assert [name.split()[1] for name in layers] == ["band-g", "band-r"] * 8


def test_page_single_negative_flux_has_an_axis_with_signs_and_its_error(open_page: OpenPage) -> None:
    page = open_page()
    paste(page, json.dumps({"object_id": "one", "mjd": [60_000], "flux": [-1230.28], "flux_err": [200], "band": ["r"]}))
    expect(page.locator(".object")).to_have_text("one")
    plot = page.locator("svg[data-plot=light-curve]")
    ticks = plot.locator("text[text-anchor=end]").all_text_contents()
    values = [float(text.replace("−", "-")) for text in ticks]
    assert min(values) < -1300 < -1160 < max(values)
    left = plot.evaluate("svg => svg.getBoundingClientRect().left")
    label = plot.locator("text.label", has_text="Flux").bounding_box()
    assert label is not None
    for text in plot.locator("text[text-anchor=end]").all():
        box = text.bounding_box()
        assert box is not None
        assert box["x"] >= max(left, label["x"] + label["width"])


def test_page_vega_magnitudes_limits_and_warnings_are_shown(open_page: OpenPage) -> None:
    page = open_page()
    body = {
        "object_id": "RR", "mjd": [60_000.0 + i for i in range(6)], "band": ["V"] * 6, "mag_system": "Vega",
        "mag": [17.0, 17.2, 17.1, 17.4, 17.2, 18.5], "mag_err": [0.05] * 5 + [None],
        "upper_limit": [False] * 5 + [True],
    }  # fmt: skip
    paste(page, json.dumps(body))
    expect(page.locator(".object")).to_have_text("RR")
    expect(page.locator(".account")).to_contain_text("1 observation not used: upper limits")
    rows = list(csv.DictReader(io.StringIO(save(page, "Light curve (CSV)")[1].decode())))
    assert [float(row["mag_ab"]) for row in rows] == pytest.approx([17.02, 17.22, 17.12, 17.42, 17.22, 18.52])
    assert [row["upper_limit"] for row in rows] == ["false"] * 5 + ["true"]
    flux = [17.0 + i / 10 for i in range(20)]
    paste(page, json.dumps({"object_id": "wrong", "mjd": [60_000 + 2 * i for i in range(20)], "flux": flux,
                            "flux_err": [0.05] * 20, "band": ["g", "r"] * 10}))  # fmt: skip
    expect(page.locator(".object")).to_have_text("wrong")
    expect(page.locator(".warning").first).to_contain_text("magnitude")


def test_page_claims_no_coverage_that_was_not_measured(open_page: OpenPage) -> None:
    page = open_page()
    expect(shown(page)).to_be_visible()
    expect(page.locator(".verdict")).to_contain_text("On average over the light curves on which coverage was measured")
    page.select_option("select[name=prior]", "own")
    expect(page.locator(".set")).to_contain_text("90 % (coverage not measured):")
    expect(page.locator(".verdict")).not_to_contain_text("On average")


def test_page_impossible_redshift_is_an_error_at_its_field(open_page: OpenPage) -> None:
    page = open_page()
    paste(page, json.dumps(light_curve(metadata={"zspec": -0.5})))
    expect(page.locator("#problem, .answer .errors")).to_contain_text("/metadata/zspec")
    expect(page.locator("mark")).to_have_text("-0.5")


def test_page_without_connection_keeps_the_result_and_retries(open_page: OpenPage) -> None:
    page = open_page()
    answer = shown(page).inner_text()
    page.route("**/v1/**", lambda route: route.abort())
    page.select_option("select[name=prior]", "uniform")
    expect(page.locator("#problem")).to_contain_text("No connection")
    expect(shown(page)).to_have_text(answer)
    page.unroute("**/v1/**")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#problem")).to_have_count(0)
    expect(page.locator(".account")).to_contain_text("uniform")


def test_page_loaded_again_names_the_file_that_is_gone(open_page: OpenPage) -> None:
    page = open_page("/#light-curve=AAAA")
    expect(page.locator("#problem")).to_contain_text("The link is damaged")
    content = json.dumps(light_curve()).encode()
    page.set_input_files("input[name=files]", {"name": "curve.json", "mimeType": JSON, "buffer": content})
    expect(page.locator(".object")).to_have_text("SN 2099zz")
    assert "#" not in page.url
    page.reload()
    expect(page.locator("main")).to_contain_text("curve.json is no longer here")
    page.select_option("select[name=sample]", FIRST)
    expect(page.locator("main")).not_to_contain_text("is no longer here")


def test_page_link_has_the_light_curve_and_gives_the_same_result(open_page: OpenPage, service: ServiceProcess) -> None:
    page = open_page()
    paste(page, json.dumps(light_curve(object_id="linked ☄")))
    expect(page.locator(".object")).to_have_text("linked ☄")
    page.select_option("select[name=prior]", "uniform")
    expect(page.locator(".account")).to_contain_text("uniform")
    answer = page.locator(".class-line").inner_text()
    page.get_by_role("button", name="Copy link").click()
    link = page.locator(".link input").input_value()
    assert link.startswith(f"{service.url}/#light-curve=")
    other = open_page(link.removeprefix(service.url))
    expect(other.locator(".object")).to_have_text("linked ☄")
    expect(other.locator(".class-line")).to_have_text(answer)
    old = {"light_curve": light_curve(object_id="old"), "settings": {"model": "", "prior": "uniform", "coverage": None}}
    packed = zlib.compress(json.dumps(old).encode(), wbits=-15)
    older = open_page(f"/#light-curve={base64.urlsafe_b64encode(packed).decode().rstrip('=')}")
    expect(older.locator(".object")).to_have_text("old")
    expect(older.locator(".class-line")).to_have_text(answer)
    broken = open_page("/#light-curve=AAAA")
    expect(broken.locator("#problem")).to_contain_text("The link is damaged")


def test_page_link_holds_changes_slider_and_view(open_page: OpenPage, service: ServiceProcess) -> None:
    page = open_page()
    paste(page, json.dumps(light_curve(survey="ztf", metadata={"zspec": 0.1, "zspec_err": 0.001})))
    expect(page.locator(".object")).to_have_text("SN 2099zz")
    page.select_option("select[name=prior]", "own")
    page.fill("input[name='weight II']", "5")
    page.fill("input[name=zspec]", "0.02")
    expect(page.locator(".account")).to_contain_text("redshift 0.02")
    page.get_by_role("button", name="Magnitude").click()
    page.locator(".legend button", has_text="g").click()
    page.locator("input[name=night]").focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator(".then")).to_contain_text("after 3 detections")
    expect(page.locator(".set")).to_contain_text("90 %")
    page.get_by_role("button", name="Copy link").click()
    link = page.locator(".link input").input_value()
    other = open_page(link.removeprefix(service.url))
    for part in (".identity", ".class-line", ".then", ".account", "[data-reading=night]", ".legend"):
        expect(other.locator(part).first).to_have_text(page.locator(part).first.inner_text(), use_inner_text=True)
    expect(other.locator(".identity .chip")).to_have_text("ztf")
    expect(other.locator("svg[data-plot=light-curve]")).to_contain_text("AB magnitude")
    expect(other.locator(".legend button", has_text="g")).to_have_attribute("aria-pressed", "false")
    expect(other.locator("input[name='weight II']")).to_have_value("5")
    expect(other.locator("input[name=zspec]")).to_have_value("0.02")
    other.get_by_role("button", name="Back to the original").click()
    expect(other.locator("input[name=zspec]")).to_have_value("0.1")
    expect(other.locator(".account")).to_contain_text("redshift 0.1 ")


def test_page_link_with_a_model_that_is_gone_offers_the_own_settings(
    open_page: OpenPage, service: ServiceProcess
) -> None:
    content = {"light_curve": light_curve(), "settings": {"model": "gone@1.0.0"}}
    packed = base64.urlsafe_b64encode(zlib.compress(json.dumps(content).encode(), wbits=-15)).decode()
    page = open_page(f"/#light-curve={packed.rstrip('=')}")
    expect(page.locator("#problem")).to_contain_text("no model of this name is served")
    page.get_by_role("button", name="Use the model’s own settings").click()
    expect(page.locator(".object")).to_have_text("SN 2099zz")
    expect(page.locator("#problem")).to_have_count(0)


def test_page_downloads_hold_what_is_shown(open_page: OpenPage) -> None:
    page = open_page()
    body = light_curve()
    paste(page, json.dumps(body))
    expect(page.locator(".object")).to_have_text("SN 2099zz")
    expect(page.locator("svg[data-plot=evolution]")).to_be_visible()
    name, png = save(page, "PNG")
    assert (name, png[:8]) == ("SN_2099zz.png", b"\x89PNG\r\n\x1a\n")
    assert len(png) > 10_000  # not an empty picture
    svg = ElementTree.fromstring(save(page, "SVG")[1])
    assert len([each for each in svg.findall(f"{SVG}svg") if each.get("data-plot")]) == 2
    texts = [each.text or "" for each in svg.findall(f"{SVG}text")]
    best = page.locator(".class-name").inner_text()
    assert texts[0].startswith(f"SN 2099zz: {best} ")
    assert {"g 10", "r 10"} <= set(texts)
    assert any(text.startswith(f"{best} ") for text in texts)
    rows = list(csv.DictReader(io.StringIO(save(page, "Light curve (CSV)")[1].decode())))
    assert [float(row["mjd"]) for row in rows] == body["mjd"]
    assert [float(row["flux_njy"]) for row in rows] == pytest.approx(body["flux"])
    steps = list(csv.DictReader(io.StringIO(save(page, "Probabilities (CSV)")[1].decode())))
    assert steps[-1]["class"] == page.locator(".class-name").inner_text()
    assert float(steps[-1][steps[-1]["class"]]) == pytest.approx(float(steps[-1]["confidence"]))


@pytest.mark.parametrize("source", ["packet", "curve", "edited"])
def test_page_commands_give_the_same_result(
    open_page: OpenPage, service: ServiceProcess, tmp_path: Path, source: str
) -> None:
    page = open_page()
    expect(shown(page)).to_be_visible()
    if source != "packet":
        paste(page, json.dumps(light_curve()))
        expect(page.locator(".object")).to_have_text("SN 2099zz")
    if source == "edited":
        page.select_option("select[name=prior]", "uniform")
        page.locator("summary", has_text="Metadata").click()
        page.fill("input[name=zspec]", "0.05")
        expect(page.locator(".account")).to_contain_text("uniform")
        expect(page.locator(".busy")).to_be_empty()
    name, content = save(page, "Input (")
    (tmp_path / name).write_bytes(content)
    expected = shown(page).inner_text()
    curl = page.locator("[data-command=curl]").inner_text()
    reply = subprocess.run(
        curl, shell=True, cwd=tmp_path, check=True, capture_output=True
    ).stdout  # the page's own text
    assert json.loads(reply)["results"][0]["class"] == expected
    page.get_by_role("button", name="Python").click()
    python = page.locator("[data-command=python]").inner_text()
    run = subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert run.stdout.startswith(expected)
    page.get_by_role("button", name="nightjar").click()
    command = f"{Path(sys.executable).parent}/" + page.locator("[data-command=nightjar]").inner_text()
    table = subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert expected in table


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    keys = (hashlib.sha256(b"secret-key").hexdigest(),)
    with live(load_one, bundle=DEFAULT_BUNDLE, api_keys=keys, root_path="/nightjar") as running:
        yield running


def test_page_asks_for_the_api_key_and_keeps_it_in_memory_only(open_page: OpenPage, guarded: Live) -> None:
    """The service is under a path prefix."""
    page = open_page("/nightjar/", url=guarded.url)
    key = page.get_by_label("API key")
    key.fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator(".key")).to_contain_text("does not know this key")
    key.fill("secret-key")
    page.keyboard.press("Enter")
    expect(shown(page)).to_be_visible()
    expect(page.locator("svg[data-plot=evolution]")).to_be_visible()
    assert page.url == f"{guarded.url}/nightjar/"
    assert "secret-key" not in page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
    )
    curl = page.locator("[data-command=curl]").inner_text()
    assert f"{guarded.url}/nightjar/v1/alerts" in curl
    assert "$NIGHTJAR_API_KEY" in curl
    assert "secret-key" not in page.content()
    page.get_by_role("button", name="Forget API key").click()
    expect(page.locator(".key")).to_contain_text("asks for an API key")
    key.fill("secret-key")
    page.keyboard.press("Enter")
    expect(shown(page)).to_be_visible()
    page.reload()
    expect(page.locator(".key")).to_contain_text("asks for an API key")


def table(objects: int) -> str:
    """A table with magnitudes of several objects and unusual column names."""
    rows = ["Name,HJD,Filt,Vmag,e_Vmag"]
    for number in range(objects):
        curve = light_curve()
        for mjd, flux, band in zip(curve["mjd"], curve["flux"], curve["band"], strict=True):
            mag = 31.4 - 2.5 * np.log10(flux * (1 + number / 10))
            rows.append(f"star {number},{mjd + 2_400_000.5:.4f},{band},{mag:.4f},0.08")
    return "\n".join(rows) + "\n"


def test_page_table_is_read_by_the_service_and_listed(open_page: OpenPage, service: ServiceProcess) -> None:
    page = open_page()
    page.set_input_files("input[name=files]", {"name": "t.csv", "mimeType": "text/csv", "buffer": table(40).encode()})
    listed = page.locator(".objects")
    expect(page.locator("#objects-title")).to_contain_text("40")
    expect(listed.locator(".pages")).to_contain_text("1 to 25 of 40")
    expect(page.locator(".reading-of-table")).to_contain_text("of 40 objects")
    page.locator(".reading-of-table summary").click()
    expect(page.locator(".reading-of-table")).to_contain_text("'HJD'")
    with urlopen(
        Request(f"{service.url}/v1/tables", table(40).encode(), {"Content-Type": "text/csv"}), timeout=60
    ) as reply:
        results = [json.loads(line) for line in reply][1:-1]
    expect(page.locator(".object")).to_have_text("star 0")
    expect(shown(page)).to_have_text(results[0]["class"])
    listed.get_by_role("button", name="Next").click()
    listed.get_by_role("button", name="star 30").click()
    expect(page.locator(".object")).to_have_text("star 30")
    expect(page.locator("#answer-title")).to_be_focused()
    expect(page.locator("#answer-title")).to_be_in_viewport()
    expect(shown(page)).to_have_text(results[30]["class"])
    listed.get_by_role("button", name="Probability").click()
    expect(listed.locator("th[aria-sort=descending]")).to_have_count(1)
    best = max(results, key=lambda result: result["confidence"])
    listed.get_by_role("button", name="Previous").click()
    expect(listed.locator("tbody td.value").first).to_have_text(percent(best["confidence"]))
    page.fill("input[name=filter-name]", "star 1")
    expect(listed.locator(".pages")).to_contain_text("of 11")
    page.fill("input[name=filter-name]", "")
    page.select_option("select[name=filter-class]", results[0]["class"])
    name, content = save(page, "Save as CSV")
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert name == "classes.csv"
    assert sorted(row["object_id"] for row in rows) == sorted(
        result["object_id"] for result in results if result["class"] == results[0]["class"]
    )
    assert float(rows[0][rows[0]["class"]]) == pytest.approx(float(rows[0]["confidence"]))
    lines = save(page, "Save as JSON Lines")[1].decode().splitlines()
    assert len(lines) == len(rows)


UNREAD = {
    "a.fits": b"SIMPLE  =                    T" + b" " * 90,
    "a.bin": b"SIMPLE  =                    T" + b" " * 90,
    "a.vot": b"<VOTABLE/>",
    "a.csv": b'<?xml version="1.0"?>\n<VOTABLE version="1.3"/>',
    "b.ecsv": b"name,mjd\na,60000\n",
    "b.txt": b"# %ECSV 1.0\n# ---\n",
    "c.parquet": b"PAR1" + bytes(20),
    "c.csv.gz": b"\x1f\x8b\x08" + bytes(20),
    "c.zip": b"PK\x03\x04" + bytes(20),
    "c.xlsx": b"PK\x03\x04" + bytes(20),
    "c.h5": b"\x89HDF\r\n\x1a\n" + bytes(20),
    "d.csv": b"<!DOCTYPE html><html></html>",
}


def test_page_file_that_is_not_read_over_http_is_named_with_the_command_and_not_sent(
    open_page: OpenPage, service: ServiceProcess
) -> None:
    page = open_page()
    expect(shown(page)).not_to_be_empty()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    for name, content in UNREAD.items():
        page.set_input_files("input[name=files]", {"name": name, "mimeType": "", "buffer": content})
        expect(page.locator("#problem")).to_contain_text(f"nightjar classify {name} --url {service.url}")
    assert sent == []


def test_page_file_that_is_not_read_among_others_is_listed_with_the_reason(open_page: OpenPage) -> None:
    page = open_page()
    files: list[Any] = [
        {"name": "a.fits", "mimeType": "", "buffer": UNREAD["a.fits"]},
        {"name": "t.csv", "mimeType": "", "buffer": table(1).encode()},
    ]
    page.set_input_files("input[name=files]", files)
    expect(page.locator("#objects-title")).to_contain_text("2")
    expect(page.locator(".object")).to_have_text("star 0")
    page.locator(".objects").get_by_role("button", name="a.fits").click()
    expect(page.locator("main")).to_contain_text("nightjar classify a.fits --url")


def test_page_csv_file_runs_no_formula(open_page: OpenPage) -> None:
    page = open_page()
    curves = [light_curve(object_id=name) for name in ("=1+1", "-0.5", "+cmd", "@x")]
    paste(page, json.dumps({"light_curves": curves}))
    expect(page.locator("#objects-title")).to_contain_text("4")
    rows = list(csv.DictReader(io.StringIO(save(page, "Save as CSV")[1].decode())))
    assert [row["object_id"] for row in rows] == ["'=1+1", "-0.5", "'+cmd", "'@x"]


def test_page_ambiguous_table_asks(open_page: OpenPage) -> None:
    page = open_page()
    paste(page, "object_id,mjd,flux,flux_err,band\nA,60000,19.1,0.1,g\nA,60001,19.2,0.1,g\n")
    expect(page.locator("#problem h2")).to_have_text("One question about this table")
    page.locator(".question button", has_text="uJy").click()
    expect(page.locator(".object")).to_have_text("A")
    expect(shown(page)).to_be_visible()


def test_page_table_that_cannot_be_read_shows_the_error_and_the_line(open_page: OpenPage) -> None:
    page = open_page()
    paste(page, "mjd,flux,flux_err,band\n60000,1,1\n")
    expect(page.locator("#problem")).to_contain_text("3 fields instead of 4")
    expect(page.locator("#problem mark")).to_have_text("60000,1,1")


def test_page_several_files_are_listed_and_a_bad_one_harms_no_other(open_page: OpenPage) -> None:
    page = open_page()
    files: list[Any] = [{"name": name, "mimeType": "", "buffer": packet(name)} for name in SAMPLES]
    files.insert(3, {"name": "broken.avro", "mimeType": "", "buffer": packet(FIRST)[:-400]})
    files.append({"name": "curve.json", "mimeType": JSON, "buffer": json.dumps(light_curve()).encode()})
    wrong = json.dumps(light_curve(flux="x")).encode()
    files.append({"name": "wrong.json", "mimeType": JSON, "buffer": wrong})
    page.set_input_files("input[name=files]", files)
    expect(page.locator("#objects-title")).to_contain_text(str(len(SAMPLES) + 3))
    listed = page.locator(".objects")
    expect(listed.locator(".status", has_text="rejected")).to_have_count(2)
    expect(listed.get_by_role("button", name="broken.avro")).to_be_visible()
    rows = list(csv.DictReader(io.StringIO(save(page, "Save as CSV")[1].decode())))
    assert [row["file"] for row in rows] == [each["name"] for each in files]
    assert [row["file"] for row in rows if row["detail"]] == ["broken.avro", "wrong.json"]
    listed.get_by_role("button", name="SN 2099zz").click()
    expect(page.locator(".object")).to_have_text("SN 2099zz")
    listed.get_by_role("button", name="wrong.json").click()
    expect(page.locator(".class-name")).to_have_text("No class: the input was rejected")
    expect(page.locator(".answer .errors")).to_contain_text("/flux")
