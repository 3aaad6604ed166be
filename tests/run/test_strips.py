"""Windows that are moved from file to file become the bytes, sums and failures of those that go through memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia.dtypes import BY_NAME
from intarsia.errors import ChangedError, FormatError, IntarsiaError, StoreError
from intarsia.kernel import moving
from intarsia.kernel.library import has_kernel
from intarsia.kernel.moving import BLOCK_BYTES, Moved, MoveError, Strip
from intarsia.layout import Layout, Loop, Piece
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.run import execute, strips
from intarsia.run.budget import Budget
from intarsia.run.slots import Cut
from intarsia.run.strips import InStrips, Place
from intarsia.store.local.written_files import WrittenFiles
from intarsia.store.reading.folder import Folder
from tests.checkpoints import (
    assert_same,
    files_of,
    leftovers,
    llama_config,
    model,
    read_hf,
    write_dcp,
    write_hf,
)

pytestmark = pytest.mark.skipif(not has_kernel(), reason="the kernel is not built: no C compiler")

CONFIG = llama_config()
ROADS = [
    ("hf", "hf", "", []),
    ("hf", "dcp", "tp=2,fsdp=3", ["targets"]),
    ("dcp", "hf", "", ["sources"]),
    ("dcp", "dcp", "tp=4", ["sources", "targets"]),
    ("hf", "torch_dist", "tp=2", ["targets"]),
    ("torch_dist", "hf", "", ["sources"]),
    ("dcp", "fsdp_dtensor", "fsdp=2", ["sources"]),
    ("fsdp_dtensor", "dcp", "tp=2", ["targets"]),
]
"""From what to what, and on which side a row is in several files."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("strips")
    write_hf(root / "hf", model(CONFIG), CONFIG, files=2)
    for to in ("dcp", "torch_dist"):
        intarsia.convert(root / "hf", root / to, to=to, mesh="tp=2")
    intarsia.convert(root / "hf", root / "fsdp_dtensor", to="fsdp_dtensor", mesh="fsdp=5")
    return root


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[Strip]:
    """Every window that can be moved is, however small; the strips that were."""
    monkeypatch.setattr(strips, "LEAST_BYTES", 1)
    monkeypatch.setattr(strips, "LEAST_BYTES_OF_MANY", 1)
    monkeypatch.setattr(strips, "LEAST_STRIP_BYTES", 0)
    honest, seen = moving.move, list[Strip]()

    def noted(asked: Sequence[Strip], *files: Any) -> list[Moved]:
        seen.extend(asked)
        return honest(asked, *files)

    monkeypatch.setattr(moving, "move", noted)
    return seen


