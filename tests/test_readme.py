"""The code in README.md runs.

Each bash or python block has an HTML comment above it, invisible on the rendered page, that says how it is tested:

- ``<!-- test: run -->``: run as it stands;
- ``<!-- test: service -->``: run against a live service, whose address replaces ``localhost:8080``;
- ``<!-- test: skip REASON -->``: not run, and why.

Blocks run in the order of the page, in one scratch copy of the project root, so a block may use a file that an earlier
one wrote. A curl that gets an error status fails its block.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from service.commands.process import Service, running

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
LOCAL = re.compile(r"\b(localhost|127\.0\.0\.1):8080\b")
SHELLS = {"bash", "sh", "shell", "console"}
TESTED = SHELLS | {"python"}
TIMEOUT = 600  # seconds for a block; a busy machine trains slowly

# Written for people, curl exits 0 on an error status and shows a progress bar; for a test it must do neither.
STRICT_CURL = 'curl() { command curl --fail-with-body --silent --show-error "$@"; }\n'

FENCE = re.compile(
    r"(?:^<!-- test: (?P<tag>[^\n]*?) -->\n\s*)?^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """One fenced block and the tag above it (empty when there is none)."""

    line: int
    language: str
    tag: str
    code: str


def blocks(text: str) -> list[Block]:
    found = (
        Block(text.count("\n", 0, m.start("language")) + 1, m["language"], m["tag"] or "", m["code"])
        for m in FENCE.finditer(text)
    )
    return [block for block in found if block.language in TESTED]


BLOCKS = blocks(README.read_text()) if README.exists() else []
RUN = [block for block in BLOCKS if block.tag in ("run", "service")]


def test_tags_are_found() -> None:
    page = "<!-- test: run -->\n```bash\nls\n```\n\n```json\n{}\n```\n\ntext\n```python\nprint()\n```\n"
    assert blocks(page) == [Block(2, "bash", "run", "ls\n"), Block(11, "python", "", "print()\n")]


def test_every_block_says_how_it_is_tested() -> None:
    assert BLOCKS, "README.md has no code block"
    untagged = [b.line for b in BLOCKS if b.tag not in ("run", "service") and not re.match(r"skip \w", b.tag)]
    assert untagged == [], "lines of README.md: a block without <!-- test: run | service | skip REASON --> above it"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running() as live:
        yield live


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the project root and may be written to."""
    folder = tmp_path_factory.mktemp("readme")
    for entry in ROOT.iterdir():
        if entry.name not in (".git", "build"):
            (folder / entry.name).symlink_to(entry)
    return folder


def command(block: Block, url: str) -> list[str]:
    code = LOCAL.sub(url.removeprefix("http://"), block.code) if url else block.code
    if block.language == "python":
        return [sys.executable, "-W", "error", "-c", code]
    return ["bash", "-euo", "pipefail", "-c", STRICT_CURL + code]


@pytest.mark.parametrize("block", RUN, ids=[f"line {block.line}" for block in RUN])
def test_block(block: Block, scratch: Path, request: pytest.FixtureRequest) -> None:
    if block.language in SHELLS and "curl " in block.code and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    url = request.getfixturevalue("service").url if block.tag == "service" else ""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NIGHTJAR_URL": url}
    status, printed = run_alone(command(block, url), scratch, environment)
    assert status == 0, f"README.md line {block.line}\n{block.code}\n{printed}"


def run_alone(arguments: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit status and output of a command; past its time it is killed with everything it started."""
    with subprocess.Popen(
        arguments, cwd=folder, env=environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, printed
