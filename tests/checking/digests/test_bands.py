"""Tensors that are cut alike have, summed where their chunks lie, the sums of their bytes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.checking.digests import bands, digest_steps
from intarsia.checking.digests.bands import InBands, bands_of
from intarsia.errors import IntarsiaError
from intarsia.kernel.library import has_kernel
from intarsia.mesh import Box, Shape
from intarsia.run.budget import Budget
from tests.checkpoints import archived_at_another_time, normal_tensor, write_hf

SHAPES = [(3,), (0, 4), (), (64, 96), (8, 6), (4096,), (1, 1), (5, 8, 3), (96, 64), (640, 500)]
TENSORS = {
    f"w{k}.{n}": normal_tensor(shape, torch.bfloat16)
    for n in range(3)
    for k, shape in enumerate(SHAPES)
}


def tiled(shape: Shape, chance: random.Random) -> Iterator[Box]:
    """Random boxes that tile a tensor: bands of rows, each cut by columns of its own."""
    first = 0
    while first < shape[0]:
        rows, at = chance.randint(1, shape[0] - first), 0
        while at < prod(shape[1:2]):
            columns = chance.randint(1, shape[1] - at) if shape[1:] else 1
            inner = (columns, *shape[2:]) if shape[1:] else ()
            begin = (first, at, *[0] * len(shape[2:])) if shape[1:] else (first,)
            yield Box(begin, (rows, *inner))
            at += columns
        first += rows


@pytest.mark.parametrize("seed", range(20))
def test_bands_name_each_byte_of_a_tensor_where_it_is(seed: int) -> None:
    chance = random.Random(seed)
    shape = tuple(chance.randint(1, 9) for _ in range(chance.randint(1, 3)))
    whole = np.arange(prod(shape), dtype=np.uint16).reshape(shape)
    boxes = [*tiled(shape, chance), Box((0,) * len(shape), (0, *shape[1:]))]
    chance.shuffle(boxes)
    found = bands_of(shape, boxes, 2)
    assert found is not None
    chunks = [
        whole[tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))]
        for box in boxes
    ]
    held, sides = np.zeros(whole.nbytes, np.uint8), iter(found.sides.tolist())
    for rows, row_bytes, start, after, _, sources, targets in found.strips.tolist():
        assert not targets
        assert start + rows * row_bytes + after == whole.nbytes
        strip = held[start : start + rows * row_bytes].reshape(rows, row_bytes)
        for file, at, offset, width, _ in (next(sides) for _ in range(sources)):
            chunk = np.frombuffer(chunks[file].tobytes(), np.uint8)[at : at + rows * width]
            strip[:, offset : offset + width] += chunk.reshape(rows, width)
    assert not [*sides]
    assert held.tobytes() == whole.tobytes()


def test_what_cuts_more_than_rows_and_columns_has_no_bands() -> None:
    halves = [Box((0, 0, 0), (2, 3, 2)), Box((0, 0, 2), (2, 3, 2))]
    assert bands_of((2, 3, 4), halves, 2) is None
    long = 1 << 20
    columns = [Box((0, 0), (2, long)), Box((0, long), (2, long))]
    assert bands_of((2, 2 * long), columns, 2) is None
    assert bands_of((0, 4), [], 2) is None


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bands")
    found = {"hf": write_hf(root / "hf", TENSORS)}
    for mesh in ("tp=2,fsdp=4", "fsdp=3", "tp=2"):
        intarsia.convert(found["hf"], root / mesh, to="dcp", mesh=mesh)
        found[mesh] = root / mesh
    return found


@pytest.mark.skipif(not has_kernel(), reason="nothing is summed in bands without it")
@pytest.mark.parametrize("mesh", ["tp=2,fsdp=4", "fsdp=3", "tp=2"])
@pytest.mark.parametrize("window_bytes", [32 << 10, 4 << 20])
def test_chunks_in_columns_are_summed_in_bands_and_each_byte_is_read_once(
    mesh: str, window_bytes: int, forms: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: window_bytes))
    assert intarsia.digest(forms[mesh]).tensors == intarsia.digest(forms["hf"]).tensors
    with intarsia.open(forms[mesh]) as checkpoint:
        logical = checkpoint.manifest.logical
        proofs = checkpoint.prover.tensors(logical)
        steps = digest_steps.steps_over(checkpoint, proofs, logical, Budget.of(None, 1))
        small = {name for name, x in logical.items() if 0 < x.nbytes <= window_bytes}
        assert {x for step in steps if isinstance(step, InBands) for x in step.names} == small
        assert sum(step.nbytes for step in steps) == checkpoint.manifest.nbytes


@pytest.mark.parametrize("mesh", ["tp=2,fsdp=4", "fsdp=3"])
def test_a_byte_that_is_another_is_found_as_without_bands(
    mesh: str, forms: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In elements, in what an archive begins with, or between them."""
    copied, chance = shutil.copytree(forms[mesh], tmp_path / "copy"), random.Random(mesh)

    def answer() -> object:
        try:
            return intarsia.digest(copied, workers=1).tensors
        except IntarsiaError as error:
            return str(error)

    sound, others = answer(), 0
    for _ in range(12):
        file = chance.choice(sorted(copied.glob("*.distcp")))
        whole = file.read_bytes()
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        found = answer()
        with monkeypatch.context() as patch:
            patch.setattr(digest_steps, "has_kernel", lambda: False)
            assert found == answer()
        others += found != sound
        file.write_bytes(whole)
    assert others


@pytest.mark.skipif(not has_kernel(), reason="nothing is summed in bands without it")
def test_what_does_not_begin_as_its_like_is_read(
    forms: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(forms["fsdp=3"], tmp_path / "copy")
    archived_at_another_time(copied / "__1_0.distcp")
    held: list[bool] = []
    begin_alike = bands._begin_alike
    monkeypatch.setattr(
        bands, "_begin_alike", lambda *rest: held.append(begin_alike(*rest)) or held[-1]
    )
    assert intarsia.digest(copied).tensors == intarsia.digest(forms["hf"]).tensors
    assert {*held} == {True, False}
