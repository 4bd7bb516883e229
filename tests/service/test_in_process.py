"""In-process classification with the data plane, without packages that only servers need."""

import subprocess
import sys

BLOCKED = (
    "confluent_kafka", "fastapi", "opentelemetry", "prometheus_client", "pydantic_settings", "redis", "starlette",
    "uvicorn", "uvloop",
)  # fmt: skip

PROGRAM = """
import sys

for name in {blocked!r}:
    sys.modules[name] = None  # makes every import of it fail

import asyncio

import numpy as np

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.core.serializer import ResultSerializer
from nightjar_alerts.service.inference import Predictor
from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.service.engine.engine import Engine, engine_options
from nightjar_alerts.core.load import load_model


async def classify():
    model = load_model(DEFAULT_BUNDLE)
    adapter = Adapter(model.bundle.manifest)
    engine = Engine(model.graph, adapter, model.cost, engine_options(model.provider))
    await engine.start()
    curve = LightCurve.from_columns(60_000 + np.arange(20), np.full(20, 900.0), np.full(20, 30.0), ["g", "r"] * 10)
    [outcome] = await Predictor(engine, adapter).infer([curve])
    await engine.stop()
    return ResultSerializer(model.bundle).result(outcome, {{"object_id": "mine"}})


result = asyncio.run(classify())
assert result["status"] == "classified", result
assert abs(sum(result["probabilities"].values()) - 1) < 1e-5
print("classified as", result["class"])
"""


def test_data_plane_without_server_packages_classifies_in_process() -> None:
    program = PROGRAM.format(blocked=BLOCKED)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("classified as ")
