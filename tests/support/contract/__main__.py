"""Record the contract, or compare this checkout with it."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.contract.commands import run_commands
from support.contract.exact import exact_differences, write
from support.contract.masks import TOLERANCE, differences
from support.contract.processes import ROOT
from support.contract.servers import SERVERS, run_server
from support.contract.streams import STREAMS, run_stream

RECORDED = ROOT / "tests" / "contract" / "recorded.jsonl"

Run = Callable[[str, Path], tuple[dict[str, Any], dict[str, str]]]

PARTS: dict[str, Run] = {
    **dict.fromkeys(SERVERS, run_server),
    **dict.fromkeys(STREAMS, run_stream),
    "commands": run_commands,
}


def observed(part: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Output of one part, decoded and exact, each by the name of the case."""
    with tempfile.TemporaryDirectory(prefix="contract-") as folder:
        return PARTS[part](part, Path(folder))


def recorded(part: str) -> dict[str, Any]:
    """Output of one part when the contract was recorded."""
    lines = map(json.loads, RECORDED.read_text().splitlines())
    return {line["case"]: line["output"] for line in lines if line["part"] == part}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the output to the recordings")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part")
    parser.add_argument("--exact", action="store_true", help="compare numbers without tolerance")
    options = parser.parse_args()
    parts = options.only or list(PARTS)
    if options.record:
        found = {part: observed(part) for part in parts}
        _record({part: decoded for part, (decoded, _) in found.items()})
        for part, (_, raw) in found.items():
            write(part, raw)
        return 0
    tolerance = 0.0 if options.exact else TOLERANCE
    different = 0
    for part in parts:
        decoded, raw = observed(part)
        lines = differences(recorded(part), decoded, tolerance) + exact_differences(part, raw, options.exact)
        different += len(lines)
        sys.stdout.writelines(f"{part} {line}\n" for line in lines)
    return int(different > 0)


def _record(outputs: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the recorded lines of these parts."""
    lines = RECORDED.read_text().splitlines() if RECORDED.exists() else []
    kept = [line for line in lines if json.loads(line)["part"] not in outputs]
    made = [
        json.dumps({"part": part, "case": case, "output": output}, ensure_ascii=False, separators=(",", ":"))
        for part, cases in outputs.items()
        for case, output in cases.items()
    ]
    RECORDED.write_text("".join(f"{line}\n" for line in [*kept, *made]))


if __name__ == "__main__":
    sys.exit(main())
