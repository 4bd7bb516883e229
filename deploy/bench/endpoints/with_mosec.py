"""mosec: a Rust server with one inference process per core, batching by count with a time limit."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import mosec

from deploy.bench.endpoints import BATCH, BATCH_SECONDS, HOST, PORT, WORKERS, Network


class Alone(mosec.Worker):  # type: ignore[misc]  # installed in an environment of its own
    """Worker without batching."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()

    def forward(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Classify one light curve."""
        return {"probabilities": self.network.answer([self.network.read(data)])[0]}


class Together(Alone):
    """Worker with batching."""

    def forward(self, data: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:  # type: ignore[override]  # mosec's is one item
        """Classify a batch."""
        rows = self.network.answer([self.network.read(columns) for columns in data])
        return [{"probabilities": row} for row in rows]


if __name__ == "__main__":
    sys.argv[1:] = ["--address", HOST, "--port", str(PORT)]  # mosec reads its settings from there
    server = mosec.Server()
    if BATCH > 1:
        wait = int(1000 * BATCH_SECONDS)
        server.append_worker(Together, num=WORKERS, max_batch_size=BATCH, max_wait_time=wait)
    else:
        server.append_worker(Alone, num=WORKERS)
    server.run()
