"""Settings of the service, the stream worker and ``nightjar classify``.

A setting is read from the environment (prefix ``NIGHTJAR_``) or given to ``nightjar serve`` as an option of the same
name (``NIGHTJAR_MAX_PACKETS=10`` or ``--max-packets 10``). ``nightjar settings`` prints them as a Markdown
table; ``docs/settings.md`` is generated from the same rows (``python -m deploy.pages``).
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from nightjar_alerts.alerts.envelopes import TopicRule
from nightjar_alerts.client_settings import ENV_PREFIX, ClientSettings
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.models.native import Native
from nightjar_alerts.models.runtime import Provider
from nightjar_alerts.routing import SURVEY_BUNDLES
from nightjar_alerts.service.registry.names import PATTERN

DEVELOPER_VARIABLES = frozenset(
    ENV_PREFIX + name
    for name in (
        "KAFKA_HOME",
        "TEST_KAFKA",
        "TEST_DATA",
        "TEST_WORKER",
        "SOAK",
        "BUILD_MACHINE",
        "CRDS",
        "COMPOSE",
        "CONTAINERS",
        "CONTAINER_RECORD",
        "IMAGE",
        "GPU_IMAGE",
        "PARTS_IMAGE",
        "PROXY_IMAGE",
        "SYSTEMD_IMAGE",
    )  # fmt: skip
)
"""Variables of tests and benchmarks, which are not reported as unknown settings."""
DIGEST_NAME_LENGTH = 16
MIB = 1024 * 1024


def _check_digest(value: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError("must be the SHA-256 digest of a key, 64 hexadecimal digits: printf %s KEY | sha256sum")
    if value in _DIGESTS_OF_NO_KEY:
        raise ValueError("is the digest of an empty key, probably of an unset variable; see printf %s KEY | sha256sum")
    return value


_DIGESTS_OF_NO_KEY = frozenset(hashlib.sha256(text).hexdigest() for text in (b"", b"\n"))  # printf and echo
_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


def _check_hosts(value: str) -> str:
    """Return comma-separated host names in lower case, and addresses in their usual form."""
    hosts = []
    for name in filter(None, (each.strip().lower() for each in value.split(","))):
        address = parse_address(name.removeprefix("[").removesuffix("]"))
        if address is None and not _HOST_NAME.fullmatch(name.removesuffix(".")):
            raise ValueError(
                f"{name[:100]!r} is not a host name or address without scheme and port, such as nightjar.example.org, "
                "*.example.org or 192.0.2.7"
            )
        hosts.append(name.removesuffix(".") if address is None else str(address))
    return ",".join(hosts)


def _check_folder(value: Path | None) -> Path | None:
    if value is not None and not value.is_dir():
        raise ValueError(f"{value} is not a directory")
    return value


KeyDigest = Annotated[str, AfterValidator(_check_digest)]
KeyDigests = Annotated[tuple[KeyDigest, ...], Field(min_length=1)]  # of a named key: with none it would be open to all
HostNames = Annotated[str, AfterValidator(_check_hosts)]
Folder = Annotated[Path, AfterValidator(_check_folder)]
KeyName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Alias = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
ModelName = Annotated[str, StringConstraints(pattern=PATTERN)]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]
SinkFormat = Literal["nightjar", "nightjar-avro", "elasticc", "alerce-avro", "alerce-json", "lasair"]


class KeyLimits(BaseModel):
    """Rate limits of one API key; an omitted limit is unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_second: float | None = Field(None, gt=0, le=1e6)
    requests_per_day: int | None = Field(None, ge=1)
    curves_per_second: float | None = Field(None, gt=0, le=1e7)
    curves_per_day: int | None = Field(None, ge=1)


