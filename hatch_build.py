"""Build hook of hatchling: compile the native kernels into the wheel, and tag the wheel for its platform.

The wheel is for the architecture of this machine, or for the one in ``NIGHTJAR_BUILD_MACHINE`` (x86_64, aarch64).
Elsewhere than on Linux with glibc it has no kernels and is for any platform. An editable install leaves the libraries
in the source tree, and has none where the compiler is not installed.
"""

import os
import platform
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeKernels(BuildHookInterface):  # type: ignore[misc]  # mypy does not look into hatchling
    """Builds the libraries of one architecture."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build them before the wheel, and name them to hatchling."""
        native = runpy.run_path(str(Path(self.root, "src", "nightjar_alerts", "models", "native.py")))
        machine = os.environ.get("NIGHTJAR_BUILD_MACHINE", platform.machine())
        has_glibc = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
        if not has_glibc or machine not in native["LEVELS"]:
            self.app.display_warning(f"no native kernels for {sys.platform} on {machine}: standard operators run")
            return
        if version == "editable" and find_spec("ziglang") is None:
            self.app.display_warning("ziglang is not installed, so no native kernels are built: standard operators run")
            return
        for library in native["build"](machine=machine):
            if version != "editable":
                inside = f"nightjar_alerts/models/kernels/{library.parent.name}/{library.name}"
                build_data["force_include"][str(library)] = inside
        if version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-manylinux_{native['GLIBC'].replace('.', '_')}_{machine}"
