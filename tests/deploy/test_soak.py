"""The service's soak: it passes on a sound service, and sees what would be wrong with another."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from deploy.bench.load import Reply
from deploy.bench.process import free_port
from deploy.bench.soak import (
    SHARES,
    Administrator,
    Asked,
    Driver,
    Kind,
    Soak,
    Soaked,
    Tally,
    drawn,
    judge,
    next_version,
    prepared,
    table,
)
from models.bundle import load_bundle

GOLDEN = {"1.0.0": np.array([[0.5, 0.5], [0.1, 0.9]], np.float32)}


def asked(kind: Kind) -> Asked:
    return next(one for one in prepared(drawn()[:20]) if one.kind == kind)


def answer(version: str = "1.0.0", probabilities: tuple[float, float] = (0.1, 0.9)) -> Reply:
    result = {"status": "classified", "probabilities": dict(zip("ab", probabilities, strict=True))}
    return Reply(200, json.dumps({"model": {"version": version}, "results": [result]}).encode())


def test_requests_come_in_their_shares() -> None:
    found = Counter(one.kind for one in prepared(drawn()[:20]))
    for kind, share in SHARES.items():
        assert abs(found[kind] / found.total() - share) < 0.04
    assert all(one.request.vanish == (one.kind == "cancelled") for one in prepared(drawn()[:20]))


def test_an_answer_is_held_to_the_version_it_names() -> None:
    one = Asked("one", asked("one").request, (1,))
    assert judge(one, answer(), GOLDEN) == "right"
    assert judge(one, answer(probabilities=(0.11, 0.89)), GOLDEN) == "wrong"
    assert judge(one, answer("2.0.0"), GOLDEN) == "wrong"
    assert judge(one, Reply(429), GOLDEN) == "refused"
    assert judge(one, Reply(500), GOLDEN) == "wrong"


def test_light_curves_that_came_too_late_are_refused_alone() -> None:
    both = Asked("one", asked("one").request, (0, 1))
    late, right = {"status": "failed", "reason": "deadline_exceeded"}, {"a": 0.1, "b": 0.9}
    for probabilities, verdict in ((right, "refused"), ({"a": 0.2, "b": 0.8}, "wrong")):
        results = [late, {"status": "classified", "probabilities": probabilities}]
        reply = Reply(200, json.dumps({"model": {"version": "1.0.0"}, "results": results}).encode())
        assert judge(both, reply, GOLDEN) == verdict


def test_nonsense_must_be_refused() -> None:
    bad = asked("bad")
    assert judge(bad, Reply(422), GOLDEN) == "right"
    assert judge(bad, Reply(200, b"{}"), GOLDEN) == "wrong"
    assert judge(bad, Reply(500), GOLDEN) == "wrong"


async def test_a_request_without_a_reply_is_stranded() -> None:
    driver = Driver(free_port(), [asked("one")], GOLDEN)
    await driver.run(rate=100.0, seconds=0.05)
    assert set(driver.tally.outcomes) == {("one", "stranded")}


def test_faults_of_a_soak_are_told() -> None:
    administrator = Administrator(1, "mine", "1.0.1", 1.0, made=Counter(load=1))
    good = Soaked(10.0, Tally(), administrator, memory=[100] * 8)
    assert good.faults() == []
    tally = Tally(Counter({("one", "wrong"): 2, ("batch", "stranded"): 1}))
    bad = Soaked(10.0, tally, administrator, [100, 100, 100, 100, 110, 110, 120, 120], {"queue_depth": 3.0})
    assert bad.faults() == [
        "2 wrong answers",
        "1 stranded requests",
        "left at the end: queue_depth 3",
        "memory grew by 20%",
    ]
    assert "| stranded requests | 4 |" in table(bad, 1)


def test_another_network_becomes_the_next_version(tiny_bundle: Path, confident_bundle: Path, tmp_path: Path) -> None:
    name, version = next_version(tiny_bundle, confident_bundle, tmp_path / "made")
    made = load_bundle(tmp_path / "made")
    assert (name, version) == ("tiny", "0.0.2")
    assert (made.manifest.name, made.manifest.version) == (name, version)
    assert made.sha256 != load_bundle(tiny_bundle).sha256


def test_a_sound_service_is_soaked(
    tiny_bundle: Path, confident_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.bench.soak.SATURATED_SHARE", 0.2)
    soak = Soak(minutes=0.06, load=0.4, bundle=tiny_bundle, other=confident_bundle, change_seconds=0.2)
    soaked = soak.run(tmp_path)
    assert [fault for fault in soaked.faults() if not fault.startswith("memory")] == []
    assert soaked.administrator.made["load"] >= 1
    assert {kind for kind, _ in soaked.tally.outcomes} == set(SHARES)
    assert len(soaked.memory) > 10
    assert "| wrong answers | 0 |" in table(soaked, soak.minutes)
