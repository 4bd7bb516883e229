"""LitServe: one inference process per core, with batching by count and time limit if a batch size is given."""

from collections.abc import Mapping, Sequence
from typing import Any

import litserve

from deploy.bench.endpoints import BATCH, BATCH_SECONDS, HOST, PORT, WORKERS, Network
from nightjar_alerts.models.lightcurve import Tokens


class Api(litserve.LitAPI):  # type: ignore[misc]  # installed in an environment of its own
    """LitServe API; the methods are called in this order."""

    def setup(self, device: str) -> None:
        """Load the network in the inference process."""
        self.network = Network()

    def decode_request(self, request: Mapping[str, Any]) -> Tokens:
        """Featurise one light curve."""
        return self.network.read(request)

    def batch(self, inputs: Sequence[Tokens]) -> Sequence[Tokens]:
        """Return the batch unchanged; the network pads it."""
        return inputs

    def predict(self, x: Tokens | Sequence[Tokens]) -> list[list[float]]:
        """Classify a batch, or a single light curve if batching is disabled."""
        return self.network.answer([x] if isinstance(x, Tokens) else x)

    def unbatch(self, output: list[list[float]]) -> list[list[list[float]]]:
        """Split the results of a batch into batches of one."""
        return [[row] for row in output]

    def encode_response(self, output: list[list[float]]) -> dict[str, Any]:
        """Return the response to one request."""
        return {"probabilities": output[0]}


if __name__ == "__main__":
    api = Api(max_batch_size=BATCH, batch_timeout=BATCH_SECONDS if BATCH > 1 else 0.0)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=WORKERS)
    server.run(host=HOST, port=PORT, log_level="warning", generate_client_file=False)
