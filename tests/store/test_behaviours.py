"""What holds of every store: the local one, the one in memory that the how-to builds, and one without a rename."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePath
from typing import Any

import pytest

from intarsia.errors import ChangedError, FormatError, StoreError, UnsafeError, UsageError
from intarsia.store.address import named
from intarsia.store.base import Store
from intarsia.store.log import log_of
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import (
    everything_in,
    exists,
    is_file,
    is_folder,
    names_like,
    number_of,
    size_of,
    stamp_of,
)
from intarsia.store.registry import register, store_of
from intarsia.store.writing.staging import Staging
from tests.store.bucket_store import BucketStore
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


@pytest.fixture(params=["local", "memory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(tmp_path, put_locally)
    store: Store = MemoryStore() if request.param == "memory" else BucketStore(tmp_path)
    register(request.param, store)
    return Place(named(f"{request.param}://place"), store.put)


def test_what_lies_in_a_folder_is_listed_by_name(place: Place) -> None:
    for name in ("b", "a", "sub/c"):
        place.put(place.root / name, b"12")
    assert [p.name for p in names_like(place.root)] == ["a", "b", "sub"]
    assert [p.name for p in names_like(place.root, "[ab]")] == ["a", "b"]
    assert names_like(place.root / "absent") == names_like(place.root / "a") == []
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
    monkeypatch.setattr("intarsia.store.reading.folder._PART_BYTES", 4)
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


def files_below(folder: PurePath) -> dict[str, bytes]:
    with Folder(folder) as held:
        names = [str(p.relative_to(folder)) for p in everything_in(folder) if is_file(p)]
        return {name: held.read_all(name) for name in names}


def begun(destination: PurePath, **options: Any) -> Staging:
    staging = Staging(destination, **options)
    staging.begin()
    return staging


def test_a_commit_shows_all_files_at_once(place: Place) -> None:
    out = place.root / "out"
    writing = begun(out)
    for name in ("a", "sub/b"):
        writing.create(name, 6)
        writing.write(name, 2, [b"34", bytearray(b"5")])
        writing.write(name, 0, [memoryview(b"12")])
        assert not exists(out)
    assert files_below(writing.folder)["sub/b"] == b"12345\0", "what is written can be read back"
    assert writing.commit() == []
    assert writing.committed
    assert files_below(out) == {"a": b"12345\0", "sub/b": b"12345\0"}
    assert [p.name for p in names_like(place.root)] == ["out"], "nothing lies beside it"


@pytest.mark.parametrize("name", ["model.safetensors", "sub/b", "deep/er/c"])
def test_what_others_put_among_the_files_is_not_shown_with_them(place: Place, name: str) -> None:
    writing = begun(place.root / "out")
    writing.write_small("sub/a", b"mine")
    place.put(writing.folder / name, b"another's")
    with pytest.raises(UsageError, match=f"holds what this run did not write: .*{name}"):
        writing.commit()
    assert not exists(place.root / "out")
    place.store.remove(writing.folder / name.split("/er")[0])
    writing.commit()
    assert files_below(place.root / "out") == {"sub/a": b"mine"}


def test_what_is_abandoned_leaves_nothing(place: Place) -> None:
    place.put(place.root / "out" / "old", b"old")
    writing = begun(place.root / "other")
    writing.write_small("a", b"123456")
    assert not writing.abandon()
    assert [p.name for p in names_like(place.root)] == ["out"]
    assert [p.name for p in names_like(place.root / "out")] == ["old"]


def test_a_second_writer_is_refused_until_the_first_is_done(place: Place) -> None:
    first, second = (Staging(place.root / "out") for _ in range(2))
    first.claim()
    with pytest.raises(UsageError, match=f"another process is writing {place.root}/out"):
        second.claim()
    assert not second.owned
    assert not second.abandon()
    another = Staging(place.root / "another")
    another.claim()
    another.abandon()
    assert first.owned
    first.abandon()
    second.claim()
    second.abandon()


def test_a_destination_is_replaced_whole_and_only_as_it_was(place: Place) -> None:
    out = place.root / "out"
    for name in ("old", "sub/older"):
        place.put(out / name, b"old")
    with pytest.raises(UsageError, match="out exists"):
        begun(out)
    writing = begun(out, overwrite=True)
    writing.write_small("new", b"new")
    assert files_below(out) == {"old": b"old", "sub/older": b"old"}
    writing.commit()
    assert files_below(out) == {"new": b"new"}
    writing = begun(out, overwrite=True)
    writing.write_small("newer", b"newer")
    place.put(out / "meanwhile", b"another's")
    with pytest.raises(UsageError, match=r"out was changed by another process .* meanwhile"):
        writing.commit()
    assert not writing.committed
    writing.abandon()
    assert files_below(out) == {"new": b"new", "meanwhile": b"another's"}
    assert [p.name for p in names_like(place.root)] == ["out"]


def test_what_was_written_before_is_resumed(place: Place) -> None:
    first = begun(place.root / "out")
    first.create("a", 6)
    first.write("a", 0, [b"123"])
    number = first.folder_number
    assert first.abandon(keep=True)
    assert not exists(place.root / "out")
    second = Staging(place.root / "out")
    second.claim()
    assert second.folder_number == number, "it is what the first has written"
    second.create("a", 6, keep=True)
    second.write("a", 3, [b"456"])
    second.commit()
    assert second.number_of(second.destination) == number, "and it is that at the destination"
    assert second.number_of(second.folder) is None
    assert files_below(place.root / "out") == {"a": b"123456"}


def test_one_that_begins_anew_does_not_resume(place: Place) -> None:
    first = begun(place.root / "out")
    first.create("b", 0)
    first.write_small("a", b"123")
    place.store.put(first.journal / "job", b"of the first")
    first.abandon(keep=True)
    second = begun(place.root / "out")
    assert files_below(second.folder) == {}
    assert not exists(second.journal)
    second.abandon()
    assert names_like(place.root) == []


def test_a_small_file_is_put_in_the_place_of_another(place: Place) -> None:
    store, path = place.store, place.root / "run" / "latest"
    for data in (b"step-1", b"step-20", b""):
        store.put(path, data)
        assert files_below(path.parent) == {"latest": data}
    store.put(path, b"3", lasting=False)
    store.remove(path)
    store.remove(path)
    assert not exists(path)
    for name in ("run/a", "run/sub/b", "runs"):
        place.put(place.root / name, b"x")
    store.remove(place.root / "run")
    assert files_below(place.root) == {"runs": b"x"}


def test_lines_are_added_to_a_log_in_their_order(place: Place) -> None:
    logs = {name: place.root / "journal" / name for name in ("0-1", "0-10")}
    place.store.put(place.root / "journal" / "job", b"")
    for round_ in range(2):
        held = {name: place.store.log(path) for name, path in logs.items()}
        for k in range(11):
            for name, log in held.items():
                log.append(f"{name} {round_} {k}\n".encode())
        for log in held.values():
            log.sync()
            log.close()
    found = files_below(place.root / "journal")
    for name in logs:
        lines = b"".join(data for file, data in sorted(found.items()) if log_of(file) == name)
        want = [f"{name} {r} {k}" for r in range(2) for k in range(11)]
        assert lines.decode().split("\n")[:-1] == want


@pytest.mark.parametrize("file", ["../x", "a/../../x", "/etc/x", "..", ".", ""])
def test_no_file_is_written_beside_a_destination(place: Place, file: str) -> None:
    writing = begun(place.root / "out")
    with pytest.raises(UnsafeError, match="is outside of the destination"):
        writing.write_small(file, b"12")
    writing.abandon()
    assert names_like(place.root) == []


def test_a_store_that_is_only_read_says_so() -> None:
    class Read(MemoryStore):
        transaction, put, remove = Store.transaction, Store.put, Store.remove

    register("memory", Read())
    with pytest.raises(StoreError, match="memory://out: this store is only read"):
        Staging("memory://out")
    for call in (lambda s: s.put(PurePath("x"), b""), lambda s: s.remove(PurePath("x"))):
        with pytest.raises(OSError, match="only read"):
            call(Read())


def test_a_url_of_no_known_store_is_refused() -> None:
    from intarsia import api

    with pytest.raises(UsageError, match=r"s3://bucket/x cannot be opened: no store is registered"):
        api.open("s3://bucket/x")
