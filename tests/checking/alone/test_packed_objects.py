"""Objects that are compressed archives are judged by what they hold: sound, damaged, equal or different."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import intarsia
from intarsia.errors import FormatError
from intarsia.format.torch_file.torch_zip import read_object

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
PACKED = (DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


class AsTheyAre(DefaultSavePlanner):
    """Keeps bytes as the caller made them, as Megatron's `_extra_state` is kept."""

    def transform_object(self, write_item: Any, object: Any) -> Any:
        asked = isinstance(object, io.BytesIO)
        return object if asked else super().transform_object(write_item, object)


def packed(archive: bytes, method: int) -> bytes:
    """The members of an archive, packed in another way."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(out, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out.getvalue()


def arrays(**held: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **held)
    return out.getvalue()


def pickled(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def saved(path: Path, **objects: bytes) -> Path:
    held = {"a.weight": torch.randn(8, 8, generator=torch.Generator().manual_seed(0))}
    blobs = {name: io.BytesIO(data) for name, data in objects.items()}
    dcp.save(held | blobs, checkpoint_id=path, planner=AsTheyAre(), no_dist=True)
    return path


TABLE = arrays(ids=np.arange(5000) % 7, none=np.zeros(0))
SETTINGS = pickled({"seed": 3, "state": torch.arange(900)})


@pytest.mark.parametrize("method", [STORED, *PACKED])
@pytest.mark.parametrize("archive", [TABLE, SETTINGS])
def test_a_packed_archive_is_sound_and_a_flipped_bit_in_it_is_damage(
    tmp_path: Path, archive: bytes, method: int
) -> None:
    blob = packed(archive, method)
    src = saved(tmp_path / "src", table=blob)
    assert not intarsia.verify(src).faults
    entry = intarsia.open(src).manifest.entries["table"]
    with (src / entry.file).open("r+b") as file:
        file.seek(entry.start_bytes + 150)
        (byte,) = file.read(1)
        file.seek(entry.start_bytes + 150)
        file.write(bytes([byte ^ 16]))
    (fault,) = intarsia.verify(src).faults
    assert (fault.kind, fault.tensors) == ("entry-damaged", ("table",))


def test_a_way_of_packing_that_nobody_here_knows_is_no_fault(tmp_path: Path) -> None:
    blob = packed(TABLE, DEFLATED)
    for sign, at in ((b"PK\1\2", 10), (b"PK\3\4", 8)):
        place = blob.index(sign) + at
        blob = blob[:place] + (97).to_bytes(2, "little") + blob[place + 2 :]
    assert not intarsia.verify(saved(tmp_path / "src", table=blob)).faults


@pytest.mark.parametrize("method", PACKED)
def test_archives_of_the_same_content_are_equal_however_they_are_packed(
    tmp_path: Path, method: int
) -> None:
    a = saved(tmp_path / "a", table=TABLE)
    b = saved(tmp_path / "b", table=packed(TABLE, method))
    found = intarsia.verify(a, b)
    assert found.equal
    assert [str(x) for x in found.beside] == ["equal: object `table`, though its bytes differ"]
    c = saved(tmp_path / "c", table=packed(arrays(ids=np.arange(5000) % 5, none=[]), method))
    assert not intarsia.verify(b, c).equal
    d = saved(tmp_path / "d", table=packed(arrays(ids=np.arange(5000) % 7), method))
    assert not intarsia.verify(b, d).equal


def test_what_torch_reads_of_a_packed_archive_is_read(tmp_path: Path) -> None:
    torch.save({"seed": 3, "state": torch.arange(900)}, tmp_path / "called_otherwise.pt")
    other = packed((tmp_path / "called_otherwise.pt").read_bytes(), DEFLATED)
    a, b = saved(tmp_path / "a", rng=SETTINGS), saved(tmp_path / "b", rng=other)
    assert intarsia.verify(a, b).equal
    c = saved(tmp_path / "c", rng=packed(pickled({"seed": 4, "state": None}), DEFLATED))
    assert not intarsia.verify(b, c).equal


def test_little_that_would_become_much_is_refused() -> None:
    bomb = packed(pickled({"state": torch.zeros(8 << 20)}), DEFLATED)
    assert len(bomb) < 1 << 16
    with pytest.raises(FormatError, match="are read"):
        read_object(bomb, "here")
