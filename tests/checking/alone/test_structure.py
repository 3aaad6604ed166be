"""Faults that headers alone show, each once, and nothing untrue of the content beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from tests.checkpoints import normal_tensor, write_hf
from tests.faults.damage import edit_metadata

NAMES = [f"model.layers.{k}.mlp.up_proj.weight" for k in range(3)]
WEIGHTS = {name: normal_tensor((64, 32), torch.float32, k) for k, name in enumerate(NAMES)}


def sharded(folder: Path) -> Path:
    """A checkpoint of two ranks, without digests."""
    source = write_hf(folder / "source", WEIGHTS)
    intarsia.convert(source, folder / "out", to="dcp", mesh="fsdp=2", digests=False)
    return folder / "out"


def test_rows_that_no_chunk_holds_are_not_called_zero(tmp_path: Path) -> None:
    def edit(metadata: Any) -> None:
        chunk = metadata.state_dict_metadata[NAMES[0]].chunks[1]
        index = next(
            i for i in metadata.storage_data if i.fqn == NAMES[0] and i.offset == chunk.offsets
        )
        chunk.offsets = torch.Size((chunk.offsets[0] - 16, 0))
        metadata.storage_data[type(index)(NAMES[0], chunk.offsets)] = metadata.storage_data.pop(
            index
        )

    folder = sharded(tmp_path)
    edit_metadata(folder, edit)
    assert [(f.kind, f.tensors) for f in intarsia.verify(folder).faults] == [
        ("chunks-overlap", (NAMES[0],))
    ]


def test_rows_of_a_chunk_that_is_not_listed_are_missing_and_not_called_zero(tmp_path: Path) -> None:
    def edit(metadata: Any) -> None:
        chunk = metadata.state_dict_metadata[NAMES[0]].chunks.pop()
        metadata.storage_data.pop(
            next(i for i in metadata.storage_data if (i.fqn, i.offset) == (NAMES[0], chunk.offsets))
        )

    folder = sharded(tmp_path)
    edit_metadata(folder, edit)
    found = intarsia.verify(folder).faults
    assert [(f.kind, f.tensors) for f in found] == [("elements-missing", (NAMES[0],))]


def test_bytes_that_two_chunks_claim_are_one_fault_that_names_the_tensor(tmp_path: Path) -> None:
    def edit(metadata: Any) -> None:
        first, second = (i for i in metadata.storage_data if i.fqn == NAMES[0])
        metadata.storage_data[second] = metadata.storage_data[first]

    folder = sharded(tmp_path)
    edit_metadata(folder, edit)
    found = [f for f in intarsia.verify(folder).faults if f.kind == "bytes-overlap"]
    assert [f.tensors for f in found] == [(NAMES[0],)]


@pytest.mark.parametrize(
    ("dtype", "other"),
    [(torch.float32, torch.int32), (torch.bfloat16, torch.int16), (torch.float64, torch.int64)],
)
def test_integers_where_other_layers_have_numbers_are_found(
    tmp_path: Path, dtype: torch.dtype, other: torch.dtype
) -> None:
    held = {name: x.to(dtype) for name, x in WEIGHTS.items()}
    assert intarsia.verify(write_hf(tmp_path / "sound", held)).sound
    held[NAMES[1]] = held[NAMES[1]].view(other)
    (fault,) = intarsia.verify(write_hf(tmp_path / "relabelled", held)).faults
    assert (fault.kind, fault.tensors) == ("dtype-mixed", (NAMES[1],))


@pytest.mark.parametrize(
    "other", [torch.float8_e5m2, torch.float8_e4m3fnuz, torch.uint8, torch.int8]
)
def test_another_type_of_eight_bits_than_other_layers_have_is_found(
    tmp_path: Path, other: torch.dtype
) -> None:
    held = {name: x.to(torch.float8_e4m3fn) for name, x in WEIGHTS.items()}
    held |= {f"{name}_scale_inv": torch.rand(4, 2) + 0.5 for name in WEIGHTS}
    assert intarsia.verify(write_hf(tmp_path / "sound", held)).sound
    held[NAMES[1]] = held[NAMES[1]].view(other)
    found = intarsia.verify(write_hf(tmp_path / "relabelled", held)).faults
    assert ("dtype-mixed", (NAMES[1],)) in {(fault.kind, fault.tensors) for fault in found}


def test_a_layer_in_another_type_is_one_fault_whatever_its_tensors_are_called(
    tmp_path: Path,
) -> None:
    """Of a tensor that two layers have, neither is the rarer one; the type of the others is."""
    names = [f"layers.{k}.{x}" for k in range(3) for x in ("up.weight", "norm.weight", "a_log")]
    held = {n: torch.randn(8, 8).bfloat16() for n in names if n != "layers.0.a_log"}
    last = {n: x.half() for n, x in held.items() if "layers.2." in n}
    (fault,) = intarsia.verify(write_hf(tmp_path, held | last, None)).faults
    assert (fault.kind, {*fault.tensors}) == ("dtype-mixed", {*last})
    assert fault.text.endswith("`layers.*.a_log` in BF16")


def test_numbers_and_integers_of_unlike_shapes_are_no_mistake_of_a_header(tmp_path: Path) -> None:
    odd = {"block.5.shift": torch.randn(2, 2).double(), "block.1.shift": torch.arange(8)}
    single = {f"block.{k}.count": torch.tensor(k) for k in range(3)}
    single["block.0.count"] = torch.tensor(0.5).double()
    assert intarsia.verify(write_hf(tmp_path, odd | single)).sound
