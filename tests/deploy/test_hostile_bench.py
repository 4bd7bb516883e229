"""Every attack of the bench at a hundredth of its force, against a real server that has to go on answering."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from deploy.bench import hostile
from deploy.bench.grpc_attacks import grpc_attacks
from deploy.bench.hostile import Attack, AttackRow, Target, attacks, numbers, table
from deploy.bench.nginx import client_context, is_installed, running_nginx
from nightjar_alerts.alerts.envelopes import ANYTHING, MessageReader
from nightjar_alerts.alerts.packet import PacketError, ReadLimits, RejectReason
from nightjar_alerts.alerts.schema_registry import SchemaRegistry
from support.edge import Live, Network, live, loader, wait_until

pytestmark = pytest.mark.slow

ATTACKS = {attack.name: attack for attack in attacks()}


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    limits = {"header_timeout": 1, "body_timeout": 1, "stall_timeout": 1, "keep_alive": 2}
    with live(loader(Network()), **limits) as edge:
        yield edge


FIRST, *OTHERS = ATTACKS


@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS)])
def test_attack_leaves_other_clients_answered(edge: Live, name: str) -> None:
    target = Target(edge.port, 0.01, time.monotonic() + 1.5)

    async def both() -> list[int]:
        attack = asyncio.ensure_future(ATTACKS[name].run(target))
        statuses = []
        for _ in range(3):
            await asyncio.sleep(0.3)
            statuses.append((await asyncio.to_thread(edge.ask, "GET", "/v1/models"))[0])
        await attack
        return statuses

    assert asyncio.run(both()) == [200] * 3
    edge.still_well()
    wait_until(lambda: edge.service.budget.held == 0)
    assert edge.metric("nightjar_rejected_total", reason="internal") == 0


@pytest.fixture(scope="module")
def grpc_edge() -> Iterator[Live]:
    pytest.importorskip("grpc_health", reason="grpc is missing: pip install 'nightjar-alerts[grpc]'")
    with live(loader(Network()), grpc_port=0, body_timeout=1, stall_timeout=1, keep_alive=2) as edge:
        yield edge


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(attack.name, marks=[] if attack.name == "gRPC unfinished messages" else pytest.mark.nightly)
        for attack in grpc_attacks()
    ],
)
def test_attack_on_grpc_leaves_other_clients_answered(grpc_edge: Live, name: str) -> None:
    from support.rpc import grpc_port

    (attack,) = (attack for attack in grpc_attacks() if attack.name == name)
    target = Target(grpc_port(grpc_edge), 0.05, time.monotonic() + 1.5)
    calls = hostile.good_calls(target.port)

    async def both() -> list[int]:
        attacking = asyncio.ensure_future(attack.run(target))
        statuses = []
        for _ in range(3):
            await asyncio.sleep(0.3)
            statuses.append((await asyncio.to_thread(next, calls)).status)
        await attacking
        return statuses

    assert asyncio.run(both()) == [200] * 3
    grpc_edge.still_well()
    wait_until(lambda: grpc_edge.service.budget.held == 0)
    assert grpc_edge.metric("nightjar_rejected_total", reason="internal") == 0


def test_numbers_of_several_attacks_are_the_worst_but_valid_bodies() -> None:
    rows = [
        AttackRow("idle", 0.1, 20.0, 15.0, 5.0, 99, 1, 12.0, 2.0, 0.25),
        AttackRow("garbage", 3.0, 40.0, 10.0, 5.0, 100, 0, 3.0, 0.0, 0.1),
        AttackRow("lawful bodies", 900.0, 90.0, 50.0, 5.0, 10, 0, 80.0, 5.0, 0.9),
    ]
    figures = numbers(rows)
    assert (figures["hostile.worst_stall_ms"], figures["hostile.worst_memory_mb"]) == (40.0, 12.0)
    assert (figures["hostile.worst_p99_ratio"], figures["hostile.failures"]) == (3.0, 1.0)
    assert (figures["hostile.attack.lawful_bodies.memory_mb"], figures["hostile.attack.idle.loop_busy"]) == (80.0, 0.25)
    assert table(rows).count("\n") == 5
    assert "| idle | 0.1 | 20 | 15 (5) | 1 of 100 | +12 | +2 | 25% |" in table(rows)


def test_good_client_returns_its_timed_requests(edge: Live) -> None:
    began = time.monotonic()
    with hostile._good_client(edge.port) as stop:
        time.sleep(0.5)
        replies = stop()
    assert replies
    assert all(reply.status == 200 and began < reply.began < time.monotonic() for reply in replies)
    assert hostile._between(replies, (began, time.monotonic())) == replies
    assert hostile._between(replies, (0.0, began)) == []


@pytest.mark.nightly
@pytest.mark.skipif(not is_installed(), reason="nginx or openssl is not installed (apt-get install nginx openssl)")
def test_floods_go_through_nginx(edge: Live, tmp_path: Path) -> None:
    def sends(attack: Attack) -> bool:
        target = Target(nginx.port, 0.01, time.monotonic() + 1.0, client_context(nginx.certificate))
        return asyncio.run(attack.run(target)) > 0

    with running_nginx(tmp_path / "nginx", edge.port) as nginx:
        wait_until(lambda: nginx.memory() > 0)  # it listens before its workers have started
        with hostile._good_client(nginx.port, nginx.certificate) as stop:
            for attack in (one for one in ATTACKS.values() if one.is_flood):
                if attack.name == "idle":
                    assert not sends(attack)
                else:
                    wait_until(partial(sends, attack))
            replies = stop()
    assert replies
    assert {reply.status for reply in replies} == {200}


def test_schema_bomb_is_rejected_for_its_size() -> None:
    """A syntax error in it would hide the limit that it is meant to test."""
    (rejected,) = MessageReader(SchemaRegistry(), ReadLimits()).read(hostile.schema_bomb(), None, ANYTHING)
    assert isinstance(rejected, PacketError)
    assert rejected.reason is RejectReason.UNSAFE_SCHEMA
    assert "more than" in rejected.detail


def test_bombs_stay_small() -> None:
    assert len(hostile.schema_bomb()) < 16_000
    assert len(hostile.wide_json()) < 300_000
    assert len(hostile.large_curves()) < 8 << 20


def test_measure_of_an_unknown_attack_raises() -> None:
    with pytest.raises(ValueError, match="no attack is named faulty numbers; there are pipelining, idle"):
        hostile.measure(Path("nowhere"), 1.0, 1.0, ["faulty numbers"], print)
