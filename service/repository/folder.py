"""What lies in a folder of bundles. Only manifests are read here; whether a bundle is sound, its loading finds out."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from models.bundle import MANIFEST, Manifest, Task
from service.repository.references import Reference, version_key

Fingerprint = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of every file in a bundle's folder."""


@dataclass(frozen=True, slots=True)
class Found:
    """A bundle on disk: which one it says it is. ``sha256`` is that of the manifest, hence of everything."""

    reference: Reference
    task: Task
    path: Path
    sha256: str
    fingerprint: Fingerprint


@dataclass(slots=True)
class Contents:
    """Every bundle that was found, and why others were not: reasons by folder."""

    bundles: dict[Reference, Found] = field(default_factory=dict)
    unreadable: dict[Path, str] = field(default_factory=dict)

    def newest(self) -> dict[str, Found]:
        """The newest version of every name."""
        newest: dict[str, Found] = {}
        for found in sorted(self.bundles.values(), key=lambda found: version_key(found.reference.version)):
            newest[found.reference.name] = found
        return newest

    def versions(self, name: str) -> list[str]:
        """Versions of a model, the oldest first."""
        versions = [reference.version for reference in self.bundles if reference.name == name]
        return sorted(versions, key=version_key)


def scan(root: Path | None, singles: Iterable[Path] = (), before: Contents | None = None) -> Contents:
    """Look for bundles.

    Parameters
    ----------
    root : folder of bundles, in either layout of the room's description.
    singles : folders that are bundles themselves; what is also under ``root`` counts from there.
    before : what was there the last time; manifests of folders that are as they were are not read again.
    """
    known = {found.path: found for found in before.bundles.values()} if before is not None else {}
    contents = Contents()
    for path, expected in _candidates(root):
        _add(contents, path, expected, known.get(path))
    for path in singles:
        if (path / MANIFEST).is_file():
            _add(contents, path, None, known.get(path), optional=True)
    return contents


def _candidates(root: Path | None) -> Iterator[tuple[Path, Reference | None]]:
    """Folders with a manifest and, in the layout by version, what it has to say."""
    for folder in _folders(root):
        if (folder / MANIFEST).is_file():
            yield folder, None
            continue
        for inner in _folders(folder):
            if (inner / MANIFEST).is_file():
                yield inner, Reference(folder.name, inner.name)


def _folders(path: Path | None) -> list[Path]:
    if path is None or not path.is_dir():
        return []
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _add(
    contents: Contents, path: Path, expected: Reference | None, known: Found | None, optional: bool = False
) -> None:
    try:
        found = _read(path, known)
    except (OSError, ValidationError) as error:
        contents.unreadable[path] = f"no readable manifest: {error}"
        return
    reference = found.reference
    if expected is not None and expected != reference:
        contents.unreadable[path] = f"the manifest says {reference}, the folders say {expected}"
    elif reference not in contents.bundles:
        contents.bundles[reference] = found
    elif not optional:
        contents.unreadable[path] = f"{reference} is also in {contents.bundles[reference].path}"


def _read(path: Path, known: Found | None) -> Found:
    fingerprint = _fingerprint(path)
    if known is not None and known.fingerprint == fingerprint:
        return known
    text = (path / MANIFEST).read_bytes()
    manifest = Manifest.model_validate_json(text)
    sha256 = hashlib.sha256(text).hexdigest()
    return Found(Reference(manifest.name, manifest.version), manifest.task, path, sha256, fingerprint)


def _fingerprint(path: Path) -> Fingerprint:
    """Taken before the manifest is read, so that a change in between is seen the next time."""
    files = [(entry.name, entry.stat()) for entry in sorted(path.iterdir()) if entry.is_file()]
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in files)
