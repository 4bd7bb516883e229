"""The command ``nightjar``. ``classify`` and ``catalog`` need onnxruntime, all other commands the web stack."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from nightjar_alerts.models.common import how_to_install, interruptible_imports

SERVER_PACKAGES: Final = ("fastapi", "onnxruntime", "pydantic_settings")
USAGE: Final = f"""usage: nightjar {{classify,catalog,serve,worker,replay,dead-letters,check,demo,settings}} ...

Real-time classification of astronomical alerts.

  classify FILE...   classify light curves and alerts: tables, JSON, packets, folders, archives
                     nightjar classify photometry.csv -o results.csv
  catalog IN OUT     classify an archive partition by partition: HATS, folders of Parquet or packets

serve, worker, replay, dead-letters, check, demo and settings need the web stack:
{how_to_install("cpu")}.
[gpu] is for CUDA GPUs. There is no shell completion.
"""


def main(arguments: list[str] | None = None) -> None:
    """Run a command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"nightjar {_version()}")
    elif arguments[:1] in (["classify"], ["catalog"]):
        with interruptible_imports("nightjar"):
            command = import_module(f"nightjar_alerts.{arguments[0]}_command")
        sys.exit(command.main(arguments[1:]))
    elif not arguments:
        print(USAGE, end="", file=sys.stderr)
        sys.exit(2)
    elif missing := [name for name in SERVER_PACKAGES if find_spec(name) is None]:
        if arguments in (["-h"], ["--help"]):
            print(USAGE, end="")
            return
        sys.exit(f"nightjar: {' and '.join(missing)} not installed: {how_to_install('cpu')}; [gpu] is for CUDA GPUs")
    else:
        with interruptible_imports("nightjar"):
            from nightjar_alerts.service.__main__ import main as serve
        serve(arguments)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("nightjar-alerts")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"
