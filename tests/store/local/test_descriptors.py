"""Few files stay open, none is closed while it is used, and all go with their object."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from intarsia.errors import LimitError
from intarsia.store.local.descriptors import Descriptors
from intarsia.store.reading.folder import Folder
from intarsia.store.writing.staging import Staging


def count() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def few(request: pytest.FixtureRequest) -> Iterator[int]:
    """A limit of open files not far above those that are open."""
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(64, count() + 30), hard))
    yield max(64, count() + 30)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def files(folder: Path, n: int) -> list[str]:
    for k in range(n):
        (folder / f"f{k}").write_bytes(b"%08d" % k)
    return [f"f{k}" for k in range(n)]


def test_more_files_than_a_process_may_open_are_read_by_many_threads(
    tmp_path: Path, few: int
) -> None:
    names = files(tmp_path, 4 * few)
    with Folder(tmp_path) as folder, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: folder.read(name, 0, 8), names * 2))
    assert found == [b"%08d" % k for k in range(len(names))] * 2


def test_more_files_than_a_process_may_open_are_written_and_synced(
    tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    honest = os.fsync

    def fsync(fd: int) -> None:
        synced.add(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        honest(fd)

    staging = Staging(tmp_path / "out")
    staging.begin()
    names = [f"f{k}" for k in range(2 * few)]
    monkeypatch.setattr(os, "fsync", fsync)
    for name in names:
        staging.create(name, 8)
    for half in (0, 4):
        for name in names:
            staging.write(name, half, [name.encode().ljust(4)])
    staging.commit()
    assert synced >= set(names)
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == name.encode().ljust(4) * 2


def test_a_file_in_use_is_not_closed_for_another(tmp_path: Path) -> None:
    names = files(tmp_path, 20)
    held = Descriptors(lambda name: os.open(tmp_path / name, os.O_RDONLY), most=3)
    with ExitStack() as stack:
        fds = {name: stack.enter_context(held.use(name)) for name in names[:5]}
        for name in names[5:]:
            with held.use(name):
                pass
        assert all(os.pread(fds[name], 8, 0) == b"%08d" % k for k, name in enumerate(names[:5]))
    with held.use(names[6]):
        assert len(held._held) <= 3


def test_descriptors_go_with_their_object(tmp_path: Path) -> None:
    names = files(tmp_path, 50)
    gc.collect()
    before = count()
    folder = Folder(tmp_path)
    for name in names:
        folder.read(name, 0, 1)
    assert count() > before + 40
    del folder
    assert count() == before, "without a garbage collection"


def test_others_give_up_what_they_do_not_use(tmp_path: Path, few: int) -> None:
    names = files(tmp_path, 3)
    many = [Folder(tmp_path) for _ in range(2 * few)]
    for folder in many:
        assert folder.read(names[1], 0, 8) == b"00000001"


def test_a_limit_is_no_fault_of_a_file(tmp_path: Path) -> None:
    files(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = Folder(tmp_path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(LimitError, match="Too many open files"):
            folder.read("f0", 0, 8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert folder.read("f0", 0, 8) == b"00000000"


def test_files_that_are_used_together_are_few_beside_those_that_others_use(tmp_path: Path) -> None:
    names = files(tmp_path, 8)
    held = Descriptors(lambda name: os.open(tmp_path / name, os.O_RDONLY), most=4)
    with held.use_all(names[:3]) as first, held.use_all(names[1:4]) as second:
        assert first is not None
        assert second is not None
        assert first[1:] == second[:2]
        with held.use_all(names[4:5]) as third:
            assert third is None
    with held.use_all(names[4:]) as again:
        assert again is not None
        assert [os.pread(fd, 8, 0) for fd in again] == [b"%08d" % k for k in range(4, 8)]
    with held.use_all(names[:5]) as many:
        assert many is None
    with pytest.raises(FileNotFoundError) as gone, held.use_all(["f0", "absent"]):
        pass
    assert gone.value.filename == "absent"
    with held.use_all(names[:4]) as left:
        assert left is not None, "what was opened before a failure is no longer used"
