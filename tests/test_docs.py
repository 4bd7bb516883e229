"""The pages are true: the code in README.md, CONTRIBUTING.md and docs/ runs, and their links lead somewhere.

Each bash, python or diff block has an HTML comment above it, invisible on the rendered page, that says how it is
tested:

- ``<!-- test: run -->``: run as it stands;
- ``<!-- test: service -->``: run against a live service, whose addresses replace ``localhost:8080`` and, for gRPC,
  ``localhost:8001``;
- ``<!-- test: file PATH -->``: write the block to PATH, as the text around it asks the reader to;
- ``<!-- test: patch -->``: apply the diff;
- ``<!-- test: skip REASON -->``: not run, and why.

A page is one test. Its blocks run in order in one scratch folder that looks like the project root, so a block may use
a file that an earlier one wrote. A page that writes or patches gets a real copy of the project instead of links to it.
All pages share one running service. A curl that gets an error status fails its block. Other blocks are shown, not run:
those that say they are JSON must be JSON.

What README shows is what the bundled models answer, to the digits shown, and is a good answer.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote
from urllib.request import Request, urlopen

import pytest

from nightjar_alerts.core.schemas import fields_of
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.service.local import ServiceProcess, free_port, running

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
SAMPLES = ROOT / "service" / "samples"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LOCAL = re.compile(r"\b(localhost|127\.0\.0\.1):8080\b")
LOCAL_GRPC, GRPC_PORT = "localhost:8001", free_port()
SHELLS = {"bash", "sh", "shell", "console"}
TESTED = SHELLS | {"python", "diff"}
COPIED = ("deploy", "models", "service", "src", "tests", "training")  # what a page may change
TIMEOUT = 600  # seconds for a block; a busy machine trains slowly

# Written for people, curl exits 0 on an error status and shows a progress bar; for a test it must do neither.
STRICT_CURL = 'curl() { command curl --fail-with-body --silent --show-error "$@"; }\n'

FENCE = re.compile(
    r"(?:^<!-- test: (?P<tag>[^\n]*?) -->\n\s*)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\((?P<target>[^)\s]+)\)|!\[[^\]]*\]\((?P<image>[^)\s]+)\)")


class Block(NamedTuple):
    """One fenced block and the tag above it (empty when there is none)."""

    line: int
    language: str
    tag: str
    code: str


def blocks(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, m.start("language")) + 1, m["language"], m["tag"] or "", m["code"])
        for m in FENCE.finditer(text)
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_tags_are_found() -> None:
    page = "<!-- test: run -->\n```bash\nls\n```\n\n```json\n{}\n```\n\ntext\n```python\nprint()\n```\n"
    assert blocks(page) == [
        Block(2, "bash", "run", "ls\n"),
        Block(6, "json", "", "{}\n"),
        Block(11, "python", "", "print()\n"),
    ]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_how_it_is_tested(page: Path) -> None:
    known = re.compile(r"run|service|file [\w./-]+|patch|skip \w.*")
    found = blocks(page.read_text())
    assert [b.line for b in found if not b.language] == [], "blocks that do not say what language they are in"
    assert [b.line for b in found if b.language in TESTED and not known.fullmatch(b.tag)] == [], "blocks without a tag"
    for block in found:
        if block.language == "json":
            json.loads(block.code)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    targets = [match["target"] or match["image"] for match in LINK.finditer(text)]
    assert [target for target in targets if not leads_somewhere(page, target)] == []


def leads_somewhere(page: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return True  # of the web: nothing here depends on a network
    path, _, anchor = unquote(target).partition("#")
    file = (page.parent / path) if path else page
    if not file.exists():
        return False
    return not anchor or file.suffix != ".md" or anchor in anchors(file.read_text())


def anchors(text: str) -> set[str]:
    """Names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.*?) *$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def test_every_field_of_a_result_is_explained() -> None:
    explained = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "answers.md").read_text()))
    fields = {"status", *fields_of("CurveResult", "CurveFailure", "PacketResult", "PacketFailure")}
    assert fields - explained == set()


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    grpc = {} if find_spec("grpc_health") is None else {"NIGHTJAR_GRPC_PORT": str(GRPC_PORT)}
    with running(settings=grpc) as live:
        yield live


def linked(folder: Path) -> Path:
    """A folder that looks like the project root and may be written to."""
    for entry in ROOT.iterdir():
        if entry.name not in (".git", "build"):
            (folder / entry.name).symlink_to(entry)
    return folder


def copied(folder: Path) -> Path:
    """A copy of the project that may be changed; the bundled models are links, being large."""
    for entry in ROOT.iterdir():
        if entry.name in COPIED:
            ignore = shutil.ignore_patterns("__pycache__", "pretrained")
            shutil.copytree(entry, folder / entry.name, symlinks=True, ignore=ignore)  # src links to the other folders
        elif entry.is_file():
            shutil.copy(entry, folder)
    (folder / "models" / "pretrained").symlink_to(ROOT / "models" / "pretrained")
    shutil.copytree(ROOT / "docs", folder / "docs")
    return folder


RUN = ("run", "service", "file", "patch")


def runnable(page: Path) -> list[Block]:
    return [b for b in blocks(page.read_text()) if b.tag.partition(" ")[0] in RUN]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=name)
