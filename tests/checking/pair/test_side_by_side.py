"""Files that hold the same elements are compared with each other: the same answers as by reading them, without it."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia.checking.pair import side_by_side
from intarsia.checking.pair.compare import compare
from intarsia.checking.pair.pairs import match
from intarsia.checking.pair.runs_beside import runs_beside
from intarsia.checking.pair.side_by_side import InFiles, SideBySide
from intarsia.checkpoint import Checkpoint
from intarsia.errors import ChangedError, IntarsiaError
from intarsia.kernel.library import has_kernel
from intarsia.layout import Loop, Piece
from intarsia.mesh import Box
from intarsia.planning.proof.template import Recipe
from intarsia.run.budget import Budget
from intarsia.store.base import Reader
from intarsia.store.local.reader import LocalReader
from intarsia.store.reading import comparing
from intarsia.value import PLAIN
from tests.checkpoints import (
    archived_at_another_time,
    fixture,
    llama_config,
    model,
    random_tensor,
    write_dcp,
    write_hf,
)

pytestmark = pytest.mark.skipif(not has_kernel(), reason="the kernel is not built: no C compiler")

SHAPES = [(), (0,), (1,), (64,), (33, 64), (8, 6, 10), (300, 512)]
FORMS = ["hf", "dcp", "dcp fsdp=3", "dcp tp=2", "dcp tp=4,fsdp=2", "torch"]
BUDGET = Budget(16 << 20, 1)


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    found = {
        f"layers.{k}.q_proj.weight": random_tensor(s, torch.bfloat16) for k, s in enumerate(SHAPES)
    }
    found |= {
        f"layers.{k}.o_proj.weight": random_tensor(s, torch.float32) for k, s in enumerate(SHAPES)
    }
    return found | {"step": torch.tensor(3), "mask": torch.tensor([True, False, True])}


@pytest.fixture(scope="module")
def forms(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor]
) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("forms")
    found = {"hf": write_hf(root / "hf", tensors), "torch": write_dcp(root / "torch", tensors)}
    for form in FORMS[1:-1]:
        _, _, mesh = form.partition(" ")
        intarsia.convert(found["hf"], root / form, to="dcp", **({"mesh": mesh} if mesh else {}))
        found[form] = root / form
    return found


def answers(a: Path, b: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is said of a pair with and without the kernel: the comparison, or the error."""
    found: list[Any] = []
    for there in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(side_by_side, "has_kernel", lambda there=there: there)
            try:
                found.append(intarsia.verify(a, b, workers=1).as_json())
            except IntarsiaError as error:
                found.append((type(error), str(error)))
    return found


