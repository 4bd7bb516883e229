"""Figures of the floor plan: how many files, who imports whom, and how many of them one request or one load crosses.

    python -m deploy.structure                  of this checkout
    python -m deploy.structure --tree OLD       of another one
    python -m deploy.structure --static         without starting a service
    python -m deploy.structure --names          with the names behind the figures

Importing is read from the source, imports within functions included. Crossing is observed: a service process notes
every function of ours that runs, in any thread, between one request and its reply; reading a module in is not counted.
Two stretches are noted besides, each below a function that is known by its name in this checkout and in older ones: how
the model of a request is chosen, and how a bundle in a folder becomes a model that is verified and measured.
"""

import argparse
import ast
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("models", "service", "training", "deploy")
HOST = "127.0.0.1"
START_SECONDS = 120.0
CURVE = {
    "object_id": "one",
    "mjd": [60_310.0 + 2.0 * place for place in range(12)],
    "flux": [300.0 + 250.0 * place for place in range(12)],
    "flux_err": [55.0] * 12,
    "band": ["gr"[place % 2] for place in range(12)],
}

Imports = Mapping[str, frozenset[str]]
"""Modules of ours by name, with the modules of ours that each imports."""


@dataclass(frozen=True)
class FloorPlan:
    """The import graph of a checkout and what follows from it; packages' ``__init__`` files are left out of all but
    the number of files.
    """

    files: int
    lines: int
    imports: Imports
    folders: Mapping[str, int]

    @property
    def single_importers(self) -> list[tuple[str, str]]:
        """Modules that exactly one other module imports, with that module."""
        importers: dict[str, list[str]] = {}
        for name, imported in self.imports.items():
            for one in imported:
                importers.setdefault(one, []).append(name)
        return sorted((name, names[0]) for name, names in importers.items() if len(names) == 1)

    @property
    def cycles(self) -> list[list[str]]:
        """Groups of modules that import each other, directly or round about."""
        return [sorted(group) for group in _components(self.imports) if len(group) > 1]


def read_plan(tree: Path) -> FloorPlan:
    """Read the import graph of a checkout's product rooms."""
    paths = [path for room in ROOMS for path in sorted((tree / room).rglob("*.py"))]
    modules = {_module(path.relative_to(tree)): path for path in paths if path.name != "__init__.py"}
    imports = {name: frozenset(_imported(path, name, modules)) - {name} for name, path in modules.items()}
    folders = Counter(str(path.relative_to(tree).parent) for path in modules.values())
    lines = sum(len(path.read_text().splitlines()) for path in paths)
    return FloorPlan(len(paths), lines, imports, folders)


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)


