"""Light curves and alert packets of the contract, the same in every run."""

import json
from typing import Any

import numpy as np

from nightjar_alerts.models.metadata import METADATA_COLUMNS
from support import alerts

Curve = dict[str, Any]


def supernova(points: int = 24, object_id: str | int = "SN 2099zz", **changes: Any) -> Curve:
    """A rise and a decline in four bands, without noise, so that every machine makes the same numbers."""
    time = 60_300.0 + 2.5 * np.arange(points)
    phase = (time - 60_318.0) / 12.0
    flux = 4000.0 * np.exp(-np.where(phase < 0, 2.0 * phase**2, 0.6 * phase))
    return {
        "object_id": object_id,
        "mjd": np.round(time, 4).tolist(),
        "flux": np.round(flux, 3).astype(np.float32).tolist(),
        "flux_err": np.round(40.0 + 0.02 * flux, 3).astype(np.float32).tolist(),
        "band": ["griz"[index % 4] for index in range(points)],
    } | changes


def variable(points: int = 160, object_id: str = "RR Lyr", **changes: Any) -> Curve:
    """A sawtooth of half a day, longer than a network keeps."""
    time = 60_000.0 + 1.37 * np.arange(points)
    flux = 9000.0 * (1.0 - ((time / 0.5668) % 1.0))
    return {
        "object_id": object_id,
        "mjd": np.round(time, 4).tolist(),
        "flux": np.round(flux, 2).astype(np.float32).tolist(),
        "flux_err": [90.0] * points,
        "band": ["gr"[index % 2] for index in range(points)],
    } | changes


def faint(**changes: Any) -> Curve:
    """Three points, none of them detected."""
    return {
        "object_id": "faint",
        "mjd": [60_310.0, 60_311.0, 60_312.5],
        "flux": [20.0, -15.0, 33.0],
        "flux_err": [25.0, 25.0, 25.0],
        "band": ["r", "i", "y"],
    } | changes


METADATA = {name: round(0.1 * index, 3) for index, name in enumerate(METADATA_COLUMNS[:20])}


GOOD_CURVES: dict[str, Curve] = {
    "plain": supernova(),
    "unsorted": supernova(mjd=[60_400.0 - 1.5 * index for index in range(24)]),
    "integers": supernova(4, mjd=[60_000, 60_001, 60_002, 60_003], flux=[1, 2, 3, 4], flux_err=[1, 1, 1, 1]),
    "one point": supernova(1),
    "faint": faint(),
    "long": variable(),
    "y and Y": supernova(4, band=["y", "Y", "u", "i"]),
    "flags": supernova(detected=[index % 2 == 0 for index in range(24)]),
    "metadata": supernova(metadata=METADATA),
    "uJy": supernova(flux_unit="uJy"),
    "FLUXCAL": supernova(flux_unit="FLUXCAL"),
    "total flux": supernova(flux_kind="total"),
    "survey": supernova(survey="ztf"),
    "two points at a time": supernova(4, mjd=[60_000.0] * 4),
    "integer identifier": supernova(object_id=1234567890123),
    "identifier beyond ASCII": supernova(object_id="SN 2099é☄"),
    "no identifier": {name: column for name, column in supernova().items() if name != "object_id"},
}
"""Light curves that are classified or abstained, in every format."""

_BAD_CHANGES: dict[str, Curve] = {
    "empty column": {"mjd": []},
    "short flux": {"flux": [1.0]},
    "text for a number": {"flux": ["bright"] * 24},
    "truth for a number": {"flux": [True] * 24},
    "null in a column": {"mjd": [60_000.0, None]},
    "number for a column": {"mjd": 60_000.0},
    "text for a column": {"flux": "bright"},
    "null for a column": {"flux_err": None},
    "unknown band": {"band": ["x"] * 24},
    "number for a band": {"band": [1] * 24},
    "zero error": {"flux_err": [0.0] * 24},
    "negative error": {"flux_err": [-1.0] * 24},
    "Julian dates": {"mjd": [2_460_000.5 + index for index in range(24)]},
    "flux beyond single precision": {"flux": [1e39] * 24},
    "short flags": {"detected": [True]},
    "numbers for flags": {"detected": [1] * 24},
    "same time and band": {"mjd": [60_000.0] * 24},
    "unknown field": {"fluxes": [1.0]},
    "unknown metadata": {"metadata": {"no_such_column": 1.0}},
    "text for metadata": {"metadata": {"REDSHIFT_HELIO": "near"}},
    "list for metadata": {"metadata": [1.0]},
    "metadata beyond single precision": {"metadata": {METADATA_COLUMNS[0]: 1e39}},
    "long identifier": {"object_id": "x" * 201},
    "inexact identifier": {"object_id": 2**53},
    "truth for an identifier": {"object_id": True},
    "fraction for an identifier": {"object_id": 1.5},
    "unknown unit": {"flux_unit": "mag"},
    "unknown kind of flux": {"flux_kind": "reference"},
    "bad survey": {"survey": "My Survey"},
}

