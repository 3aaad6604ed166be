"""A file that was changed, cut or replaced shows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from intarsia.errors import FormatError
from intarsia.store.reading.replaced import Stamps


def cut(path: Path) -> None:
    os.truncate(path, 3)


def touch(path: Path) -> None:
    then = path.stat()
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns + 1))


def replace(path: Path) -> None:
    """By a file of the same bytes and time."""
    then = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(then.st_atime_ns, then.st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize("change", [cut, touch, replace, Path.unlink])
def test_a_change_is_an_error_that_names_the_file(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"some bytes")
    stamps = Stamps.of([tmp_path / "a", tmp_path / "b"])
    stamps.check()
    change(tmp_path / "b")
    with pytest.raises(FormatError, match="/b ") as raised:
        stamps.check()
    if change is cut:
        assert "10 bytes of" in str(raised.value)
        assert "3 bytes of" in str(raised.value)
        assert "convert again when nothing writes to it" in str(raised.value)
