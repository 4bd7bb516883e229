"""Resolving names: aliases, exact versions, and the percentage of a canary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.registry.names import Reference, UnknownModel
from nightjar_alerts.service.registry.router import Canary, ModelRouter


def router(percent: float = 0.0) -> ModelRouter:
    table = ModelRouter(versions={"mine": "1.0.0", "other": "2.0.0"})
    table.aliases = {"default": Reference("mine"), "ztf": Reference("mine", "1.0.0"), "best": Reference("other")}
    if percent:
        table.canaries["mine"] = Canary("1.1.0", percent)
    return table


def test_resolve_name_alias_or_version_returns_version() -> None:
    table = router()
    for name, version in {"mine": "mine@1.0.0", "default": "mine@1.0.0", "best": "other@2.0.0"}.items():
        assert str(table.resolve(name, "")[0]) == version
    assert str(table.resolve("mine@0.9.0", "")[0]) == "mine@0.9.0"


@pytest.mark.parametrize("name", ["default@1.0.0", "ztf@1.0.0", "default@1.1.0", "best@2.0.0"])
def test_resolve_alias_with_a_version_that_it_leads_to_returns_it(name: str) -> None:
    reference, role = router(5).resolve(name, "")
    assert (reference.version, role) == (name.partition("@")[2], "")


@pytest.mark.parametrize("name", ["default@0.9.0", "ztf@1.1.0", "best@1.0.0", "default@", "default@mine"])
def test_resolve_alias_with_another_version_raises(name: str) -> None:
    with pytest.raises(UnknownModel):
        router(5).resolve(name, "")


@pytest.mark.parametrize("name", ["nobody", "", "@1.0.0", "mine@1", "ZTF"])
def test_resolve_unknown_name_raises(name: str) -> None:
    with pytest.raises(UnknownModel):
        router().resolve(name, "")


def test_resolve_long_unknown_name_is_cut_in_the_error() -> None:
    with pytest.raises(UnknownModel) as caught:
        router().resolve("x" * 10_000, "")
    assert len(str(caught.value)) < 200


@given(st.text(), st.floats(0.1, 50), st.floats(0, 50))
def test_resolve_object_of_canary_keeps_it_as_the_percentage_grows(key: str, percent: float, more: float) -> None:
    table = router(percent)
    first = table.resolve("mine", key)
    assert table.resolve("mine", key) == first
    table.canaries["mine"] = Canary("1.1.0", percent + more)
    if first[1] == "canary":
        assert table.resolve("mine", key) == first


@pytest.mark.parametrize("percent", [1.0, 5.0, 50.0])
def test_resolve_canary_gets_its_percentage(percent: float) -> None:
    table, count = router(percent), 20_000
    hits = sum(table.resolve("mine", f"ZTF26{i:07d}")[1] == "canary" for i in range(count))
    expected = count * percent / 100
    assert abs(hits - expected) < 5 * (expected * (1 - percent / 100)) ** 0.5


def test_resolve_canaries_of_two_models_get_different_objects() -> None:
    """Otherwise the same objects would get the canary of every model."""
    table = router(50)
    table.canaries["other"] = Canary("2.1.0", 50)
    both = sum(table.resolve("mine", str(i))[1] == table.resolve("other", str(i))[1] for i in range(2000))
    assert 800 < both < 1200


def test_resolve_exact_version_has_no_canary() -> None:
    table = router(99.9)
    assert {table.resolve(name, str(i))[1] for name in ("ztf", "mine@1.0.0") for i in range(100)} == {""}


def test_required_returns_current_pinned_by_alias_and_canary() -> None:
    table = router(5)
    assert {str(reference) for reference in table.required()} == {"mine@1.0.0", "mine@1.1.0", "other@2.0.0"}
    assert table.aliases_of(Reference("mine", "1.0.0")) == ["default", "ztf"]
    assert table.aliases_of(Reference("mine", "1.1.0")) == []
