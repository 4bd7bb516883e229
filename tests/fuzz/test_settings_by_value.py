"""Settings and addresses with any value: read, or refused at their place, and no password told.

pydantic's checks are compiled, so inputs that follow coverage do not see them (``make fuzz``); these are drawn for each
setting by its name.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import settings as effort
from hypothesis import strategies as st
from pydantic import ValidationError

from nightjar_alerts.client_settings import ClientSettings
from nightjar_alerts.service.http.edge.keys import KeyRing
from nightjar_alerts.service.settings import (
    ALL_FIELDS,
    Settings,
    StreamSettings,
    is_loopback,
    unknown_settings,
)
from nightjar_alerts.service.stream.addresses import AddressError, parse_address

PASSWORD = "q7Zt2Lw9Xv4R"
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=6,
)
PIECES = "kafka redis rediss file :// : / @ [ ] ::1 host :9092 , topic ? & group=g idle= nan 1e999 % %00 # \u2100"
PARTS = st.sampled_from([*PIECES.split(), "\n", "\0", " "])
ADDRESSES = st.lists(PARTS | st.text(max_size=5), max_size=12).map("".join)


@pytest.mark.parametrize("name", sorted(ALL_FIELDS))
def test_any_value_of_a_setting_is_read_or_refused_there(name: str) -> None:
    kind: Any = next(kind for kind in (Settings, StreamSettings, ClientSettings) if name in kind.model_fields)

    @effort(max_examples=40, deadline=None)
    @given(value=ANYTHING)
    def once(value: object) -> None:
        places: set[tuple[int | str, ...]] = set()
        try:
            made = kind(**{name: value})
            if isinstance(made, Settings):
                KeyRing(made.keys)
        except ValidationError as error:
            places = {fault["loc"][:1] for fault in error.errors()}
        assert places <= {(name,), ()}

    once()


def refusals(text: str) -> list[str]:
    """Return the complaints about an address, when it is read and when it is used."""
    said: list[str] = []
    try:
        address = parse_address(text)
    except AddressError as error:
        return [str(error)]
    uses: list[Callable[[], object]] = [
        lambda: address.name, lambda: address.number("idle", 1.0), lambda: address.check_options("group")
    ]  # fmt: skip
    for use in uses:
        try:
            use()
        except AddressError as error:
            said.append(str(error))
    return said


@effort(max_examples=600, deadline=None)
@given(text=ADDRESSES)
def test_any_address_leads_somewhere_or_is_refused(text: str) -> None:
    refusals(text)


@effort(max_examples=400, deadline=None)
@given(before=ADDRESSES, after=ADDRESSES, scheme=st.sampled_from(["kafka", "redis", "rediss", "file", "ftp", ""]))
def test_no_refusal_of_an_address_tells_the_password(before: str, after: str, scheme: str) -> None:
    assume(not set("/?#") & set(before))  # which would end the part of an address that has passwords
    text = f"{scheme}://user{before}:{PASSWORD}@{after}"
    assert PASSWORD not in " ".join(refusals(text))


@given(number=st.sampled_from(["nan", "inf", "-inf", "1e999", "", "x", "1" * 400]))
def test_a_number_in_an_address_is_one(number: str) -> None:
    with pytest.raises(AddressError):
        parse_address(f"kafka://host/topic?idle={number}").number("idle", 1.0)


@given(host=st.text() | st.ip_addresses().map(str))
def test_only_loopback_is_loopback(host: str) -> None:
    assert is_loopback(host) == (host == "localhost" or host.startswith("127.") or host == "::1") or "%" in host


@given(names=st.dictionaries(st.text(max_size=30) | st.sampled_from(["NIGHTJAR_PORT", "nightjar_port"]), st.text()))
def test_any_environment_has_its_mistakes_named(names: dict[str, str]) -> None:
    assert set(unknown_settings(names)) <= {name for name in names if name.upper().startswith("NIGHTJAR_")}
