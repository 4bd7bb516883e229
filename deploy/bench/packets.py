"""What becomes of every alert packet in a folder: counts by survey and outcome, and no server error.

Packets are what ``nightjar classify`` finds in a folder, each posted alone as it stands.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from deploy.bench.load import request, run_in_process, write_plan
from deploy.bench.mixed import OCTETS
from deploy.bench.report import Numbers
from service.commands.client import packets_in
from service.commands.process import running

CLIENTS = 4


def measure(bundle: Path, folder: Path, say: Callable[[str], None]) -> Numbers:
    """Keys ``packets.SURVEY.OUTCOME[.REASON]``, ``packets.total`` and ``packets.server_errors``."""
    found = list(packets_in([folder]))
    with tempfile.TemporaryDirectory() as scratch, running(bundle) as service:
        plan, replies = Path(scratch, "plan"), Path(scratch, "replies")
        write_plan(plan, [request("/v1/alerts", data, OCTETS) for _, data in found])
        run_in_process(service.port, plan, CLIENTS, replies)
        answers = json.loads(replies.read_text())
    counts: Counter[str] = Counter()
    for (name, _), (status, body) in zip(found, answers, strict=True):
        counts.update(_keys(status, body))
        if status != 200:
            say(f"{name}: {status} {body[:300]}")
    errors = sum(status == 0 or status >= 500 for status, _ in answers)
    return {"packets.total": len(found), "packets.server_errors": errors, **counts}


def _keys(status: int, body: str) -> list[str]:
    if status != 200:
        return [f"packets.status_{status}"]
    return [
        ".".join(filter(None, ("packets", result.get("survey") or "unknown", result["status"], result.get("reason"))))
        for result in json.loads(body)["results"]
    ]
