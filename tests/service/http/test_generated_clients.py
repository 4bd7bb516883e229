"""Clients generated from the OpenAPI document by public generators, with a running service."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from support.edge import Live, curve

pytestmark = pytest.mark.slow

CALL = """
import sys
from nightjar_client import Client
from nightjar_client.api.classification import classify
from nightjar_client.api.models import list_models
from nightjar_client.api.operations import healthz
from nightjar_client.models import BatchClassifyRequest, ClassifyRequest
import json
client = Client(base_url=sys.argv[1], raise_on_unexpected_status=True)
curve = json.loads(sys.argv[2])
for form in (ClassifyRequest.from_dict(curve), BatchClassifyRequest.from_dict({"light_curves": [curve, curve]})):
    reply = classify.sync(client=client, body=form, embedding=True, prior="uniform")
    print([result.status for result in reply.results], type(reply).__name__)
print(healthz.sync(client=client).status, list_models.sync(client=client).models[0].name)
"""


@pytest.fixture(scope="module")
def document(edge: Live, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_bytes(edge.ask("GET", "/openapi.json")[2])
    return path


def test_document_is_valid_openapi(document: Path) -> None:
    OpenAPIV31SpecValidator(json.loads(document.read_text())).validate()


def test_openapi_python_client_makes_a_client_that_works(edge: Live, document: Path, tmp_path: Path) -> None:
    generator = Path(sys.executable).with_name("openapi-python-client")
    made = tmp_path / "client"
    subprocess.run([generator, "generate", "--path", document, "--output-path", made, "--meta", "setup"], check=True)
    command = [sys.executable, "-W", "ignore", "-c", CALL, edge.url, json.dumps(curve())]
    told = subprocess.run(command, cwd=made, check=True, capture_output=True, text=True).stdout.splitlines()
    assert told == [
        "['classified'] ClassifyReply", "['classified', 'classified'] ClassifyReply", "alive echo"
    ]  # fmt: skip


def test_datamodel_code_generator_makes_models_that_validate(document: Path, tmp_path: Path) -> None:
    generator = Path(sys.executable).with_name("datamodel-codegen")
    made = tmp_path / "made.py"
    options = ["--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel"]
    subprocess.run([generator, "--input", document, "--output", made, *options], check=True, capture_output=True)
    check = "import json, sys, made; made.ClassifyRequest.model_validate(json.loads(sys.argv[1])); print('valid')"
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", check, json.dumps(curve())],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert told == "valid\n"
