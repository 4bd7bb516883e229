"""Record the contract, or compare a checkout with it."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.contract.masks import differences
from support.contract.servers import ROOT, SERVERS, replies
from support.contract.streams import STREAMS, runs

RECORDED = ROOT / "tests" / "contract" / "recorded.jsonl"


def found(name: str, tree: Path = ROOT) -> dict[str, Any]:
    """Replies that one server or stream of a checkout gives now."""
    with tempfile.TemporaryDirectory(prefix="contract-") as folder:
        told = replies if name in SERVERS else runs
        return told(name, tree, Path(folder))


def recorded(name: str) -> dict[str, Any]:
    """Replies that it gave when the contract was recorded."""
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return {line["ask"]: line["reply"] for line in lines if line["of"] == name}


def _line(name: str, ask: str, reply: Any) -> str:
    return json.dumps({"of": name, "ask": ask, "reply": reply}, ensure_ascii=False, separators=(",", ":"))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write what is answered now")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout whose service is asked")
    parser.add_argument("--only", choices=[*SERVERS, *STREAMS], action="append", help="one server or stream")
    options = parser.parse_args()
    names = options.only or [*SERVERS, *STREAMS]
    now = {name: found(name, options.tree.resolve()) for name in names}
    if options.record:
        kept = [line for line in _kept() if json.loads(line)["of"] not in names]
        made = [_line(name, ask, reply) for name in names for ask, reply in now[name].items()]
        RECORDED.write_text("".join(f"{line}\n" for line in [*kept, *made]))
        return 0
    wrong = [f"{name} {line}" for name in names for line in differences(recorded(name), now[name])]
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    return int(bool(wrong))


def _kept() -> list[str]:
    return RECORDED.read_text().splitlines() if RECORDED.exists() else []


if __name__ == "__main__":
    sys.exit(main())
