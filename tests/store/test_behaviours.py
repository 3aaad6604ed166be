"""What holds of every store: the local one, and the one in memory that the how-to builds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePath

import pytest

from intarsia.errors import ChangedError, FormatError, UsageError
from intarsia.store.address import named
from intarsia.store.base import Store
from intarsia.store.folder import Folder
from intarsia.store.lookup import (
    everything_in,
    exists,
    is_file,
    is_folder,
    listed,
    number_of,
    size_of,
    stamp_of,
)
from intarsia.store.registry import register, store_of
from tests.store.memory_store import MemoryStore


@dataclass
class Place:
    """A folder of a store, and how someone else puts a file there."""

    root: PurePath
    put: Callable[[PurePath, bytes], None]

    @property
    def store(self) -> Store:
        return store_of(self.root)


def put_locally(path: PurePath, data: bytes, ticks: count[int] = count(10**18)) -> None:
    """Two writes within one tick of the file system's clock have different times, too."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(data)
    os.utime(path, ns=(0, next(ticks)))


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(tmp_path, put_locally)
    store = MemoryStore()
    register("memory", store)
    return Place(named("memory://place"), store.put)


def test_what_lies_in_a_folder_is_listed_by_name(place: Place) -> None:
    for name in ("b", "a", "sub/c"):
        place.put(place.root / name, b"12")
    assert [p.name for p in listed(place.root)] == ["a", "b", "sub"]
    assert [p.name for p in listed(place.root, "[ab]")] == ["a", "b"]
    assert listed(place.root / "absent") == listed(place.root / "a") == []
    assert [str(p.relative_to(place.root)) for p in everything_in(place.root)] == [
        "a", "b", "sub", "sub/c",
    ]  # fmt: skip


def test_a_file_a_folder_and_nothing_are_told_apart(place: Place) -> None:
    place.put(place.root / "sub" / "file", b"12345")
    assert is_file(place.root / "sub" / "file")
    assert not is_folder(place.root / "sub" / "file")
    assert is_folder(place.root / "sub")
    assert not is_file(place.root / "sub")
    assert not exists(place.root / "absent")
    assert number_of(place.root / "absent") is None
    assert size_of(place.root / "sub" / "file") == 5
    with pytest.raises(FormatError, match=r"absent is absent"):
        stamp_of(place.root / "absent")


def test_a_missing_file_is_bad_input_and_named(place: Place) -> None:
    place.put(place.root / "file", b"12345")
    with Folder(place.root) as folder:
        assert not folder.has("absent")
        for ask in (lambda: folder.read("absent", 0, 1), lambda: folder.size("absent")):
            with pytest.raises(FormatError, match=f"{place.root}/absent is absent") as caught:
                ask()
            assert caught.value.kind == "file-missing"


def test_a_file_that_is_too_short_is_bad_input_and_named(place: Place) -> None:
    place.put(place.root / "short", b"12345")
    with Folder(place.root) as folder:
        assert folder.read("short", 3, 2) == b"45"
        with pytest.raises(FormatError, match=r"short ends at byte 5; bytes \[3:9\)") as caught:
            folder.read("short", 3, 6)
        assert caught.value.kind == "file-too-short"
        assert folder.read("short", 5, 0) == b""


def test_many_ranges_are_read_into_the_buffers_that_are_given(place: Place) -> None:
    data = bytes(range(256))
    place.put(place.root / "sub" / "file", data)
    buffer = bytearray(32)
    with Folder(place.root) as folder:
        folder.read_each(
            "sub/file",
            [
                (250, memoryview(buffer)[:6]),
                (0, memoryview(buffer)[6:7]),
                (7, memoryview(buffer)[7:]),
            ],
        )
        assert buffer == data[250:256] + data[0:1] + data[7:32]
        assert folder.read_bytes == 32
        assert folder.view("sub/file", 9, 3) == data[9:12]
        folder.prefetch_bytes("sub/file", 0, 256)


def test_a_file_is_read_a_part_at_a_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.store.folder._PART_BYTES", 4)
    for size in (0, 3, 4, 9):
        data = bytes(range(size))
        place.put(place.root / f"{size}", data)
        with Folder(place.root) as folder:
            parts = list(folder.parts(f"{size}"))
        assert b"".join(part for _, part in parts) == data
        assert [at for at, _ in parts] == list(range(0, size, 4))


