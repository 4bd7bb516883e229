"""Put the bill of materials into every wheel that hatchling builds, below ``.dist-info/sboms`` (PEP 770)."""

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BillOfMaterials(BuildHookInterface):  # type: ignore[misc]  # mypy does not look into hatchling
    """Writes the bill before a wheel is built; an installation in place has none, as its lock may change."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the file to hatchling."""
        if version == "editable":
            return
        bill = runpy.run_path(str(Path(self.root, "deploy", "sbom.py")))  # no module of this project is installed yet
        self._folder = tempfile.TemporaryDirectory(prefix="nightjar-")
        written = Path(self._folder.name, bill["NAME"])
        written.write_text(bill["text"](Path(self.root)))
        build_data["sbom_files"].append(str(written))
