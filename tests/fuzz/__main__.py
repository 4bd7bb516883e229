"""Fuzz every decoder for some time each.

    make fuzz MINUTES=1                             or, for one of them:
    PYTHONPATH=tests:. python -m fuzz --minutes 5 --targets plan json_body

Each target runs in a process of its own with limits on time and memory for each input, so slowness is a finding as much
as an exception. With atheris (``pip install '.[fuzz]'``) inputs follow coverage; without it they are small changes of
good ones. An input that is a finding is kept in ``build/fuzz/TARGET``: put it into ``tests/fuzz/corpus/TARGET`` with
the repair, and it is tried in every run of the tests.
"""

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

INPUT_SECONDS = 5
MEMORY_MB = 2048
MOST_BYTES = 1 << 16
MOST_WORDS = 1000
ROOT = Path(__file__).resolve().parents[2]


def coverage_guided(name: str, seconds: int, folder: Path) -> None:
    """Fuzz one target with atheris, which ends the process."""
    import atheris

    with atheris.instrument_imports(include=["models", "service", "nightjar_alerts", "msgspec", "python_multipart"]):
        from fuzz.targets import TARGETS, quiet, seeds
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(data)
    words = folder / "words"
    words.write_text("".join(f'"{word}"\n' for word in known_words(seeds(name))))
    limits = [f"-timeout={INPUT_SECONDS}", f"-rss_limit_mb={MEMORY_MB}", f"-max_len={MOST_BYTES}", f"-dict={words}"]
    target = TARGETS[name]

    def once(data: bytes) -> None:
        with quiet():
            target(data)

    arguments = [sys.argv[0], f"-max_total_time={seconds}", f"-artifact_prefix={folder}/", *limits, str(corpus)]
    atheris.Setup(arguments, once)
    atheris.Fuzz()


def known_words(good: Iterable[bytes]) -> list[str]:
    """Words of good input, which are put into others: coverage alone seldom finds the name of a field."""
    found = {word.decode() for data in good for word in re.findall(rb"[A-Za-z_][A-Za-z0-9_./-]{2,40}", data)}
    return sorted(found)[:MOST_WORDS]


def by_mutation(name: str, seconds: int, folder: Path) -> None:
    """Fuzz one target with changes of good inputs; prints what libFuzzer would."""
    from fuzz.mutate import mutated
    from fuzz.targets import TARGETS, quiet, seeds

    resource.setrlimit(resource.RLIMIT_AS, (4 * MEMORY_MB << 20, resource.RLIM_INFINITY))
    rng, known, tried = random.Random(time.time_ns()), list(seeds(name)), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = mutated(known, rng)
        started = time.thread_time()
        try:
            with quiet():
                TARGETS[name](data)
            slow = time.thread_time() - started > INPUT_SECONDS
        except Exception:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"crash-{rng.randbytes(4).hex()}").write_bytes(data)
            raise
        if slow:
            (folder / f"timeout-{rng.randbytes(4).hex()}").write_bytes(data)
            raise SystemExit(f"an input took more than {INPUT_SECONDS} s")
        tried += 1
    print(f"#{tried} DONE", file=sys.stderr)


def run(name: str, seconds: int, folder: Path) -> dict[str, Any]:
    """Fuzz one target in a process; what came of it."""
    command = [sys.executable, "-m", "fuzz", "--one", name, "--seconds", str(seconds), "--folder", str(folder / name)]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    tried = [int(found) for found in re.findall(r"^#(\d+)\s", done.stderr, re.MULTILINE)]
    edges = [int(found) for found in re.findall(r"cov: (\d+)", done.stderr)]
    found: dict[str, Any] = {"target": name, "tried": max(tried, default=0), "edges": max(edges, default=0)}
    if done.returncode:
        found["finding"] = done.stderr[-3000:]
    return found


def main() -> None:
    """Fuzz the targets asked for, print a table, exit with 1 after a finding."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="fuzz the decoders")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--targets", nargs="*", default=[])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, default=60, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        try:
            import atheris  # noqa: F401  # only whether it is installed matters
        except ImportError:
            by_mutation(options.one, options.seconds, options.folder)
        else:
            coverage_guided(options.one, options.seconds, options.folder)
        return
    from fuzz.targets import TARGETS

    rows = []
    for name in options.targets or TARGETS:
        rows.append(run(name, int(60 * options.minutes), options.folder))
        row = rows[-1]
        print(
            f"{name}: {row['tried']} inputs, {row['edges']} edges{', FINDING' if 'finding' in row else ''}", flush=True
        )
        if "finding" in row:
            print(row["finding"])
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "report.json").write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(any("finding" in row for row in rows))


if __name__ == "__main__":
    main()
