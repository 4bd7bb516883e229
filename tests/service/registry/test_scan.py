"""Scanning for bundles in both layouts, and the reasons given for unusable folders."""

import os
import shutil
from pathlib import Path

from nightjar_alerts.models.bundle import MANIFEST
from nightjar_alerts.service.registry.loader import scan
from nightjar_alerts.service.registry.names import Reference
from support.repository import version


def test_scan_both_layouts_finds_every_version(tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    for number in ("1.0.0", "1.2.0", "1.10.0"):
        version(root, number)
    other = version(root, "0.1.0", name="other").path
    shutil.move(other, root / "as-it-was-exported")
    (root / "other").rmdir()
    contents = scan(root)
    assert {str(reference) for reference in contents.bundles} == {
        "mine@1.0.0",
        "mine@1.2.0",
        "mine@1.10.0",
        "other@0.1.0",
    }
    assert {name: contents.versions(name)[0].reference.version for name in contents.names} == {
        "mine": "1.10.0",
        "other": "0.1.0",
    }
    assert contents.unreadable == {}


def test_scan_unusable_folders_are_listed_with_reasons(tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    version(root, "1.0.0")
    shutil.copytree(root / "mine" / "1.0.0", root / "copy")
    shutil.copytree(root / "mine" / "1.0.0", root / "mine" / "9.9.9")
    (root / "broken").mkdir()
    (root / "broken" / MANIFEST).write_text("{")
    (root / ".making").mkdir()
    (root / ".making" / MANIFEST).write_text("{")
    (root / "notes.txt").write_text("not a folder")
    contents = scan(root)
    assert list(contents.bundles) == [Reference("mine", "1.0.0")]
    reasons = {path.name: reason for path, reason in contents.unreadable.items()}
    assert "no readable manifest" in reasons["broken"]
    assert "the manifest says mine@1.0.0, the folders say mine@9.9.9" in reasons["9.9.9"]
    assert len(reasons) == 3


def test_scan_folder_name_not_utf8_is_listed_escaped(tmp_path: Path) -> None:
    """JSON responses could not contain the name."""
    root = tmp_path / "bundles"
    version(root, "1.0.0")
    strange = root / os.fsdecode(b"\xff")
    strange.mkdir()
    shutil.copy(root / "mine" / "1.0.0" / MANIFEST, strange)
    contents = scan(root)
    assert contents.unreadable == {root / "\\udcff": "the folder's name is not UTF-8"}
    assert list(contents.bundles) == [Reference("mine", "1.0.0")]


def test_scan_missing_folder_finds_nothing(tmp_path: Path) -> None:
    assert scan(tmp_path / "nowhere", [tmp_path]).bundles == {}
    assert scan(None).bundles == {}


def test_scan_bundle_in_repository_and_settings_is_taken_from_repository(tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    inside = version(root, "1.0.0").path
    single = tmp_path / "single"
    shutil.copytree(inside, single)
    contents = scan(root, [single, inside])
    assert [found.path for found in contents.bundles.values()] == [inside]
    assert contents.unreadable == {}
    assert [found.path for found in scan(None, [single]).bundles.values()] == [single]


def test_scan_unchanged_bundle_is_not_read_again(tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    path = version(root, "1.0.0").path
    before = scan(root)
    again = scan(root, before=before)
    assert again.bundles[Reference("mine", "1.0.0")] is before.bundles[Reference("mine", "1.0.0")]
    (path / MANIFEST).write_text((path / MANIFEST).read_text() + "\n")
    changed = scan(root, before=before).bundles[Reference("mine", "1.0.0")]
    assert changed.sha256 != before.bundles[Reference("mine", "1.0.0")].sha256
