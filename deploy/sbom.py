"""The bill of materials: what serves, as CycloneDX 1.6, from the lock file and the bundles that are shipped.

    python -m deploy.sbom > build/sbom.json

Every package that ``deploy/requirements.txt`` names, with version, package URL and the SHA-256 of each of its files,
and every bundled model with the SHA-256 of its graph. Nothing is asked of any server, and the same tree gives the same
bytes. As a build hook of hatchling (:class:`BillOfMaterials`) this file puts it into every wheel, below
``.dist-info/sboms`` (PEP 770).
"""

import hashlib
import json
import re
import sys
import tempfile
import tomllib
import uuid
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).resolve().parents[1]
NAME: Final = "nightjar-alerts.cdx.json"
_ENTRY: Final = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?P<rest>(?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAMESPACE: Final = uuid.UUID("0f6c2a1e-93c0-5a3f-9a0e-6a7f6e2c4b10")  # of serial numbers; drawn once


def document(root: Path = ROOT) -> dict[str, Any]:
    """Return the bill of a source tree."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    own = _component(project["name"], project["version"], "application")
    own["licenses"] = [{"license": {"id": project["license"]}}]
    parts = [*packages((root / "deploy" / "requirements.txt").read_text()), *models(root)]
    serial = uuid.uuid5(_NAMESPACE, json.dumps([own, parts], sort_keys=True))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": own},
        "components": parts,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def packages(lock: str) -> list[dict[str, Any]]:
    """Return a component for each package of a file of requirements. Raises ValueError for one without a hash."""
    components = []
    for entry in _ENTRY.finditer(lock):
        part = _component(entry["name"].lower(), entry["version"], "library")
        hashes = _HASH.findall(entry["rest"])
        if not hashes:
            raise ValueError(f"{entry['name']} has no hash")
        # A package is one of several files, whichever fits the machine; a component's own hashes would be of one.
        index = f"https://pypi.org/project/{entry['name'].lower()}/{entry['version']}/#files"
        each = [{"alg": "SHA-256", "content": content} for content in sorted(set(hashes))]
        part["externalReferences"] = [{"type": "distribution", "url": index, "hashes": [one]} for one in each]
        components.append(part)
    return components


def models(root: Path) -> list[dict[str, Any]]:
    """Return a component for each bundle that the package holds."""
    components = []
    for manifest in sorted((root / "models" / "pretrained").glob("*/*/manifest.json")):
        facts = json.loads(manifest.read_text())
        graph = hashlib.sha256((manifest.parent / "model.onnx").read_bytes()).hexdigest()
        name, version = facts["name"], facts["version"]
        components.append(
            {
                "type": "machine-learning-model",
                "bom-ref": f"model:{name}@{version}",
                "name": name,
                "version": version,
                "hashes": [{"alg": "SHA-256", "content": graph}],
            }
        )
    return components


def text(root: Path = ROOT) -> str:
    """Return the bill as it is written."""
    return json.dumps(document(root), indent=1) + "\n"


def _component(name: str, version: str, kind: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name)}@{version}"
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


class BillOfMaterials(BuildHookInterface):  # type: ignore[misc]  # mypy does not look into hatchling
    """Writes the bill before a wheel is built; an installation in place has none, as its lock may change."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the file to hatchling."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="nightjar-")
        bill = Path(self._folder.name, NAME)
        bill.write_text(text(Path(self.root)))
        build_data["sbom_files"].append(str(bill))


if __name__ == "__main__":
    sys.stdout.write(text())
