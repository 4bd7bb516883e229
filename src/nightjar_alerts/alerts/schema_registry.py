"""Client of a schema registry, which resolves Confluent schema ids.

An id never changes its meaning, so a schema is fetched once: it is cached in memory and, if a folder is given, on disk
for later processes. If the registry does not return a schema, Rubin's ids (``major * 100 + minor``) are looked up among
the shipped schemas, with one warning in the log; other ids are retried later or unknown.

Anyone who may publish can send any id. Therefore unknown ids are requested at most once a minute and cached separately,
at most two requests run at a time, and a slow request blocks only messages with the same id. Redirects are not
followed, because they would send the credentials to another address.
"""

import base64
import contextlib
import json
import logging
import random
import re
import threading
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from time import monotonic
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from nightjar_alerts.alerts import avro, plans
from nightjar_alerts.alerts.packet import PacketError, RejectReason
from nightjar_alerts.alerts.plans import DecodePlan
from nightjar_alerts.models.common import write_atomic
from nightjar_alerts.models.limits import MAX_SCHEMA_BYTES

TIMEOUT_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 5.0
UNKNOWN_SECONDS: Final = 60.0  # before an id that the registry does not know is requested again
MAX_REMEMBERED: Final = 512  # limits memory, because ids come from messages
MAX_FETCHES: Final = 2  # concurrent requests
_REPLY_BYTES: Final = 4 * MAX_SCHEMA_BYTES  # the schema is a JSON string, in which quotes are escaped


log = logging.getLogger(__name__)


class SchemaUnavailableError(Exception):
    """The registry is unavailable; retry after ``retry_after`` seconds."""

    def __init__(self, schema_id: int, detail: str, retry_after: float) -> None:
        super().__init__(f"schema {schema_id}: {detail}")
        self.schema_id, self.retry_after = schema_id, retry_after