class CommonSettings(BaseSettings):
    """Settings that ``nightjar serve`` and ``nightjar worker`` share: models, engine, logs and traces."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid", cli_kebab_case=True)

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0: all interfaces")
    allowed_hosts: HostNames = Field(
        "",
        description="comma-separated names and addresses, without ports, by which clients reach a service without API "
        "keys or the port of a worker; `*.example.org` stands for all names that end with it. Loopback, the name of "
        "this machine or container, and the address of the connection are always accepted",
    )
    log_level: LogLevel = Field("info", description="minimum log level")
    log_format: Literal["auto", "json", "text"] = Field(
        "auto",
        description="format of the log: json (one object per line), text, or auto (text on a terminal, else json)",
    )
    otlp_endpoint: str = Field(
        "",
        pattern=r"^(https?://[^\s/]+.*)?$",
        description="URL of the OTLP/HTTP collector of traces, such as `http://collector:4318/v1/traces`; needs the "
        "`otel` extra; empty: no traces",
    )
    trace_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="fraction of requests to trace (0 to 1), unless the trace header of the caller decides",
    )
    bundle: Path = Field(DEFAULT_BUNDLE, description="directory of the bundle to serve")
    ztf_bundle: Path | None = Field(
        None,
        description="folder of the bundle of the alias `ztf`: it gives the `subtype` of ZTF supernovae if all its "
        "classes are types of supernovae, else it classifies what ZTF observed. Unset: the shipped bundle for ZTF if "
        "`bundle` has its default value, else none",
    )
    repository: Folder | None = Field(
        None, description="directory of further bundles to serve, as `name/version/` or one directory each"
    )
    repository_poll: float = Field(
        0,
        ge=0,
        description="interval in seconds between scans of `repository` for new versions; 0: only on request of the "
        "admin API",
    )
    aliases: dict[Alias, ModelName] = Field(
        {}, description='JSON of other names for models, as `{"default": "mine", "ztf": "mine@1.2.0"}`'
    )
    prior: str = Field(
        "",
        max_length=64,
        description="default prior (class shares), such as `lsst-alerts`; empty, or if a model has no prior of this "
        "name: the class shares of its calibration",
    )
    cache_bytes: int = Field(64 * MIB, ge=0, description="size of the in-memory result cache in bytes; 0 disables it")
    provider: Provider = Field("cpu", description="onnxruntime execution provider; there is no fallback to another one")
    native: Native = Field(
        "auto",
        description="use of the native C++ kernels: auto (if installed for this machine and the provider is cpu), on "
        "(the service does not start without them) or off",
    )
    workers: int = Field(
        0,
        ge=0,
        description="number of concurrent inference runs of a model; 0: one per core on a CPU, two on a GPU",
    )
    schemas: Folder | None = Field(
        None, description="directory of additional Avro schemas of alerts, such as `lsst/12.0.avsc`"
    )
    max_batch_tokens: int = Field(
        0,
        ge=0,
        description="maximum number of padded points in a batch of several light curves; 0: 1024 on a CPU, 32768 on a "
        "GPU",
    )
    max_queued_seconds: float = Field(
        10, gt=0, description="predicted wait in the queue, in seconds, beyond which a request is rejected with 429"
    )
    hung_run_seconds: float = Field(
        10,
        gt=0,
        description="minimum run time in seconds before the watchdog considers an inference run hung and ends the "
        "process",
    )
    max_held_bytes: int = Field(
        128 * MIB,
        ge=1,
        description="maximum size in bytes of all request bodies, or of all messages of a stream worker, held at "
        "once; one API key or address with several bodies may hold half of it",
    )
    max_packets: int = Field(
        1000,
        ge=1,
        description="maximum number of alert packets in a request, and of alerts in a message of a stream worker",
    )
    max_decompressed_bytes: int = Field(
        64 * MIB, ge=1, description="maximum size in bytes of a decompressed alert packet"
    )
    live_key: KeyDigest | None = Field(
        None,
        description="sha256 hex digest of the key for the live view at /live, which shows the results of all clients; "
        "unset: there is no live view",
    )
    drain_timeout: int = Field(
        30,
        ge=0,
        description="maximum time in seconds for requests in progress to finish at shutdown",
    )

    @property
    def survey_bundles(self) -> dict[str, Path]:
        """Directories of the bundles of surveys that have another bundle than ``bundle``, by survey."""
        chosen = dict(SURVEY_BUNDLES) if self.bundle == DEFAULT_BUNDLE else {}
        if self.ztf_bundle is not None:
            chosen["ztf"] = self.ztf_bundle
        return {survey: folder for survey, folder in chosen.items() if folder != self.bundle}


class Settings(CommonSettings):
    """Settings of the HTTP service."""

    port: int = Field(8080, ge=0, le=65535, description="TCP port; 0: chosen by the system")
    forwarded_allow_ips: str = Field(
        "127.0.0.1",
        description="comma-separated addresses or networks of reverse proxies whose `X-Forwarded-For` and "
        "`X-Forwarded-Proto` headers are trusted; `*` trusts every peer",
    )
    root_path: str = Field(
        "",
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        description="path prefix under which a reverse proxy serves the service, such as `/nightjar`",
    )
    cors_origins: tuple[str, ...] = Field(
        (),
        description="JSON list of origins whose web pages may call the service from a browser (CORS), such as "
        '`["https://broker.example.org"]`, or `["*"]` for every origin; empty: none',
    )
    enable_docs: bool = Field(True, description="serve the page at /, the API reference at /docs and /openapi.json")
    api_keys: tuple[KeyDigest, ...] = Field(
        (),
        description="JSON list of SHA-256 digests (hexadecimal) of accepted API keys; if this and `named_keys` are "
        "empty, no key is required",
    )
    named_keys: dict[KeyName, KeyDigests] = Field(
        {},
        description="JSON object of named API keys, each with one or more digests, so that a key can be rotated: "
        '`{"fink": ["<old>", "<new>"]}`',
    )
    protected_paths: tuple[Literal["metrics", "docs", "v2"], ...] = Field(
        (),
        description="JSON list of further paths that require an API key: `metrics`, `docs` (with /openapi.json), `v2` "
        "(all of /v2, including health and server metadata)",
    )
    allow_anonymous: bool = Field(
        False, description="if true, allow requests without API keys on addresses other than loopback"
    )
    key_limits: dict[KeyName | Literal["*"], KeyLimits] = Field(
        {},
        description='JSON object of rate limits by API key, `*` is the default: `{"*": {"requests_per_second": 10, '
        '"requests_per_day": 100000, "curves_per_second": 500, "curves_per_day": 5000000}}`',
    )
    limits_redis_url: str = Field(
        "",
        repr=False,
        description="URL of the Redis in which replicas share the counts of `key_limits`; empty: each process counts "
        "alone",
    )
    admin_port: int | None = Field(None, ge=0, le=65535, description="TCP port of the admin API; unset: none")
    admin_host: str = Field(
        "127.0.0.1", description="address of the admin API; addresses other than loopback require `admin_keys`"
    )
    admin_socket: Path | None = Field(None, description="path of a Unix socket of the admin API, instead of a port")
    admin_keys: tuple[KeyDigest, ...] = Field(
        (),
        description="JSON list of SHA-256 digests (hexadecimal) of the API keys of the admin API, which are not those "
        "of /v1",
    )
    grpc_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="TCP port of the Open Inference Protocol over gRPC on `host`; needs the `grpc` extra; unset: none",
    )
    grpc_certificate: Path | None = Field(
        None, description="PEM file of the certificate chain for TLS on `grpc_port`; unset: no TLS"
    )
    grpc_certificate_key: Path | None = Field(None, description="PEM file of the private key of `grpc_certificate`")
    grpc_max_message_bytes: int = Field(
        4 * MIB, ge=1024, le=2**31 - 1, description="maximum size in bytes of a message over gRPC"
    )
    default_deadline_ms: int = Field(30_000, ge=1, description="default deadline of a request in milliseconds")
    max_deadline_ms: int = Field(300_000, ge=1, description="maximum deadline of a request in milliseconds")
    max_requests: int = Field(
        512, ge=1, description="maximum number of requests in progress; more are rejected with 429"
    )
    max_streams: int = Field(
        256, ge=1, description="maximum number of NDJSON requests in progress; more are rejected with 429"
    )
    max_connections: int = Field(
        2048,
        ge=1,
        description="maximum number of open connections; new ones are rejected with 503, and closed without a "
        "response beyond twice as many",
    )
    max_json_bytes: int = Field(
        8 * MIB, ge=1, description="maximum size in bytes of a body of light curves, or of a line of NDJSON"
    )
    max_alert_bytes: int = Field(64 * MIB, ge=1, description="maximum size in bytes of a body of alert packets")
    max_tensor_bytes: int = Field(64 * MIB, ge=1, description="maximum size in bytes of a body of tensors (/v2)")
    max_curves: int = Field(1000, ge=1, description="maximum number of light curves in a request")
    max_stream_curves: int = Field(
        1_000_000, ge=1, description="maximum number of light curves in an NDJSON request, and of blank lines"
    )
    max_points: int = Field(20_000, ge=1, description="maximum number of observations in a light curve")

    header_timeout: float = Field(10, gt=0, description="maximum time in seconds to receive the headers of a request")
    body_timeout: float = Field(
        30, gt=0, description="maximum time in seconds to receive the body of a request, or the next line of NDJSON"
    )
    stream_rate: float = Field(
        1000,
        ge=0,
        description="minimum rate of an NDJSON request in bytes per second, while the service waits for data; a "
        "request that is a minute behind ends with 408; 0: no minimum",
    )
    stall_timeout: float = Field(
        30, gt=0, description="maximum time in seconds that a client may stop reading its response"
    )
    keep_alive: int = Field(75, ge=1, description="seconds after which an idle HTTP connection is closed")
    drain_delay: float = Field(
        5,
        ge=0,
        description="delay in seconds between SIGTERM, from which on /readyz returns 503, and the end of accepting "
        "connections",
    )

    @property
    def keys(self) -> dict[str, tuple[str, ...]]:
        """Digests of the accepted keys by name; the name of an unnamed key is the start of its digest."""
        return {digest[:DIGEST_NAME_LENGTH]: (digest,) for digest in self.api_keys} | self.named_keys

    @model_validator(mode="after")
    def _guard_the_admin_interface(self) -> Self:
        if self.admin_port is not None and not self.admin_keys and not is_loopback(self.admin_host):
            raise ValueError("an admin API on an address other than loopback requires admin_keys")
        return self

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        if (self.grpc_certificate is None) != (self.grpc_certificate_key is None):
            raise ValueError("grpc_certificate and grpc_certificate_key are set together")
        return self

    @model_validator(mode="after")
    def _check_limited_names(self) -> Self:
        if unknown := sorted(self.key_limits.keys() - self.keys.keys() - {"*"}):
            raise ValueError(
                f"key_limits: no key is named {', '.join(unknown)}; keys: {', '.join(self.keys) or 'none'}"
            )
        return self


def parse_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return an IP address, without its zone and as IPv4 if it is mapped to IPv6; None for a name."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return address.ipv4_mapped or IPv6Address(int(address)) if isinstance(address, IPv6Address) else address


def is_loopback(host: str) -> bool:
    """Return True for a loopback address or ``localhost``."""
    address = parse_address(host)
    return host == "localhost" if address is None else address.is_loopback


class StreamSettings(CommonSettings):
    """Settings of a stream worker."""

    source: str = Field(
        "",
        description="address of the alerts: `kafka://host:9092/topic?group=g`, `redis://host/stream` or `file:path`",
    )
    sink: str = Field(
        "", description="address of the results: `kafka://...`, `redis://...`, `file:results.jsonl` or `file:folder/`"
    )
    sink_format: SinkFormat = Field(
        "nightjar",
        description="format of published results: `nightjar` (JSON), `nightjar-avro`, `elasticc`, `alerce-avro`, "
        "`alerce-json` or `lasair`",
    )
    sink_embedding: bool = Field(
        True,
        description="if true, results in the formats `nightjar` and `nightjar-avro` contain the embedding, "
        "about three quarters of a JSON record",
    )
    sink_evolution: bool = Field(
        False,
        description="if true, results in the formats `nightjar` and `nightjar-avro` contain the classification after "
        "each detection (20 at most), each of which costs as much as a classification",
    )
    dead_letters: str = Field(
        "file:dead-letters/", description="address of dead letters (messages that cannot be processed)"
    )
    topics: dict[str, TopicRule] = Field(
        {},
        description="JSON object of topic patterns and the envelope of their messages: "
        '`{"alerts-*": {"envelope": "bare", "schema_name": "elasticc/0.9.1"}}`',
    )
    registry: str = Field(
        "", pattern=r"^(https?://\S+)?$", description="URL of the schema registry for Confluent framing"
    )
    registry_cache: Path | None = Field(None, description="folder that caches schemas from the registry")
    unknown_schema: Literal["wait", "dead_letter"] = Field(
        "wait",
        description="handling of alerts whose schema cannot be fetched: `wait` until it can, or `dead_letter`",
    )
    kafka_config: Path | None = Field(
        None, description="JSON file of librdkafka properties for every Kafka connection, such as credentials"
    )
    batch_messages: int = Field(
        256, ge=1, description="maximum number of messages that are polled from the source at once"
    )
    max_inflight_messages: int = Field(
        1024, ge=1, description="maximum number of messages in progress; beyond it no more are polled"
    )
    max_deliveries: int = Field(
        5, ge=1, description="maximum number of deliveries of a message; after more it becomes a dead letter"
    )
    retry_auth_errors: bool = Field(
        False,
        description="if true, a worker whose password, certificate or permission is rejected at the start retries; "
        "otherwise it exits",
    )
    unready_after: float = Field(
        60,
        gt=0,
        description="seconds without a polled message while messages are pending, or outside of the Kafka group, after "
        "which a worker is not ready (/readyz)",
    )
    unhealthy_after: float = Field(
        300,
        gt=0,
        description="seconds without progress while messages are pending and no external error explains it, or outside "
        "of the Kafka group, after which a worker is unhealthy (/healthz)",
    )
    worker_port: int = Field(8081, ge=0, le=65535, description="TCP port of a worker's metrics and probes")
    account_interval: float = Field(
        60, gt=0, description="interval in seconds between log lines with the delivery summary of a worker"
    )


ALL_FIELDS: Final[Mapping[str, FieldInfo]] = (
    Settings.model_fields | StreamSettings.model_fields | ClientSettings.model_fields
)

REMOVED_SETTINGS: Final[Mapping[str, str]] = {
    "docs": "renamed to enable_docs",
    "keys_for": "renamed to protected_paths",
    "keep_trying": "renamed to retry_auth_errors",
    "fallback_bundle": "removed; add replicas, or limit the busiest key with key_limits",
    "cache_redis_url": "removed; results are cached in memory only (cache_bytes)",
    "cache_redis_seconds": "removed with cache_redis_url",
    "cache_secret": "removed with cache_redis_url",
    "forecast_bundle": "removed; the service does not forecast, `nightjar-train` still trains forecasters",
    "max_queries": "removed with forecast_bundle",
    "threads_per_run": "removed; each inference run uses one thread, and workers sets how many runs there are",
    "groups_in_flight": "removed; workers sets how many batches run at the same time",
    "autotune": "removed; workers defaults to one per core",
    "measurements_folder": "removed; costs are measured at each start",
    "max_delay_ms": "removed; a free worker takes the next batch at once",
}
"""Removed settings and their replacements; a process that is started with one exits with this text."""


def setting_names() -> list[str]:
    """Return the environment names of all settings, without their prefix."""
    return [name.upper() for name in ALL_FIELDS]


def removed_settings(environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """Return an error for each removed or renamed setting in the environment or on the command line."""
    variables = {variable.upper() for variable in environment}
    options = {argument.partition("=")[0] for argument in arguments}
    errors = []
    for name, successor in REMOVED_SETTINGS.items():
        for given in (f"{ENV_PREFIX}{name.upper()}" in variables, f"--{name.replace('_', '-')}" in options):
            if given:
                errors.append(f"{ENV_PREFIX}{name.upper()}: {successor}")
    return errors


def settings_from_files(environment: Mapping[str, str]) -> dict[str, str]:
    """Read settings from the files named by ``NIGHTJAR_<SETTING>_FILE``, as used for Docker and Kubernetes secrets.

    Returns the variables to add to the environment. Raises ValueError if a file cannot be read or a setting is given
    both ways.
    """
    values = {}
    for name in setting_names():
        variable, source = f"{ENV_PREFIX}{name}", f"{ENV_PREFIX}{name}_FILE"
        if source not in environment:
            continue
        if variable in environment:
            raise ValueError(f"{source}: {variable} is set as well; set one of them")
        try:
            values[variable] = Path(environment[source]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ValueError(f"{source}: {environment[source]} cannot be read: {reason}") from None
    return values


def unused_settings(environment: Mapping[str, str], used: type[BaseSettings]) -> list[str]:
    """Return the variables of ``nightjar serve`` or the stream worker that the command with ``used`` does not read."""
    other = StreamSettings.model_fields if issubclass(used, Settings) else Settings.model_fields
    unused = {f"{ENV_PREFIX}{name.upper()}" for name in other.keys() - used.model_fields.keys()}
    return sorted(variable for variable in environment if variable.upper() in unused)


def unknown_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the prefix that are no setting, each with the most similar setting or ""."""
    names, developers = setting_names(), [name.removeprefix(ENV_PREFIX) for name in DEVELOPER_VARIABLES]
    known = {*names, *developers, *(f"{name}_FILE" for name in names)}
    nearest: dict[str, str] = {}
    for variable in sorted(name for name in environment if name.upper().startswith(ENV_PREFIX)):
        name = variable.upper().removeprefix(ENV_PREFIX)
        if name not in known:
            nearest[variable] = "".join(f"{ENV_PREFIX}{near}" for near in get_close_matches(name, names, 1))
    return nearest


