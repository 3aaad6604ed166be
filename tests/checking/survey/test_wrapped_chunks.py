"""Small tensors in many archives show, surveyed together, what each of them shows alone."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import intarsia
from intarsia.checking.alone.headers import read_headers
from intarsia.checking.survey import blockwise, small_survey
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.small_items import SmallItem
from intarsia.format.dcp import archives
from intarsia.format.torch_file.torch_zip import Payload, read_payload
from intarsia.planning.manifest import Chunk
from intarsia.run.sums.runs import Run
from tests.checking.survey.test_small_items import many_tensors, stats_of
from tests.checkpoints import write_dcp, write_hf
from tests.format.dcp.test_dcp import replace_blob

_OF_BLOCKS = {"least", "used_bits"}
"""They are taken of the blocks alone in which all elements are suspicious."""


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    tensors = {
        f"layers.{k}.{name}.weight": torch.randn(shape, generator=torch.Generator().manual_seed(k))
        for k in range(6)
        for name, shape in (("up", (16, 24)), ("down", (24, 16)), ("norm", (24,)))
    }
    numbers = {
        f"layers.{k}.table.weight": torch.arange(512).mul(k + 3).byte().view(32, 16)
        for k in range(3)
    }
    hub = write_hf(tmp_path / "hub", tensors | numbers, None)
    intarsia.convert(hub, tmp_path / "dcp", to="dcp", mesh="fsdp=2")
    return tmp_path / "dcp"


def facts(stats: ItemStats) -> dict[str, object]:
    return {f.name: getattr(stats, f.name) for f in fields(stats) if f.name not in _OF_BLOCKS}


@pytest.mark.parametrize(
    ("mesh", "every"),
    [
        ("tp=2,fsdp=2", 5),
        *[pytest.param(m, 1, marks=pytest.mark.slow) for m in ("fsdp=1", "fsdp=3", "tp=2,fsdp=2")],
    ],
)
def test_together_and_alone_show_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mesh: str, every: int
) -> None:
    some = list(many_tensors().items())[::every]
    weights = {name[name.index("stack") :]: x for name, x in some}
    hub = write_hf(tmp_path / "hub", weights, None, 3)
    intarsia.convert(hub, tmp_path / "dcp", to="dcp", mesh=mesh)
    both = [stats_of(tmp_path / "dcp", monkeypatch, together) for together in (True, False)]
    for together, alone in zip(*both, strict=True):
        assert facts(together) == facts(alone), alone.item.stored.name
    in_part = [0 < len(x.zero_chunks) < len(x.item.chunks) for x in both[0]]
    assert any(in_part) == (mesh != "fsdp=1")


def test_a_sound_checkpoint_is_looked_at_together(
    sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its tensors is looked at alone, and the directory of few of its archives is read."""
    checks: list[str] = []
    check = archives.check_directory
    monkeypatch.setattr(archives, "_endings", {})
    monkeypatch.setattr(
        archives, "check_directory", lambda *held: (checks.append(held[-1]), check(*held))
    )
    for room in (blockwise, small_survey):
        monkeypatch.setattr(room, "ItemSurvey", None)
    assert intarsia.verify(sharded)
    assert len(checks) == 4, "one for each shape of a chunk"


def test_a_tensor_may_have_as_many_axes_as_numpy_allows(tmp_path: Path) -> None:
    shape = (4, *[1] * 61, 6, 5)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    hub = write_hf(tmp_path / "hub", {"x.weight": x, "y.weight": -x}, None)
    intarsia.convert(hub, tmp_path / "dcp", to="dcp", mesh="fsdp=2")
    assert intarsia.verify(tmp_path / "dcp")
    assert intarsia.verify(hub, tmp_path / "dcp")


def told(path: Path) -> tuple[Any, Any]:
    found = intarsia.verify(path, workers=1)
    return [fault.as_json() for fault in found.faults], found.notes


def places(chunk: Chunk, payload: Payload, data: bytes, step: int) -> Iterator[tuple[str, int]]:
    """Bytes of every kind in the archive of a chunk."""
    begin, stop = chunk.start_bytes, chunk.start_bytes + chunk.length_bytes
    start = begin + payload.start_bytes
    end = start + payload.length_bytes
    yield from (("front", at) for at in range(begin, start, step))
    yield from (("elements", at) for at in (start, end - 1))
    yield from (("end", at) for at in range(end, stop, step))
    yield "checksum", end + 4 + step % 4
    yield "directory", data.index(data[end + 4 : end + 8], end + 8) + step % 4


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("layers.3.up.weight", 149),
        ("layers.2.table.weight", 149),
        *[pytest.param("layers.3.up.weight", n, marks=pytest.mark.slow) for n in (11, 13, 17)],
    ],
)
@pytest.mark.one_in(2)
def test_every_damaged_byte_is_told_of_as_it_is_of_a_tensor_alone(
    sharded: Path, monkeypatch: pytest.MonkeyPatch, name: str, step: int
) -> None:
    """Of whole numbers none looks odd, whatever was taken for them."""
    manifest = read_headers(sharded, None).manifest
    assert manifest is not None
    chunk = manifest.stored[name].chunks[1]
    file = sharded / chunk.file
    data = file.read_bytes()
    blob = data[chunk.start_bytes :][: chunk.length_bytes]
    payload = read_payload(lambda at, size: blob[at : at + size], len(blob), "here")
    found = set[str]()
    for kind, at in places(chunk, payload, data, step):
        bad = bytearray(data)
        bad[at] ^= 0x41
        file.write_bytes(bad)
        together = told(sharded)
        with monkeypatch.context() as patch:
            patch.setattr(blockwise, "small_item", lambda *_: None)
            patch.setattr(archives, "_endings", {})
            assert together == told(sharded), (kind, at - chunk.start_bytes)
        found |= {kind} if together[0] else set()
    assert found == {"front", "elements", "end", "checksum", "directory"}


