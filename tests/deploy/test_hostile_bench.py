"""Every attack of the bench in small, against a real server: it goes on answering, and forgets them all."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.bench import attacks as bombs
from deploy.bench import hostile
from deploy.bench.attacks import AttackPace, Target, attacks
from deploy.bench.hostile import AttackRow, numbers, table
from nightjar_alerts.models.alerts.envelopes import ANYTHING, MessageReader
from nightjar_alerts.models.alerts.packet import PacketError, ReadLimits, RejectReason
from nightjar_alerts.models.alerts.schema_registry import SchemaRegistry
from support.edge import Live, Network, live, loader, wait_until

pytestmark = pytest.mark.slow

ATTACKS = {attack.name: attack for attack in attacks()}
POSTED = {"faulty number", "not finite", "schema bomb", "many schemas", "wide JSON", "deflate bomb", "Arrow texts"}
ENDED = {"half closed", "giant headers", "garbage"} | POSTED


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    limits = {"header_timeout": 1, "body_timeout": 1, "stall_timeout": 1, "keep_alive": 2}
    with live(loader(Network()), **limits) as edge:
        yield edge


@pytest.mark.parametrize("name", ATTACKS)
def test_a_good_client_is_answered_during_and_after(edge: Live, name: str) -> None:
    target = Target(edge.port, 0.01, time.monotonic() + 1.5, AttackPace())

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


def test_the_worst_is_told() -> None:
    rows = [
        AttackRow("idle", 0.1, 20.0, 15.0, 6.0, 5.0, 99, 1, 12.0, 2.0, 0.25),
        AttackRow("garbage", 3.0, 40.0, 10.0, 2.0, 5.0, 100, 0, 3.0, 0.0, 0.1),
        AttackRow("lawful bodies", 900.0, 90.0, 50.0, 5.0, 5.0, 10, 0, 80.0, 5.0, 0.9),
    ]
    figures = numbers(rows)
    assert (figures["hostile.worst_stall_ms"], figures["hostile.worst_memory_mb"]) == (40.0, 12.0)
    assert (figures["hostile.worst_p99_ratio"], figures["hostile.failures"]) == (3.0, 1.0)
    assert (figures["hostile.worst_p99_over_floor"], figures["hostile.worst_floor_ratio"]) == (5.0, 1.2)
    assert (figures["hostile.attack.lawful_bodies.memory_mb"], figures["hostile.attack.idle.loop_busy"]) == (80.0, 0.25)
    assert table(rows).count("\n") == 5
    assert "| idle | 0.1 | 20 | 15 (6, 5) | 1 of 100 | +12 | +2 | 25% |" in table(rows)


@pytest.fixture(scope="module")
def sink() -> Iterator[int]:
    """The port of a server that drops everything."""
    with hostile._sink() as port:
        yield port


async def peers_begun(name: str, port: int, seconds: float, pace: AttackPace, enough: int) -> int:
    """Bytes sent by an attack that is stopped once so many have come anew."""
    attack = asyncio.ensure_future(ATTACKS[name].run(Target(port, 0.01, time.monotonic() + seconds, pace)))
    while not attack.done() and pace.begun < enough:
        await asyncio.sleep(0.01)
    attack.cancel()
    await asyncio.gather(attack, return_exceptions=True)
    return pace.begun


@pytest.mark.parametrize("name", sorted(ENDED))
def test_a_sink_ends_a_connection_where_a_service_would(sink: int, name: str) -> None:
    """Attacks go on there as they do on a service, and cost a bystander as much."""
    assert asyncio.run(peers_begun(name, sink, 30, AttackPace(), 3)) >= 3


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - ENDED - {"resets"}))
def test_a_sink_keeps_a_connection_that_a_service_would_keep(sink: int, name: str) -> None:
    assert asyncio.run(peers_begun(name, sink, 0.4, AttackPace(), 1)) == 0


async def test_a_pace_is_kept() -> None:
    began, pace = time.monotonic(), AttackPace(100)
    await asyncio.gather(*(pace.wait() for _ in range(20)))
    assert (pace.begun, time.monotonic() - began >= 0.18) == (20, True)


def test_a_good_client_tells_when_it_asked(edge: Live) -> None:
    began = time.monotonic()
    with hostile._good_client(edge.port) as good:
        time.sleep(0.5)
        replies = good.stop()
    assert replies
    assert all(reply.status == 200 and began < reply.began < time.monotonic() for reply in replies)
    assert hostile._between(replies, (began, time.monotonic())) == replies
    assert hostile._between(replies, (0.0, began)) == []


def test_the_bomb_is_refused_for_its_size() -> None:
    """A refusal for a fault of spelling would say nothing about the price of its size."""
    (refusal,) = MessageReader(SchemaRegistry(), ReadLimits()).read(bombs.schema_bomb(), None, ANYTHING)
    assert isinstance(refusal, PacketError)
    assert refusal.reason is RejectReason.UNSAFE_SCHEMA
    assert "more than" in refusal.detail


def test_bombs_are_what_they_say() -> None:
    assert len(bombs.schema_bomb()) < 16_000
    assert len(bombs.wide_json()) < 300_000
    assert len(bombs.large_curves()) < 8 << 20


def test_an_attack_that_does_not_exist_is_told_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="no attack is named faulty numbers; there are pipelining, idle"):
        hostile.measure(Path("nowhere"), 1.0, 1.0, ["faulty numbers"], print)