def without(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> None:
    """Run with no window moved from file to file."""
    with monkeypatch.context() as patch:
        patch.setattr(execute, "has_kernel", lambda: False)
        run()


@pytest.mark.parametrize(("source", "to", "mesh", "sides"), ROADS)
def test_the_same_bytes_are_written_with_and_without_whatever_the_windows(
    sources: Path,
    tmp_path: Path,
    monkeypatch,
    eager: list[Strip],
    source: str,
    to: str,
    mesh: str,
    sides,
) -> None:
    more = {"mesh": mesh} if mesh else {}
    src = sources / source
    without(monkeypatch, lambda: intarsia.convert(src, tmp_path / "through", to=to, **more))
    assert not eager
    for window in (1000, 1 << 20):
        monkeypatch.setattr(Budget, "window_bytes", property(lambda _, window=window: window))
        for workers in (1, 3):
            out = tmp_path / f"out{window}{workers}"
            intarsia.convert(src, out, to=to, workers=workers, **more)
            assert files_of(out) == files_of(tmp_path / "through")
    moved_bytes = sum(strip.rows * strip.row_bytes for strip in eager)
    assert moved_bytes > 3 * sum(x.nbytes for x in model(CONFIG).values())
    several = {s for s in ("sources", "targets") if any(len(getattr(x, s)) > 1 for x in eager)}
    assert several == set(sides)


@pytest.mark.parametrize("to", ["hf", "dcp"])
def test_what_changes_on_its_way_goes_through_memory(
    tmp_path: Path, eager: list[Strip], to: str
) -> None:
    state = {"w": torch.randn(40, 30), "t": torch.randn(30, 40).t(), "n": torch.arange(40)}
    src = write_dcp(tmp_path / "src", state)
    intarsia.convert(src, tmp_path / "cast", to=to, dtype="bf16")
    assert {strip.row_bytes * strip.rows for strip in eager} == {40 * 8}
    intarsia.convert(src, tmp_path / "same", to=to)
    assert {strip.row_bytes * strip.rows for strip in eager} == {40 * 8, 40 * 30 * 4}
    assert intarsia.verify(src, tmp_path / "same").equal


def test_numbers_that_only_become_wider_go_through_memory(
    tmp_path: Path, eager: list[Strip]
) -> None:
    x = torch.randn(30, 20).to(torch.bfloat16)
    intarsia.convert(write_hf(tmp_path / "src", {"x": x}), tmp_path / "out", to="hf", dtype="fp32")
    assert not eager
    assert_same(read_hf(tmp_path / "out"), {"x": x.float()})


def test_a_piece_is_a_stretch_or_the_same_part_of_each_row_or_nothing() -> None:
    def placed(*loops: tuple[int, int, int]) -> tuple[int, ...] | None:
        found = strips._place(Piece("", 3, 5, tuple(Loop(*x) for x in loops)), "f", 100, 2)
        return found and (found.at, *found[2:6])

    assert placed((7, 1, 1)) == (106, 10, 1, 14, 14)
    assert placed((4, 6, 20), (6, 1, 1)) == (106, 10, 4, 40, 12)
    assert placed((4, 8, 20), (6, 1, 1)) is None  # more lies between the rows in the file
    assert placed((4, 6, 10), (6, 1, 1)) is None  # a row of the file is in two of the window
    assert placed((4, 6, 20), (6, 2, 1)) is None
    assert placed((7, 2, 1)) is None
    assert placed((2, 24, 80), (4, 6, 20), (6, 1, 1)) is None
    assert placed((4, 6, BLOCK_BYTES), (6, 1, 1)) is None


def test_places_that_do_not_make_up_rows_together_are_no_strips(eager: list[Strip]) -> None:
    whole, window = Layout.of("w", (4, 10)), Box.whole((4, 10))
    target = Target("w", BY_NAME["U8"], whole, (window,))
    left, right = (Place("x", 0, start, 4, 10, 5, k) for k, start in enumerate((0, 5)))

    def cut(*sources: Place) -> InStrips | None:
        held = Cut((), in_order=False, finishes=True)
        return strips._cut(target, window, held, whole.pieces, list(sources), [left, right])

    def run(start: int, end: int) -> Place:
        return Place("a", start, start, 1, end - start, end - start, 0)

    found = cut(run(0, 20), run(20, 40))
    assert found is not None
    assert [(x.rows, x.row_bytes, len(x.targets)) for x in found.strips] == [(2, 10, 2)] * 2
    assert cut(run(0, 15), run(15, 40)) is None
    assert cut(run(0, 20)) is None
    assert cut(run(0, 20), run(10, 40)) is None
    assert cut(Place("a", 0, 0, 4, 20, 10, 0)) is None
    assert cut(left._replace(file="a")) is None


def test_a_file_is_looked_at_again_when_its_bytes_were_moved(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345678")
    with Folder(tmp_path) as folder:
        with folder.moving("file", 8) as fd:
            assert os.pread(fd, 8, 0) == b"12345678"
        with pytest.raises(ChangedError), folder.moving("file", 8):
            os.utime(tmp_path / "file", ns=(1, 1))
        assert folder.read_bytes == 8
        with pytest.raises(FormatError, match=r"ends at byte 8; bytes \[4:12\) were expected"):
            raise Folder(tmp_path).unread("file", 4, 12, EOFError())


def test_a_file_that_bytes_are_moved_to_is_synced(tmp_path: Path, monkeypatch) -> None:
    files, synced = WrittenFiles(tmp_path), list[int]()
    files.create("f", 4, 0o600)
    files.sync()
    monkeypatch.setattr(os, "fsync", synced.append)
    with files.opened("f") as fd:
        os.pwrite(fd, b"abcd", 0)
    files.sync()
    assert synced


def between(patch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Have something happen after bytes were moved, and before the files are looked at again."""
    honest = moving.move

    def move(*asked: Any) -> list[Moved]:
        found = honest(*asked)
        then()
        return found

    patch.setattr(moving, "move", move)


def test_a_source_that_changes_or_is_cut_off_while_it_is_moved_is_refused(
    tmp_path: Path, monkeypatch, eager: list[Strip]
) -> None:
    state = {"w": torch.randn(64, 64)}
    changes = {
        "changed": lambda path: os.utime(path, ns=(1, 1)),
        "cut": lambda path: os.truncate(path, 900),
    }
    for how, change in changes.items():
        src = write_hf(tmp_path / how, state)
        file = next(src.glob("*.safetensors"))
        with monkeypatch.context() as patch:
            between(patch, lambda change=change, file=file: change(file))
            with pytest.raises(ChangedError, match=f"{file} changed while it was read"):
                intarsia.convert(src, tmp_path / "out", to="dcp")
    src = write_hf(tmp_path / "short", state)
    file = next(src.glob("*.safetensors"))
    honest = moving.move

    def cut(*asked: Any) -> list[Moved]:
        os.truncate(file, 900)
        return honest(*asked)

    with monkeypatch.context() as patch:
        patch.setattr(moving, "move", cut)
        with pytest.raises(ChangedError, match=f"{file} changed while it was read"):
            intarsia.convert(src, tmp_path / "out", to="dcp")
    assert eager
    assert not (tmp_path / "out").exists()


def failing(patch: pytest.MonkeyPatch, at: int, side: int, error: OSError | EOFError) -> None:
    """Have the call with this number fail at a side."""
    honest, count = moving.move, [0]

    def move(*asked: Any) -> list[Moved]:
        count[0] += 1
        if count[0] == at:
            raise MoveError(side, error)
        return honest(*asked)

    patch.setattr(moving, "move", move)


def test_a_disk_that_fails_under_a_move_is_named_and_the_run_is_resumed(
    sources: Path, tmp_path: Path, monkeypatch, eager: list[Strip]
) -> None:
    src, out, options = sources / "hf", tmp_path / "out", {"to": "dcp", "mesh": "fsdp=2"}
    intarsia.convert(src, tmp_path / "whole", **options)
    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: 2048))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        failing(patch, 12, 1, full)
        with pytest.raises(StoreError) as raised:
            intarsia.convert(src, out, workers=1, **options)
    told = str(raised.value)
    assert ".distcp: No space left on device" in told
    assert "free some space" in told
    assert "run again with --resume" in told
    with monkeypatch.context() as patch:
        failing(patch, 3, 0, OSError(errno.EIO, os.strerror(errno.EIO)))
        with pytest.raises(IntarsiaError, match=r"hf/.*\.safetensors: Input/output error"):
            intarsia.convert(src, out, workers=1, resume=True, **options)
    before = len(eager)
    assert "resumed" in str(intarsia.convert(src, out, resume=True, **options))
    assert before < len(eager)
    assert files_of(out) == files_of(tmp_path / "whole")
    assert not leftovers(tmp_path)
