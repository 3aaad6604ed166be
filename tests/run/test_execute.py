"""Carrying out a plan: any window gives the same bytes, and one failure fails the whole."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intarsia
from intarsia.dtypes import BY_NAME
from intarsia.errors import CoverageError, LayoutError, StoreError
from intarsia.format.base import Arrangement, Slot
from intarsia.format.registry import format_named, read_manifest
from intarsia.layout import Layout, concat, padding
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.planning.proof import prover_of
from intarsia.run.budget import Budget
from intarsia.run.execute import Execution, adjoin, nbytes_of
from intarsia.run.gather import gather
from intarsia.run.room import Room
from intarsia.run.source import Source
from intarsia.run.windows.tally import Tally
from intarsia.store.reading.folder import Folder
from intarsia.store.writing.staging import Staging
from tests.budgets import in_steps_of
from tests.checkpoints import (
    assert_same,
    bits,
    files_of,
    llama_config,
    model,
    read_dcp,
    read_hf,
    write_dcp,
    write_hf,
)

CONFIG = llama_config()
MESH = "tp=2,fsdp=3"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("llama") / "hf", model(CONFIG), CONFIG, files=2)


@pytest.fixture(scope="module")
def sharded(source: Path) -> Path:
    path = source.parent / "dcp"
    intarsia.convert(source, path, to="dcp", mesh=MESH)
    return path


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("window", [64, 100, 1000, 4096, 1 << 20])
@pytest.mark.one_in(3)
def test_every_window_and_every_number_of_threads_gives_the_same_bytes(
    source: Path, sharded: Path, tmp_path: Path, monkeypatch, window: int, workers: int
) -> None:
    in_steps_of(monkeypatch, window)
    intarsia.convert(source, tmp_path / "dcp", to="dcp", mesh=MESH, workers=workers)
    assert files_of(tmp_path / "dcp") == files_of(sharded)
    intarsia.convert(tmp_path / "dcp", tmp_path / "hf", to="hf", workers=workers)
    assert_same(read_hf(tmp_path / "hf"), model(CONFIG))


def test_parts_of_one_tensor_that_begin_within_a_word_each_move_their_own_bytes(
    tmp_path: Path,
) -> None:
    x = torch.arange(1, 16, dtype=torch.bfloat16).reshape(3, 5)
    src, whole = write_hf(tmp_path / "src", {"x": x}), Box.whole((1, 5))
    manifest, written = read_manifest(src), dict[int, bytes]()
    rows = [Layout.of("x", (3, 5)).narrow(0, k, k + 1) for k in range(3)]
    targets = [Target(f"row{k}", BY_NAME["BF16"], row, (whole,)) for k, row in enumerate(rows)]

    class Kept:
        can_move = False

        def write(self, file: str, at: int, buffers: list[Any]) -> None:
            written[at] = b"".join(map(bytes, buffers))

    slots = {target.name: (Slot(whole, "f", 100 * k),) for k, target in enumerate(targets)}
    with Folder(src) as folder:
        run = Execution(
            Source(manifest, format_named("hf"), folder),
            Arrangement({"f": 300}, slots),
            Kept(),  # type: ignore[arg-type]
            Budget(1 << 20, 1),
            tally=Tally({"x": 15}),
        )
        run.step([tuple((prover_of(manifest).prove(target), whole) for target in targets)])
    assert written == {100 * k: bits(x[k]) for k in range(3)}


def test_windows_cut_casts_and_transposed_chunks_alike(tmp_path: Path, monkeypatch) -> None:
    state = {"w": torch.randn(70, 30).t(), "v": torch.randn(11, 3, 5).permute(2, 0, 1)}
    src = write_dcp(tmp_path / "src", state)
    for window in (64, 999, 1 << 20):
        in_steps_of(monkeypatch, window)
        intarsia.convert(src, tmp_path / f"hf{window}", to="hf", dtype="bf16")
        wanted = {name: x.to(torch.bfloat16) for name, x in state.items()}
        assert_same(read_hf(tmp_path / f"hf{window}"), wanted)
    assert len({str(files_of(tmp_path / f"hf{w}")) for w in (64, 999, 1 << 20)}) == 1


def test_what_of_a_step_goes_through_memory_fills_one_window_at_a_time(
    source: Path, sharded: Path, tmp_path: Path, monkeypatch
) -> None:
    taken, steps, honest = list[int](), list[int](), (Room.take, Execution.step)
    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: 512))
    monkeypatch.setattr(Budget, "step_bytes", property(lambda _: 1 << 20))
    monkeypatch.setattr(Room, "take", lambda self, n: taken.append(n) or honest[0](self, n))
    monkeypatch.setattr(Staging, "can_move", False)
    monkeypatch.setattr(
        Execution,
        "step",
        lambda self, step: steps.append(sum(map(nbytes_of, step))) or honest[1](self, step),
    )
    intarsia.convert(source, tmp_path / "dcp", to="dcp", mesh=MESH, workers=1)
    assert files_of(tmp_path / "dcp") == files_of(sharded)
    assert max(taken) <= 512 < max(steps)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    ("owner", "method"), [(Folder, "read_each"), (Staging, "write")], ids=["read", "write"]
)
def test_one_failing_call_fails_the_whole_and_commits_nothing(
    source: Path, tmp_path: Path, monkeypatch, owner, method: str, workers: int
) -> None:
    in_steps_of(monkeypatch, 512)
    lock, calls = threading.Lock(), [0]
    honest = getattr(owner, method)

    def fails_once(self, *arguments):
        if threading.current_thread().name.startswith("intarsia"):
            with lock:
                calls[0] += 1
                if calls[0] == 17:
                    raise StoreError("the disk is on fire")
        return honest(self, *arguments)

    monkeypatch.setattr(owner, method, fails_once)
    with pytest.raises(StoreError, match="on fire"):
        intarsia.convert(source, tmp_path / "out", to="dcp", mesh=MESH, workers=workers)
    assert calls[0] >= 17
    assert not (tmp_path / "out").exists()


def test_a_failure_stops_the_other_threads_soon(source: Path, tmp_path: Path, monkeypatch) -> None:
    in_steps_of(monkeypatch, 64)
    lock, calls = threading.Lock(), [0]
    honest = Staging.write

    def fails_once(self, *arguments):
        if threading.current_thread().name.startswith("intarsia"):
            with lock:
                calls[0] += 1
                if calls[0] == 5:
                    raise StoreError("the disk is on fire")
            time.sleep(0.01)
        return honest(self, *arguments)

    monkeypatch.setattr(Staging, "write", fails_once)
    with pytest.raises(StoreError):
        intarsia.convert(source, tmp_path / "out", to="hf", workers=4)
    assert 5 <= calls[0] <= 100, "of some 400"
    assert not (tmp_path / "out").exists()


def test_padding_is_written_as_zeros(source: Path) -> None:
    """Buffers are used again, so what an earlier step left in one must not show."""
    name = "model.norm.weight"
    padded = concat([Layout.of(name, (20,)), padding(12)])
    manifest = read_manifest(source)
    target = Target("padded", BY_NAME["BF16"], padded, (Box.whole((32,)),))
    buffer = np.full(64, 255, np.uint8)
    with Folder(source) as folder:
        opened = Source(manifest, format_named("hf"), folder)
        proven = prover_of(manifest).prove(target)
        gather(folder, opened.fill_box(proven, Box.whole((32,)), buffer))
    assert buffer[:40].tobytes() == bits(model(CONFIG)[name])
    assert not buffer[40:].any()


def test_a_box_that_nothing_fills_is_refused_even_then(source: Path) -> None:
    manifest = read_manifest(source)
    nowhere = Target("x", BY_NAME["BF16"], Layout.of("no.such", (4,)), (Box.whole((4,)),))
    with pytest.raises(CoverageError, match="4 of 4 elements of `x`"):
        prover_of(manifest).prove(nowhere)


def test_a_proof_is_for_one_checkpoint_and_one_box(source: Path) -> None:
    manifest, other, whole = read_manifest(source), read_manifest(source), Box.whole((20,))
    proven = prover_of(manifest).tensor("model.norm.weight")
    buffer = np.zeros(40, np.uint8)
    with Folder(source) as folder:
        with pytest.raises(CoverageError, match="is proven of"):
            Source(other, format_named("hf"), folder).fill_box(proven, whole, buffer)
        with pytest.raises(CoverageError, match="39 bytes are to be read"):
            Source(manifest, format_named("hf"), folder).fill_box(proven, whole, buffer[:39])
        with pytest.raises(LayoutError, match="leaves axis 0"):
            Source(manifest, format_named("hf"), folder).fill_box(proven, Box((9,), (20,)), buffer)


def test_progress_counts_every_byte_up_to_the_total(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = intarsia.convert(
        source, tmp_path / "out", to="dcp", mesh=MESH, workers=1,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen[-1] == (report.plan.write_bytes, report.plan.write_bytes)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_blocks_that_touch_are_written_together() -> None:
    blocks = [(10, [b"bb"]), (0, [b"aaaa"]), (4, [b"c", b"d"]), (12, [b"e"])]
    assert list(adjoin(blocks)) == [(0, [b"aaaa", b"c", b"d"]), (10, [b"bb", b"e"])]
    assert list(adjoin([])) == []


def test_what_torch_loads_does_not_depend_on_the_window(sharded: Path) -> None:
    assert_same(read_dcp(sharded), model(CONFIG))
