import json
from typing import Any

import pytest

from nightjar_alerts.alerts import avro, plans
from nightjar_alerts.alerts.packet import PacketError, RejectReason
from support import alerts


def plan_for(schema: Any) -> plans.DecodePlan:
    return plans.for_text(json.dumps(schema).encode())


def without(schema: Any, path: str, name: str) -> Any:
    """The schema without one field of the record that ``path`` holds."""
    text = json.dumps(schema)
    fields = json.loads(text)
    holder = next(field["type"] for field in fields["fields"] if field["name"] == path)
    while not (isinstance(holder, dict) and "fields" in holder):
        holder = holder["items"] if isinstance(holder, dict) else holder[1]
    holder["fields"] = [field for field in holder["fields"] if field["name"] != name]
    return fields


@pytest.mark.parametrize("name", avro.schema_names())
def test_every_shipped_schema_resolves_to_its_survey(name: str) -> None:
    plan = plans.for_name(name)
    assert plan.survey.name == name.split("/")[0]
    assert plan.rows
    assert plan.layout.alert_id
    assert plan.layout.object_id


@pytest.mark.parametrize("name", [name for name in avro.schema_names() if name.startswith(("lsst", "elasticc", "ztf"))])
def test_every_schema_of_lsst_and_ztf_resolves_completely(name: str) -> None:
    plan = plans.for_name(name)
    survey, version = name.split("/")
    assert plan.version == (None if survey == "ztf" else version)
    assert [rows.path for rows in plan.rows] == (
        ["candidate", "prv_candidates"]
        if name == "ztf/3.3"
        else ["fp_hists", "candidate", "prv_candidates"]
        if survey == "ztf"
        else ["prvDiaForcedSources", "diaSource", "prvDiaSources"]
    )
    assert len(plan.metadata) == (64 if survey == "elasticc" else 0)


RENAMES = {
    "elasticc/0.9.1": ("midPointTai", "filterName", "psFlux", "psFluxErr", None, None),
    "lsst/7.4": ("midpointMjdTai", "band", "psfFlux", "psfFluxErr", "visit", None),
    "lsst/11.1": ("midpointMjdTai", "band", "psfFlux", "psfFluxErr", "visit", "timeWithdrawnMjdTai"),
}


@pytest.mark.parametrize(("name", "expected"), RENAMES.items())
def test_renamed_fields_are_found(name: str, expected: tuple[str | None, ...]) -> None:
    roles = ("time", "band", "flux", "flux_err", "visit", "withdrawn")
    for rows in plans.for_name(name).rows:
        assert tuple(rows.names.get(role) for role in roles) == expected


def test_only_what_is_needed_is_decoded() -> None:
    reader = json.dumps(plans.for_name("lsst/10.0").decoder.projection)
    assert "cutout" not in reader
    assert "pixelFlags" not in reader


def test_a_rewritten_packet_is_known_by_its_fields() -> None:
    renamed = json.loads(json.dumps(alerts.schema("lsst/10.0")).replace("lsst.v10_0", "topLevelRecord"))
    plan = plan_for(renamed)
    assert (plan.survey.name, plan.version) == ("lsst", None)
    older = json.loads(json.dumps(alerts.schema("elasticc/0.9")).replace("elasticc.v0_9", "broker"))
    assert plan_for(older).survey.name == "elasticc"


def without_field(schema: Any, field: str) -> Any:
    """Return the schema without a field, wherever it is."""
    if isinstance(schema, dict):
        return {name: without_field(value, field) for name, value in schema.items()}
    if isinstance(schema, list):
        kept = (each for each in schema if not (isinstance(each, dict) and each.get("name") == field))
        return [without_field(each, field) for each in kept]
    return schema


@pytest.mark.parametrize(
    ("name", "field"),
    [("lsst/10.0", "psfFlux"), ("lsst/10.0", "band"), ("elasticc/0.9.1", "midPointTai"), ("ztf/4.02", "jd")],
)
def test_resolve_field_missing_in_every_list_is_named(name: str, field: str) -> None:
    with pytest.raises(PacketError) as caught:
        plan_for(without_field(alerts.schema(name), field))
    assert caught.value.reason is RejectReason.UNKNOWN_SCHEMA
    assert f"has no {field}" in str(caught.value) or f"or {field}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "path", "field"),
    [
        ("lsst/10.0", "prvDiaForcedSources", "band"),
        ("ztf/4.02", "candidate", "isdiffpos"),
        ("ztf/4.02", "fp_hists", "magzpsci"),
    ],
)
def test_resolve_field_missing_in_one_list_reads_the_others(name: str, path: str, field: str) -> None:
    assert plan_for(without(alerts.schema(name), path, field)).rows


@pytest.mark.parametrize("kind", ["boolean", ["null", "boolean"], "bytes", {"type": "array", "items": "double"}])
def test_a_field_of_another_type_does_not_count(kind: Any) -> None:
    schema = json.loads(
        json.dumps(alerts.schema("lsst/10.0")).replace(
            '"psfFlux", "type": ["null", "float"]', f'"psfFlux", "type": {json.dumps(kind)}'
        )
    )
    with pytest.raises(PacketError, match="has no psfFlux or psFlux of a fitting type"):
        plan_for(schema)


def test_other_records_belong_to_no_survey() -> None:
    schema = {"type": "record", "name": "user", "fields": [{"name": "candidate", "type": "long"}]}
    with pytest.raises(PacketError) as caught:
        plan_for(schema)
    assert caught.value.reason is RejectReason.UNKNOWN_SCHEMA
    assert "user" in str(caught.value)


def test_a_mark_of_another_type_is_named() -> None:
    schema = {"type": "record", "name": "a", "fields": [{"name": "diaSource", "type": "long"}]}
    with pytest.raises(PacketError, match="holds no observations"):
        plan_for(schema)
