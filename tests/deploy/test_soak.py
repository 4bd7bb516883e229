"""The service's soak: it passes on a sound service, and sees what would be wrong with another."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from deploy.bench.http_load import HttpReply
from deploy.bench.soak import (
    SHARES,
    Administrator,
    Kind,
    Soak,
    SoakDriver,
    SoakRequest,
    SoakResult,
    Tally,
    check_reply,
    light_curves,
    next_version,
    prepare_requests,
    table,
)
from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.service.local import free_port

pytestmark = pytest.mark.slow

GOLDEN = {"1.0.0": np.array([[0.5, 0.5], [0.1, 0.9]], np.float32)}


def request_of(kind: Kind) -> SoakRequest:
    return next(one for one in prepare_requests(light_curves()[:20]) if one.kind == kind)


def answer(version: str = "1.0.0", probabilities: tuple[float, float] = (0.1, 0.9)) -> HttpReply:
    result = {"status": "classified", "probabilities": dict(zip("ab", probabilities, strict=True))}
    return HttpReply(200, json.dumps({"model": {"version": version}, "results": [result]}).encode())


def test_requests_come_in_their_shares() -> None:
    counts = Counter(one.kind for one in prepare_requests(light_curves()[:20]))
    for kind, share in SHARES.items():
        assert abs(counts[kind] / counts.total() - share) < 0.04
    assert all(one.request.vanish == (one.kind == "cancelled") for one in prepare_requests(light_curves()[:20]))


def test_an_answer_is_held_to_the_version_it_names() -> None:
    one = SoakRequest("one", request_of("one").request, (1,))
    assert check_reply(one, answer(), GOLDEN) == "right"
    assert check_reply(one, answer(probabilities=(0.11, 0.89)), GOLDEN) == "wrong"
    assert check_reply(one, answer("2.0.0"), GOLDEN) == "wrong"
    assert check_reply(one, HttpReply(429), GOLDEN) == "refused"
    assert check_reply(one, HttpReply(500), GOLDEN) == "wrong"


def test_light_curves_that_came_too_late_are_refused_alone() -> None:
    both = SoakRequest("one", request_of("one").request, (0, 1))
    late, right = {"status": "failed", "reason": "deadline_exceeded"}, {"a": 0.1, "b": 0.9}
    for probabilities, verdict in ((right, "refused"), ({"a": 0.2, "b": 0.8}, "wrong")):
        results = [late, {"status": "classified", "probabilities": probabilities}]
        reply = HttpReply(200, json.dumps({"model": {"version": "1.0.0"}, "results": results}).encode())
        assert check_reply(both, reply, GOLDEN) == verdict


def test_nonsense_must_be_refused() -> None:
    bad = request_of("bad")
    assert check_reply(bad, HttpReply(422), GOLDEN) == "right"
    assert check_reply(bad, HttpReply(200, b"{}"), GOLDEN) == "wrong"
    assert check_reply(bad, HttpReply(500), GOLDEN) == "wrong"


async def test_a_request_without_a_reply_is_stranded() -> None:
    driver = SoakDriver(free_port(), [request_of("one")], GOLDEN)
    await driver.run(rate=100.0, seconds=0.05)
    assert set(driver.tally.outcomes) == {("one", "stranded")}


def test_faults_of_a_soak_are_told() -> None:
    administrator = Administrator(1, "mine", "1.0.1", 1.0, changes=Counter(load=1))
    good = SoakResult(10.0, Tally(), administrator, memory=[100] * 8)
    assert good.faults() == []
    tally = Tally(Counter({("one", "wrong"): 2, ("batch", "stranded"): 1}))
    bad = SoakResult(10.0, tally, administrator, [100, 100, 100, 100, 110, 110, 120, 120], {"queue_depth": 3.0})
    assert bad.faults() == [
        "2 wrong answers",
        "1 stranded requests",
        "left at the end: queue_depth 3",
        "memory grew by 20%",
    ]
    assert "| stranded requests | 4 |" in table(bad, 1)


def test_another_network_becomes_the_next_version(tiny_bundle: Path, confident_bundle: Path, tmp_path: Path) -> None:
    name, version = next_version(tiny_bundle, confident_bundle, tmp_path / "made")
    bundle = load_bundle(tmp_path / "made")
    assert (name, version) == ("tiny", "0.0.2")
    assert (bundle.manifest.name, bundle.manifest.version) == (name, version)
    assert bundle.sha256 != load_bundle(tiny_bundle).sha256


@pytest.mark.nightly
def test_a_sound_service_is_soaked(
    tiny_bundle: Path, confident_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.bench.soak.SATURATED_SHARE", 0.2)
    soak = Soak(minutes=0.06, load=0.4, bundle=tiny_bundle, other=confident_bundle, change_seconds=0.2)
    soaked = soak.run(tmp_path)
    assert [fault for fault in soaked.faults() if not fault.startswith("memory")] == []
    assert soaked.administrator.changes["load"] >= 1
    assert {kind for kind, _ in soaked.tally.outcomes} == set(SHARES)
    assert len(soaked.memory) > 10
    assert "| wrong answers | 0 |" in table(soaked, soak.minutes)
