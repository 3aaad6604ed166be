"""Windows that are moved from file to file become the bytes, sums and failures of those that go through memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intarsia
from intarsia.dtypes import BY_NAME
from intarsia.errors import ChangedError, CoverageError, FormatError, IntarsiaError, StoreError
from intarsia.format.base import Arrangement, Slot
from intarsia.format.registry import format_named, read_manifest
from intarsia.frozen import frozen
from intarsia.kernel import moving
from intarsia.kernel.library import has_kernel
from intarsia.kernel.moving import BLOCK_BYTES, Moved, MoveError, Strips
from intarsia.layout import Layout, Loop, Piece
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.planning.proof import Proven, prover_of
from intarsia.run import execute
from intarsia.run.budget import Budget
from intarsia.run.execute import Execution
from intarsia.run.source import Source
from intarsia.run.sums.hashing import Sum, sum_run
from intarsia.run.windows import strips
from intarsia.run.windows.slots import Slots
from intarsia.run.windows.strips import StripPlace, StripPlan, StripPlans
from intarsia.run.windows.tally import Tally
from intarsia.store.local.written_files import WrittenFiles
from intarsia.store.reading.folder import Folder
from intarsia.store.writing.staging import Staging
from tests.budgets import in_steps_of
from tests.checkpoints import (
    assert_same,
    bits,
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


@frozen
class Seen:
    """A strip that was moved: its bytes, and how many files it came from and went to."""

    nbytes: int
    sources: int
    targets: int


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """Every window that can be moved is, however small; the strips that were."""
    monkeypatch.setattr(strips, "LEAST_BYTES", 1)
    honest, found = moving.move, list[Seen]()

    def noted(strips: Strips, *rest: Any) -> Moved:
        of_each = [strips[x].tolist() for x in ("rows", "row_bytes", "sources", "targets")]
        found.extend(Seen(n * row, froms, tos) for n, row, froms, tos in zip(*of_each, strict=True))
        return honest(strips, *rest)

    monkeypatch.setattr(moving, "move", noted)
    return found


def without(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> None:
    """Run with no window moved from file to file."""
    with monkeypatch.context() as patch:
        patch.setattr(execute, "has_kernel", lambda: False)
        run()


@pytest.mark.parametrize(("source", "to", "mesh", "sides"), ROADS)
@pytest.mark.one_in(8)
def test_the_same_bytes_are_written_with_and_without_whatever_the_windows(
    sources: Path,
    tmp_path: Path,
    monkeypatch,
    seen: list[Seen],
    source: str,
    to: str,
    mesh: str,
    sides,
) -> None:
    more = {"mesh": mesh} if mesh else {}
    src = sources / source
    without(monkeypatch, lambda: intarsia.convert(src, tmp_path / "through", to=to, **more))
    assert not seen
    for window in (1000, 1 << 20):
        in_steps_of(monkeypatch, window)
        for workers in (1, 3):
            out = tmp_path / f"out{window}{workers}"
            intarsia.convert(src, out, to=to, workers=workers, **more)
            assert files_of(out) == files_of(tmp_path / "through")
    moved_bytes = sum(strip.nbytes for strip in seen)
    assert moved_bytes > 3 * sum(x.nbytes for x in model(CONFIG).values())
    several = {s for s in ("sources", "targets") if any(getattr(x, s) > 1 for x in seen)}
    assert several == set(sides)


@pytest.mark.parametrize("to", ["hf", "dcp"])
def test_what_changes_on_its_way_goes_through_memory(
    tmp_path: Path, seen: list[Seen], to: str
) -> None:
    state = {"w": torch.randn(40, 30), "t": torch.randn(30, 40).t(), "n": torch.arange(40)}
    src = write_dcp(tmp_path / "src", state)
    intarsia.convert(src, tmp_path / "cast", to=to, dtype="bf16")
    assert {strip.nbytes for strip in seen} == {40 * 8}
    intarsia.convert(src, tmp_path / "same", to=to)
    assert {strip.nbytes for strip in seen} == {40 * 8, 40 * 30 * 4}
    assert intarsia.verify(src, tmp_path / "same").equal


def test_numbers_that_only_become_wider_go_through_memory(tmp_path: Path, seen: list[Seen]) -> None:
    x = torch.randn(30, 20).to(torch.bfloat16)
    intarsia.convert(write_hf(tmp_path / "src", {"x": x}), tmp_path / "out", to="hf", dtype="fp32")
    assert not seen
    assert_same(read_hf(tmp_path / "out"), {"x": x.float()})


def test_a_piece_is_a_stretch_or_the_same_part_of_each_row_or_nothing() -> None:
    def placed(*loops: tuple[int, int, int]) -> tuple[int, ...] | None:
        found = strips._place(Piece("", 3, 5, tuple(Loop(*x) for x in loops)), 0, 50, 2)
        return found and found[1:]

    assert placed((7, 1, 1)) == (106, 10, 1, 14, 14)
    assert placed((4, 6, 20), (6, 1, 1)) == (106, 10, 4, 40, 12)
    assert placed((4, 8, 20), (6, 1, 1)) is None  # more lies between the rows in the file
    assert placed((4, 6, 10), (6, 1, 1)) is None  # a row of the file is in two of the window
    assert placed((4, 6, 20), (6, 2, 1)) is None
    assert placed((7, 2, 1)) is None
    assert placed((2, 24, 80), (4, 6, 20), (6, 1, 1)) is None
    assert placed((4, 6, BLOCK_BYTES), (6, 1, 1)) is None


def test_places_that_do_not_make_up_rows_together_are_no_strips() -> None:
    whole = Layout.of("w", (4, 10))
    left, right = (StripPlace(k, 0, start, 4, 10, 5) for k, start in ((1, 0), (2, 5)))

    def cut(*sources: StripPlace) -> list[Any] | None:
        return strips._cut(whole.pieces, 1, sources, [left, right])

    def run(start: int, end: int) -> StripPlace:
        return StripPlace(0, start, start, 1, end - start, end - start)

    found = cut(run(0, 20), run(20, 40))
    assert found is not None
    assert [(rows, row_bytes, len(tos)) for _, _, rows, row_bytes, _, tos in found] == [
        (2, 10, 2)
    ] * 2
    assert cut(run(0, 15), run(15, 40)) is None
    assert cut(run(0, 20)) is None
    assert cut(run(0, 20), run(10, 40)) is None
    assert cut(StripPlace(0, 0, 0, 4, 20, 10)) is None
    assert cut(left) is None
    assert cut() is None


def test_a_window_of_many_strips_goes_through_memory(tmp_path: Path, monkeypatch, seen) -> None:
    x = torch.arange(400, dtype=torch.int32).reshape(40, 10)
    src = write_hf(tmp_path / "src", {"x": x})
    for most, moved in ((4, 4), (3, 0)):
        seen.clear()
        monkeypatch.setattr(strips, "MOST_STRIPS", most)
        intarsia.convert(src, tmp_path / f"{most}", to="dcp", mesh="fsdp=4")
        assert len(seen) == moved
    assert files_of(tmp_path / "4") == files_of(tmp_path / "3")


def test_windows_that_differ_by_more_than_their_places_are_moved_by_plans_of_their_own(
    tmp_path: Path, monkeypatch, seen: list[Seen]
) -> None:
    """Shapes, types, the tensor's own size, and what of it a target holds: two plans are never one."""
    planned = list[str]()
    honest = strips._plan

    def noted(proven: Proven, *rest: Any) -> StripPlan | None:
        planned.append(proven.target.name)
        return honest(proven, *rest)

    monkeypatch.setattr(strips, "_plan", noted)
    kinds = ((torch.bfloat16, (6, 8)), (torch.float32, (6, 8)), (torch.bfloat16, (8, 6)))
    state = {
        f"{name}{k}": torch.randint(0, 200, shape).to(dtype)
        for k in range(3)
        for name, (dtype, shape) in zip("abc", kinds, strict=True)
    }
    src = write_hf(tmp_path / "src", state)
    for to, mesh in (("dcp", "fsdp=4"), ("hf", "")):
        planned.clear()
        intarsia.convert(src, tmp_path / to, to=to, mesh=mesh, workers=1)
        assert sorted(name[0] for name in planned) == ["a", "b", "c"]
        assert intarsia.verify(src, tmp_path / to).equal
    assert_same(read_hf(tmp_path / "hf"), state)
    planned.clear()
    monkeypatch.setattr(strips, "MOST_KEPT", 0)
    intarsia.convert(src, tmp_path / "none", to="hf", workers=1)
    assert sorted(planned) == sorted(state)


