"""Ctrl-C while a command imports a module."""

import subprocess
import sys


def interrupted_import(module: str, start: str) -> tuple[int, str]:
    """Return the status and the standard error of a program that is interrupted when it imports a module."""
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # may be inherited as ignored\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        f"sys.meta_path.insert(0, Finder())\n{start}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr
