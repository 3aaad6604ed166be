"""Small tensors that are surveyed together show what each of them shows alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.checking.alone.headers import read_headers
from intarsia.checking.survey import block_survey, blockwise
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.kernel.surveying import Asked, Surveyed
from intarsia.run.budget import Budget
from intarsia.store.reading.folder import Folder
from tests.checkpoints import write_hf

Tensors = dict[str, torch.Tensor]
TYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint8,
    torch.int64,
)
SHAPES = ((24, 16), (16, 24), (6, 8), (40,), (5, 3), (2, 6, 4))
"""Some are no multiple of eight bytes in the narrower types."""

BUDGET = Budget.of("64MiB", 1)


def odd(x: torch.Tensor, how: int) -> torch.Tensor:
    """A tensor with something that is looked for."""
    flat, half = x.view(-1), x.numel() // 2
    if how == 0:
        flat[half:] = flat[: x.numel() - half].clone()
    elif how == 1:
        x[: len(x) // 2] = 0
    elif how == 2:
        x[..., : x.shape[-1] // 2] = 0
    elif how == 3:
        x[:] = x[:1].clone()
    elif how == 4:
        flat[:] = flat[0].clone()
    elif how == 5:
        flat[:] = 0
    elif how == 6:
        x[-2:] = x[-1:].clone()
    elif how >= 12:
        columns = x.shape[-1] // 2
        x[..., columns : 2 * columns] = x[..., :columns].clone()
    if not x.is_floating_point() or how < 7 or how >= 12:
        return x
    narrow = x.element_size() == 1
    if how == 7:
        flat[3] = float("nan")
    elif how == 8 and x.dtype != torch.float8_e4m3fn:
        flat[half] = -float("inf")
    elif how == 9 and not narrow:
        flat[half] = -6e4 if x.dtype == torch.float16 else -3e9
    elif how == 10:
        flat[::3] = torch.tensor(-0.0).to(x.dtype)
    elif how == 11 and x.dtype in (torch.bfloat16, torch.float16):
        other = torch.float16 if x.dtype == torch.bfloat16 else torch.bfloat16
        return (x.float() / 16).to(other).view(x.dtype)
    return x


def many_tensors() -> Tensors:
    random = torch.Generator().manual_seed(7)
    found: Tensors = {}
    for layer in range(14):
        for shape in SHAPES:
            for dtype in TYPES:
                x = torch.randn(shape, generator=random)
                x = (x if dtype.is_floating_point else 60 * x.abs()).to(dtype)
                kind = ("", "optimizer.exp_avg_sq.", "optimizer.master.")[layer % 5 % 3]
                size = "x".join(map(str, shape))
                name = (
                    f"{kind}stack.layers.{layer}.{str(dtype).removeprefix('torch.')}.{size}.weight"
                )
                found[name] = odd(x.contiguous(), layer)
    return found


def stats_of(path: Path, monkeypatch: pytest.MonkeyPatch, together: bool) -> list[ItemStats]:
    """What a survey shows, in which small items are surveyed together or each alone."""
    manifest = read_headers(path, None).manifest
    assert manifest is not None
    with monkeypatch.context() as patch:
        if not together:
            patch.setattr(blockwise, "small_item", lambda *_: None)
        return blockwise.survey(manifest, BUDGET, wanted=manifest.logical)


def test_together_and_alone_show_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the kernel, from a file and from memory, and in NumPy, each together and alone."""
    path = write_hf(tmp_path / "a", many_tensors(), None, 3)
    ways = (
        lambda: None,
        lambda: monkeypatch.setattr(Folder, "survey", lambda *_: None),
        lambda: monkeypatch.setattr(block_survey, "has_kernel", lambda: False),
    )
    found = []
    for change in ways:
        change()
        found += [stats_of(path, monkeypatch, together) for together in (True, False)]
    for first, *others in zip(*found, strict=True):
        assert others == [first] * 5, first.item.stored.name


def test_small_neighbours_are_read_by_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {f"layers.{k}.weight": torch.randn(32, 16 + k % 2) for k in range(40)}
    path = write_hf(tmp_path / "a", tensors, None)
    calls: list[int] = []
    read, survey = Folder.read_each, Folder.survey

    def counted(folder: Folder, file: str, wanted: list[object]) -> None:
        calls.append(len(wanted))
        read(folder, file, wanted)  # type: ignore[arg-type]

    def counted_survey(folder: Folder, file: str, asked: Asked) -> Surveyed | None:
        calls.append(len(asked.matrices))
        return survey(folder, file, asked)

    monkeypatch.setattr(Folder, "read_each", counted)
    monkeypatch.setattr(Folder, "survey", counted_survey)
    stats_of(path, monkeypatch, True)
    assert 40 in calls


def test_of_small_neighbours_one_whose_bytes_changed_is_named(tmp_path: Path) -> None:
    tensors = {f"layers.{k}.weight": torch.randn(32, 16) for k in range(8)}
    hub = write_hf(tmp_path / "hub", tensors, None)
    intarsia.convert(hub, tmp_path / "dcp", to="dcp")
    (file,) = (tmp_path / "dcp").glob("*.distcp")
    data = bytearray(file.read_bytes())
    data[data.find(tensors["layers.3.weight"].numpy().tobytes()) + 9] ^= 1
    file.write_bytes(data)
    faults = intarsia.verify(tmp_path / "dcp").faults
    assert [(f.kind, f.tensors) for f in faults] == [("checksum-wrong", ("layers.3.weight",))]
