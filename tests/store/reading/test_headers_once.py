"""Headers are kept while a job runs, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from intarsia.store.local.reader import LocalReader
from intarsia.store.reading import headers_once
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.headers_once import made_once, reading_headers, reading_once


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    read = LocalReader.read
    monkeypatch.setattr(LocalReader, "read", lambda *a: (found.append(a[1]), read(*a))[1])
    return found


def read(folder: Path, file: str = "file") -> bytes:
    with Folder(folder) as files:
        return files.read_all(file)


def test_a_header_is_read_once_in_a_job(reads: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"header")
    with reading_once():
        with reading_headers():
            assert read(tmp_path) == b"header"
        assert read(tmp_path) == b"header"
    assert reads == ["file"]
    assert read(tmp_path) == b"header"
    assert reads == ["file", "file"], "the job is over"


def test_a_header_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with reading_headers():
        assert read(tmp_path) == b"old"
        (tmp_path / "file").unlink()
        (tmp_path / "file").write_bytes(b"new")
        assert read(tmp_path) == b"new"


def test_what_is_no_header_is_not_kept(reads: list[str], tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_bytes(b"data")
    with reading_once():
        for _ in range(2):
            assert read(tmp_path) == b"data"
    assert len(reads) == 2
    monkeypatch.setattr(headers_once, "MOST_BYTES", 3)
    with reading_headers():
        for _ in range(2):
            assert read(tmp_path) == b"data"
    assert len(reads) == 4, "nor what is too much"


def test_a_header_is_taken_apart_once_in_a_job(monkeypatch) -> None:
    made = list[int]()

    def make() -> int:
        made.append(len(made))
        return made[-1]

    with reading_once():
        assert made_once("here", b"data", make) == 0, "this is no header yet"
        with reading_headers():
            assert [made_once("here", b"data", make) for _ in range(2)] == [1, 1]
        assert made_once("here", b"data", make) == 1
        assert made_once("there", b"data", make) == 2
        assert made_once("here", b"other", make) == 3
    assert made_once("here", b"data", make) == 4, "the job is over"
    monkeypatch.setattr(headers_once, "MOST_BYTES", 6)
    with reading_headers():
        assert [made_once("here", b"data", make) for _ in range(2)] == [5, 5]
        assert [made_once("there", b"data", make) for _ in range(2)] == [6, 7], "that is too much"