@pytest.mark.parametrize("layer", [0, 5])
def test_elements_that_no_member_ends_with_are_damage_whatever_was_read_before(
    sharded: Path, layer: int
) -> None:
    assert intarsia.verify(sharded)
    manifest = read_headers(sharded, None).manifest
    assert manifest is not None
    chunk = manifest.stored[f"layers.{layer}.up.weight"].chunks[1]
    file = sharded / chunk.file
    data = bytearray(file.read_bytes())
    data[data.index(b"PK\7\x08", data.index(b"archive/data/0", chunk.start_bytes))] ^= 1
    file.write_bytes(data)
    (fault,) = intarsia.verify(sharded).faults
    assert fault.kind == "malformed"
    assert "no member of the archive ends where they do" in fault.text


def test_chunks_without_a_checksum_are_counted(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        write_dcp(tmp_path / "a", {f"layers.{k}.weight": torch.randn(8, 6) for k in range(3)})
    finally:
        torch.serialization.set_crc32_options(True)
    found = intarsia.verify(tmp_path / "a")
    assert found
    assert any(note.startswith("3 chunks were saved without a CRC-32") for note in found.notes)


def same_together_and_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ItemStats]:
    both = [stats_of(path, monkeypatch, together) for together in (True, False)]
    assert [facts(x) for x in both[0]] == [facts(x) for x in both[1]]
    return both[0]


def change_chunks(path: Path, name: str, change: Callable[[list[Any]], object]) -> None:
    """Change the list of a tensor's chunks in the metadata of a checkpoint."""
    described = dcp.FileSystemReader(path).read_metadata()
    change(described.state_dict_metadata[name].chunks)
    (path / ".metadata").write_bytes(pickle.dumps(described))


def test_tensors_of_one_shape_whose_chunks_are_listed_in_another_order_are_not_put_together(
    sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_chunks(sharded, "layers.2.up.weight", list.reverse)
    shown = same_together_and_alone(sharded, monkeypatch)
    up = [x.item for x in shown if ".up." in x.item.stored.name]
    run = Run(0, up[0].nbytes, up[0].nbytes)
    groups = small_survey._cut_alike(
        [SmallItem(k, item, run, "", True) for k, item in enumerate(up)]
    )
    assert [[x.number for x in group] for group in groups] == [[0, 1, 3, 4, 5], [2]]


def test_a_tensor_that_lacks_a_chunk_is_looked_at_alone(
    sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_chunks(sharded, "layers.2.table.weight", list.pop)
    shown = same_together_and_alone(sharded, monkeypatch)
    assert [x.item.stored.name for x in shown if not x.matrices] == ["layers.2.table.weight"]


def test_a_chunk_of_zeros_below_zero_is_one_of_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {f"layers.{k}.weight": torch.randn(8, 6) for k in range(3)}
    tensors["layers.1.weight"][4:] = -0.0
    hub = write_hf(tmp_path / "hub", tensors, None)
    intarsia.convert(hub, tmp_path / "dcp", to="dcp", mesh="fsdp=2")
    shown = same_together_and_alone(tmp_path / "dcp", monkeypatch)
    assert [len(x.zero_chunks) for x in shown] == [0, 1, 0]


def test_a_part_of_a_storage_is_looked_at_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded checksum is that of the whole storage."""
    base, out = torch.randn(12, 10), io.BytesIO()
    torch.save(base[:4], out)
    src = write_dcp(tmp_path / "src", {"w": base[:4].clone()})
    replace_blob(src, out.getvalue())
    same_together_and_alone(src, monkeypatch)
    assert intarsia.verify(src)


def test_a_single_element_has_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"a": torch.tensor(3.0), "b": torch.tensor([7]), "c": torch.tensor(-0.0).bfloat16()}
    shown = same_together_and_alone(write_dcp(tmp_path / "src", counts), monkeypatch)
    assert {x.item.stored.name: x.value for x in shown} == {"a": 3.0, "b": 7.0, "c": 0.0}
