import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.models.limits import (
    LARGEST_INT64,
    LATEST_MILLISECONDS,
    Allowance,
    TooCostly,
    milliseconds,
    whole_number,
)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", " 1", "1 ", "1_0", "1.0", "1e3", "٣", "²", "9" * 5000, str(2**63), b"\xff", b"1\n", True]
)
def test_text_that_is_no_number_of_64_bits_is_none(text: str | bytes | int) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize("number", [0, 7, LARGEST_INT64])
def test_numbers_are_read_from_text_bytes_and_integers(number: int) -> None:
    assert whole_number(str(number)) == whole_number(str(number).encode()) == whole_number(number) == number


def test_a_number_lies_within_its_bounds() -> None:
    assert whole_number("11", most=10) is None
    assert whole_number(-1) is None


@given(st.text() | st.binary() | st.integers() | st.none())
def test_a_time_never_raises_and_always_fits_a_float(stated: str | bytes | int | None) -> None:
    found = milliseconds(stated)
    assert found is None or (0 <= found <= LATEST_MILLISECONDS and int(float(found)) == found)
    if found is not None:
        time.gmtime(found / 1000)


@given(st.integers(0, LATEST_MILLISECONDS))
def test_every_time_of_the_calendar_is_read(stated: int) -> None:
    assert milliseconds(str(stated)) == milliseconds(stated) == stated


def test_an_allowance_is_used_up_by_work() -> None:
    now = 0.0
    allowance = Allowance(2.0, lambda: now)
    now = 2.0
    allowance.check()
    now = 2.1
    with pytest.raises(TooCostly, match="2 s"):
        allowance.check()


def test_an_allowance_is_not_used_up_by_waiting() -> None:
    allowance = Allowance(0.05)
    time.sleep(0.1)
    allowance.check()
