"""Run the service of a checkout and note in which of its files code runs; :mod:`deploy.structure` starts it.

    python deploy/crossing.py TREE TOLD

On SIGUSR2 what has been noted since the last one is written to TOLD. Reading a module in is not counted, only functions
are. The stretch below the function that chooses the model of a request is noted besides; it is known by its name, in
this checkout and in older ones.
"""

import json
import runpy
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

CHOOSE = frozenset({"lease_classifier", "classifier"})
_ROOMS = ("models", "service")


class Crossing:
    """The files of a tree in which functions ran."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._names: dict[CodeType, str | None] = {}
        self._below = threading.local()
        self.reset()

    def reset(self) -> None:
        """Forget what was noted."""
        self.all: set[str] = set()
        self.choose: set[str] = set()

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Take a call or return; the form of :func:`sys.setprofile`."""
        if event not in ("call", "return"):
            return
        name = self._name(frame.f_code)
        if name is None:
            return
        depth: int = getattr(self._below, "depth", 0)
        entry = frame.f_code.co_name in CHOOSE
        self._below.depth = depth - entry if event == "return" else depth + entry
        if event == "call" and self._below.depth:
            self.choose.add(name)
        if event == "call":
            self.all.add(name)

    def _name(self, code: CodeType) -> str | None:
        """Return the file of a function relative to the tree, None for a module's own code and for foreign files."""
        if code not in self._names:
            path = Path(code.co_filename)
            ours = path.is_relative_to(self._tree) and path.relative_to(self._tree).parts[0] in _ROOMS
            counted = ours and code.co_name != "<module>"
            self._names[code] = str(path.relative_to(self._tree)) if counted else None
        return self._names[code]


def main() -> None:
    """Serve, observed."""
    tree, told = Path(sys.argv[1]), Path(sys.argv[2])
    crossing = Crossing(tree)

    def tell(signum: int, frame: FrameType | None) -> None:
        found = {name: sorted(getattr(crossing, name)) for name in ("all", "choose")}
        crossing.reset()
        part = told.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.rename(told)

    signal.signal(signal.SIGUSR2, tell)
    threading.setprofile(crossing.note)
    sys.setprofile(crossing.note)
    sys.argv = ["nightjar", "serve"]
    sys.path[0] = str(tree)
    runpy.run_module("service", run_name="__main__")


if __name__ == "__main__":
    main()
