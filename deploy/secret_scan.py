"""A search for secrets in files: keys of providers, private keys, addresses with passwords, and texts of high entropy.

    python -m deploy.secret_scan             what the repository tracks; exits with 1 when anything is found
    python -m deploy.secret_scan FOLDER      every file of a folder

It needs no network and no tool, so that every run of the tests makes it; gitleaks, which ``make audit`` runs where it
is installed, also looks through the history.
"""

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
MOST_BYTES: Final = 2 << 20  # of a file that is looked through: larger ones are data
LEAST_ENTROPY: Final = 3.5  # bits a character; words in English have about 3
_QUOTED: Final = r"""["']([A-Za-z0-9+/=_.~-]{16,})["']"""

KINDS: Final = {
    "private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=\s]{40}"),
    "AWS access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})"),
    "GitLab token": re.compile(r"\bglpat-[A-Za-z0-9_-]{20}"),
    "Slack token": re.compile(r"\bxox[abposr]-[A-Za-z0-9-]{10,}"),
    "Google key": re.compile(r"\bAIza[0-9A-Za-z_-]{35}"),
    "PyPI token": re.compile(r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}"),
    "Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{34}\b"),
    "JSON web token": re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    "address with a password": re.compile(r"\b[a-z][a-z0-9+]{1,15}://[^\s:/@\"'`{}<>$]*:([^\s:/@\"'`{}<>$]{3,})@"),
    "assigned secret": re.compile(
        r"(?i)\b[a-z_]*(?:password|passwd|secret|token|api_?key)[a-z_]*[\"']?\s*[:=]\s*" + _QUOTED
    ),
}
"""Patterns of secrets by kind; of a pattern with a group, only the text in the group has to look random."""

KNOWN: Final = frozenset({"tests/deploy/test_secret_scan.py"})
"""Files whose findings are made up: tests of this search."""
WORDS: Final = re.compile(r"(?i)secret|password|passw|hunter2|example|wrong|other|sesame|hush|user|name|redis|pass")
"""Words of which passwords in examples are made; random text holds none of them."""


class Finding(NamedTuple):
    """A place that looks like a secret; what stands there is not repeated."""

    path: str
    line: int
    kind: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}"


def findings(root: Path, files: Iterable[Path]) -> list[Finding]:
    """Search files below ``root``, but those of :data:`KNOWN`."""
    secrets = []
    for path in sorted(files):
        name = path.relative_to(root).as_posix()
        if name not in KNOWN and path.stat().st_size <= MOST_BYTES:
            text = path.read_bytes().decode("utf-8", "replace")
            secrets += [Finding(name, line, kind) for line, kind in search(text)]
    return secrets


def search(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and kind of everything that looks like a secret."""
    for kind, pattern in KINDS.items():
        for match in pattern.finditer(text):
            if not match.groups() or is_random(match[1]):
                yield text.count("\n", 0, match.start()) + 1, kind


def is_random(value: str) -> bool:
    """Return True for a text that nobody made up: many different characters, digits among them, and no word."""
    counts = Counter(value)
    entropy = -sum(count / len(value) * math.log2(count / len(value)) for count in counts.values())
    return entropy >= min(LEAST_ENTROPY, 0.9 * math.log2(len(value))) and not WORDS.search(value) and _mixed(value)


def _mixed(value: str) -> bool:
    return any(each.isdigit() for each in value) and any(each.isalpha() for each in value)


def tracked(root: Path = ROOT) -> list[Path]:
    """Return the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    paths = [root / name for name in listed.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def main() -> int:
    """Search what is tracked, or a folder, and say where."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else None
    secrets = findings(folder, filter(Path.is_file, folder.rglob("*"))) if folder else findings(ROOT, tracked())
    sys.stdout.write("".join(f"{one}\n" for one in secrets) or "no secrets found\n")
    return 1 if secrets else 0


if __name__ == "__main__":
    sys.exit(main())
