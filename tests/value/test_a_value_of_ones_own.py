"""A way to store numbers that only this file knows moves through plan, gather, tally, digest and verify.

Nothing but the value says how its numbers are stored, so those parts of the house know none by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia import family
from intarsia.checking.digests.digest import digests_of
from intarsia.checking.pair.compare import compare
from intarsia.checkpoint import Checkpoint
from intarsia.conversion.job import prepare
from intarsia.conversion.running import carry_out
from intarsia.conversion.targets import Request
from intarsia.dtypes import BY_NAME, DType
from intarsia.errors import CoverageError, UnsupportedError
from intarsia.family.table import Table
from intarsia.format.registry import read_manifest
from intarsia.layout import Layout, Loop, Piece
from intarsia.mesh import Box, Mesh
from intarsia.planning.chunks import Chunks, boxes_of, places_of
from intarsia.planning.manifest import Chunk, Logical, Manifest, Target
from intarsia.planning.proof import prover_of
from intarsia.run import losses
from intarsia.run.budget import Budget
from intarsia.value import PLAIN, Value, Window
from intarsia.value.bits import Bits, as_float64, bits_dtype
from intarsia.value.cast import cast
from tests.checkpoints import llama_config, model, read_dcp, read_hf, write_hf

BF16, F32, F64 = (BY_NAME[name] for name in ("BF16", "F32", "F64"))


@dataclass(frozen=True)
class Negated(Value):
    """Each stored element is the number with the other sign."""

    def decode(self, stored: Window, into: DType) -> Bits:
        found = cast(stored.bits, stored.dtype, into)
        return found ^ np.array(1 << (8 * into.itemsize - 1), bits_dtype(into))

    encode = decode


@pytest.fixture
def negated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Megatron's norms are stored negated."""
    with monkeypatch.context() as patch:
        patch.setattr(Table, "norm_value", lambda table, centered=None: Negated())
        family._table.cache_clear()
        yield
    family._table.cache_clear()


@pytest.mark.parametrize("dtype", [None, "fp16"])
def test_a_value_moves_from_plan_to_verify_and_back(negated, dtype, tmp_path: Path) -> None:
    tensors = model(llama_config(), torch.float32)
    src = write_hf(tmp_path / "hf", tensors, llama_config())
    there, back = tmp_path / "there", tmp_path / "back"
    plan = intarsia.plan(src, to="torch_dist", mesh="tp=2", dtype=dtype)
    values = {t.name: t.value for t in plan.targets}
    assert values["decoder.final_layernorm.weight"] == Negated()
    report = intarsia.convert(src, there, to="torch_dist", mesh="tp=2", dtype=dtype)
    want = {name: x.half() if dtype else x for name, x in tensors.items()}
    stored = read_dcp(next(there.rglob(".metadata")).parent)
    assert torch.equal(stored["decoder.final_layernorm.weight"], -want["model.norm.weight"])
    changed = {x.tensor: (x.rounded, x.recentred) for x in report.changed}
    lost = int((tensors["model.norm.weight"] != want["model.norm.weight"].float()).sum())
    assert changed.get("decoder.final_layernorm.weight", (0, 0)) == (lost, 0)
    intarsia.convert(there, back, to="hf")
    for name, x in read_hf(back).items():
        assert torch.equal(x, want[name]), name
    assert intarsia.verify(there), "its digests were taken of numbers"
    assert intarsia.verify(there, back)
    assert intarsia.digest(there) == intarsia.digest(back)


def test_a_number_that_was_changed_under_a_value_is_found(negated, tmp_path: Path) -> None:
    tensors = model(llama_config())
    src = write_hf(tmp_path / "hf", tensors, llama_config())
    other = tensors | {"model.norm.weight": -tensors["model.norm.weight"]}
    wrong = write_hf(tmp_path / "wrong", other, llama_config())
    intarsia.convert(wrong, tmp_path / "there", to="torch_dist")
    found = intarsia.verify(src, tmp_path / "there")
    assert [x.tensor for x in found.different] == ["model.norm.weight"]


ROWS, COLUMNS, BLOCK = 11, 14, (4, 3)
"""Edges are ragged on both axes."""


@dataclass(frozen=True)
class BlockScaled(Value):
    """Each number is a stored element times the scale of its block."""

    scales: str

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.scales,)

    @property
    def as_target(self) -> Value:
        return PLAIN

    def number_type(self, stored: DType) -> DType:
        return BF16

    def decode(self, stored: Window, into: DType) -> Bits:
        scales = stored.parts[self.scales]
        numbers = as_float64(stored.bits, stored.dtype) * as_float64(scales.bits, scales.dtype)
        return cast(numbers.view(bits_dtype(F64)), F64, into)

    def encode(self, numbers: Window, into: DType) -> Bits:
        raise NotImplementedError

    def __str__(self) -> str:
        return f"scaled by `{self.scales}`"


