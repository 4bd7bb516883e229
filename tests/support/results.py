"""Results without a model, and a strict check of documents with results."""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from nightjar_alerts.core.result import AlertsReply, Classified, ClassifierProvenance, ClassifyReply, EvolutionReply
from nightjar_alerts.core.schemas import components

MODEL = ClassifierProvenance(name="m", version="1", sha256="0" * 64, taxonomy="two/1", calibration="none")
ReplyT = TypeVar("ReplyT", ClassifyReply, AlertsReply, EvolutionReply)


def classified(**changes: Any) -> Classified:
    """Return a result with two classes, of which Ia is the most probable."""
    result = Classified(
        object_id="a",
        class_name="Ia",
        class_id=1,
        confidence=0.75,
        probabilities={"Ia": 0.75, "II": 0.25},
        hierarchy={"SN": 1.0},
        points_per_band=dict.fromkeys("ugrizY", 2),
        truncated=False,
        metadata_missing=64,
    )
    return replace(result, **changes)


@cache
def _validator(name: str) -> Draft202012Validator:
    schemas = components([name], "#/$defs/{name}")
    strict = {name: schema | {"additionalProperties": False} for name, schema in schemas.items()}
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": strict})


def check(name: str, document: Mapping[str, Any]) -> None:
    """Raise an exception for a document that does not have exactly the declared fields."""
    _validator(name).validate(document)


def checked(kind: type[ReplyT], document: bytes | Mapping[str, Any]) -> ReplyT:
    """Return a reply, which has exactly the declared fields."""
    data = document if isinstance(document, bytes) else msgspec.json.encode(document)
    check(kind.__name__, msgspec.json.decode(data))
    return msgspec.json.decode(data, type=kind)
