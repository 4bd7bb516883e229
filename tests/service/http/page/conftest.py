"""Fixtures for the tests of the page: a real service, and Debian's Chromium driven by Playwright."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from nightjar_alerts.service.local import ServiceProcess, running

SECONDS = 120  # for whatever the page shows: the machine may be slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

OpenPage = Callable[..., Page]
Launch = Callable[..., Browser]


@pytest.fixture(scope="package")  # not the session: Playwright's event loop runs until it is closed
def launch() -> Iterator[Launch]:
    """Return a function that starts Chromium with further arguments."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    usual = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        yield lambda *arguments: playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*usual, *arguments], timeout=1000 * SECONDS
        )


@pytest.fixture(scope="package")
def browser(launch: Launch) -> Iterator[Browser]:
    with launch() as launched:
        yield launched


@pytest.fixture(scope="package")
def service() -> Iterator[ServiceProcess]:
    with running() as live:
        yield live


@pytest.fixture
def open_page(browser: Browser, service: ServiceProcess) -> Iterator[OpenPage]:
    """Return a function that opens a page of the service; script and policy errors fail the test at its end."""
    contexts, errors = [], []

    def open_one(path: str = "/", url: str = service.url, **options: Any) -> Page:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        context.set_default_timeout(1000 * SECONDS)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(f"{url}{path}")
        return page

    yield open_one
    for context in contexts:
        context.close()
    replies = tuple(
        f"Failed to load resource: {each}" for each in ("the server responded with a status of 4", "net::ERR")
    )
    assert [error for error in errors if not error.startswith(replies)] == []
