"""Settings: documented, checked, read from the environment."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, MANIFEST, SURVEY_BUNDLES
from nightjar_alerts.service.settings import ClientSettings, Settings, StreamSettings, settings_table, unknown_settings

FIELDS = StreamSettings.model_fields | ClientSettings.model_fields


def test_every_setting_says_what_it_means() -> None:
    assert [name for name, field in FIELDS.items() if not field.description] == []


def test_the_table_has_every_setting_once() -> None:
    names = re.findall(r"`NIGHTJAR_(\w+)`", settings_table())
    assert names == [name.upper() for name in FIELDS]


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_PORT", "9000")
    monkeypatch.setenv("NIGHTJAR_API_KEYS", f'["{"ab" * 32}"]')
    settings = Settings()
    assert (settings.port, settings.api_keys) == (9000, ("ab" * 32,))


def test_packets_of_ztf_have_a_model_of_their_own_beside_the_bundled_one() -> None:
    assert Settings().survey_bundles == SURVEY_BUNDLES
    assert (SURVEY_BUNDLES["ztf"] / MANIFEST).is_file()
    assert Settings(bundle=Path("mine")).survey_bundles == {}
    assert Settings(bundle=Path("mine"), ztf_bundle=Path("other")).survey_bundles == {"ztf": Path("other")}
    assert Settings(ztf_bundle=DEFAULT_BUNDLE).survey_bundles == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70000},
        {"api_keys": ["secret"]},
        {"provider": "tpu"},
        {"max_curves": 0},
        {"workers": -1},
        {"prot": 1},
        {"aliases": {"ZTF": "mine"}},
        {"aliases": {"ztf": "../mine"}},
        {"admin_keys": ["secret"]},
        {"repository_poll": -1},
    ],
)
def test_a_wrong_value_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_no_variable_that_a_page_or_a_test_names_counts_as_misspelt() -> None:
    root, own = Path(__file__).resolve().parents[2], Path(__file__).resolve()
    pages = [root / "Makefile", *root.glob("*.md"), *(root / "docs").rglob("*.md")]
    pages += [page for room in ("deploy", "tests") for page in (root / room).rglob("*.py") if page != own]
    named = {name for page in pages for name in re.findall(r"\bNIGHTJAR_[A-Z_]*[A-Z]\b", page.read_text())}
    assert {"NIGHTJAR_KAFKA_HOME", "NIGHTJAR_TEST_KAFKA", "NIGHTJAR_TEST_DATA", "NIGHTJAR_SOAK"} <= named
    assert unknown_settings(dict.fromkeys(named, "")) == {}


def test_a_misspelt_variable_is_noticed() -> None:
    names = ("NIGHTJAR_PROT", "NIGHTJAR_PORT", "NIGHTJAR_QQQQQQQ", "NIGHTJAR_URL", "PATH")
    assert unknown_settings(dict.fromkeys(names, "1")) == {"NIGHTJAR_PROT": "NIGHTJAR_PORT", "NIGHTJAR_QQQQQQQ": ""}