_NO_JSON = re.compile(r'error parsing value for field "(\w+)"')


def setting_error(path: Sequence[str | int], message: str) -> str:
    """Return an error text with the name of the setting, the position in its value, and the message.

    Parameters
    ----------
    path : path to the value; its first step may be a subcommand.
    """
    if not_json := _NO_JSON.search(message):
        return f'{ENV_PREFIX}{not_json[1].upper()}: not JSON, such as ["a", "b"] or {{"a": 1}}'
    steps, names = [str(step) for step in path], setting_names()
    while steps and steps[0].upper() not in names:
        steps.pop(0)
    name, inner = [f"{ENV_PREFIX}{step.upper()}" for step in steps[:1]], [".".join(steps[1:])] if steps[1:] else []
    return ": ".join([*name, *inner, message.removeprefix("Value error, ")])


def settings_table(fields: Mapping[str, FieldInfo] | None = None) -> str:
    """Return a Markdown table of settings, by default of all: environment name, default and meaning."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in (fields or ALL_FIELDS).items():
        meaning = (field.description or "").replace("|", "\\|")
        rows.append(f"| `{ENV_PREFIX}{name.upper()}` | {_shown_default(field.default)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _shown_default(default: object) -> str:
    """Return a default as Markdown: code, or a description for paths and empty values."""
    if default == DEFAULT_BUNDLE:
        return "the bundled model"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if default in (None, (), "", {}):
        return "none"
    return f"`{default}`"
