"""Files that appear whole or not at all, also where several write the same one."""

import errno
import threading
from pathlib import Path

import pytest

from nightjar_alerts.models.common import replacing, write_atomic


@pytest.mark.parametrize("shared", [False, True])
def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    path = tmp_path / "new" / "file"
    write_atomic(path, b"old", shared=shared)

    def power_cut(descriptor: int) -> None:
        raise OSError("power cut")

    monkeypatch.setattr("os.fsync", power_cut)
    with pytest.raises(OSError, match="power cut"):
        write_atomic(path, b"new", shared=shared)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_write_on_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"), replacing(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_threads_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([number]) * 5000 for number in range(8)]

    def write(content: bytes) -> None:
        for _ in range(20):
            write_atomic(path, content, shared=True)
            assert path.read_bytes() in contents

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]
