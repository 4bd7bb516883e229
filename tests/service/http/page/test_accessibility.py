"""Accessibility of the page: axe-core reports no violations, in both themes and on a phone; keyboard operation."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.slow

PHONE = {"width": 360, "height": 740}
DESKTOP = {"width": 1280, "height": 900}
expect.set_options(timeout=120_000)

OpenPage = Callable[..., Page]


def findings(page: Page) -> list[tuple[str, list[Any]]]:
    found = Axe().run(page).response["violations"]
    return [(each["id"], [node["target"] for node in each["nodes"]]) for each in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_has_no_accessibility_findings(open_page: OpenPage, scheme: str, size: dict[str, int]) -> None:
    page = open_page(color_scheme=scheme, viewport=size, bypass_csp=True)  # for axe's script, not for the page's
    expect(page.locator("svg[data-plot=evolution]")).to_be_visible()
    page.locator("summary", has_text="Metadata").click()
    page.locator("summary", has_text="Experts").click()
    page.get_by_role("button", name="Paste text").click()
    page.locator("input[name=night]").focus()
    page.keyboard.press("Home")
    assert findings(page) == []
    page.get_by_role("button", name="Magnitude").click()
    page.select_option("select[name=sample]", "elasticc_9876523250000002.avro")
    expect(page.locator(".warning").first).to_be_visible()
    assert findings(page) == []
    page.fill("#paste", "id,mjd,flux,flux_err,band\nA,60000,19.1,0.1,g\nB,60001,19.2,0.1,g\n")
    page.get_by_role("button", name="Classify", exact=True).click()
    page.locator(".question button", has_text="uJy").click()
    expect(page.locator(".objects")).to_be_visible()
    assert findings(page) == []
    page.fill("#paste", json.dumps({"mjd": [60_000, "x"], "flux": [1, 2], "flux_err": [1, 1], "band": ["g", "r"]}))
    page.get_by_role("button", name="Classify", exact=True).click()
    expect(page.locator("#problem mark")).to_be_visible()
    assert findings(page) == []


def test_page_on_a_phone_does_not_scroll_sideways(open_page: OpenPage) -> None:
    page = open_page(viewport=PHONE)
    expect(page.locator("svg[data-plot=evolution]")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_page_can_be_used_by_keyboard_alone(open_page: OpenPage) -> None:
    page = open_page()
    expect(page.locator("svg[data-plot=evolution]")).to_be_visible()
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.name || document.activeElement.textContent.trim()"))
    for name in ("sample", "Paste text", "Magnitude", "Fold", "night", "Copy link", "PNG", "prior", "model"):
        assert any(each.startswith(name) for each in reached), name


def test_page_theme_can_be_chosen_and_is_remembered(open_page: OpenPage) -> None:
    page = open_page(color_scheme="light")
    page.get_by_role("button", name="Dark", exact=True).click()
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(13, 17, 24)"
    page.reload()
    expect(page.get_by_role("button", name="Light", exact=True)).to_be_visible()
    assert page.evaluate(background) == "rgb(13, 17, 24)"
