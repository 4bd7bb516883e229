"""Command line of the contract: exit status of every subcommand, and facts in its output that are not wording."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nightjar_alerts.service.local import free_port
from support import alerts
from support.contract.exact import exact, replaced
from support.contract.masks import masked
from support.contract.processes import ROOT, run
from support.contract.servers import server
from support.graph_bundles import classifier_bundle

ROWS = r"^(\S.{23})  (\S.{15})  (\d\.\d\d  |      )  (\w+: \w+|[^:\n]+)"
"""Object, class, probability, and prediction set or the reason for none of a line of ``nightjar classify``."""
SUMMARY = r"^\d+ light curves?: (.*)$"
NAMED_SETTING = r"NIGHTJAR_[A-Z_]+"


@dataclass(frozen=True)
class Command:
    """One run; ``{folder}``, ``{url}`` and ``{port}`` in arguments and settings stand for those of the run.

    Parameters
    ----------
    facts : patterns whose matches in the output are compared.
    """

    arguments: str
    settings: Mapping[str, str] = field(default_factory=dict)
    facts: tuple[str, ...] = ()


def _setting(name: str, value: str, command: str = "serve", *facts: str) -> Command:
    return Command(command, {name: value}, facts)


SUBCOMMANDS = ("serve", "classify", "worker", "replay", "check", "demo", "settings")
FILES = {"SOURCE": "file:{folder}/packets", "SINK": "file:{folder}/results.jsonl"}

COMMANDS = [
    Command("--version", facts=(r"^nightjar \d+\.\d+",)),
    Command(""),
    Command("nonsense"),
    Command("serve --prot 1"),
    Command("--help", facts=tuple(rf"\b{name}\b" for name in SUBCOMMANDS)),
    *(Command(f"{name} --help") for name in SUBCOMMANDS),
    Command("settings", facts=(r"^\| `NIGHTJAR_(?:PORT|BUNDLE|API_KEYS|SOURCE|SINK|URL)`",)),
    Command("check {folder}/counter", facts=(r"^counter 0\.0\.1", r"\b[0-9a-f]{64}\b")),
    Command("check", facts=("^astro-moe-elasticc",)),
    Command("check {folder}/altered", facts=("sha256",)),
    Command("check {folder}"),
    Command("check {folder}/nowhere"),
    Command("check {folder}/counter --provider quantum"),
    Command("classify {folder}/packets --url {url}", facts=(ROWS, SUMMARY)),
    Command("classify {folder}/packets/0.avro {folder}/notes.txt --url {url}", facts=(ROWS, SUMMARY)),
    Command("classify {folder}/nowhere.avro --url {url}"),
    Command("classify {folder}/empty --url {url}"),
    Command("classify {folder}/bad.tar.gz --url {url}"),
    Command("classify {folder}/packets --url http://127.0.0.1:{port}"),
    Command("classify {folder}/packets --url ftp://x"),
    Command("classify"),
    Command("demo {folder}/packets", facts=(ROWS, SUMMARY)),
    Command("demo {folder}/nowhere"),
    _setting("PORT", "x", "serve", NAMED_SETTING),
    _setting("API_KEYS", "secret", "serve", NAMED_SETTING),
    _setting("API_KEYS", '["secret"]', "serve", NAMED_SETTING),
    _setting("KEY_LIMITS", '{"*": {"curves": 1}}', "serve", NAMED_SETTING, r"\*\.curves"),
    _setting("MAX_CURVES", "0", "serve", NAMED_SETTING),
    _setting("ALIASES", '{"Bad Name": "x"}', "serve", NAMED_SETTING),
    _setting("BUNDLE", "{folder}/nowhere"),
    _setting("BUNDLE", "{folder}/altered"),
    _setting("HOST", "0.0.0.0"),
    Command("serve", {"ADMIN_HOST": "0.0.0.0", "ADMIN_PORT": "0"}),
    _setting("SINK_FORMAT", "xml", "worker", NAMED_SETTING),
    *(
        Command(command, FILES | changes)
        for command in ("worker", "replay")
        for changes in (
            {"SOURCE": ""}, {"SINK": ""}, {"SOURCE": "ftp://x/y"}, {"SOURCE": "file:{folder}/nowhere"},
            {"SINK": "redis://127.0.0.1:{port}"}, {"SINK": "kafka://127.0.0.1:{port}/x?surprise=1"},
        )
    ),
    Command("worker --sink redis://user:password@host/results", FILES),
    Command("replay", FILES),
]  # fmt: skip


def run_commands(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Exit status and facts of every command, and whether it printed a traceback; and all that it printed."""
    bundle = classifier_bundle(folder / "counter").path
    _make_files(folder, bundle)
    with server(folder, {"BUNDLE": str(bundle)}) as (_, ports), ThreadPoolExecutor(2) as pool:
        values = {"folder": str(folder), "url": f"http://127.0.0.1:{ports['http']}", "port": str(free_port())}
        outputs = list(pool.map(lambda command: _run(command, folder, values), COMMANDS))
    masks = {str(folder): "<folder>"}
    names = [f"{index:02d} {_name(command)}" for index, command in enumerate(COMMANDS)]
    found = [masked(_facts(*pair), masks) for pair in zip(COMMANDS, outputs, strict=True)]
    raw = [replaced(_printed(output), masks | {str(ROOT): "<tree>"}) for output in outputs]
    return dict(zip(names, found, strict=True)), dict(zip(names, raw, strict=True))


def _name(command: Command) -> str:
    settings = " ".join(f"{setting}={text}" for setting, text in command.settings.items())
    return f"{settings} nightjar {command.arguments}"


def _run(command: Command, folder: Path, values: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    settings = {"PORT": "0", "WORKER_PORT": "0"} | dict(command.settings)
    filled = {setting: _filled(text, values) for setting, text in settings.items()}
    return run(_filled(command.arguments, values).split(), folder, **filled)


def _printed(ended: "subprocess.CompletedProcess[str]") -> str:
    """Exit status, standard output and standard error."""
    printed = (("standard output", ended.stdout), ("standard error", ended.stderr))
    parts = [exact([name.encode()], text.encode()) for name, text in printed]
    return "".join([f"exit status {ended.returncode}\n", *parts])


def _facts(command: Command, ended: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    output = f"{ended.stdout}\n{ended.stderr}"
    return {
        "status": ended.returncode,
        "facts": [sorted(set(re.findall(fact, output, re.M))) for fact in command.facts],
        "traceback": "Traceback" in output,
    }


def _make_files(folder: Path, bundle: Path) -> None:
    """Packets, a damaged bundle, and files and folders that are none."""
    altered = shutil.copytree(bundle, folder / "altered")
    (altered / "model.onnx").write_bytes((altered / "model.onnx").read_bytes() + b"\0")
    (folder / "empty").mkdir()
    (folder / "bad.tar.gz").write_bytes(b"\x1f\x8b nonsense")
    (folder / "notes.txt").write_text("not a packet")
    (folder / "packets").mkdir()
    lsst, ztf = alerts.confluent(1000, alerts.lsst_alert()), alerts.container("ztf/4.02", [alerts.ztf_alert()])
    for index, packet in enumerate((lsst, ztf, lsst[:60])):
        (folder / "packets" / f"{index}.avro").write_bytes(packet)


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
