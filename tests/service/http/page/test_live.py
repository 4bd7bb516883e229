"""The live view in a real browser: it asks for the key, shows results as they arrive, and filters them."""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.service.pages import FILES
from nightjar_alerts.service.registry.loader import load_one
from support.edge import Live, live

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>"
OpenPage = Callable[..., Page]
expect.set_options(timeout=120_000)


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    with live(load_one, bundle=DEFAULT_BUNDLE, live_key=hashlib.sha256(b"live-key").hexdigest()) as running:
        yield running


def classify(edge: Live, name: str) -> dict[str, Any]:
    body = FILES[f"samples/{name}"].read_bytes()
    reply = edge.ask("POST", "/v1/alerts", body, {"Content-Type": "application/octet-stream"})[2]
    result: dict[str, Any] = json.loads(reply)["results"][0]
    return result


def test_live_view_lists_results_and_filters_them(open_page: OpenPage, edge: Live) -> None:
    page = open_page("/live", url=edge.url, bypass_csp=True)  # for axe's script
    key = page.get_by_label("API key")
    key.fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator(".key")).to_contain_text("does not know this key")
    key.fill("live-key")
    page.keyboard.press("Enter")
    expect(page.locator("[data-reading=rate]")).to_be_visible()
    first = classify(edge, "lsst_9876522240000007.avro")
    second = classify(edge, "elasticc_9876522430000005.avro")
    assert first["class"] != second["class"]
    curve = {
        "object_id": HOSTILE,
        "mjd": [60_000, 60_001],
        "flux": [900, 990],
        "flux_err": [30, 30],
        "band": ["g", "r"],
    }
    assert edge.classify(curve)[0] == 200
    newest = page.get_by_role("region", name="Table of the newest results")
    for text in ("9876522240000007", "9876522430000005", HOSTILE):
        expect(newest.locator("tr", has_text=text)).to_have_count(1)
    assert page.locator("img").count() == 0
    expect(page.locator(".probabilities")).to_contain_text(first["class"])
    assert Axe().run(page).response["violations"] == []
    opened = newest.get_by_role("button", name="9876522240000007")
    opened.click()
    details = page.get_by_role("dialog", name="9876522240000007")
    expect(details.locator(".class-line")).to_contain_text(first["class"])
    expect(details.locator(".set")).to_contain_text(" or ".join(first["prediction_set"][-2:]))
    expect(details.locator(".chip")).to_have_text("lsst")
    best = max(first["probabilities"], key=first["probabilities"].get)
    expect(details.locator(".row", has_text=best).first.locator(".value")).to_have_text(
        f"{100 * first['probabilities'][best]:.0f} %"
    )
    expect(details).to_contain_text("has no light curves")
    assert Axe().run(page).response["violations"] == []
    page.keyboard.press("Escape")
    expect(details).to_have_count(0)
    expect(opened).to_be_focused()
    page.select_option("select[name=class]", second["class"])
    expect(newest.locator("tr", has_text="9876522240000007")).to_have_count(0)
    expect(newest.locator("tr", has_text="9876522430000005")).to_have_count(1)
    page.get_by_role("button", name="Forget API key").click()
    expect(key).to_be_visible()
    expect(page.locator(".key")).not_to_contain_text("does not know this key")


def test_live_view_without_its_setting_is_disabled(open_page: OpenPage) -> None:
    page = open_page("/live")
    expect(page.locator("main")).to_contain_text("The live view is off")
