"""The engine held to what it promises: against other policies, against bare onnxruntime, against its simulation.

Curves have the lengths of real alerts: lognormal around 50 points, and one in a hundred from a deep field. The cache is
off, as the curves come again and again.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from deploy.bench import agreement, lone, policies, wire
from deploy.bench.curves import alert_mix
from deploy.bench.report import Numbers
from service.inference.loaded import load_model

SEED = 20260102


class Aim(NamedTuple):
    """What a figure should be, in the words of the table."""

    figure: str
    bound: Literal["at least", "at most"]
    value: float


AIMS: Final[dict[str, Aim]] = {
    "engine.policy_speedup.fifo_count_64": Aim("throughput over FIFO, 64 light curves", "at least", 7),
    "engine.policy_speedup.fifo_token_budget": Aim("over FIFO, 4,096 padded observations", "at least", 2.5),
    "engine.policy_speedup.window_5ms": Aim("over a window of 5 ms, 64 light curves", "at least", 5),
    "engine.policy_speedup.one_by_one": Aim("over one by one", "at least", 1.5),
    "engine.p99_half_load_vs_one_by_one": Aim("p99 at half load over that of one by one", "at most", 1),
    "engine.vs_bare.msgpack_64": Aim("service / bare at its best, msgpack by 64", "at least", 0.95),
    "engine.vs_bare.json_1": Aim("service / bare, JSON one by one, 32 in flight", "at least", 0.8),
    "engine.vs_bare.json_1_128": Aim("the same, 128 in flight", "at least", 0.85),
    "engine.lone_p50_overhead_ms": Aim("added to a lone request, median, ms", "at most", 1.5),
    "engine.burst_10k_vs_ideal": Aim("10,000 at once / bare at its best", "at most", 1.2),
    "engine.simulation_error": Aim("simulation against engine, largest error", "at most", 0.15),
}


def measure(bundle: Path, curves: int, rounds: int, burst: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``engine.*``.

    Parameters
    ----------
    curves : light curves in a round of every arm.
    burst : light curves that are posted at once.
    """
    drawn = alert_mix(curves, SEED)
    with tempfile.TemporaryDirectory() as folder:  # measured anew, as at a first start
        model = load_model(bundle, folder=Path(folder), tune=True)
    runs, threads, groups = model.layout
    say(f"{runs} runs at a time, {threads} threads each, {groups} groups in flight, batches of {model.max_tokens}")
    numbers: Numbers = {
        "engine.curves_per_round": curves,
        "engine.rounds": rounds,
        "engine.layout.runs": runs,
        "engine.layout.threads": threads,
        "engine.layout.groups": groups,
        "engine.max_batch_tokens": model.max_tokens,
    }
    numbers |= policies.measure(model, drawn, rounds, say)
    numbers |= agreement.measure(model, curves, rounds, say)
    del model  # its threads' memory is not to be in the way of what follows
    numbers |= wire.measure(bundle, drawn, rounds, say)
    numbers |= lone.measure(bundle, drawn, rounds, say)
    return numbers | wire.burst(bundle, burst, min(rounds, 3), say)


def table(numbers: Numbers, aims: Mapping[str, Aim] = AIMS) -> str:
    """Markdown: each figure, its median and full range over the rounds, and what it should be."""
    lines = ["| figure | measured | aim | reached |", "|---|---|---|---|"]
    for key, aim in aims.items():
        found = numbers[key]
        value = found["median"] if isinstance(found, dict) else found
        shown = f"{value:.2f} ± {found['spread']:.2f}" if isinstance(found, dict) else f"{value:.2f}"
        reached = value >= aim.value if aim.bound == "at least" else value <= aim.value
        lines.append(f"| {aim.figure} | {shown} | {aim.bound} {aim.value:g} | {'yes' if reached else 'no'} |")
    return "\n".join(lines) + "\n"