def test_parts_of_one_tensor_are_moved_and_summed_as_their_own_bytes(tmp_path: Path, seen) -> None:
    x = torch.arange(1, 16, dtype=torch.bfloat16).reshape(3, 5)
    src, whole = write_hf(tmp_path / "src", {"x": x}), Box.whole((1, 5))
    manifest = read_manifest(src)
    rows = [Layout.of("x", (3, 5)).narrow(0, k, k + 1) for k in (2, 0, 1)]
    targets = [Target(f"row{k}", BY_NAME["BF16"], row, (whole,)) for k, row in enumerate(rows)]
    slots = {f"row{k}": (Slot(whole, "f", 100 * k, gap_bytes=5 * k),) for k in range(3)}
    staging = Staging(tmp_path / "out")
    staging.begin()
    staging.create("f", 300)
    staging.write("f", 0, [b"\xff" * 300])
    with Folder(src) as folder:
        run = Execution(
            Source(manifest, format_named("hf"), folder),
            Arrangement({"f": 300}, slots),
            staging,
            Budget(1 << 20, 1),
            tally=Tally({"x": 15}),
        )
        run.step([tuple((prover_of(manifest).prove(target), whole) for target in targets)])
        assert folder.read_bytes == 30
    held = (staging.folder / "f").read_bytes()
    staging.abandon()
    raw = bits(x)
    for k, row in enumerate((2, 0, 1)):
        before = b"\xff" + bytes(5 * k) if k else b""
        wanted = before + raw[10 * row : 10 * row + 10] + b"\xff"
        assert held[100 * k + 11 - len(wanted) :].startswith(wanted)
    assert [strip.nbytes for strip in seen] == [10, 10, 10]
    total = sum(run.sums.values(), Sum())
    assert total == sum_run(np.frombuffer(raw, np.uint8), 0, 30)