@pytest.mark.parametrize("b", FORMS)
@pytest.mark.parametrize("a", FORMS)
def test_equal_weights_are_not_read_into_memory(
    a: str, b: str, forms: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever meshes cut them, by rows or by columns: both sides are compared where they lie."""

    def read_boxes(self: Checkpoint, wanted: Any) -> None:
        assert not list(wanted), "they are compared in their files"

    monkeypatch.setattr(Checkpoint, "read_boxes", read_boxes)
    with intarsia.open(forms[a]) as left, intarsia.open(forms[b]) as right:
        assert compare(left, right, BUDGET)
        assert left.read_bytes >= left.manifest.nbytes


@pytest.mark.parametrize("form", FORMS)
def test_as_many_bytes_are_counted_as_when_they_are_read(
    form: str, forms: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for there in (True, False):
        monkeypatch.setattr(side_by_side, "has_kernel", lambda there=there: there)
        with intarsia.open(forms["hf"]) as left, intarsia.open(forms[form]) as right:
            assert compare(left, right, BUDGET)
            counts.append((left.read_bytes, right.read_bytes))
    (left, right), (left_read, right_read) = counts
    assert left == left_read
    # what lies between is not asked for, and the front of one chunk of each kind is looked at twice
    assert 0.99 * right_read < right < 1.02 * right_read


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.one_in(3)
def test_a_flipped_bit_is_found_as_by_reading(
    form: str, forms: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is in a file: in elements, in what a chunk begins with, or between them; on either side."""
    chance = random.Random(form)
    copied = shutil.copytree(forms[form], tmp_path / "copy")
    files = [f for f in copied.iterdir() if f.suffix in (".safetensors", ".distcp")]
    for k in range(3):
        file = chance.choice(files)
        whole = file.read_bytes()
        bit = chance.randrange(8 * len(whole) if k else 5000)
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        a, b = (copied, forms["dcp tp=2"]) if k == 1 else (forms["hf"], copied)
        with_kernel, without = answers(a, b, monkeypatch)
        assert with_kernel == without
        file.write_bytes(whole)


@pytest.mark.parametrize("at", ["first", "last", "of each window"])
def test_only_what_is_not_known_to_be_equal_is_read(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {f"{k:02}": random_tensor((64, 64), torch.float32, seed=k) for k in range(20)}
    a = write_hf(tmp_path / "a", tensors)
    changed = {"first": ["00"], "last": ["19"], "of each window": list(tensors)}[at]
    for name in changed:
        tensors[name] = -tensors[name]
    b = write_hf(tmp_path / "b", tensors)
    with intarsia.open(a) as left, intarsia.open(b) as right:
        pairs = match(left, right).pairs
        windows = [(number, Box.whole(pair.a.shape)) for number, pair in enumerate(pairs)]
        found = InFiles(SideBySide(left, right, pairs), windows).not_equal(0, len(windows))
        assert {pairs[k].a.name for k in found} >= set(changed)
        assert found == [*range(min(found), len(pairs))]
        assert len(found) == {"first": 20, "last": 1, "of each window": 20}[at]
    with_kernel, without = answers(a, b, monkeypatch)
    assert with_kernel == without
    assert [x["tensor"] for x in with_kernel["different"]] == changed


def test_steps_whose_runs_are_put_together_are_compared_one_by_one(tmp_path: Path) -> None:
    """Of tensors that differ by name alone and others between them, in steps that come in any order."""
    shapes = [(64, 64), (33,), (0, 4)]
    tensors = {f"{k:02}": random_tensor(shapes[k % 3], torch.float32, seed=k) for k in range(21)}
    a = write_hf(tmp_path / "a", tensors)
    tensors["09"] = -tensors["09"]
    b, c = write_hf(tmp_path / "b", tensors), tmp_path / "c"
    intarsia.convert(b, c, to="dcp", mesh="tp=2,fsdp=2")
    for other in (b, c):
        with intarsia.open(a) as left, intarsia.open(other) as right:
            pairs = match(left, right).pairs
            windows = [(number, Box.whole(x.a.shape)) for number, x in enumerate(pairs)]
            in_files = InFiles(SideBySide(left, right, pairs), windows, 3)
            assert in_files.not_equal(14, 21) == []
            found = in_files.not_equal(7, 14)
            assert pairs[found[0]].a.name == "09"
            assert in_files.not_equal(0, 7) == []


def test_a_chunk_that_begins_in_another_way_and_holds_the_same_is_equal(
    forms: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its elements are then looked for, as by reading."""
    copied = shutil.copytree(forms["dcp fsdp=3"], tmp_path / "copy")
    archived_at_another_time(copied / "__1_0.distcp")
    with_kernel, without = answers(forms["hf"], copied, monkeypatch)
    assert with_kernel == without
    assert with_kernel["equal"]


@pytest.mark.parametrize("side", ["hf", "dcp fsdp=3"])
def test_a_file_that_is_changed_meanwhile_is_refused(
    side: str, forms: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = next(f for f in sorted(forms[side].iterdir()) if f.suffix in (".safetensors", ".distcp"))
    real = comparing.comparing.equal_runs

    def compare_and_touch(*arguments: Any) -> int:
        os.utime(file)
        return real(*arguments)

    monkeypatch.setattr(comparing.comparing, "equal_runs", compare_and_touch)
    with pytest.raises(ChangedError, match=f"{file.name} changed while it was read"):
        intarsia.verify(forms["hf"], forms["dcp fsdp=3"], workers=1)


def test_numbers_that_are_stored_in_another_way_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other element types, and NaNs of which some have other payloads: equal bits alone are equal."""
    nan = torch.full((9,), float("nan"))
    other = nan.clone()
    other.view(torch.int32)[4] ^= 1
    a = write_hf(
        tmp_path / "a", {"w": torch.ones(9), "x": nan, "y": nan.clone(), "z": torch.zeros(9)}
    )
    b = write_hf(
        tmp_path / "b", {"w": torch.ones(9).half(), "x": nan, "y": other, "z": -torch.zeros(9)}
    )
    with_kernel, without = answers(a, b, monkeypatch)
    assert with_kernel == without
    assert [x["tensor"] for x in with_kernel["different"]] == ["w", "y", "z"]


def test_files_without_descriptors_are_read(
    forms: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalReader, "opened_together", Reader.opened_together)
    read = list[Any]()
    real = Checkpoint.read_boxes
    monkeypatch.setattr(
        Checkpoint, "read_boxes", lambda self, wanted: real(self, (read.append(1), wanted)[1])
    )
    assert intarsia.verify(forms["hf"], forms["dcp tp=2"])
    assert read


def test_tensors_of_one_shape_may_be_cut_in_two_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor-parallel ranks have rows of one weight and columns of the next: each has runs of its own."""
    config = llama_config(num_hidden_layers=2, hidden_size=24)
    a = write_hf(tmp_path / "hf", model(config), config)
    b = tmp_path / "dcp"
    intarsia.convert(a, b, to="dcp", mesh="tp=2,fsdp=2")
    monkeypatch.setattr(Checkpoint, "read_boxes", lambda self, wanted: pytest.fail("it is read"))
    assert intarsia.verify(a, b)


def test_elements_in_another_order_are_read() -> None:
    """A transposed matrix has no runs: nothing of it would be compared."""
    rows: Recipe = ((0, 0, Piece("", 0, 0, (Loop(12, 1, 1),))),)
    columns: Recipe = ((0, 0, Piece("", 0, 0, (Loop(3, 1, 4), Loop(4, 3, 1)))),)
    assert runs_beside(rows, columns, 12, 2) is None
    assert runs_beside(rows, rows, 13, 2) is None
    assert runs_beside(rows, rows, 12, 2) is not None


def test_equal_bytes_of_other_numbers_are_not_equal(tmp_path: Path) -> None:
    """A norm that one side stores around zero holds other numbers where its bytes are the same."""
    a, b = fixture("qwen3_next"), tmp_path / "torch_dist"
    intarsia.convert(a, b, to="torch_dist")
    with intarsia.open(a) as left, intarsia.open(b) as right:
        assert compare(left, right, BUDGET)
        shifted = next(x for x in right.manifest.stored.values() if x.value is not PLAIN)
        (name,), (chunk,) = shifted.layout.tensors, shifted.chunks
        start = right.source.locate(shifted, chunk).start_bytes
        data = left.read_box(left.prover.tensor(name), Box.whole(shifted.shape))
    with open(Path(right.manifest.path) / chunk.file, "r+b") as file:
        file.seek(start)
        file.write(data)
    assert [x.tensor for x in intarsia.verify(a, b).different] == [name]
