"""Every field of a result is declared once, and is in everything that is made from the declaration."""

import json
from typing import Any

import fastavro
import msgspec
import numpy as np
import orjson
import pytest

from deploy.pages import SCHEMAS
from nightjar_alerts.core.errors import FieldError
from nightjar_alerts.core.record import Record
from nightjar_alerts.core.result import (
    Abstained,
    Classified,
    ClassifierProvenance,
    EvolutionFields,
    EvolutionStep,
    Failed,
    PhotometryWarning,
    Rejected,
    ResultFields,
    StreamHead,
)
from nightjar_alerts.core.schemas import (
    AVRO_FIELDS,
    FORMS,
    NOT_FIELDS,
    NOT_IN_TABLES,
    TABLE_COLUMNS,
    arrow_type,
    avro_schema,
    columns,
    components,
    fields_of,
)
from nightjar_alerts.core.serializer import encode_json
from nightjar_alerts.outputs import arrow_table, open_output
from nightjar_alerts.results import Evolution, Result
from nightjar_alerts.service.answers.models import ClassifierDescription
from nightjar_alerts.service.http import arrow as http_arrow
from nightjar_alerts.service.http import openapi
from support.results import MODEL, classified

ERROR = FieldError(pointer="/flux/0", reason="not_finite", detail="must be finite")
REJECTED = Rejected(object_id="b", reason="no", detail="nothing", errors=[ERROR])
ABSTAINED = Abstained(object_id="", reason="outside_domain", detail="a galaxy")


def names(*kinds: type[Record]) -> set[str]:
    """Return the names in JSON of all fields of records."""
    return {field.encode_name for kind in kinds for field in msgspec.structs.fields(kind)}


DECLARED = names(Classified, Abstained, Rejected, Failed)


def test_forms_over_http_have_every_field() -> None:
    assert set(fields_of("CurveResult", "CurveFailure", "PacketResult", "PacketFailure")) == DECLARED


@pytest.mark.parametrize("name", FORMS)
def test_json_schema_has_the_fields_of_its_form(name: str) -> None:
    schema = components([name], "#/{name}")[name]
    assert set(schema["properties"]) == {"status", *fields_of(name)}
    for field, part in schema["properties"].items():
        assert field == "status" or part["description"]


def test_openapi_components_have_every_field() -> None:
    schemas = openapi._schemas()
    forms = ("CurveResult", "CurveFailure", "PacketResult", "PacketFailure")
    assert {field for form in forms for field in schemas[form]["properties"]} == {"status"} | DECLARED


def test_avro_schema_has_every_field_of_a_stream() -> None:
    never = {"filters", "warnings", "experts", "light_curve", "errors"}
    assert set(AVRO_FIELDS) == {"status"} | names(StreamHead) | DECLARED - never
    assert len(AVRO_FIELDS) == len(set(AVRO_FIELDS))
    assert avro_schema() == json.loads((SCHEMAS / "stream-result-1.avsc").read_text())


def test_avro_types_of_parts_have_every_field() -> None:
    parsed: Any = fastavro.parse_schema(avro_schema())
    parts = {field["name"]: field["type"] for field in parsed["fields"]}
    assert {field["name"] for field in parts["model"]["fields"]} == names(ClassifierProvenance)


def test_arrow_response_has_every_field_of_a_light_curve() -> None:
    columns = {*http_arrow._FIELDS, "status"}
    assert columns == {"status"} | DECLARED - {"survey", "schema_version", "alert_id", "light_curve"}


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_arrow_type_exists_for_every_field(name: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    field = fields_of("CurveResult", "CurveFailure", "PacketResult", "PacketFailure")[name]
    assert isinstance(arrow_type(field.type, pyarrow), pyarrow.DataType)


def test_columns_of_tables_and_fields_left_out_are_every_field() -> None:
    assert {*TABLE_COLUMNS} | {*NOT_IN_TABLES} == {*NOT_FIELDS} | DECLARED
    assert {*TABLE_COLUMNS} & {*NOT_IN_TABLES} == set()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_of_results_have_the_columns(tmp_path: Any, suffix: str) -> None:
    path = tmp_path / f"results{suffix}"
    with open_output(path) as output:
        output.write([Result(classified(), MODEL)])
    if suffix == ".csv":
        assert tuple(path.read_text().splitlines()[0].split(",")) == tuple(columns())
    else:
        assert pytest.importorskip("pyarrow.parquet").read_schema(path).names == list(columns())


def test_arrow_table_has_the_types_of_the_columns() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    schema = arrow_table([Result(classified(), MODEL), Result(REJECTED, MODEL)]).schema
    assert {field.name: field.type for field in schema} == {
        name: arrow_type(kind, pyarrow) for name, kind in columns().items()
    }


def test_python_result_has_every_field() -> None:
    declared = {field.name for kind in (Classified, Abstained) for field in msgspec.structs.fields(kind)}
    assert {"status"} | declared <= {*dir(Result)}


def test_python_evolution_has_every_field() -> None:
    assert names(EvolutionFields) <= set(dir(Evolution))


def test_python_attributes_are_described_by_the_declaration() -> None:
    assert str(Result.coverage.__doc__).startswith("Probability that the prediction set contains the true class. None ")


def test_description_of_a_model_has_the_fields_of_its_provenance() -> None:
    declared = msgspec.json.schema_components([ClassifierProvenance], ref_template="{name}")[1]["ClassifierProvenance"]
    described = ClassifierDescription.model_json_schema()["properties"]
    for name, field in declared["properties"].items():
        assert described[name]["description"] == field["description"]


def test_result_fields_are_attributes_and_members() -> None:
    step = EvolutionStep(mjd=60310.0, detections=2, status="classified", class_name="Ia", confidence=0.5)
    assert (step.mjd, step.class_name) == (step["mjd"], step["class"]) == (60310.0, "Ia")
    assert dict(step) == step.to_dict() == {
        "mjd": 60310.0, "detections": 2, "status": "classified", "class": "Ia", "confidence": 0.5,
    }  # fmt: skip
    assert "novelty" not in step
    assert step.get("novelty", 0.0) == 0.0
    with pytest.raises(KeyError, match="novelty"):
        step["novelty"]


@pytest.mark.parametrize("result", [classified(unusual=False), REJECTED, ABSTAINED])
def test_result_from_its_json_is_equal(result: ResultFields) -> None:
    data = encode_json(result)
    assert msgspec.json.decode(data, type=ResultFields) == result
    assert data == orjson.dumps(result.to_dict())
    assert data.startswith(b'{"status":"%s"' % result.status.encode())


def test_result_with_half_a_surrogate_pair_is_encoded() -> None:
    warning = PhotometryWarning(reason="unknown_survey", detail="\ud800")
    assert b"\\\\ud800" in encode_json({"results": [classified(object_id="\ud800", warnings=[warning])]})


def test_result_with_an_embedding_is_encoded_with_the_digits_of_its_type() -> None:
    embedding: Any = np.array([0.1, -2.0], np.float32)
    assert b'"embedding":[0.1,-2.0]' in encode_json(classified(embedding=embedding))
