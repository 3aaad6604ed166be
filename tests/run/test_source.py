"""Chunks of archives are read with what they begin with, and found one by one where that is not as expected."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

import intarsia
from intarsia.dtypes import BY_NAME
from intarsia.errors import FormatError
from intarsia.format.base import Located
from intarsia.layout import Layout, Loop, Piece, concat
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.planning.proof import prover_of
from intarsia.run.gather import gather
from intarsia.run.source import Source
from intarsia.value import shifted

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
NAMES = [f"layer.{k}.weight" for k in range(24)]


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(16, 16) for name in NAMES}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    (tmp_path / "plain").mkdir()
    save_file(state(), tmp_path / "plain" / "model.safetensors")
    return tmp_path / "plain"


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    dcp.save(state(), checkpoint_id=tmp_path / "archives")
    return tmp_path / "archives"


def fronts(folder: Path) -> tuple[Path, bytearray, list[int]]:
    """The data file of a checkpoint, its bytes, and where its archives begin."""
    (file,) = folder.glob("*.distcp")
    data = bytearray(file.read_bytes())
    first = b"archive/data.pkl"
    starts = [k - 30 for k in range(len(data)) if data.startswith(first, k)]
    return file, data, [k for k in starts if data.startswith(b"PK\3\4", k)]


def test_neighbouring_archives_are_read_by_few_calls(
    plain: Path, archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *a: (calls.append(a[2]), read(*a))[1])
    assert intarsia.verify(plain, archives)
    assert len(calls) < len(NAMES)


def test_chunks_that_are_alike_begin_alike_unless_one_was_found_otherwise(archives: Path) -> None:
    with intarsia.open(archives) as checkpoint:
        source, held = checkpoint.source, [*checkpoint.manifest.stored.values()]
        chunks = [stored.chunks[0] for stored in held[:5]]
        found = source.begins(held[0], chunks)
        assert found is not None
        assert [number for number, *_ in found.fronts] == [1, 2, 3, 4], "the first was looked at"
        rest = source.begins(held[1], chunks[1:])
        assert rest is not None
        assert rest.starts == found.starts[1:]
        assert rest.files == found.files[1:]
        assert [(n + 1, *front) for n, *front in rest.fronts] == [*found.fronts]
        place = chunks[3].file, chunks[3].start_bytes
        source._located[place] = Located(found.starts[3], Piece("", 0, 0, (Loop(2, 1, 2),)))
        assert source.begins(held[1], chunks[1:]) is None


def test_an_archive_that_holds_its_elements_in_another_order_is_read_in_it(
    plain: Path, tmp_path: Path
) -> None:
    held = state()
    for name in NAMES[5:20:4]:
        held[name] = held[name].t().contiguous().t()
    dcp.save(held, checkpoint_id=tmp_path / "turned")
    assert (
        len({len(intarsia.open(tmp_path / "turned").manifest.stored[n].chunks) for n in NAMES}) == 1
    )
    assert intarsia.verify(plain, tmp_path / "turned")
    assert intarsia.digest(plain).root == intarsia.digest(tmp_path / "turned").root
    opened = intarsia.open(tmp_path / "turned")
    assert all(torch.equal(opened[name][...], held[name]) for name in NAMES)


@pytest.mark.parametrize("number", [0, 7, 23])
def test_an_archive_that_begins_in_another_way_and_holds_the_same_is_read(
    plain: Path, archives: Path, number: int
) -> None:
    file, data, starts = fronts(archives)
    assert len(starts) == len(NAMES)
    data[starts[number] + 10] ^= 1  # the time in the header of its first member
    file.write_bytes(data)
    assert intarsia.verify(plain, archives)


@pytest.mark.parametrize("number", [0, 7, 23])
def test_an_archive_with_a_damaged_front_is_refused_by_its_place(
    plain: Path, archives: Path, number: int
) -> None:
    file, data, starts = fronts(archives)
    data[data.index(b"_rebuild_tensor_v2", starts[number])] ^= 1
    file.write_bytes(data)
    for read in (lambda: intarsia.verify(plain, archives), lambda: intarsia.digest(archives)):
        with pytest.raises(FormatError, match=f"CRC-32 .* byte {starts[number]:,} "):
            read()


def test_an_archive_whose_record_lies_further_on_is_not_read_from_where_others_have_theirs(
    plain: Path, archives: Path
) -> None:
    """The padding before the elements of one is 16 bytes longer by its header, and not in the file."""
    file, data, starts = fronts(archives)
    at = data.index(b"archive/data/0", starts[9])
    extra = int.from_bytes(data[at - 2 : at], "little")
    data[at - 2 : at] = (extra + 16).to_bytes(2, "little")
    file.write_bytes(data)
    with pytest.raises(FormatError, match=re.escape(f"`{held_at(archives, starts[9])}`")):
        intarsia.verify(plain, archives)


def held_at(folder: Path, start_bytes: int) -> str:
    """The tensor whose chunk begins at a byte."""
    stored = intarsia.open(folder).manifest.stored.values()
    return next(s.name for s in stored if s.chunks[0].start_bytes == start_bytes)


def test_each_tensor_of_a_target_is_read_by_its_own_type_and_value(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {name: torch.randn(4, 4) for name in "abcd"}
    save_file(tensors | {"b": tensors["b"].bfloat16()}, tmp_path / "model.safetensors")
    with intarsia.open(tmp_path) as checkpoint:
        held = checkpoint.manifest
        changed = {"c": replace(held.stored["c"], value=shifted(1.0))}
        manifest = replace(held, stored={**held.stored, **changed})
        source = Source(manifest, checkpoint.source.format, checkpoint.source.folder)

        def read(layout: Layout) -> bytes:
            target = Target("fused", BY_NAME["F32"], layout, (Box.whole(layout.shape),))
            buffer = np.empty(4 * layout.size, np.uint8)
            proven = prover_of(manifest).prove(target)
            gather(source.folder, source.fill_box(proven, target.boxes[0], buffer))
            return buffer.tobytes()

        each = [Layout.of(name, (4, 4)) for name in tensors]
        assert read(concat(each)) == b"".join(map(read, each))
