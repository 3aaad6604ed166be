"""What is stored and no tensor holds is checked too: copies, gaps, empty states."""

from __future__ import annotations

import re
import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any
from warnings import catch_warnings
from zlib import crc32

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import intarsia
from intarsia.checking.alone.unmapped import copies_that_differ
from intarsia.format.dcp.archives import recorded_checksum
from intarsia.format.dcp.data_files import open_metadata
from intarsia.run.budget import Budget
from intarsia.store.reading.folder import Folder
from tests.checkpoints import write_dcp, write_hf
from tests.fixtures import fixture

MEGATRON = fixture("megatron")


@pytest.mark.parametrize("which", ["copy", "padding", "extra state"])
@pytest.mark.one_in(3)
def test_what_no_tensor_holds_is_checked_too(which: str, tmp_path: Path) -> None:
    """Optimizer state in Megatron's buckets has copies and gaps, and modules have empty states."""
    src = MEGATRON / ("td_dense_tp2" if which == "extra state" else "td_dense_tp2pp2_dpresh")
    src /= "iter_0000010"
    shutil.copytree(src, tmp_path / "out", dirs_exist_ok=True, copy_function=shutil.copyfile)
    manifest = intarsia.open(tmp_path / "out").manifest
    home = Path(manifest.path)
    file, start, length = _unmapped(manifest, home, which)
    with (home / file).open("r+b") as held:
        held.seek(start + length // 2)
        byte = held.read(1)[0]
        held.seek(start + length // 2)
        held.write(bytes([byte ^ 0x10]))
    kinds = {fault.kind for fault in intarsia.verify(tmp_path / "out").faults}
    assert kinds & {"checksum-wrong", "entry-damaged", "malformed", "copies-differ"}
    for x, y in ((src, tmp_path / "out"), (tmp_path / "out", src)):
        assert not intarsia.verify(x, y).equal


def _unmapped(manifest: Any, home: Path, which: str) -> tuple[str, int, int]:
    metadata, _ = open_metadata(Folder(home))
    held = {(c.file, c.start_bytes) for s in manifest.stored.values() for c in s.chunks}
    twins = {(c.file, c.start_bytes) for s in manifest.copies for c in s.chunks}
    if which == "extra state":
        o = next(o for o in metadata.objects.values() if "_extra_state" in o.name)
        data = Folder(home).read(o.file, o.start_bytes, o.length_bytes)
        at = data.index(b"data.pkl") + len("data.pkl")
        pickled = data.index(b"\x80\x02", at)
        return o.file, o.start_bytes + pickled, 4
    chunks = (c for t in metadata.tensors.values() for c in t.chunks)
    for c in chunks:
        at = (c.file, c.start_bytes)
        if at not in held and (at in twins) == (which == "copy"):
            return c.file, *recorded_checksum(Folder(home), c)[:2]
    raise AssertionError(f"no {which}")


@pytest.mark.parametrize("chain", ["", "chained_0."])
def test_gaps_of_buckets_may_hold_anything_where_no_parameter_is_known(
    chain: str, tmp_path: Path
) -> None:
    """Megatron saves memory that it never wrote between parameters; experts have optimizers in a chain."""
    name = f"{chain}optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.bfloat16).bucket_idx_0"
    bucket = torch.randn(64).square()
    bucket[40:] = torch.tensor([float("nan"), -3e38, 7e37]).repeat(8)
    state = {f"{name}.{kind}": bucket for kind in ("param", "exp_avg", "exp_avg_sq")}
    folder = write_dcp(tmp_path / "td", {"strange.weight": torch.randn(8, 8), **state})
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    torch.save({"args": Namespace(num_layers=1)}, folder / "common.pt")
    found = intarsia.verify(folder)
    assert found, found.faults


def test_copies_that_were_saved_unequal_are_found(tmp_path: Path) -> None:
    """Though every checksum is right."""
    src = MEGATRON / "td_dense_tp2pp2_dpresh" / "iter_0000010"
    manifest = intarsia.open(src).manifest
    budget = Budget.of(None, None)
    assert not list(copies_that_differ(manifest, budget))
    one, other, *_ = (c for c in manifest.copies if "k_layernorm" in c.name and "exp_avg" in c.name)
    wrong = replace(one, chunks=other.chunks)
    (fault,) = copies_that_differ(replace(manifest, copies=(wrong,)), budget)
    assert fault.kind == "copies-differ"


def test_all_copies_of_a_rank_that_is_stale_are_one_fault(tmp_path: Path) -> None:
    src = MEGATRON / "td_dense_tp2pp2_dpresh" / "iter_0000010"
    shutil.copytree(src, tmp_path / "out", copy_function=shutil.copyfile)
    copies = intarsia.open(src).manifest.copies
    chunks = {(c.file, c.start_bytes): c for copy in copies for c in copy.chunks}
    for (file, _), chunk in chunks.items():
        start, length, crc = recorded_checksum(Folder(src), chunk)
        assert crc is not None
        data = bytearray((tmp_path / "out" / file).read_bytes())
        data[start : start + length] = other = bytes(b ^ 1 for b in data[start : start + length])
        lo, hi = chunk.start_bytes, chunk.start_bytes + chunk.length_bytes
        new = crc32(other).to_bytes(4, "little")
        data[lo:hi] = data[lo:hi].replace(crc.to_bytes(4, "little"), new)
        (tmp_path / "out" / file).write_bytes(data)
    (fault,) = intarsia.verify(tmp_path / "out").faults
    assert fault.kind == "copies-differ"
    assert f"and {len(copies) - 1} more like it" in fault.text
    assert fault.where == ", ".join(sorted({file for file, _ in chunks}))
    assert {*fault.tensors} == {name for copy in copies for name in copy.layout.tensors}
    found = intarsia.verify(src, tmp_path / "out")
    assert found.damaged == (replace(fault, where=f"B: {fault.where}"),)


def test_bytes_after_the_last_chunk_of_a_file_are_noted(tmp_path: Path) -> None:
    """Torch does not look at them; a file that another save wrote may have them."""
    held = {f"w{k}": torch.randn(8, 8) for k in range(3)}
    for k, src in enumerate((write_dcp(tmp_path / "dcp", held), MEGATRON / "td_dense_tp2")):
        shutil.copytree(src, tmp_path / f"out{k}", copy_function=shutil.copyfile)
        assert "after the last chunk" not in "".join(intarsia.verify(tmp_path / f"out{k}").notes)
        file = max((tmp_path / f"out{k}").rglob("*.distcp"))
        with file.open("ab") as data:
            data.write(bytes(100))
        report = intarsia.verify(tmp_path / f"out{k}")
        assert report.sound
        (note,) = (note for note in report.notes if "after the last chunk" in note)
        assert note.startswith(f"100 bytes lie after the last chunk of {file.name}")


def test_archives_that_torch_does_not_open_are_faults(tmp_path: Path) -> None:
    """A member of an archive that does not begin as one, though its content is as it was."""
    src = write_dcp(tmp_path / "dcp", {"w": torch.randn(8, 8), "notes": "text" * 20})
    (file,) = src.glob("*.distcp")
    whole = file.read_bytes()
    assert intarsia.verify(src).sound
    members = [found.start() for found in re.finditer(b"PK\3\4", whole)]
    assert len(members) > 8
    for at in members:
        file.write_bytes(whole[:at] + b"pk" + whole[at + 2 :])
        with pytest.raises(CheckpointException), catch_warnings(action="ignore"):
            dcp.load({"w": torch.empty(8, 8), "notes": ""}, checkpoint_id=src, no_dist=True)
        assert {f.kind for f in intarsia.verify(src).faults} <= {"malformed", "entry-damaged"}
        assert not intarsia.verify(src).sound, at


def test_files_with_tensors_that_are_no_part_of_the_checkpoint_are_named_as_not_checked(
    tmp_path: Path,
) -> None:
    held = {"w": torch.randn(8, 8)}
    for src, stray in (
        (write_dcp(tmp_path / "dcp", held), "__7_0.distcp"),
        (write_hf(tmp_path / "hf", held), "model.fp16.safetensors"),
    ):
        assert "not checked" not in "".join(intarsia.verify(src).notes)
        (src / stray).write_bytes(b"an older save")
        report = intarsia.verify(src)
        assert report.sound
        (note,) = (note for note in report.notes if note.startswith("not checked: file"))
        assert stray in note
