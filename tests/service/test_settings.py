"""Settings: documented, checked, read from the environment."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, MANIFEST
from nightjar_alerts.routing import SURVEY_BUNDLES
from nightjar_alerts.service.settings import (
    ALL_FIELDS,
    REMOVED_SETTINGS,
    Settings,
    StreamSettings,
    removed_settings,
    settings_from_files,
    settings_table,
    unknown_settings,
    unused_settings,
)


def test_settings_have_descriptions() -> None:
    assert [name for name, field in ALL_FIELDS.items() if not field.description] == []


def test_settings_table_has_every_setting_once() -> None:
    names = re.findall(r"`NIGHTJAR_(\w+)`", settings_table())
    assert names == [name.upper() for name in ALL_FIELDS]


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_settings_invalid_value_raises(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_unknown_settings_variables_of_docs_and_tests_are_known() -> None:
    root, own = Path(__file__).resolve().parents[2], Path(__file__).resolve()
    pages = [root / "Makefile", *root.glob("*.md"), *(root / "docs").rglob("*.md")]
    pages += [page for room in ("deploy", "tests") for page in (root / room).rglob("*.py") if page != own]
    named = {name for page in pages for name in re.findall(r"\bNIGHTJAR_[A-Z_]*[A-Z]\b", page.read_text())}
    assert {"NIGHTJAR_KAFKA_HOME", "NIGHTJAR_TEST_KAFKA", "NIGHTJAR_TEST_DATA", "NIGHTJAR_SOAK"} <= named
    removed = {f"NIGHTJAR_{name.upper()}" for name in REMOVED_SETTINGS}  # CHANGELOG names them
    assert unknown_settings(dict.fromkeys(named - removed, "")) == {}


def test_unknown_settings_misspelt_variable_is_reported() -> None:
    names = ("NIGHTJAR_PROT", "NIGHTJAR_PORT", "NIGHTJAR_QQQQQQQ", "NIGHTJAR_URL", "PATH")
    assert unknown_settings(dict.fromkeys(names, "1")) == {"NIGHTJAR_PROT": "NIGHTJAR_PORT", "NIGHTJAR_QQQQQQQ": ""}


def test_removed_settings_in_environment_or_arguments_names_successor() -> None:
    assert removed_settings({"NIGHTJAR_KEYS_FOR": "[]", "NIGHTJAR_PORT": "1"}, ["serve"]) == [
        "NIGHTJAR_KEYS_FOR: renamed to protected_paths"
    ]
    assert removed_settings({}, ["worker", "--keep-trying=true"]) == [
        "NIGHTJAR_KEEP_TRYING: renamed to retry_auth_errors"
    ]
    assert not REMOVED_SETTINGS.keys() & ALL_FIELDS.keys()


def test_settings_from_files_reads_secret(tmp_path: Path) -> None:
    secret = tmp_path / "keys"
    secret.write_text(f'["{"ab" * 32}"]\n')
    environment = {"NIGHTJAR_API_KEYS_FILE": str(secret), "NIGHTJAR_PORT": "1"}
    assert settings_from_files(environment) == {"NIGHTJAR_API_KEYS": f'["{"ab" * 32}"]'}
    assert unknown_settings(environment) == {}


def test_settings_from_files_given_twice_or_unreadable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"NIGHTJAR_API_KEYS_FILE: .*/missing cannot be read: No such file"):
        settings_from_files({"NIGHTJAR_API_KEYS_FILE": str(tmp_path / "missing")})
    with pytest.raises(ValueError, match="NIGHTJAR_API_KEYS is set as well"):
        settings_from_files({"NIGHTJAR_API_KEYS_FILE": "x", "NIGHTJAR_API_KEYS": "[]"})


def test_unused_settings_lists_variables_of_the_other_command() -> None:
    environment = dict.fromkeys(("NIGHTJAR_ADMIN_PORT", "NIGHTJAR_SOURCE", "NIGHTJAR_BUNDLE", "NIGHTJAR_URL"), "1")
    assert unused_settings(environment, Settings) == ["NIGHTJAR_SOURCE"]
    assert unused_settings(environment, StreamSettings) == ["NIGHTJAR_ADMIN_PORT"]


@pytest.mark.parametrize("name", ["repository", "schemas"])
def test_settings_missing_folder_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="is not a directory"):
        Settings.model_validate({name: tmp_path / "missing"})


def test_settings_limit_of_unknown_key_is_an_error() -> None:
    with pytest.raises(ValidationError, match="no key is named finke; keys: fink"):
        Settings(named_keys={"fink": ("ab" * 32,)}, key_limits={"finke": {"requests_per_second": 1}})


def test_settings_log_level_in_capitals_is_accepted() -> None:
    assert Settings(log_level="INFO").log_level == "info"
