"""BentoML: one process per core, with adaptive batching if a batch size is given."""

from typing import Any

import bentoml

from deploy.bench.endpoints import BATCH, HOST, PORT, WORKERS, Network


@bentoml.service(workers=WORKERS)
class BentoClassifier:
    """The network as a service."""

    def __init__(self) -> None:
        self.network = Network()

    @bentoml.api(batchable=True, max_batch_size=max(BATCH, 2), max_latency_ms=10_000)  # type: ignore[untyped-decorator]  # not installed here
    def together(self, curves: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Classify a batch that BentoML has collected."""
        rows = self.network.answer([self.network.read(columns) for columns in curves])
        return [{"probabilities": row} for row in rows]

    @bentoml.api  # type: ignore[untyped-decorator]  # not installed here
    def alone(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Classify one light curve."""
        return {"probabilities": self.network.answer([self.network.read(columns)])[0]}


if __name__ == "__main__":
    bentoml.serve(f"{__spec__.name}:BentoClassifier", host=HOST, port=PORT, blocking=True)
