"""Ray Serve: one replica per core, with batching by count and time limit if a batch size is given."""

import signal
import sys
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from deploy.bench.endpoints import BATCH, BATCH_SECONDS, HOST, PORT, WORKERS, Network

WAIT_SECONDS = BATCH_SECONDS if BATCH > 1 else 0.0
IN_PROGRESS = 256  # requests per replica, enough to fill its batches


@serve.deployment(num_replicas=WORKERS, max_ongoing_requests=IN_PROGRESS)
class RayClassifier:
    """Deployment of the network."""

    def __init__(self) -> None:
        self.network = Network()

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT_SECONDS)  # type: ignore[untyped-decorator]  # not installed here
    async def answer(self, curves: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Classify a batch of light curves."""
        rows = self.network.answer([self.network.read(columns) for columns in curves])
        return [{"probabilities": row} for row in rows]

    async def __call__(self, request: Request) -> JSONResponse:
        """Classify one light curve."""
        return JSONResponse(await self.answer(await request.json()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # otherwise Ray's processes would keep running
    ray.init(address="local", num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": HOST, "port": PORT})
    serve.run(RayClassifier.bind(), route_prefix="/classify")  # type: ignore[attr-defined]  # made by its decorator
    signal.pause()
