"""A value whose parts are made from numbers is written, read again, verified and resumed.

Nothing but the values of this file knows what they store: codes of one byte with a scale for each row, or for
each block of a grid whose edges are ragged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.checking.digests.digest import digests_of, stored_digests
from intarsia.checking.pair.compare import compare
from intarsia.checkpoint import Checkpoint
from intarsia.conversion.job import Job, prepare
from intarsia.conversion.running import carry_out
from intarsia.dtypes import BY_NAME, DType
from intarsia.errors import (
    CoverageError,
    IntarsiaError,
    LimitError,
    PrecisionError,
    UnsupportedError,
)
from intarsia.format.registry import read_manifest
from intarsia.format.request import Request
from intarsia.mesh import Mesh
from intarsia.planning.manifest import Manifest, Target
from intarsia.planning.proof import prover_of
from intarsia.run.budget import Budget
from intarsia.store.writing.staging import Staging
from intarsia.value import Window
from intarsia.value.bits import Bits, as_float64, bits_dtype
from intarsia.value.cast import cast
from intarsia.value.measured import Measured
from tests.budgets import in_steps_of
from tests.checkpoints import files_of, leftovers, read_dcp, read_hf, write_hf

F32, F64, BF16, I8 = (BY_NAME[name] for name in ("F32", "F64", "BF16", "I8"))
BUDGET = Budget.of("64MiB", 2)


@dataclass(frozen=True)
class Int8(Measured):
    """Each number is a signed byte times the scale of its block; `rows` and `columns`: 0 for all."""

    scales: str
    rows: int = 1
    columns: int = 0

    @property
    def stored_type(self) -> DType:
        return I8

    @property
    def part_types(self) -> Mapping[str, DType]:
        return {self.scales: F32}

    def number_type(self, stored: DType) -> DType:
        return F32

    def block(self, part: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.rows or shape[0], self.columns or shape[1]

    def measure(self, part: str, numbers: Window) -> Bits:
        x = np.abs(as_float64(numbers.bits, numbers.dtype))
        rows, columns = self.block(part, x.shape)
        top = np.maximum.reduceat(x, range(0, x.shape[0], rows), axis=0)
        top = np.maximum.reduceat(top, range(0, x.shape[1], columns), axis=1)
        return (top / 127).astype("f4").view("<u4")

    def decode(self, stored: Window, into: DType) -> Bits:
        scales = stored.parts[self.scales]
        codes = as_float64(stored.bits, stored.dtype)
        with np.errstate(invalid="ignore"):
            numbers = codes * as_float64(scales.bits, scales.dtype)
        return cast(numbers.view("<u8"), F64, into)

    def encode(self, numbers: Window, into: DType) -> Bits:
        scales = numbers.parts[self.scales]
        scale = as_float64(scales.bits, scales.dtype)
        with np.errstate(divide="ignore", invalid="ignore"):
            codes = as_float64(numbers.bits, numbers.dtype) / np.where(scale == 0, 1, scale)
        return np.rint(np.nan_to_num(codes)).clip(-127, 127).astype("i1").view(bits_dtype(into))

    def __str__(self) -> str:
        return f"bytes scaled by `{self.scales}` in blocks of {self.rows} x {self.columns}"


SHAPES = {"a.weight": (37, 50), "b.weight": (64, 33), "c.weight": (5, 1)}


def exact_numbers(rows: int = 1, columns: int = 0) -> dict[str, torch.Tensor]:
    """Weights that bytes and scales hold without rounding, and a bias: each block has a code of 127."""
    random = np.random.default_rng(0)
    found = {}
    for name, shape in SHAPES.items():
        codes = random.integers(-127, 128, shape)
        scales = 2.0 ** random.integers(-9, -3, shape)
        tall, wide = rows or shape[0], columns or shape[1]
        for top in range(0, shape[0], tall):
            for left in range(0, shape[1], wide):
                block = np.s_[top : top + tall, left : left + wide]
                scales[block] = scales[top, left]
                codes[top, left] = 127
        found[name] = torch.from_numpy((codes * scales).astype("f4"))
    return found | {"bias": torch.randn(7)}


def in_bytes(rows: int = 1, columns: int = 0) -> Callable[[Target], Int8 | None]:
    def choose(target: Target) -> Int8 | None:
        if len(target.shape) != 2:
            return None
        return Int8(f"{target.name}_scale", rows, columns)

    return choose


def job_of(src: Path, to: str = "hf", *, rows: int = 1, columns: int = 0) -> Job:
    mesh = Mesh.parse("" if to == "hf" else "fsdp=3")
    return prepare(src, Request(to, mesh), BUDGET, store_as=in_bytes(rows, columns))


def read_again(out: Path, job: Job) -> Manifest:
    assert job.made is not None
    return job.made.seen_in(read_manifest(out))


@pytest.mark.parametrize("to", ["hf", "dcp"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 0), (8, 6), (0, 0)])
def test_numbers_that_it_can_hold_arrive_and_are_verified(
    to, rows, columns, tmp_path, monkeypatch
) -> None:
    in_steps_of(monkeypatch, 2048)
    tensors = exact_numbers(rows, columns)
    src = write_hf(tmp_path / "src", tensors)
    job = job_of(src, to, rows=rows, columns=columns)
    assert job.plan.proven
    report = carry_out(job, tmp_path / "out")
    assert report.changed == (), "nothing was rounded"

    stored = (read_hf if to == "hf" else read_dcp)(tmp_path / "out")
    assert stored.keys() == tensors.keys() | {f"{name}_scale" for name in SHAPES}
    for name, shape in SHAPES.items():
        assert stored[name].dtype == torch.int8
        scales = stored[f"{name}_scale"]
        wide = scales.repeat_interleave(rows or shape[0], 0)
        wide = wide.repeat_interleave(columns or shape[1], 1)[: shape[0], : shape[1]]
        assert torch.equal(stored[name].float() * wide, tensors[name])

    written = read_again(tmp_path / "out", job)
    prover_of(written).all()
    with Checkpoint(written) as there, intarsia.open(src) as here:
        assert set(there) == set(here), "scales are no tensors of the model"
        assert torch.equal(there["b.weight"][3:9, 5], tensors["b.weight"][3:9, 5])
        assert compare(here, there, BUDGET)
        digests = digests_of(there, BUDGET)
        assert digests == digests_of(here, BUDGET)
    promised = stored_digests(written)
    assert promised is not None
    assert promised.digests.tensors == digests.tensors, "they were taken of the numbers"


def test_what_is_rounded_is_counted_and_its_digest_is_of_what_is_read(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.randn(300, 70), "bias": torch.randn(3)}
    job = job_of(write_hf(tmp_path / "src", tensors))
    (changed,) = carry_out(job, tmp_path / "out").changed
    stored = read_hf(tmp_path / "out")
    read = stored["a.weight"].double() * stored["a.weight_scale"].double()
    lost = (read.float() != tensors["a.weight"]).sum()
    assert (changed.tensor, changed.rounded) == ("a.weight", int(lost))
    assert torch.allclose(read.float(), tensors["a.weight"], atol=0.05)
    back = carry_back(read_again(tmp_path / "out", job), tmp_path / "back")
    assert torch.equal(back["a.weight"], read.float())
    assert torch.equal(back["bias"], tensors["bias"])
    promised = stored_digests(read_manifest(tmp_path / "out"))
    assert promised is not None
    assert (
        promised.digests.tensors["a.weight"]
        == intarsia.digest(tmp_path / "back").tensors["a.weight"]
    )


def carry_back(src: Manifest, out: Path) -> dict[str, torch.Tensor]:
    """The plain numbers of a checkpoint, by an ordinary conversion."""
    plain = {n: replace(s) for n, s in src.stored.items()}
    carry_out(prepare(replace(src, stored=plain), Request("hf", Mesh.parse("")), BUDGET), out)
    return read_hf(out)


def test_a_scale_that_was_changed_is_found(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "src", exact_numbers())
    job = job_of(src)
    carry_out(job, tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*.safetensors")
    written = read_again(tmp_path / "out", job)
    at = written.parts["b.weight_scale"].chunks[0].start_bytes
    data = bytearray(file.read_bytes())
    data[at + 2] ^= 1
    file.write_bytes(data)
    with Checkpoint(read_again(tmp_path / "out", job)) as there, intarsia.open(src) as here:
        (found,) = compare(here, there, BUDGET).different
        assert (found.tensor, found.first) == ("b.weight", (0, 0))
        assert found.elements <= SHAPES["b.weight"][1], "one row"
        promised = stored_digests(there.manifest)
        assert promised is not None
        assert promised.digests.tensors["b.weight"] != digests_of(there, BUDGET).tensors["b.weight"]


class Death(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("at", [1, 7, 20])
def test_a_run_that_was_killed_is_resumed_with_the_same_bytes(at, tmp_path, monkeypatch) -> None:
    src = write_hf(tmp_path / "src", {"big.weight": torch.randn(700, 90), **exact_numbers()})
    carry_out(job_of(src, "dcp"), tmp_path / "whole")
    out, count, honest = tmp_path / "out", [0], Staging.write

    def write(self: Staging, *arguments: object) -> None:
        count[0] += 1
        if count[0] == at:
            raise Death
        honest(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "write", write)
        patch.setattr(Staging, "abandon", lambda self, keep=False: self.release())
        with pytest.raises(Death):
            carry_out(job_of(src, "dcp"), out)
    assert not out.exists()
    report = carry_out(job_of(src, "dcp"), out, resume=True)
    assert "resumed: " in str(report)
    assert files_of(out) == files_of(tmp_path / "whole")
    assert not leftovers(tmp_path)


def test_a_number_that_it_cannot_hold_is_refused(tmp_path: Path) -> None:
    for bad in (float("nan"), float("inf")):
        tensors = exact_numbers()
        tensors["a.weight"][3, 4] = bad
        src = write_hf(tmp_path / f"{bad}", tensors)
        with pytest.raises(
            PrecisionError, match=r"`a.weight`\[3, 0\] is .* cannot be stored as bytes"
        ):
            carry_out(job_of(src), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_what_has_no_parts_or_no_room_for_them_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src = write_hf(tmp_path / "src", exact_numbers())
    with pytest.raises(UnsupportedError, match="has the name of another tensor"):
        prepare(
            src,
            Request("hf", Mesh.parse("")),
            BUDGET,
            store_as=lambda t: Int8("bias") if t.name == "a.weight" else None,
        )
    with pytest.raises(CoverageError, match="its part `x` is not there"):
        prover_of(read_manifest(src)).prove(
            replace(job_of(src).wanted.targets[0], value=Int8("x"), dtype=I8)
        )
    large = replace(BUDGET, memory_bytes=1 << 10)
    with pytest.raises(LimitError, match="would be held to make the parts of values"):
        prepare(src, Request("hf", Mesh.parse("")), large, store_as=in_bytes())
    monkeypatch.setattr(Int8, "measure", lambda *_: np.zeros((1, 1), "<u4"))
    with pytest.raises(CoverageError, match=r"made \[1, 1\] elements of `a.weight_scale`"):
        job_of(src)
    assert issubclass(LimitError, IntarsiaError)
