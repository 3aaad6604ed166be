"""A URL is a name with parts, as a path is, and no system call takes it for a path."""

from __future__ import annotations

import os
import pickle
from pathlib import Path, PurePath

import pytest

from intarsia.errors import UsageError
from intarsia.store.address import Address, named
from intarsia.store.reading.lookup import given
from intarsia.store.registry import register
from intarsia.store.writing.staging import Staging
from tests.store.memory_store import MemoryStore


def test_a_url_has_a_parent_a_name_and_what_lies_below_it() -> None:
    url = named("memory://runs/step-5")
    assert isinstance(url, Address)
    assert url.scheme == "memory"
    assert str(url / "sub" / "file.txt") == "memory://runs/step-5/sub/file.txt"
    assert (url / "file.txt").suffix == ".txt"
    assert [str(p) for p in url.parents][:2] == ["memory://runs", "memory://"]
    assert isinstance(url.parent, Address)
    assert str(url.with_name("other")) == "memory://runs/other"
    assert str((url / "sub" / "file").relative_to(url)) == "sub/file"
    assert (url / "sub").is_relative_to(url)


def test_a_url_is_its_text() -> None:
    url = named("memory://runs/step-5")
    for same in (named(str(url)), named("memory://runs/step-5/"), pickle.loads(pickle.dumps(url))):
        assert same == url
        assert hash(same) == hash(url)
        assert str(same) == f"{url}" == "memory://runs/step-5"
    assert url != named("other://runs/step-5")


def test_no_system_call_takes_a_url_for_a_path() -> None:
    for call in (os.stat, os.listdir, open, os.path.abspath):
        with pytest.raises(TypeError, match="memory://x is not a path of the local file system"):
            call(named("memory://x"))  # type: ignore[operator]


def test_what_is_no_url_is_a_local_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in ("/a/b", "a/b", "memory:x", "memory:/x", "://x", "a b://c"):
        assert type(named(text)) is type(PurePath())
    assert given("~/x") == tmp_path / "x"


@pytest.mark.parametrize(
    "url", ["s3://bucket/a//b", "s3:///a", "s3://bucket/./b", "s3://bucket/a//"]
)
def test_a_url_that_a_name_with_parts_cannot_keep_is_refused(url: str) -> None:
    """In an object store `a//b` and `a/b` are two objects."""
    with pytest.raises(UsageError, match=r"has an empty part or `.` in its path"):
        named(url)


@pytest.mark.parametrize("path", [5, None, b"model", ["model"]])
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(UsageError, match=r"a path is text or an os.PathLike of text, found "):
        given(path)  # type: ignore[arg-type]


def test_an_empty_path_is_not_the_working_folder() -> None:
    with pytest.raises(UsageError, match="the path is empty"):
        given("")


@pytest.mark.parametrize("path", ["a\0b", PurePath("a\0"), "\ud800"])
def test_a_path_that_no_file_can_have_is_refused(path: str | PurePath) -> None:
    with pytest.raises(UsageError, match="has a character that no file's name can have"):
        given(path)
    assert given("a\udc80b") == PurePath("a\udc80b")  # a byte that is no UTF-8, as Python reads it


@pytest.mark.parametrize("path", [Path("s3://bucket/run"), PurePath("gs:/x"), "s3:/bucket/run"])
def test_a_url_that_became_a_path_is_not_a_local_folder(path: str | PurePath) -> None:
    """`Path("s3://bucket/run")` is `s3:/bucket/run`: a conversion would end on this disk."""
    with pytest.raises(UsageError, match=r"is a URL without one of its slashes[\s\S]*as a text"):
        given(path)
    for local in (Path("/a/s3:/x"), "C:/x", "run:", "a/s3:/x"):
        assert given(local) == Path(local)


@pytest.mark.parametrize("place", ["/", "//", "memory://"])
def test_the_root_of_a_store_is_no_destination(place: str) -> None:
    """What is written lies beside its destination first, and beside a root is nothing."""
    register("memory", MemoryStore())
    with pytest.raises(UsageError, match=r"is the root of its store[\s\S]*a folder inside it"):
        Staging(place)
