"""The version that answers: aliases, exact versions, and the share of a canary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.registry.live import Canary, Routes
from nightjar_alerts.service.registry.names import Reference, UnknownModel


def routes(percent: float = 0.0) -> Routes:
    table = Routes(current={"mine": "1.0.0", "other": "2.0.0"})
    table.aliases = {"default": Reference("mine"), "ztf": Reference("mine", "1.0.0"), "best": Reference("other")}
    if percent:
        table.canaries["mine"] = Canary("1.1.0", percent)
    return table


def test_names_lead_to_versions() -> None:
    table = routes()
    for name, version in {"mine": "mine@1.0.0", "default": "mine@1.0.0", "best": "other@2.0.0"}.items():
        assert str(table.choose(name, "").reference) == version
    assert str(table.choose("mine@0.9.0", "").reference) == "mine@0.9.0"
    assert (table.for_survey("ztf"), table.for_survey("lsst"), table.for_survey("")) == ("ztf", "default", "default")


@pytest.mark.parametrize("name", ["nobody", "", "@1.0.0", "mine@1", "ZTF"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownModel):
        routes().choose(name, "")


def test_a_long_name_is_not_repeated() -> None:
    with pytest.raises(UnknownModel) as caught:
        routes().choose("x" * 10_000, "")
    assert len(str(caught.value)) < 200


@given(st.text(), st.floats(0.1, 50), st.floats(0, 50))
def test_objects_keep_their_canary_as_its_share_grows(key: str, percent: float, more: float) -> None:
    table = routes(percent)
    first = table.choose("mine", key)
    assert table.choose("mine", key) == first
    table.canaries["mine"] = Canary("1.1.0", percent + more)
    if first.role == "canary":
        assert table.choose("mine", key) == first


@pytest.mark.parametrize("percent", [1.0, 5.0, 50.0])
def test_a_canary_gets_its_share(percent: float) -> None:
    table, count = routes(percent), 20_000
    hits = sum(table.choose("mine", f"ZTF26{i:07d}").role == "canary" for i in range(count))
    expected = count * percent / 100
    assert abs(hits - expected) < 5 * (expected * (1 - percent / 100)) ** 0.5


def test_two_models_divide_their_objects_differently() -> None:
    """Equal divisions would have the same tenth of all objects on trial everywhere."""
    table = routes(50)
    table.canaries["other"] = Canary("2.1.0", 50)
    both = sum(table.choose("mine", str(i)).role == table.choose("other", str(i)).role for i in range(2000))
    assert 800 < both < 1200


def test_an_exact_name_has_no_canary() -> None:
    table = routes(99.9)
    assert {table.choose(name, str(i)).role for name in ("ztf", "mine@1.0.0") for i in range(100)} == {""}


def test_models_that_have_to_be_served() -> None:
    table = routes(5)
    assert {str(reference) for reference in table.needed()} == {"mine@1.0.0", "mine@1.1.0", "other@2.0.0"}
    assert table.aliases_of(Reference("mine", "1.0.0")) == ["default", "ztf"]
    assert table.aliases_of(Reference("mine", "1.1.0")) == []