def test_a_file_that_changes_is_another_one(place: Place) -> None:
    place.put(place.root / "file", b"12345")
    before = stamp_of(place.root / "file")
    assert stamp_of(place.root / "file") == before
    with Folder(place.root) as folder:
        folder.hold()
        assert folder.read("file", 0, 5) == b"12345"
        place.put(place.root / "file", b"54321")
        assert stamp_of(place.root / "file") != before
        with pytest.raises(ChangedError, match="file changed while it was read"):
            folder.read("file", 0, 5)
    with Folder(place.root, stamps={"file": before}) as folder:
        with pytest.raises(ChangedError, match="file changed while it was read"):
            folder.read("file", 0, 5)
        place.put(place.root / "file", b"1")
        with pytest.raises(ChangedError, match="file changed while it was read"):
            folder.read("file", 0, 5)


def test_a_file_that_is_gone_since_it_was_known_is_a_change(place: Place) -> None:
    place.put(place.root / "file", b"12345")
    stamps = {"gone": stamp_of(place.root / "file")}
    gone = pytest.raises(ChangedError, match="gone was removed after the checkpoint was opened")
    with Folder(place.root, stamps=stamps) as folder, gone:
        folder.read("gone", 0, 1)


def test_a_commit_shows_all_files_at_once(place: Place) -> None:
    out = place.root / "out"
    writing = place.store.transaction(out)
    writing.claim()
    writing.clear()
    for name in ("a", "sub/b"):
        writing.create(name, 6)
        writing.write(name, 2, [b"34", bytearray(b"5")])
        writing.write(name, 0, [memoryview(b"12")])
        assert not exists(out)
    with Folder(writing.folder) as folder:
        assert folder.read_all("sub/b") == b"12345\0", "what is written can be read back"
    assert writing.commit() == []
    with Folder(out) as folder:
        assert folder.read_all("a") == folder.read_all("sub/b") == b"12345\0"
    assert [p.name for p in listed(place.root)] == ["out"], "nothing lies beside it"


def test_what_is_abandoned_leaves_nothing(place: Place) -> None:
    place.put(place.root / "out" / "old", b"old")
    writing = place.store.transaction(place.root / "other")
    writing.claim()
    writing.clear()
    writing.create("a", 6)
    writing.write("a", 0, [b"123456"])
    assert not writing.abandon()
    assert [p.name for p in listed(place.root)] == ["out"]
    assert [p.name for p in listed(place.root / "out")] == ["old"]


def test_a_second_writer_is_refused_until_the_first_is_done(place: Place) -> None:
    first, second = (place.store.transaction(place.root / "out") for _ in range(2))
    first.claim()
    with pytest.raises(UsageError, match=f"another process is writing {place.root}/out"):
        second.claim()
    place.store.transaction(place.root / "another").claim()
    first.abandon()
    second.claim()
    second.abandon()


def test_what_was_written_before_is_resumed(place: Place) -> None:
    first = place.store.transaction(place.root / "out")
    first.claim()
    first.clear()
    first.create("a", 6)
    first.write("a", 0, [b"123"])
    assert first.abandon(keep=True)
    assert not exists(place.root / "out")
    second = place.store.transaction(place.root / "out")
    second.claim()
    second.create("a", 6, keep=True)
    second.write("a", 3, [b"456"])
    second.commit()
    with Folder(place.root / "out") as folder:
        assert folder.read_all("a") == b"123456"
    third = place.store.transaction(place.root / "out", overwrite=True)
    third.claim()
    third.clear()
    third.create("b", 0)
    third.abandon(keep=True)
    fourth = place.store.transaction(place.root / "out", overwrite=True)
    fourth.claim()
    fourth.clear()
    assert not exists(fourth.folder / "b"), "one that begins anew does not resume"
    fourth.abandon()


def test_a_url_of_no_known_store_is_refused() -> None:
    from intarsia import api

    with pytest.raises(UsageError, match=r"s3://bucket/x cannot be opened: no store is registered"):
        api.open("s3://bucket/x")
