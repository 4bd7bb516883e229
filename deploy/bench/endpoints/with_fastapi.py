"""FastAPI and onnxruntime: a route that parses the request and runs the network, in one process per core."""

from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI

from deploy.bench.endpoints import HOST, PORT, WORKERS, Network

app = FastAPI()
network = Network() if __name__ != "__main__" else None  # the parent process serves no requests


@app.post("/classify")
def classify(columns: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
    """Classify one light curve; FastAPI calls this in its thread pool."""
    assert network is not None
    return {"probabilities": network.answer([network.read(columns)])[0]}


if __name__ == "__main__":
    uvicorn.run(f"{__spec__.name}:app", host=HOST, port=PORT, workers=WORKERS, log_level="warning", access_log=False)