BAD_CURVES: dict[str, Any] = {
    **{name: supernova(object_id=name) | change for name, change in _BAD_CHANGES.items()},
    **{
        f"no {column}": {name: value for name, value in supernova(object_id=column).items() if name != column}
        for column in ("mjd", "flux", "flux_err", "band")
    },
    "text": "no curve",
    "number": 7,
    "null": None,
    "list": [],
}
"""Light curves with one error each."""

PACKED_BAD_CURVES: dict[str, Curve] = {
    "part of a value": supernova(mjd=b"\0" * 7),
    "no values": supernova(mjd=b""),
    "short column": supernova(flux=b"\0" * 8),
    "not a number": supernova(flux=[float("nan")] * 24),
    "not finite": supernova(flux=[float("inf")] * 24),
    "not a number, packed": supernova(flux=np.full(24, np.nan, "<f4").tobytes()),
    "band beyond the last": supernova(band=b"\x63" * 24),
    "flag of two": supernova(detected=b"\2" * 24),
    "short metadata": supernova(metadata=b"\0" * 8),
    "time that is not a number": supernova(mjd=np.full(24, np.nan, "<f8").tobytes()),
}
"""Light curves with one error each that only msgpack can hold."""


def moving() -> bytes:
    """An alert of the Solar System."""
    alert = alerts.lsst_alert()
    ids = {"diaObjectId": None, "ssObjectId": 21163624629350741}
    source = {**alert["diaSource"], **ids}
    return alerts.confluent(1000, {**alert, "diaSource": source, "diaObject": None, "prvDiaSources": None})


def json_packet() -> bytes:
    """A ZTF alert as brokers send it in JSON."""
    alert = alerts.ztf_alert()
    return json.dumps({name: value for name, value in alert.items() if not isinstance(value, bytes)}).encode()


PACKETS: dict[str, bytes] = {
    **{
        f"lsst {number // 100}.{number % 100} framed": alerts.confluent(
            number, alerts.lsst_alert(f"lsst/{number // 100}.{number % 100}", points=12)
        )
        for number in (700, 704, 800, 900, 1000, 1101)
    },
    "elasticc 0.9.1 bare": alerts.bare("elasticc/0.9.1", alerts.elasticc_alert()),
    "elasticc 0.9 container": alerts.container("elasticc/0.9", [alerts.elasticc_alert("elasticc/0.9")]),
    "ztf 4.02 container": alerts.container("ztf/4.02", [alerts.ztf_alert()]),
    "ztf 3.3 snappy container of two": alerts.container("ztf/3.3", [alerts.ztf_alert("ztf/3.3")] * 2, "snappy"),
    "solar system object": moving(),
    "cut short": alerts.confluent(1000, alerts.lsst_alert())[:60],
    "no alert at all": b"\x00nonsense",
    "ztf in JSON": json_packet(),
    "invalid JSON": b'{"objectId": ',
    "unknown JSON": b'{"name": "no alert"}',
    "unsupported codec": alerts.header(alerts.schema("ztf/4.02"), "zstandard") + alerts.block(1, b"x"),
    "damaged container": alerts.container("ztf/4.02", [alerts.ztf_alert()])[:-40] + b"\xff" * 40,
    "container that is cut short": alerts.container("ztf/4.02", [alerts.ztf_alert()])[:-40],
    "a schema from the future": b"\x00\x00\x00\x26\xac" + b"\x02" * 40,
}


def multipart(packets: list[bytes], kind: str = "form-data") -> tuple[bytes, str]:
    """A body of several packets and its media type."""
    parts = (
        f'--XX\r\nContent-Disposition: form-data; name="packet"; filename="{index}.avro"\r\n\r\n'.encode() + data
        for index, data in enumerate(packets)
    )
    return b"\r\n".join([*parts, b"--XX--\r\n"]), f"multipart/{kind}; boundary=XX"
