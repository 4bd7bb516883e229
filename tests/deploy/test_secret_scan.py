"""Nothing that is tracked looks like a secret, and what looks like one is found."""

import subprocess
from pathlib import Path

import pytest

from deploy.secret_scan import KINDS, KNOWN, ROOT, Finding, findings, is_random, search, tracked

RANDOM = "q7Zt2Lw9Xv4Rk8Np3Yb6"
SECRETS = {
    "private key": "-----BEGIN RSA PRIVATE KEY-----\n" + RANDOM * 4 + "\n",
    "AWS access key": "key = AKIA" + "Q3EGRZ7L" * 2,
    "GitHub token": "ghp_" + RANDOM + RANDOM[:16],
    "GitLab token": "glpat-" + RANDOM,
    "Slack token": "xoxb-" + RANDOM,
    "Google key": "AIza" + RANDOM + RANDOM[:15],
    "PyPI token": "pypi-AgEIcHlwaS5vcmc" + RANDOM * 3,
    "Hugging Face token": "hf_" + RANDOM + RANDOM[:14],
    "JSON web token": f"eyJ{RANDOM}.eyJ{RANDOM}.{RANDOM}",
    "address with a password": f"redis://default:{RANDOM}@redis:6379/0",
    "assigned secret": f'cache_secret = "{RANDOM}"',
}


@pytest.fixture(scope="module")
def files() -> list[Path]:
    try:
        return tracked()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: nothing says which files belong to the project")


def test_no_tracked_file_holds_a_secret(files: list[Path]) -> None:
    assert findings(ROOT, files) == []


def test_files_that_are_left_out_exist(files: list[Path]) -> None:
    assert {path.relative_to(ROOT).as_posix() for path in files} >= KNOWN


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_is_found(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "notes.txt"
    place.write_text(f"nothing here\n{SECRETS[kind]}\n")
    assert Finding("notes.txt", 2, kind) in findings(tmp_path, [place])
    assert RANDOM not in str(findings(tmp_path, [place])[0]), "a report repeats no secret"


@pytest.mark.parametrize(
    "text",
    [
        'password = "correct-horse-battery-staple"',
        "redis://user:password@host:6379",
        "redis://{user}:{password}@host",
        'api_key: "a-key-for-the-examples-of-this-page"',
        "--hash=sha256:" + "0123456789abcdef" * 4,
        "-----BEGIN PRIVATE KEY-----",
        "http://127.0.0.1:8080/v1/classify@x",
    ],
)
def test_passwords_of_examples_are_no_secrets(text: str) -> None:
    assert list(search(text)) == []


def test_random_texts_are_told_from_words() -> None:
    assert is_random(RANDOM)
    assert not any(map(is_random, ("aaaaaaaaaaaaaaaaaaaa1", "correct-horse-battery", "0" * 32, "1234567890123456")))
