"""Larger items show the same in the kernel and in NumPy, however they are cut into chunks and stretches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.checking.alone.headers import read_headers
from intarsia.checking.content.numbers import dtype_implausible
from intarsia.checking.naming import StackedMatrix, place_of
from intarsia.checking.survey import block_survey, blockwise
from intarsia.checking.survey.block_survey import runs_of_rows
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.errors import ChangedError
from intarsia.kernel.library import has_kernel
from intarsia.kernel.surveying import Asked, Matrix
from intarsia.run.budget import Budget
from intarsia.store.reading.folder import Folder
from tests.checking.survey.test_small_items import TYPES, odd
from tests.checkpoints import write_hf

pytestmark = pytest.mark.skipif(not has_kernel(), reason="the kernel is not built: no C compiler")

SHAPES = ((640, 384), (30, 4100), (4, 120, 200), (12_289, 3), (70_001,), ())


def some_tensors() -> dict[str, torch.Tensor]:
    """Of every type, shape and fault one."""
    random = torch.Generator().manual_seed(3)
    found: dict[str, torch.Tensor] = {}
    for number, how in enumerate([*range(13), None] * 4):
        dtype, shape = TYPES[number % len(TYPES)], SHAPES[number % 5 if number % 11 else 5]
        x = torch.randn(shape, generator=random)
        x = (x if dtype.is_floating_point else 60 * x.abs()).to(dtype)
        kind = ("", "optimizer.exp_avg_sq.", "optimizer.master.")[number % 5 % 3]
        name = f"{kind}stack.layers.{number}.mlp.experts.down_proj.weight"
        found[name] = x if how is None or not shape else odd(x, how)
    return found


def stats_of(path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> list[ItemStats]:
    """What a survey shows of items that are each looked at alone, in the kernel or not."""
    manifest = read_headers(path, None).manifest
    assert manifest is not None
    with monkeypatch.context() as patch:
        patch.setattr(blockwise, "small_item", lambda *_: None)
        if way != "file":
            patch.setattr(Folder, "survey", lambda *_: None)
        if way == "numpy":
            patch.setattr(block_survey, "has_kernel", lambda: False)
        budget = replace(Budget.of("64MiB", 2), share_bytes=1 << 18)
        return blockwise.survey(manifest, budget, wanted=manifest.logical)


@pytest.mark.parametrize("mesh", [None, "fsdp=3"])
@pytest.mark.one_in(2)
def test_kernel_and_numpy_show_the_same(
    mesh: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = some_tensors()
    if mesh is not None:  # state without its weights is no checkpoint to convert
        tensors = {n.removeprefix("optimizer.exp_avg_sq."): x for n, x in tensors.items()}
        tensors = {n.removeprefix("optimizer.master."): x for n, x in tensors.items()}
    path = write_hf(tmp_path / "hf", tensors, None)
    if mesh is not None:
        intarsia.convert(path, tmp_path / "dcp", to="dcp", mesh=mesh)
        path = tmp_path / "dcp"
    ways = (stats_of(path, monkeypatch, way) for way in ("numpy", "memory", "file"))
    for numpy, *kernel in zip(*ways, strict=True):
        for found in kernel:
            assert [*dtype_implausible(found)] == [*dtype_implausible(numpy)]
            # How they are cut says of which parts these are kept, where they say nothing.
            apart = replace(found, least=numpy.least, used_bits=numpy.used_bits)
            assert apart == numpy, numpy.item.stored.name


def test_larger_items_are_read_and_looked_at_by_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_hf(tmp_path / "hf", {"layers.0.weight": torch.randn(640, 384)}, None)
    read: list[int] = []
    monkeypatch.setattr(blockwise.ItemSurvey, "_read", lambda *_: read.append(1))
    (found,) = stats_of(path, monkeypatch, "file")
    assert not read
    assert found.matrices


def test_rows_that_do_not_follow_each_other_are_surveyed_apart() -> None:
    unit = StackedMatrix(place_of("w"), 0, 8, 5)
    assert runs_of_rows(np.array([2, 3, 4]), unit) == [(0, 3)]
    assert runs_of_rows(np.array([2, 3, 6]), unit) == [(0, 2), (2, 3)]
    assert runs_of_rows(np.array([6, 7, 8]), unit) == [(0, 2), (2, 3)]


def test_a_file_that_changed_since_it_was_looked_at_is_not_surveyed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(64))
    with Folder(tmp_path) as folder:
        folder.size("file")
        (tmp_path / "file").write_bytes(bytes(65))
        with pytest.raises(ChangedError):
            folder.survey("file", Asked([Matrix(0, 4, 8, 2, 0, 0)], 12))