class SchemaRegistry:
    """Plans by Confluent schema id. Thread-safe; a lookup may take ``TIMEOUT_SECONDS``.

    Parameters
    ----------
    url : URL of the registry, with ``user:password@`` if required; None to use only the shipped schemas.
    folder : cache folder for fetched schemas, as ``<id>.avsc``.
    extra : folder with more schemas (see :mod:`alerts.avro`).
    """

    def __init__(
        self,
        url: str | None = None,
        folder: Path | None = None,
        extra: Path | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._url: str | None = None
        self._headers: dict[str, str] = {}
        if url is not None:
            self._url, self._headers = _split_credentials(url)
        self._folder, self._extra, self._clock = folder, extra, clock
        self._plans: OrderedDict[int, DecodePlan] = OrderedDict()
        self._errors: OrderedDict[int, tuple[PacketError, float]] = OrderedDict()  # each until when
        self._retry_at: dict[int, float] = {}
        self._lock = threading.Lock()  # held briefly
        self._locks: dict[int, threading.Lock] = {}  # by id, held while the registry is queried
        self._fetches = threading.Semaphore(MAX_FETCHES)
        self._client: urllib.request.OpenerDirector | None = None
        self._warned = False

    def plan(self, schema_id: int) -> DecodePlan:
        """Return the plan for packets with a schema id.

        Raises
        ------
        PacketError
            ``unknown_schema`` if the registry has no such schema or it is not of a known survey, ``unsafe_schema``.
        SchemaUnavailableError
            If the registry is unavailable.
        """
        plan_or_error = self._cached(schema_id)
        if plan_or_error is None:
            with self._lock:
                lock = self._locks.setdefault(schema_id, threading.Lock())
            try:
                with lock:
                    plan_or_error = self._cached(schema_id) or self._look_up(schema_id)
            finally:
                self._drop_lock(schema_id, lock)
        if isinstance(plan_or_error, PacketError):
            raise PacketError(plan_or_error.reason, plan_or_error.detail)
        return plan_or_error

    def _drop_lock(self, schema_id: int, lock: threading.Lock) -> None:
        """Remove the lock of an id, so that ids from messages do not fill the memory."""
        with self._lock:
            if self._locks.get(schema_id) is lock:
                del self._locks[schema_id]

    def _cached(self, schema_id: int) -> DecodePlan | PacketError | None:
        with self._lock:
            if plan := self._plans.get(schema_id):
                self._plans.move_to_end(schema_id)
                return plan
            error, until = self._errors.get(schema_id, (None, 0.0))
            return error if self._clock() < until else None

    def _look_up(self, schema_id: int) -> DecodePlan | PacketError:
        try:
            plan_or_error: DecodePlan | PacketError = self._find(schema_id)
        except PacketError as error:
            plan_or_error = error.as_outcome()
        with self._lock:
            if isinstance(plan_or_error, PacketError):
                self._errors[schema_id] = (plan_or_error, self._clock() + UNKNOWN_SECONDS)
                self._errors.move_to_end(schema_id)
                if len(self._errors) > MAX_REMEMBERED:
                    self._errors.popitem(last=False)
            else:
                self._plans[schema_id] = plan_or_error
                if len(self._plans) > MAX_REMEMBERED:
                    self._plans.popitem(last=False)
        return plan_or_error

    def _find(self, schema_id: int) -> DecodePlan:
        if self._url is None:
            return self._shipped_plan(schema_id)
        with contextlib.suppress(OSError, PacketError):  # a missing or truncated file
            if self._folder is not None:
                return _plan((self._folder / f"{schema_id}.avsc").read_bytes())
        try:
            text = self._fetch(schema_id)
        except (SchemaUnavailableError, PacketError) as error:
            if not avro.exists(avro.confluent_name(schema_id), self._extra):
                raise
            self._warn(error)
            return self._shipped_plan(schema_id)
        plan = _plan(text)
        self._save(schema_id, text)
        return plan

    def _warn(self, error: Exception) -> None:
        """Log the first use of a shipped schema in place of the registry's."""
        if not self._warned:
            self._warned = True
            log.warning("the schema registry gave no schema, reading with the shipped one: %s", error)

    def _shipped_plan(self, schema_id: int) -> DecodePlan:
        name = avro.confluent_name(schema_id)
        if not avro.exists(name, self._extra):
            raise _unknown(schema_id, f"there is no schema registry, and no schema {name} is at hand")
        return plans.for_name(name, self._extra)

    def _fetch(self, schema_id: int) -> bytes:
        now = self._clock()
        if (again := self._retry_at.get(schema_id, now)) > now:
            raise SchemaUnavailableError(schema_id, "the registry did not answer a moment ago", again - now)
        request = urllib.request.Request(f"{self._url}/schemas/ids/{schema_id}", headers=self._headers)
        try:
            with self._fetches, self._opener().open(request, timeout=TIMEOUT_SECONDS) as reply:
                return self._schema_text(schema_id, self._read(reply))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (404, 422):
                raise _unknown(schema_id, "the registry does not know it") from None
            raise self._unavailable(schema_id, f"the registry answered {error.code}") from None
        except (OSError, HTTPException) as error:
            raise self._unavailable(schema_id, f"the registry cannot be reached ({error})") from None

    def _schema_text(self, schema_id: int, reply: bytes) -> bytes:
        """Return the schema in a registry's response, which is a JSON string.

        A page or an error document is no answer about the id: a proxy, or a registry in trouble, sends it for any id.
        """
        if len(reply) > _REPLY_BYTES:
            raise _unknown(schema_id, f"the registry's reply is longer than {_REPLY_BYTES} bytes")
        try:
            document = json.loads(reply)
            text = document["schema"]
        except (ValueError, RecursionError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise self._unavailable(schema_id, "the registry's reply holds no schema")
        if document.get("schemaType", "AVRO") != "AVRO" or document.get("references"):
            raise _unknown(schema_id, "the registry holds no self-contained Avro schema under this id")
        return text.encode()

    def _read(self, reply: HTTPResponse) -> bytes:
        """Read a response within ``TIMEOUT_SECONDS`` in total. Raises TimeoutError."""
        end, parts, size = monotonic() + TIMEOUT_SECONDS, [], 0
        while size <= _REPLY_BYTES and (part := reply.read1(_REPLY_BYTES)):
            parts.append(part)
            size += len(part)
            if monotonic() > end:
                raise TimeoutError("timed out")
        return b"".join(parts)

    def _opener(self) -> urllib.request.OpenerDirector:
        """Return the HTTP client, created on first use, because most instances have no URL."""
        if self._client is None:
            self._client = urllib.request.build_opener(_NoRedirects())
        return self._client

    def _unavailable(self, schema_id: int, detail: str) -> SchemaUnavailableError:
        wait = RETRY_SECONDS * random.uniform(0.5, 1.5)  # jitter, because many workers fail at the same time
        if len(self._retry_at) >= MAX_REMEMBERED:
            self._retry_at.clear()
        self._retry_at[schema_id] = self._clock() + wait
        return SchemaUnavailableError(schema_id, detail, wait)

    def _save(self, schema_id: int, text: bytes) -> None:
        """Write the schema to the cache folder; errors such as a full disk are ignored."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            write_atomic(self._folder / f"{schema_id}.avsc", text, shared=True)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, which would receive the credentials and determine how messages are decoded."""

    def redirect_request(self, *_: object) -> None:
        """Return None, so that the redirect's status becomes an error."""


def _plan(text: bytes) -> DecodePlan:
    return plans.resolve(avro.parse(text))


def _unknown(schema_id: int, detail: str) -> PacketError:
    return PacketError(RejectReason.UNKNOWN_SCHEMA, f"schema id {schema_id}: {detail}")


def _split_credentials(url: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{re.sub('//.*@', '//', url)!r} is not an http or https address")
    user, at, host = parts.netloc.rpartition("@")
    bare = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    return bare, {"Authorization": f"Basic {base64.b64encode(unquote(user).encode()).decode()}"} if at else {}
