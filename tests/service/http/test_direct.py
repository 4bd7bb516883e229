"""The shortcut to an endpoint: the same answers, counted under the same route."""

import json

import pytest

from nightjar_alerts.service.http import formats
from support.edge import Network, curve, live, loader

JSON = {"Content-Type": formats.JSON.media_type}
BODIES = [
    json.dumps(curve()).encode(),
    json.dumps({**curve(), "options": {"embedding": True}}).encode(),
    json.dumps({**curve(), "flux": []}).encode(),
    b"{",
    b"",
]


def test_requests_with_and_without_parameters_get_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.service.http.edge.middleware._request_id", lambda _: "same")
    with live(loader(Network())) as edge:
        for body in BODIES:
            short, routed = (edge.ask("POST", f"/v1/classify{query}", body, JSON) for query in ("", "?model=default"))
            assert short[0] == routed[0]
            assert json.loads(short[2]) == json.loads(routed[2])
            assert short[1].keys() == routed[1].keys()
        assert edge.ask("GET", "/v1/classify")[0] == 405
        counted = {
            code: edge.metric("nightjar_requests_total", route="/v1/classify", code=code) for code in ("200", "422")
        }
        assert counted == {"200": 4, "422": 2}
