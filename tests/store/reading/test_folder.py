"""Files are read by position, from any thread, and a failing system call says what and where."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from intarsia.errors import ChangedError, FormatError, StoreError
from intarsia.store.reading.folder import Folder, read_file
from intarsia.store.system_errors import unreadable


def test_exactly_the_bytes_asked_for_are_read_and_counted(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10
    (tmp_path / "file").write_bytes(data)
    with Folder(tmp_path) as folder:
        assert folder.size("file") == 2560
        assert folder.read("file", 250, 20) == data[250:270]
        assert folder.read("file", 0, 0) == b""
        assert folder.read_all("file") == data
        assert folder.read_bytes == 20 + 2560


def test_many_threads_read_one_file(tmp_path: Path) -> None:
    data = os.urandom(100_000)
    (tmp_path / "file").write_bytes(data)
    with Folder(tmp_path) as folder, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: folder.read("file", 1000 * k, 1000), range(100)))
    assert b"".join(found) == data


def test_a_short_read_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels read at most 2 GiB at once, networks less."""
    data = os.urandom(1000)
    (tmp_path / "file").write_bytes(data)
    honest = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, b, at: honest(fd, [b[0][:7]], at))
    with Folder(tmp_path) as folder:
        assert folder.read("file", 100, 500) == data[100:600]


def test_a_file_that_is_absent_or_short_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"12345")
    with Folder(tmp_path) as folder:
        with pytest.raises(FormatError, match=r"absent .*is absent|absent is absent"):
            folder.read("absent", 0, 1)
        with pytest.raises(FormatError, match="is absent"):
            folder.size("absent")
        with pytest.raises(FormatError, match=r"ends at byte 5; bytes \[9,223,.*,808:9,223,"):
            folder.read("short", 1 << 63, 4)
        with pytest.raises(FormatError, match=r"ends at byte 5; bytes \[3:9\)"):
            folder.read("short", 3, 6)


def test_a_failing_system_call_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"12345")

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with Folder(tmp_path) as folder:
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(StoreError, match="file: Input/output error"):
            folder.read("file", 0, 5)
    assert isinstance(unreadable(Path("x"), PermissionError(13, "Permission denied")), StoreError)


def test_a_file_is_read_from_a_folder_that_may_not_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    honest = os.open

    def forbidden(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if Path(path) == tmp_path and not flags & os.O_PATH:
            raise PermissionError(13, "Permission denied")
        return honest(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", forbidden)
    assert read_file(tmp_path / "file") == b"12345"


def test_closing_closes_every_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    before = len(os.listdir("/proc/self/fd"))
    folder = Folder(tmp_path)
    folder.read("file", 0, 1)
    assert len(os.listdir("/proc/self/fd")) == before + 2, "the folder and the file"
    folder.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_told_is_read_from_memory(tmp_path: Path) -> None:
    with Folder(tmp_path, {"told": b"abcdef"}) as folder:
        assert folder.read("told", 2, 3) == b"cde"
        assert folder.read_bytes == 0


def remove_one(folder: Folder, path: Path) -> None:
    (path / "b").unlink()


def remove_all(folder: Folder, path: Path) -> None:
    folder.close()
    path.rename(path.with_name("elsewhere"))


@pytest.mark.parametrize(("remove", "gone"), [(remove_one, "b"), (remove_all, "a")])
def test_of_files_that_are_opened_together_the_one_that_was_removed_is_named(
    tmp_path: Path, remove: Callable[[Folder, Path], None], gone: str
) -> None:
    path = tmp_path / "model"
    path.mkdir()
    for name in ("a", "b"):
        (path / name).write_bytes(b"1234")
    with Folder(path) as folder:
        assert folder.size("a") == folder.size("b") == 4
        remove(folder, path)
        removed = f"^{path / gone} was removed after the checkpoint was opened"
        with pytest.raises(ChangedError, match=removed), folder.opened_together(["a", "b"]):
            pass


def test_of_files_that_are_opened_together_the_one_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"1234")
    honest = os.fstat

    def fstat(fd: int) -> os.stat_result:
        if failing and fd == failing[0]:
            raise OSError(5, "Input/output error")
        return honest(fd)

    failing = list[int]()
    monkeypatch.setattr(os, "fstat", fstat)
    named = pytest.raises(StoreError, match=f"^{tmp_path / 'b'}: Input/output error")
    with Folder(tmp_path) as folder:
        with named, folder.opened_together(["a", "b"]) as found:
            failing.extend((found or [])[1:])
        with pytest.raises(OSError, match="of the caller"), folder.opened_together(["a"]):
            raise OSError(5, "of the caller")
