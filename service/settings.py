"""Every setting of the service, declared once.

A setting is read from the environment (prefix ``NIGHTJAR_``) or given to ``nightjar serve`` as an option of the same
name (``NIGHTJAR_MAX_PACKETS=10`` or ``--max-packets 10``). ``python -m service settings`` prints the table below as
Markdown; the README holds that table and a test compares the two.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict

from models.bundle import DEFAULT_BUNDLE
from models.forecast import MAX_QUERIES
from models.runtime import Provider

ENV_PREFIX = "NIGHTJAR_"
MIB = 1024 * 1024

KeyDigest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
LogLevel = Literal["debug", "info", "warning", "error"]


class Settings(BaseSettings):
    """Settings of one service process."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid", cli_kebab_case=True)

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for every interface")
    port: int = Field(8080, ge=0, le=65535, description="TCP port; 0 lets the system choose one")
    docs: bool = Field(True, description="serve the API description at /docs and /openapi.json")
    api_keys: tuple[KeyDigest, ...] = Field(
        (), description="JSON list of sha256 hex digests of accepted API keys; empty leaves /v1 and /v2 open"
    )
    log_level: LogLevel = Field("info", description="least severe level that is logged")
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="json: one object a line; text: for people; auto: text on a terminal, else json"
    )

    bundle: Path = Field(DEFAULT_BUNDLE, description="folder of the bundle to serve")
    forecast_bundle: Path | None = Field(
        None, description="folder of a forecaster's bundle to serve as well, at /v1/forecast"
    )
    provider: Provider = Field("cpu", description="onnxruntime execution provider; never falls back to another one")
    workers: int = Field(0, ge=0, description="inference runs of a model at the same time; 0 means one per usable core")
    threads_per_run: int = Field(1, ge=1, description="onnxruntime threads inside one run")
    schemas: Path | None = Field(None, description="folder with more Avro schemas, as `lsst/12.0.avsc`")
    max_batch_tokens: int = Field(1024, ge=1, description="padded observations in one batch, a lone item excepted")

    max_queued_seconds: float = Field(10, gt=0, description="seconds of queued work beyond which 429 is answered")
    default_deadline_ms: int = Field(30_000, ge=1, description="milliseconds a request has when it names no deadline")
    max_deadline_ms: int = Field(300_000, ge=1, description="most milliseconds a request may ask for")
    max_requests: int = Field(512, ge=1, description="requests in progress beyond which 429 is answered")
    max_connections: int = Field(2048, ge=1, description="open connections beyond which new ones get 503")

    max_json_bytes: int = Field(8 * MIB, ge=1, description="bytes in a body of light curves, or in a line of a stream")
    max_alert_bytes: int = Field(64 * MIB, ge=1, description="bytes in a body of alert packets")
    max_tensor_bytes: int = Field(64 * MIB, ge=1, description="bytes in a body of tensors (/v2), also decompressed")
    max_held_bytes: int = Field(512 * MIB, ge=1, description="bytes of all request bodies held at once")
    max_decompressed_bytes: int = Field(64 * MIB, ge=1, description="bytes of one alert packet once decompressed")
    max_curves: int = Field(1000, ge=1, description="light curves in one request")
    max_stream_curves: int = Field(1_000_000, ge=1, description="light curves in one stream (application/x-ndjson)")
    max_packets: int = Field(1000, ge=1, description="alert packets in one request")
    max_points: int = Field(20_000, ge=1, description="observations in one light curve")
    max_queries: int = Field(MAX_QUERIES, ge=1, description="times asked for in one forecast")

    header_timeout: float = Field(10, gt=0, description="seconds a client has to send a request's headers")
    body_timeout: float = Field(30, gt=0, description="seconds a client has to send a request's body")
    stall_timeout: float = Field(30, gt=0, description="seconds a client may leave its reply unread")
    keep_alive: int = Field(75, ge=1, description="idle seconds after which a connection is closed")
    drain_delay: float = Field(5, ge=0, description="seconds between SIGTERM (not ready) and refusing connections")
    drain_timeout: int = Field(30, ge=0, description="seconds that requests in progress have to finish after that")

    @property
    def concurrent_runs(self) -> int:
        """Number of inference runs at the same time."""
        return self.workers or usable_cores()


def usable_cores() -> int:
    """Cores this process may run on, which a container or ``taskset`` can make fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class ClientSettings(BaseSettings):
    """Settings of the commands that talk to a running service."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid", cli_kebab_case=True)

    url: str = Field("http://127.0.0.1:8080", description="address of the service that `nightjar classify` asks")
    api_key: str = Field("", description="key that `nightjar classify` sends")
    timeout: float = Field(60, gt=0, description="seconds that `nightjar classify` waits for a reply")


def unknown_settings(environment: Mapping[str, str]) -> list[str]:
    """Variables that carry the prefix but name no setting: most likely typing mistakes."""
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields | ClientSettings.model_fields}
    return sorted(name for name in environment if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)


def settings_table() -> str:
    """Markdown table of every setting: environment name, default, meaning."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in (Settings.model_fields | ClientSettings.model_fields).items():
        rows.append(f"| `{ENV_PREFIX}{name.upper()}` | {_shown(field.default)} | {field.description} |")
    return "\n".join(rows) + "\n"


def _shown(default: object) -> str:
    if default == DEFAULT_BUNDLE:
        return "the bundled model"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if default in (None, (), ""):
        return "none"
    return f"`{default}`"