def _imported(path: Path, name: str, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (one for one in [node.module, *inner] if one in modules)


def _components(imports: Imports) -> list[set[str]]:
    """Strongly connected components (Tarjan 1972), without recursion."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[set[str]] = []
    for start in imports:
        if start in order:
            continue
        work = [(start, iter(sorted(imports[start])))]
        order[start] = low[start] = len(order)
        stack.append(start)
        while work:
            name, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == order[name]:
                    place = stack.index(name)
                    components.append(set(stack[place:]))
                    del stack[place:]
            elif following not in order:
                order[following] = low[following] = len(order)
                stack.append(following)
                work.append((following, iter(sorted(imports[following]))))
            elif following in stack:
                low[name] = min(low[name], order[following])
    return components


def crossed(tree: Path) -> dict[str, list[str]]:
    """Files of ours in which code ran: for one request, for choosing its model, for loading a model.

    Starts the service of ``tree`` with the bundled models, and a copy of one of them in a repository, to be loaded.
    """
    with tempfile.TemporaryDirectory(prefix="structure-") as name:
        folder = Path(name)
        (bundle,) = (tree / "models" / "pretrained" / "romae-elasticc").iterdir()
        (folder / "bundles" / "romae-elasticc").mkdir(parents=True)
        ports = [_free_port(), _free_port()]
        settings = {
            "PORT": str(ports[0]), "ADMIN_PORT": str(ports[1]), "REPOSITORY": str(folder / "bundles"), "WORKERS": "1",
            "AUTOTUNE": "false", "MEASUREMENTS_FOLDER": str(folder / "measurements"), "DRAIN_DELAY": "0",
        }  # fmt: skip
        environment = {key: text for key, text in os.environ.items() if not key.startswith("NIGHTJAR_")}
        environment |= {f"NIGHTJAR_{key}": text for key, text in settings.items()} | {"PYTHONPATH": str(tree)}
        command = [sys.executable, __file__, "--tree", str(tree), "--observe", str(folder / "crossed.json")]
        process = subprocess.Popen(command, env=environment, cwd=tree, stderr=subprocess.DEVNULL)
        try:
            _wait_ready(process, ports[0])
            (folder / "bundles" / "romae-elasticc" / bundle.name).symlink_to(bundle)
            observed = _Observed(process, folder / "crossed.json")
            _post(ports[0], "/v1/classify", CURVE | {"object_id": "first"})  # what runs once is not counted
            observed.since_last()
            _post(ports[0], "/v1/classify", CURVE | {"flux_err": [60.0] * 12})
            request = observed.since_last()
            _post(ports[1], "/admin/models/romae-elasticc/load", {})
            # The request that orders the load is not part of it; what the engine does besides, such as its watch, is.
            last = observed.since_last()
            load = [name for name in last["all"] if not name.startswith("service/http/")]
            return {"request": request["all"], "choose": request["choose"], "load": load, "verify": last["verify"]}
        finally:
            process.terminate()
            process.wait(60)


class _Observed:
    """An observed process that is asked which files it has crossed since the last time."""

    def __init__(self, process: "subprocess.Popen[bytes]", report: Path) -> None:
        self._process, self._report = process, report

    def since_last(self) -> dict[str, list[str]]:
        """Ask, and wait for the answer."""
        time.sleep(0.5)  # threads finish what they do after the reply is out
        self._report.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR2)
        while not self._report.exists():
            time.sleep(0.05)
        notes: dict[str, list[str]] = json.loads(self._report.read_text())
        return notes


STRETCHES = {
    "choose": frozenset({"lease_classifier", "classifier"}),  # which model answers
    "verify": frozenset({"load_one"}),  # from a folder to a verified and measured model, in the loader's thread
}
SERVED = ("models", "service")


class Crossing:
    """The files of a tree in which functions ran."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._names: dict[CodeType, str | None] = {}
        self._depths = threading.local()
        self.reset()

    def reset(self) -> None:
        """Forget what was noted."""
        self.all: set[str] = set()
        self.below: dict[str, set[str]] = {stretch: set() for stretch in STRETCHES}

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Take a call or return; the form of :func:`sys.setprofile`."""
        if event not in ("call", "return"):
            return
        name = self._name(frame.f_code)
        if name is None:
            return
        for stretch, functions in STRETCHES.items():
            entry = frame.f_code.co_name in functions
            depth = getattr(self._depths, stretch, 0) + (-entry if event == "return" else entry)
            setattr(self._depths, stretch, depth)
            if event == "call" and depth:
                self.below[stretch].add(name)
        if event == "call":
            self.all.add(name)

    def _name(self, code: CodeType) -> str | None:
        """Return the file of a function relative to the tree, None for a module's own code and for foreign files."""
        if code not in self._names:
            path = Path(code.co_filename)
            ours = path.is_relative_to(self._tree) and path.relative_to(self._tree).parts[0] in SERVED
            counted = ours and code.co_name != "<module>"
            self._names[code] = str(path.relative_to(self._tree)) if counted else None
        return self._names[code]


def serve_observed(tree: Path, report: Path) -> None:
    """Run the service of a tree; on SIGUSR2 what was noted since the last one is written to ``report``."""
    crossing = Crossing(tree)

    def tell(signum: int, frame: FrameType | None) -> None:
        notes = {name: sorted(files) for name, files in {"all": crossing.all, **crossing.below}.items()}
        crossing.reset()
        part = report.with_suffix(".part")
        part.write_text(json.dumps(notes))
        part.rename(report)

    signal.signal(signal.SIGUSR2, tell)
    threading.setprofile(crossing.note)
    sys.setprofile(crossing.note)
    sys.argv = ["nightjar", "serve"]
    sys.path[0] = str(tree)
    runpy.run_module("nightjar_alerts.service", run_name="__main__")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wait_ready(process: "subprocess.Popen[bytes]", port: int) -> None:
    give_up = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < give_up:
        try:
            connection = HTTPConnection(HOST, port, timeout=5)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass  # it does not listen yet
        time.sleep(0.2)
    raise RuntimeError("the observed service did not become ready")


def _post(port: int, path: str, body: object) -> None:
    connection = HTTPConnection(HOST, port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {response.read().decode()}")
    response.read()
    connection.close()


def _table(plan: FloorPlan, ways: Mapping[str, list[str]] | None) -> Iterator[str]:
    largest = max(plan.folders, key=lambda name: plan.folders[name])
    yield f"| product files | {plan.files} |"
    yield f"| lines | {plan.lines} |"
    yield f"| modules in the largest folder (`{largest}`) | {plan.folders[largest]} |"
    yield f"| modules with a single importer | {len(plan.single_importers)} |"
    yield f"| import cycles | {len(plan.cycles)} |"
    whats = {
        "request": "one `POST /v1/classify`",
        "choose": "which model answers",
        "load": "one load",
        "verify": "of these, from a folder to a verified model",
    }
    for name, what in whats.items():
        if ways is not None:
            yield f"| files crossed: {what} | {len(ways[name])} |"


def _names(plan: FloorPlan, ways: Mapping[str, list[str]] | None) -> Iterator[str]:
    yield from (f"one importer: {name} <- {importer}" for name, importer in plan.single_importers)
    yield from (f"cycle: {' '.join(group)}" for group in plan.cycles)
    for what, files in (ways or {}).items():
        yield from (f"{what}: {name}" for name in files)


def _write(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def main() -> None:
    """Print the figures as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--static", action="store_true", help="start no service")
    parser.add_argument("--names", action="store_true", help="the names behind the figures as well")
    parser.add_argument("--observe", type=Path, metavar="TOLD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    tree = options.tree.resolve()
    if options.observe:
        serve_observed(tree, options.observe)
        return
    plan = read_plan(tree)
    ways = None if options.static else crossed(tree)
    _write(["| figure | |", "|---|---|", *_table(plan, ways)])
    if options.names:
        _write(_names(plan, ways))


if __name__ == "__main__":
    main()
