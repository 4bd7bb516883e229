"""Results as text for a terminal: one row per alert, then what became of them all."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from service.commands.check import Report
from service.commands.client import Answer

TOP = 3
OBJECT_WIDTH = 20
SURVEY_WIDTH = 8
POINTS_WIDTH = 32
CLASSES_WIDTH = 56


def heading() -> str:
    """Names of the columns."""
    return _line("object", "survey", "points per band", "most probable classes", "ms")


def row(answer: Answer) -> str:
    """One alert."""
    result = answer.result
    name = result["object_id"] or result["alert_id"] or answer.source
    told = _classes(result) if result["status"] == "classified" else f"{result['status']}: {result['reason']}"
    return _line(name, result["survey"], _points(result), told, f"{answer.milliseconds:.1f}")


def summary(answers: Sequence[Answer]) -> str:
    """Count the alerts by status and summarise their latencies."""
    kinds = Counter((answer.result["status"], answer.result.get("reason", "")) for answer in answers)
    fates = [f"{count} {status}{f' ({reason})' if reason else ''}" for (status, reason), count in kinds.most_common()]
    times = sorted(answer.milliseconds for answer in answers)
    return (
        f"{len(answers)} alerts: {', '.join(fates)}; {median(times):.1f} ms at the median, {times[-1]:.1f} ms at most"
    )


def report(checked: Report) -> str:
    """Describe a bundle that passed its check."""
    manifest = checked.bundle.manifest
    lines = [
        f"{manifest.name} {manifest.version}  sha256 {checked.bundle.sha256}",
        f"{len(manifest.files)} files match their hashes",
        f"golden outputs reproduced, largest difference {checked.golden_error:.1e}",
        "",
        f"{'curves':>8}{'points':>8}{'ms a run':>12}{'ms a curve':>12}",
    ]
    for timing in checked.timings:
        milliseconds = 1000 * timing.seconds
        per_curve = milliseconds / timing.batch
        lines.append(f"{timing.batch:>8}{timing.length:>8}{milliseconds:>12.2f}{per_curve:>12.2f}")
    return "\n".join(lines)


def _line(*cells: str) -> str:
    widths = (OBJECT_WIDTH, SURVEY_WIDTH, POINTS_WIDTH, CLASSES_WIDTH)
    left = "  ".join(_fit(cell, width) for cell, width in zip(cells, widths, strict=False))
    return f"{left}  {cells[-1]:>8}"


def _fit(text: str, width: int) -> str:
    return f"{text[: width - 1]}…" if len(text) > width else text.ljust(width)


def _points(result: dict[str, Any]) -> str:
    points: Iterable[tuple[str, int]] = result.get("points_per_band", {}).items()
    return " ".join(f"{band}:{count}" for band, count in points if count)


def _classes(result: dict[str, Any]) -> str:
    ranked = sorted(result["probabilities"].items(), key=lambda item: -item[1])[:TOP]
    return ", ".join(f"{name} {probability:.2f}" for name, probability in ranked)
