"""Addresses of sources, sinks and dead letters: ``kafka://``, ``redis://``, ``file://``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

Scheme = Literal["kafka", "redis", "file"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)


class AddressError(ValueError):
    """An address that leads nowhere; says why, without credentials."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address in parts.

    Attributes
    ----------
    hosts : ``host:port``, several with commas between them.
    names : topics or streams; of a file, none.
    path : of a file or folder.
    user, password : where the broker wants them; never shown.
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
        """Name of the one topic or stream of a sink."""
        if len(self.names) != 1:
            raise AddressError(f"{self.scheme}://{self.hosts}: a sink has exactly one topic or stream")
        return self.names[0]

    def number(self, option: str, default: float) -> float:
        """Return an option that is a number."""
        text = self.options.get(option, str(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise AddressError(f"{self.scheme}://{self.hosts}: {option} is a number, not {text[:20]!r}")
        return value

    def moment(self, option: str) -> int:
        """Return an option that is an ISO time, as milliseconds since 1970; UTC unless it says otherwise."""
        text = self.options[option]
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise AddressError(f"{text[:40]!r} is not an ISO time such as 2026-11-21T05:00:00") from None
        return int(1000 * (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())

    def only(self, *names: str) -> "Address":
        """Return this address; raises AddressError for an option that is neither one of these nor a Kafka property."""
        for option in self.options:
            if option not in names and not (self.scheme == "kafka" and "." in option):
                raise AddressError(
                    f"{self.scheme}://{self.hosts}: unknown option {option!r}; known: {', '.join(names)}"
                )
        return self


def parse_address(text: str) -> Address:
    """Split an address.

    Raises
    ------
    AddressError
        For a scheme that is not one of those above, or parts that are missing.
    """
    try:
        parts = urlsplit(text)
    except ValueError:  # whose message repeats what was written, a password as well
        raise AddressError(
            "the host after :// is not valid: it has an unmatched bracket, or characters that no host name may have"
        ) from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise AddressError("a file's address is file:///path, or file:path where the worker is")
        return Address("file", path=Path(unquote(parts.path)), options=options)
    tls = parts.scheme == "rediss"  # as clients of Redis write it; Kafka has options for this
    scheme = "redis" if tls else next((scheme_name for scheme_name in SCHEMES if scheme_name == parts.scheme), None)
    if scheme is None:
        raise AddressError(f"an address begins with {', '.join(f'{scheme_name}://' for scheme_name in SCHEMES)}")
    user, _, hosts = parts.netloc.rpartition("@")
    names = tuple(unquote(name) for name in parts.path.strip("/").split(",") if name)
    if not hosts or not names:
        raise AddressError(f"{parts.scheme}://{hosts}: an address names a host and a topic or stream")
    name, _, password = user.partition(":")
    return Address(
        scheme, hosts, names, options=options, user=unquote(name) or None, password=unquote(password) or None, tls=tls
    )
