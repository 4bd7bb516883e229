"""Exact form of an output: its bytes as text, without what differs between runs.

A case is its head (status line and headers, or the headers of a record) and its body, both in the order in which they
came. Each line of the body begins with ``|``. A line that begins with a space continues the line before it: JSON is
broken at its members, so that a diff shows which one changed. A body that is no text has lines that begin with ``*``
and escape its bytes as Python does. Joined again, the lines are the bytes that were sent, except what is masked:
identifiers of requests and traces, SHA-256 sums, times, durations, ports, paths, and the values of metrics. In dead
letters, the message is named where it is one of ``inputs.PACKETS``, and base64 in their files is decoded.

Everything else is equal to the last byte, digits of numbers included, on a machine like the one that recorded, whose
description (:func:`machine`) is the first line of a recording. The processor's instructions and the versions of
onnxruntime and NumPy change the order of sums, and with it the last digits of scores; the number of cores does not. On
another machine, numbers with a fraction may therefore differ by ``masks.TOLERANCE``, absolute and relative, and of a
body that is no text only the decoded form is compared (:mod:`support.contract.masks`). Texts, the order of members,
white space and headers are equal on every machine.
"""

import math
import platform
import re
from collections.abc import Iterable, Mapping
from difflib import unified_diff
from importlib.metadata import version
from pathlib import Path

from support.contract.masks import TOLERANCE, Masks
from support.contract.processes import ROOT

FOLDER = ROOT / "tests" / "contract" / "exact"

_INSTRUCTIONS = ("avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_int8")
"""Instructions by which libraries choose how they compute."""
_HEAD_MASKS = (
    # Whether the service was asked before it was ready.
    (rb'(?m)^nightjar_requests_(?:total|created)\{code="503",route="/readyz"\}.*\n', b""),
    (rb"(?im)^(date|retry-after|content-length): .*", rb"\1: <number>"),
    (rb"\bdur=[\d.]+", b"dur=<number>"),
)
_MASKS = (
    # Whether the service was asked before it was ready.
    (rb'(?m)^nightjar_requests_(?:total|created)\{code="503",route="/readyz"\}.*\n', b""),
    (rb"\b[0-9a-f]{64}\b", b"<sha256>"),
    (rb"\b00-[0-9a-f]{32}-[0-9a-f]{16}\b", b"00-<trace>-<span>"),
    (rb"\b[0-9a-f]{32}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", b"<id>"),
    (rb"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(?:\.\d+)?", rb"<date>\1<time>"),
    (rb'("(?:load_seconds|mean_seconds|since|retry_after)":)[\d.e-]+', rb"\1<number>"),
    (rb'(nightjar-dead-timestamp(?:","|: ))\d+', rb"\1<number>"),
    (rb"\b127\.0\.0\.1:\d+", b"127.0.0.1:<port>"),
    (rb"\bafter [\d.]+ s\b", b"after <number> s"),
    (rb"\(default:\s+/[^)]*\)", b"(default: <path>)"),
    (rb"(?m)^native kernels: .*", b"native kernels: <as compiled>"),
    (rb"\bpython_info\{.*\}", b"python_info{<version>}"),
    (rb"(?m)^( +\d+ +\d+) +[\d.]+ +[\d.]+$", rb"\1 <number> <number>"),
    (rb"(?m)^(nightjar_\w+|process_\w+|python_\w+)(\{.*\})? [-+.\de]+$", rb"\1\2 <number>"),
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_ESCAPED = re.compile(r"(?:\\x..|\\.|[^\\]){1,60}")
_MEMBER = re.compile(r'(?<=[,\[{])(?=["{\[])')
_BINARY = re.compile(r"(?m)^\*.*\n")
_NUMBER = re.compile(r"-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)")


def exact(head: Iterable[bytes], body: bytes) -> str:
    """Lines of the head, an empty line, and lines of the body."""
    top = b"".join(line + b"\n" for line in head)
    for pattern, replacement in _HEAD_MASKS:
        top = re.sub(pattern, replacement, top)
    return "\n".join([*_masked(top).decode().splitlines(), "", *_lines(_masked(body))]) + "\n"


def replaced(text: str, masks: Masks) -> str:
    """An exact form without the texts of this run."""
    for found, replacement in masks.items():
        text = text.replace(found, replacement)
    return text


def _masked(data: bytes) -> bytes:
    for pattern, replacement in _MASKS:
        data = re.sub(pattern, replacement, data)
    return data


def _lines(body: bytes) -> list[str]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if _CONTROL.search(text):
        return [f"*{line}" for line in _ESCAPED.findall(body.decode("latin-1").encode("unicode_escape").decode())]
    return ["|" + _MEMBER.sub("\n ", line) for line in text.split("\n")]


def machine() -> str:
    """What the last digits of numbers depend on."""
    processor = Path("/proc/cpuinfo")
    facts = processor.read_text() if processor.exists() else f"model name: {platform.platform()}"
    names = re.findall(r"^model name\s*: (.*)$", facts, re.M)[:1]
    words = set(facts.split())
    libraries = (f"{name} {version(name)}" for name in ("onnxruntime", "numpy"))
    return ", ".join([*names, *(word for word in _INSTRUCTIONS if word in words), *platform.libc_ver(), *libraries])


def write(part: str, cases: Mapping[str, str]) -> None:
    """Replace the recording of a part."""
    FOLDER.mkdir(exist_ok=True)
    text = "".join(f"=== {case}\n{output}" for case, output in cases.items())
    _file(part).write_text(f"{machine()}\n{text}")


def _file(part: str) -> Path:
    return FOLDER / f"{part.replace(' ', '-')}.txt"


def exact_differences(part: str, found: Mapping[str, str], digits: bool = False) -> list[str]:
    """Return the unified diff of the first case that differs from its recording, and the names of all of them.

    Parameters
    ----------
    digits : compare all digits, also if another kind of machine recorded them.
    """
    made_on, *sections = re.split(r"(?m)^=== ", _file(part).read_text())
    recorded = dict(section.split("\n", 1) for section in sections)
    equal = str.__eq__ if digits or made_on.strip() == machine() else _close
    names = [name for name in {**recorded, **found} if not equal(recorded.get(name, ""), found.get(name, ""))]
    if not names:
        return []
    before, after = (cases.get(names[0], "").splitlines() for cases in (recorded, found))
    return [*unified_diff(before, after, "recorded", "found", lineterm=""), f"cases that differ: {', '.join(names)}"]


def _close(recorded: str, found: str) -> bool:
    """Whether texts are equal but for the last digits of numbers and bodies that are no text."""
    before, after = (_BINARY.sub("", text) for text in (recorded, found))
    numbers = zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=False)
    return _NUMBER.split(before) == _NUMBER.split(after) and all(
        math.isclose(float(one), float(other), rel_tol=TOLERANCE, abs_tol=TOLERANCE) for one, other in numbers
    )