def shared_by_blocks(name: str) -> Layout:
    """Which elements each scale is for: the scales' rows and columns, and those of a block."""
    pieces = []
    across = -(-COLUMNS // BLOCK[1])
    for top in range(0, ROWS, BLOCK[0]):
        for left in range(0, COLUMNS, BLOCK[1]):
            n, m = min(BLOCK[0], ROWS - top), min(BLOCK[1], COLUMNS - left)
            loops = tuple(loop for loop in (Loop(n, 0, COLUMNS), Loop(m, 0, 1)) if loop.n > 1)
            at = top // BLOCK[0] * across + left // BLOCK[1]
            pieces.append(Piece(name, at, top * COLUMNS + left, loops))
    return Layout((-(-ROWS // BLOCK[0]), across), tuple(pieces))


@pytest.fixture
def scaled(tmp_path: Path) -> tuple[Manifest, torch.Tensor, int]:
    """A checkpoint with an fp8 weight and scales, of which a manifest knows what they are; its numbers
    in bf16, and how many of them that rounds."""
    random = torch.Generator().manual_seed(0)
    codes = torch.randn(ROWS, COLUMNS, generator=random).to(torch.float8_e4m3fn)
    shape = tuple(-(-n // b) for n, b in zip((ROWS, COLUMNS), BLOCK, strict=True))
    scales = torch.rand(shape, generator=random) + 0.5
    tensors = {"w": codes, "w.scales": scales, "b": torch.randn(5, generator=random)}
    src = read_manifest(write_hf(tmp_path / "scaled", tensors))
    stored = dict(src.stored)
    part = replace(stored.pop("w.scales"), layout=shared_by_blocks("w"))
    stored["w"] = replace(stored["w"], value=BlockScaled("w.scales"))
    logical = {n: x for n, x in src.logical.items() if n != "w.scales"}
    logical["w"] = Logical("w", (ROWS, COLUMNS), BF16)
    wide = scales.double().repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
    exact = codes.double() * wide[:ROWS, :COLUMNS]
    numbers = exact.bfloat16()
    src = replace(src, stored=stored, logical=logical, parts={"w.scales": part})
    return src, numbers, int((numbers != exact).sum())


@pytest.mark.parametrize("to", ["hf", "dcp"])
def test_a_value_with_parts_is_read_by_every_path(scaled, to, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(losses, "AT_ONCE", 40)
    src, numbers, rounded = scaled
    budget = Budget.of("64MiB", 2)
    job = prepare(src, Request(to, Mesh.parse("tp=2")), budget)
    report = carry_out(job, tmp_path / "out")
    assert [(x.tensor, x.rounded) for x in report.changed] == [("w", rounded)]
    found = (read_hf if to == "hf" else read_dcp)(tmp_path / "out")
    assert found.keys() == {"w", "b"}
    assert torch.equal(found["w"], numbers)
    with Checkpoint(src) as a, intarsia.open(tmp_path / "out") as b:
        assert torch.equal(a["w"][3:9, 5], numbers[3:9, 5])
        assert digests_of(a, budget) == digests_of(b, budget)
        assert compare(a, b, budget)


def test_a_part_that_is_lost_or_too_small_is_refused_before_anything_is_read(scaled) -> None:
    src, *_ = scaled
    part = src.parts["w.scales"]
    few = replace(part.layout, pieces=part.layout.pieces[:-1])
    twice = replace(part.layout, pieces=(*part.layout.pieces, part.layout.pieces[-1]))
    for parts, what in (
        ({}, "its part `w.scales` is not there"),
        ({"w.scales": replace(part, layout=few)}, r"has nothing for 6 of 154 elements of `w`"),
        ({"w.scales": replace(part, layout=twice)}, r"has two numbers for 6 elements of `w`"),
        ({"w.scales": replace(part, chunks=())}, "chunks of `w.scales` do not tile it"),
    ):
        columns = {n: replace(s, chunks=in_columns(s.chunks)) for n, s in src.stored.items()}
        for stored in (src.stored, columns):
            with pytest.raises(CoverageError, match=what):
                prover_of(replace(src, parts=parts, stored=stored)).tensor("w")


def in_columns(chunks: Sequence[Chunk]) -> Chunks:
    return Chunks(boxes_of(chunks), places_of([chunks]), 0)


def test_a_value_with_parts_is_not_written_for_want_of_them(scaled) -> None:
    src, *_ = scaled
    whole = (Box.whole((ROWS, COLUMNS)),)
    layout, value = src.stored["w"].layout, src.stored["w"].value
    with pytest.raises(UnsupportedError, match="can be read but not yet written"):
        prover_of(src).prove(Target("w", BF16, layout, whole, value=value))