def test_page(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = runnable(page)
    if any(b.language in SHELLS and "curl " in b.code for b in found) and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    if any(LOCAL_GRPC in b.code for b in found):
        pytest.importorskip("grpc_health", reason="grpc is missing: pip install '.[grpc]'")
    url = request.getfixturevalue("service").url if any(b.tag == "service" for b in found) else ""
    changes = any(b.tag.startswith(("file", "patch")) for b in found)
    folder = copied(tmp_path) if changes else linked(tmp_path)
    for block in found:
        status, printed = follow(block, folder, url)
        assert status == 0, f"{name(page)} line {block.line}\n{block.code}\n{printed}"


def follow(block: Block, folder: Path, url: str) -> tuple[int, str]:
    """Do what a block says; its exit status, and what it printed."""
    kind, _, target = block.tag.partition(" ")
    if kind == "file":
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        (folder / target).write_text(block.code)
        return 0, ""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NIGHTJAR_URL": url, "PYTHONPATH": f"{folder}:{folder / 'src'}"}
    if kind == "patch":
        (folder / "block.patch").write_text(block.code)
        return run_alone(["git", "apply", "--recount", "-C1", "block.patch"], folder, environment)
    return run_alone(command(block, url), folder, environment)


def command(block: Block, url: str) -> list[str]:
    code = LOCAL.sub(url.removeprefix("http://"), block.code) if url else block.code
    code = code.replace(LOCAL_GRPC, f"127.0.0.1:{GRPC_PORT}") if url else code
    if block.language == "python":
        return [sys.executable, "-W", "error", "-c", code]
    return ["bash", "-euo", "pipefail", "-c", STRICT_CURL + code]


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


def post(url: str, body: bytes, kind: str) -> dict[str, Any]:
    with urlopen(Request(url, body, {"content-type": kind}), timeout=TIMEOUT) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


@pytest.mark.slow
def test_readme_shows_the_answer_that_its_light_curve_gets(service: ServiceProcess) -> None:
    found = blocks(README.read_text())
    (sent,) = (match[1] for b in found if (match := re.search(r"v1/classify .* -d '(\{.*\})'", b.code, re.DOTALL)))
    (shown,) = (json.loads(b.code) for b in found if b.language == "json")
    reply = post(f"{service.url}/v1/classify", sent.encode(), "application/json")
    (expected,), (result,) = shown["results"], reply["results"]
    assert {key: reply["model"][key] for key in shown["model"]} == shown["model"]
    assert result["status"] == "classified"
    assert result["unusual"] is False
    assert result["class"] == expected["class"] == max(result["probabilities"], key=result["probabilities"].__getitem__)
    assert result["class"] in result["prediction_set"]
    assert len(result["prediction_set"]) < len(ELASTICC.names) / 2, "a set of most classes says nothing"
    answered = {key: digits(value) for key, value in result.items()}
    assert {key: digits(value) for key, value in expected.items()} == {
        **{key: answered[key] for key in expected},
        "probabilities": {name: answered["probabilities"][name] for name in expected["probabilities"]},
    }
    most_probable = sorted(result["probabilities"], key=lambda name: -result["probabilities"][name])
    assert list(expected["probabilities"]) == most_probable[: len(expected["probabilities"])]


def digits(value: Any) -> Any:
    """Return an answer with the digits that README shows of it."""
    if isinstance(value, dict):
        return {key: digits(one) for key, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value


@pytest.mark.slow
def test_first_table_shows_what_the_command_prints() -> None:
    found = blocks((ROOT / "docs" / "first-table.md").read_text())
    (shown,) = (block.code for block in found if "prediction set" in block.code and block.language == "text")
    command = [sys.executable, "-m", "nightjar_alerts.service", "classify", "docs/examples/photometry.csv"]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stderr + done.stdout).splitlines() == shown.splitlines()


SIMULATED = {"elasticc": ("KN", "Ib/c", "TDE", "EB"), "lsst": ("Ia", "II", "SLSN", "AGN")}


@pytest.mark.slow
@pytest.mark.parametrize("survey", ["elasticc", "lsst"])
def test_sets_of_the_sample_packets_hold_their_true_class(survey: str, service: ServiceProcess) -> None:
    """README says so; an object id holds the number of the class that was simulated, after 98765."""
    truth = {class_id(name) for name in SIMULATED[survey]}
    told: dict[str, tuple[str, bool, bool]] = {}
    for packet in SAMPLES.glob(f"{survey}_*.avro"):
        (result,) = post(f"{service.url}/v1/alerts", packet.read_bytes(), "application/octet-stream")["results"]
        (number,) = (number for number in truth if packet.stem.startswith(f"{survey}_98765{number}"))
        told[number] = result["status"], result["unusual"], number in {class_id(c) for c in result["prediction_set"]}
    assert told == dict.fromkeys(truth, ("classified", False, True))


def class_id(name: str) -> str:
    return str(ELASTICC.classes[ELASTICC.names.index(name)].id)


@pytest.mark.slow
def test_the_variable_star_among_the_samples_is_called_a_periodic_variable(service: ServiceProcess) -> None:
    packet = (SAMPLES / "ztf_ZTF26ixrptgi.avro").read_bytes()
    (result,) = post(f"{service.url}/v1/alerts", packet, "application/octet-stream")["results"]
    assert result["hierarchy"]["Periodic"] > 0.9
    assert set(result["prediction_set"]) <= {"RR Lyrae", "Cepheid", "EB", "Delta Scuti"}
    assert "subtype" not in result