def test_a_file_is_looked_at_again_when_its_bytes_were_moved(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345678")
    with Folder(tmp_path) as folder:
        with folder.opened_together(["file"]) as fds:
            assert fds is not None
            assert os.pread(fds[0], 8, 0) == b"12345678"
        with pytest.raises(ChangedError), folder.opened_together(["file"]):
            os.utime(tmp_path / "file", ns=(1, 1))
        with pytest.raises(FormatError, match=r"ends at byte 8; bytes \[4:12\) were expected"):
            raise Folder(tmp_path).unread("file", 4, 12, EOFError())


def test_a_file_that_bytes_are_moved_to_is_synced(tmp_path: Path, monkeypatch) -> None:
    files, synced = WrittenFiles(tmp_path), list[int]()
    files.make("f", 4, 0o600)
    files.sync()
    monkeypatch.setattr(os, "fsync", synced.append)
    with files.opened_together(["f"]) as fds:
        assert fds is not None
        os.pwrite(fds[0], b"abcd", 0)
    files.sync()
    assert synced


def between(patch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Have something happen after bytes were moved, and before the files are looked at again."""
    honest = moving.move

    def move(*asked: Any) -> Moved:
        found = honest(*asked)
        then()
        return found

    patch.setattr(moving, "move", move)


def test_a_source_that_changes_or_is_cut_off_while_it_is_moved_is_refused(
    tmp_path: Path, monkeypatch, seen: list[Seen]
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

    def cut(*asked: Any) -> Moved:
        os.truncate(file, 900)
        return honest(*asked)

    with monkeypatch.context() as patch:
        patch.setattr(moving, "move", cut)
        with pytest.raises(ChangedError, match=f"{file} changed while it was read"):
            intarsia.convert(src, tmp_path / "out", to="dcp")
    assert seen
    assert not (tmp_path / "out").exists()


def failing(patch: pytest.MonkeyPatch, at: int, side: int, error: OSError | EOFError) -> None:
    """Have the call with this number fail at a side."""
    honest, count = moving.move, [0]

    def move(*asked: Any) -> Moved:
        count[0] += 1
        if count[0] == at:
            raise MoveError(side, error)
        return honest(*asked)

    patch.setattr(moving, "move", move)


def test_a_disk_that_fails_under_a_move_is_named_and_the_run_is_resumed(
    sources: Path, tmp_path: Path, monkeypatch, seen: list[Seen]
) -> None:
    src, out, options = sources / "hf", tmp_path / "out", {"to": "dcp", "mesh": "fsdp=2"}
    intarsia.convert(src, tmp_path / "whole", **options)
    in_steps_of(monkeypatch, 2048)
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
    before = len(seen)
    assert "resumed" in str(intarsia.convert(src, out, resume=True, **options))
    assert before < len(seen)
    assert files_of(out) == files_of(tmp_path / "whole")
    assert not leftovers(tmp_path)


def test_bytes_that_the_kernel_did_not_move_are_missed(tmp_path: Path, monkeypatch, seen) -> None:
    src = write_hf(tmp_path / "src", {"w": torch.randn(8, 8)})
    honest = moving.move

    def short(*asked: Any) -> Moved:
        found = honest(*asked)
        found.box_bytes[0] -= 1
        return found

    monkeypatch.setattr(moving, "move", short)
    with pytest.raises(CoverageError, match="255 bytes of `w` were moved"):
        intarsia.convert(src, tmp_path / "out", to="hf")
    assert not (tmp_path / "out").exists()


def test_windows_that_are_cut_alike_of_tensors_of_other_sizes_have_plans_of_their_own(
    tmp_path: Path, seen
) -> None:
    state = {"x": torch.arange(6, dtype=torch.int16), "y": torch.arange(9, dtype=torch.int16)}
    src, whole = write_hf(tmp_path / "src", state), Box.whole((4,))
    manifest = read_manifest(src)
    slots = Slots({name: (Slot(whole, "f", 8 * k),) for k, name in enumerate(state)})
    plans = StripPlans(slots, {"x": 6, "y": 9})
    after = []
    for name, x in state.items():
        layout = Layout.of(name, x.shape).narrow(0, 0, 4)
        proven = prover_of(manifest).prove(Target(name, BY_NAME["I16"], layout, (whole,)))
        plan = plans.of(proven, whole)
        assert plan is not None
        after += plan.strips["after"].tolist()
    assert after == [4, 10]
