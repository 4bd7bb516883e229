"""Addresses of sources, sinks and dead letters: ``kafka://``, ``redis://``, ``file:``.

===============================================================  ==================================================
``kafka://HOST:PORT,HOST:PORT/TOPIC,TOPIC?group=nightjar``         several brokers and topics; ``^`` starts a pattern
``redis://USER:PASSWORD@HOST:PORT/STREAM,STREAM?group=nightjar``   ``rediss://`` for TLS
``file:PATH``, ``file:///PATH``                                    a folder ends with a slash
===============================================================  ==================================================

A host is a name, an IPv4 address or an IPv6 address in brackets. Reserved characters in names are percent-encoded:
``%2F`` for a slash, ``%2C`` for a comma.
"""

import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final, Literal, get_args
from urllib.parse import SplitResult, parse_qsl, unquote, unquote_to_bytes, urlsplit

Scheme = Literal["kafka", "redis", "file"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
FORMS: Final[Mapping[str, str]] = {
    "source": "kafka://HOST:PORT/TOPIC, redis://HOST:PORT/STREAM or file:PATH",
    "sink": "kafka://HOST:PORT/TOPIC, redis://HOST:PORT/STREAM, file:PATH.jsonl or file:FOLDER/",
    "dead_letters": "kafka://HOST:PORT/TOPIC, redis://HOST:PORT/STREAM or file:FOLDER/",
}
"""Forms of the addresses, by setting."""
MAX_SHOWN: Final = 200
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_IPV4_LIKE: Final = re.compile(r"\d+(\.\d+)+")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\.?|[A-Za-z0-9]")


class AddressError(ValueError):
    """An address cannot be used; the message gives the reason without credentials."""


@contextmanager
def about_setting(setting: str, text: str) -> Iterator[None]:
    """Add the name of the setting, its value without credentials and the valid forms to an AddressError."""
    try:
        yield
    except AddressError as error:
        if str(error).startswith("NIGHTJAR_"):
            raise
        raise AddressError(
            f"NIGHTJAR_{setting.upper()}={without_secrets(text)}: {error}. Forms: {FORMS[setting]}"
        ) from None


def without_secrets(text: str) -> str:
    """Return an address without user, password and other secrets, truncated for messages."""
    text = re.sub(r"//.*@", "//***@", text)  # up to the last @, since a password may contain / or @
    return re.sub(r"([?&][^=&]*(?:password|secret|token|pem|jaas|config)[^=&]*=)[^&]*", r"\1***", text)[:MAX_SHOWN]


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address.

    Attributes
    ----------
    hosts : ``host:port``, several with commas between them.
    names : topics or streams; empty for a file.
    path : path of a file or folder.
    user, password : credentials of Redis; None without.
    """

    scheme: Scheme
    hosts: str = ""
    names: tuple[str, ...] = ()
    path: Path = field(default_factory=Path)
    options: Mapping[str, str] = field(default_factory=dict)
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: bool = False

    @property
    def name(self) -> str:
        """Name of the only topic or stream of a sink. Raises AddressError for several names or a pattern."""
        if len(self.names) != 1:
            raise AddressError(f"{len(self.names)} topics or streams; a sink has exactly one topic or stream")
        if self.scheme == "kafka" and self.names[0].startswith("^"):
            raise AddressError(f"{self.names[0]!r} is a pattern; a sink has exactly one topic")
        return self.names[0]

    def number(self, option: str, default: float) -> float:
        """Return an option as a non-negative number. Raises AddressError."""
        text = self.options.get(option)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise AddressError(f"{option} is a number, not {text[:20]!r}")
        return value

    def integer(self, option: str, default: int) -> int:
        """Return an option as a non-negative integer. Raises AddressError."""
        value = self.number(option, default)
        if value != int(value):
            raise AddressError(f"{option} is a whole number, not {self.options[option][:20]!r}")
        return int(value)

    def flag(self, option: str) -> bool:
        """Return an option that is ``yes`` or ``no``; False by default. Raises AddressError."""
        text = self.options.get(option, "no")
        if text not in ("yes", "no"):
            raise AddressError(f"{option} is yes or no, not {text[:20]!r}")
        return text == "yes"

    def timestamp_ms(self, option: str) -> int:
        """Return an ISO 8601 time, UTC by default, as milliseconds since 1970. Raises AddressError."""
        text = self.options[option]
        for variant in (text, text.replace(" ", "+")):  # in a query, a plus sign stands for a space
            with suppress(ValueError):
                time = datetime.fromisoformat(variant)
                break
        else:
            raise AddressError(f"{option}: {text[:40]!r} is not an ISO time such as 2026-11-21T05:00:00")
        return int(1000 * (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())

    def host_ports(self, default_port: int) -> list[tuple[str, int]]:
        """Return the hosts and ports; IPv6 addresses are without brackets."""
        pairs = (_host_port(text) for text in self.hosts.split(","))
        return [(host, port or default_port) for host, port in pairs]

    def check_options(self, *names: str) -> "Address":
        """Return this address; raises AddressError for an option other than ``names`` and Kafka properties."""
        for option in self.options:
            if option not in names and not (self.scheme == "kafka" and "." in option):
                raise AddressError(f"unknown option {option!r}; known: {', '.join(names) or 'none'}")
        return self


def parse_address(text: str) -> Address:
    """Parse an address.

    Raises
    ------
    AddressError
        If the scheme is unknown, a part is missing, or a host, port, topic or pattern is invalid.
    """
    try:
        parts = urlsplit(text)
    except ValueError:  # its message contains the text, which may have a password
        raise AddressError(
            "the host after :// is not valid: it has an unmatched bracket, or characters that no host name may have"
        ) from None
    if parts.scheme in ("redis", "rediss") and "@" in parts.path + parts.query + parts.fragment:
        raise AddressError("the characters / ? # @ of a user, password or stream are written %2F %3F %23 %40")
    options = _options(parts.query)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise AddressError("a file's address is file:///path, or file:path relative to the working directory")
        path = Path(os.fsdecode(unquote_to_bytes(os.fsencode(parts.path))))  # file names need not be UTF-8
        return Address("file", path=path, options=options)
    tls = parts.scheme == "rediss"  # Redis convention; Kafka has options for this
    scheme = "redis" if tls else next((name for name in SCHEMES if name == parts.scheme), None)
    if scheme is None:
        raise AddressError("an address begins with kafka://, redis://, rediss:// or file:")
    if parts.fragment:
        raise AddressError("# is written %23 in an address")
    user, at, hosts = parts.netloc.rpartition("@")
    if at and scheme == "kafka":
        raise AddressError(
            "credentials of Kafka belong in the file that NIGHTJAR_KAFKA_CONFIG names, not in an address"
        )
    names = _names(scheme, parts)
    if not hosts or not names:
        raise AddressError("an address names a host and a topic or stream")
    for host in hosts.split(","):
        _host_port(host)
    name, _, password = user.partition(":")
    return Address(
        scheme, hosts, names, options=options, user=unquote(name) or None, password=unquote(password) or None, tls=tls
    )


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in options:
            raise AddressError(f"option {name!r} is given twice")
        if not value:
            raise AddressError(f"option {name!r} is empty")
        options[name] = value
    return options


def _host_port(text: str) -> tuple[str, int | None]:
    """Split ``host``, ``host:port``, ``[ipv6]`` or ``[ipv6]:port``. Raises AddressError."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        host = unquote(host)  # %25 separates a zone id
        try:
            IPv6Address(host)
        except ValueError:
            raise AddressError(f"{text[:60]!r}: the address in brackets is not an IPv6 address") from None
        port, colon = rest.removeprefix(":"), rest.startswith(":")
        valid = bool(bracket) and (colon or not rest)
    else:
        host, colon_text, port = text.partition(":")
        colon = bool(colon_text)
        if ":" in port:
            raise AddressError(f"{text[:60]!r}: an IPv6 address is written in brackets, as [::1]:9092")
        valid = _HOST_NAME.fullmatch(host) is not None and not _IPV4_LIKE.fullmatch(host)
        with suppress(ValueError):
            valid = bool(IPv4Address(host)) or valid
    if not valid:
        raise AddressError(f"{text[:60]!r} is not a host: write host, host:port, [ipv6] or [ipv6]:port")
    if not colon:
        return host, None
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        raise AddressError(f"{text[:60]!r}: the port is a number from 1 to 65535")
    return host, int(port)


def _names(scheme: Scheme, parts: SplitResult) -> tuple[str, ...]:
    """Return topics, topic patterns or streams. Raises AddressError for invalid names."""
    path = parts.path.removeprefix("/").removesuffix("/")
    if scheme == "redis":
        if "/" in path:
            raise AddressError(f"{path[:60]!r}: a slash in the name of a stream is written %2F, a database ?db=0")
        return tuple(unquote(name) for name in path.split(",") if name)
    names = tuple(unquote(name) for name in _split_outside_brackets(path) if name)
    for name in names:
        if name.startswith("^"):
            _check_pattern(name)
        elif not _TOPIC.fullmatch(name) or name in (".", ".."):
            raise AddressError(
                f"{name[:60]!r} is not a topic: a topic has up to 249 letters, digits, dots, dashes and underscores; "
                "a pattern of topics is a regular expression that begins with ^, as ^night-.*"
            )
    return names


def _split_outside_brackets(path: str) -> list[str]:
    """Split at commas, except those in the braces, brackets and parentheses of a pattern."""
    names, depth = [""], 0
    for character in path:
        if character == "," and depth <= 0:
            names.append("")
            depth = 0
            continue
        depth += (character in "{[(") - (character in "}])")
        names[-1] += character
    return names


def _check_pattern(pattern: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of POSIX classes, which librdkafka supports and Python does not
            re.compile(pattern)
    except re.error as error:
        raise AddressError(
            f"{pattern[:60]!r} is not a pattern of topics ({error}): a pattern is a POSIX extended regular expression "
            "that begins with ^"
        ) from None
