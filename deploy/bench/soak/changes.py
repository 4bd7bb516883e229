"""Models that change under load: a second version is loaded, taken back, and loaded again, by the admin interface."""

import asyncio
import json
import shutil
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from deploy.bench.load import HOST
from models.bundle import load_bundle, write_manifest

PATIENCE_SECONDS: Final = 300.0


def next_version(bundle: Path, other: Path, folder: Path) -> tuple[str, str]:
    """Make another network the next version of a model, in a new folder; the model's name and the version."""
    manifest = load_bundle(bundle).manifest
    major, minor, patch = map(int, manifest.version.split("."))
    version = f"{major}.{minor}.{patch + 1}"
    shutil.copytree(other, folder)
    write_manifest(folder, load_bundle(other).manifest.model_copy(update={"name": manifest.name, "version": version}))
    return manifest.name, version


@dataclass(slots=True)
class Administrator:
    """Makes a change every ``pause`` seconds, each kind in turn; counts those ``made``, keeps what failed."""

    port: int
    name: str
    version: str
    pause: float
    made: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    async def work(self) -> None:
        """Go on until cancelled."""
        changes = (
            ("load", f"/admin/models/{self.name}/load", json.dumps({"version": self.version})),
            ("reload", "/admin/reload", ""),
            ("rollback", f"/admin/models/{self.name}/rollback", ""),
            ("reload", "/admin/reload", ""),
        )
        while True:
            for what, path, body in changes:
                await asyncio.sleep(self.pause)
                await asyncio.to_thread(self._make, what, path, body)

    def _make(self, what: str, path: str, body: str) -> None:
        connection = HTTPConnection(HOST, self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("POST", path, body)
            response = connection.getresponse()
            said = response.read()
            if response.status == 200:
                self.made[what] += 1
            else:
                self.failures.append(f"{what}: {response.status} {said[:300].decode('utf-8', 'replace')}")
        except (OSError, HTTPException) as error:
            self.failures.append(f"{what}: {error}")
        finally:
            connection.close()
