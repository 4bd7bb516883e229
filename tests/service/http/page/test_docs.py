"""The API reference in a real browser: no requests to other hosts, and "Execute" works for every operation."""

import json
from collections.abc import Callable
from urllib.request import urlopen

import pytest
from playwright.sync_api import Page, expect

from nightjar_alerts.service.local import ServiceProcess

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
expect.set_options(timeout=120_000)


def test_docs_examples_run_offline(open_page: OpenPage, service: ServiceProcess) -> None:
    with urlopen(f"{service.url}/openapi.json", timeout=60) as reply:
        paths = json.load(reply)["paths"]
    page = open_page("/page/icon.svg")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{service.url}/docs")
    blocks = page.locator(".opblock")
    expect(blocks).to_have_count(sum(len(methods) for methods in paths.values()))
    for block in blocks.all():
        block.locator(".opblock-summary-control").click()
        block.locator("button.execute").click()
        status = block.locator(".live-responses-table tbody .response-col_status").first
        expect(status).to_contain_text("200")
        expect(block.locator(".live-responses-table")).not_to_contain_text("can't parse JSON")
        block.locator(".opblock-summary-control").click()
    assert all(url.startswith((f"{service.url}/", "data:", "blob:")) for url in requests)
