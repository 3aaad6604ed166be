"""The `.metadata` of a distributed checkpoint, read from torch and read by torch."""

from __future__ import annotations

import os
import pickle
import warnings
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.metadata import Metadata as TorchMetadata

from intarsia.dtypes import BY_NAME, BY_TORCH
from intarsia.errors import FormatError, IntarsiaError, UnsafeError
from intarsia.format.dcp.metadata import Metadata, TensorRecord, read_metadata
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.format.torch_file.torch_frame import frame, write_object
from intarsia.format.torch_file.torch_zip import read_object, read_payload
from intarsia.mesh import Box
from intarsia.planning.chunks import Chunks
from intarsia.planning.manifest import Chunk, Entry

warnings.filterwarnings("ignore", message="torch.distributed is disabled")
STATE = {
    "model": {"w": torch.arange(24, dtype=torch.bfloat16).reshape(4, 6), "s": torch.tensor(3.5)},
    "optim": [{"step": 7, "lr": 0.1}, {"e": torch.empty(0, 3), "b": torch.tensor([True, False])}],
    "note": "hi",
}


def properties(dtype: torch.dtype = torch.float32) -> TensorProperties:
    return TensorProperties(dtype=dtype)


def by_hand() -> TorchMetadata:
    """A tensor of two chunks in two files, and an object."""
    chunks = [
        ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([2, 3])),
        ChunkStorageMetadata(torch.Size([2, 0]), torch.Size([2, 3])),
    ]
    return TorchMetadata(
        state_dict_metadata={
            "w": TensorStorageMetadata(properties(), torch.Size([4, 3]), chunks),
            "o": BytesStorageMetadata(),
        },
        planner_data={"w": ("m", 0, "w"), "o": ("o",)},
        storage_data={
            MetadataIndex("w", [2, 0], 5): _StorageInfo("__1_0.distcp", 0, 900),
            MetadataIndex("w", [0, 0]): _StorageInfo("__0_0.distcp", 0, 800),
            MetadataIndex("o"): _StorageInfo("__0_0.distcp", 800, 70),
        },
    )


def read(said: Any) -> Metadata:
    return read_metadata(pickle.dumps(said), "dir/.metadata")


RECORD = TensorRecord(
    "w",
    BY_TORCH["float32"],
    (4, 3),
    (
        Chunk(Box((0, 0), (2, 3)), "__0_0.distcp", 0, 800),
        Chunk(Box((2, 0), (2, 3)), "__1_0.distcp", 0, 900),
    ),
)
META = Metadata(
    {"w": RECORD},
    {"o": Entry("o", "__0_0.distcp", 800, 70)},
    {"w": ("m", 0, "w"), "o": ("o",)},
)


def test_chunks_are_matched_by_name_and_offset_not_by_hint() -> None:
    found = read(by_hand())
    assert replace(found, extra={}) == META


def test_a_checkpoint_of_torch_is_described_in_full(tmp_path: Path) -> None:
    dcp.save(STATE, checkpoint_id=tmp_path)
    found = read_metadata((tmp_path / ".metadata").read_bytes(), "here")
    assert {n: (t.dtype.name, t.shape) for n, t in found.tensors.items()} == {
        "model.w": ("BF16", (4, 6)),
        "model.s": ("F32", ()),
        "optim.1.e": ("F32", (0, 3)),
        "optim.1.b": ("BOOL", (2,)),
    }
    assert found.paths["optim.0.lr"] == ("optim", 0, "lr")
    files = {p.name: p.read_bytes() for p in tmp_path.glob("*.distcp")}
    values = {}
    for name, o in found.objects.items():
        values[name] = read_object(files[o.file][o.start_bytes :][: o.length_bytes], name)
    assert values == {"optim.0.step": 7, "optim.0.lr": 0.1, "note": "hi"}
    (chunk,) = found.tensors["model.w"].chunks
    blob = files[chunk.file][chunk.start_bytes :][: chunk.length_bytes]
    payload = read_payload(lambda at, size: blob[at : at + size], len(blob), "here")
    raw = blob[payload.start_bytes :][: payload.length_bytes]
    assert raw == STATE["model"]["w"].view(torch.uint8).numpy().tobytes()  # type: ignore[call-overload,index]


def test_chunks_of_tensors_that_torch_cut_alike_are_of_the_same_boxes_and_columns() -> None:
    said = by_hand()
    said.state_dict_metadata["v"] = said.state_dict_metadata["w"]
    for at in (0, 2):
        said.storage_data[MetadataIndex("v", [at, 0])] = _StorageInfo("__0_0.distcp", 900 + at, 9)
    tensors = read(said).tensors
    v, w = tensors["v"].chunks, tensors["w"].chunks
    assert isinstance(v, Chunks)
    assert isinstance(w, Chunks)
    assert v.boxes is w.boxes
    assert v.places is w.places
    assert [(x.file, x.start_bytes, x.length_bytes) for x in v] == [
        ("__0_0.distcp", 900, 9),
        ("__0_0.distcp", 902, 9),
    ]


def test_torch_reads_what_is_written_here(tmp_path: Path) -> None:
    tensors, objects, at, blobs = {}, {}, 0, b""
    want: dict[str, torch.Tensor] = {}
    for dtype in BY_NAME.values():
        if dtype.name == "F4":  # two numbers in a byte, which torch does not copy
            continue
        name = f"t.{dtype.torch}"
        want[name] = torch.tensor([[1, 0], [1, 1]]).to(getattr(torch, dtype.torch))
        chunks = []
        for row in range(2):
            raw = want[name][row].view(torch.uint8).numpy().tobytes()
            made = frame(dtype, (1, 2))
            blobs += made.head + raw + made.tail(0)
            chunks.append(Chunk(Box((row, 0), (1, 2)), "all.distcp", at, made.length_bytes))
            at = len(blobs)
        tensors[name] = TensorRecord(name, dtype, (2, 2), tuple(chunks))
    blobs += write_object({"lr": [1, 2]})
    objects["note"] = Entry("note", "all.distcp", at, len(blobs) - at)
    (tmp_path / "all.distcp").write_bytes(blobs)
    (tmp_path / ".metadata").write_bytes(write_metadata(Metadata(tensors, objects)))

    seen = dcp.FileSystemReader(tmp_path).read_metadata()
    assert seen.version == "1.0.0"
    state: dict[str, Any] = {name: torch.zeros_like(t) for name, t in want.items()}
    dcp.load(state | {"note": None}, checkpoint_id=tmp_path)
    for name, tensor in want.items():
        assert torch.equal(state[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_torch_takes_the_whole_state_dict_apart_again(tmp_path: Path) -> None:
    dcp.save(STATE, checkpoint_id=tmp_path)
    path = tmp_path / ".metadata"
    path.write_bytes(write_metadata(read_metadata(path.read_bytes(), "here")))
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(tmp_path, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert whole["note"] == "hi"
    assert whole["optim"][0] == {"step": 7, "lr": 0.1}
    assert torch.equal(whole["model"]["w"], STATE["model"]["w"])  # type: ignore[call-overload,index]


def test_torch_sees_the_same_metadata_as_if_it_had_written_it() -> None:
    mine, own = pickle.loads(write_metadata(META)), by_hand()
    assert mine.state_dict_metadata == own.state_dict_metadata
    assert mine.storage_data == own.storage_data
    assert mine.planner_data == own.planner_data
    assert mine.storage_meta.checkpoint_id is None


def test_writing_is_deterministic_and_reading_inverts_it() -> None:
    assert write_metadata(META) == write_metadata(META)
    assert replace(read_metadata(write_metadata(META), "x"), extra={}) == META


names = st.text(min_size=1, max_size=300)
far = st.integers(0, 1 << 62)


@st.composite
def metadata(draw: st.DrawFn) -> Metadata:
    tensors, objects = {}, {}
    for name in draw(st.lists(names, unique=True, max_size=8)):
        offsets = draw(st.lists(far, max_size=5))
        sizes = tuple(draw(st.integers(0, 1 << 40)) for _ in offsets)
        shape = tuple(o + s for o, s in zip(offsets, sizes, strict=True))
        chunk = Chunk(Box(tuple(offsets), sizes), draw(st.sampled_from("ab")), draw(far), 5)
        dtype = draw(st.sampled_from(list(BY_NAME.values())))
        tensors[name] = TensorRecord(name, dtype, shape, (chunk,))
    for name in draw(st.lists(names, unique=True, max_size=4)):
        if name not in tensors:
            objects[name] = Entry(name, "c", draw(far), draw(far))
    return Metadata(tensors, objects, {n: (n, 300, -4) for n in tensors})


@settings(max_examples=80, deadline=None)
@given(metadata())
def test_any_metadata_survives_being_written_and_read(meta: Metadata) -> None:
    # An axis without elements makes the others no shorter: an address must reach their ends.
    extents = (prod(max(n, 1) for n in t.shape) * t.dtype.itemsize for t in meta.tensors.values())
    assume(all(extent < 1 << 63 for extent in extents))
    data = write_metadata(meta)
    assert replace(read_metadata(data, "here"), extra={}) == meta
    assert len(pickle.loads(data).storage_data) == len(meta.tensors) + len(meta.objects)


def test_thousands_of_names_outgrow_the_short_memo() -> None:
    tensors = {
        f"layer.{i}": TensorRecord(
            f"layer.{i}", RECORD.dtype, (8,), (Chunk(Box((0,), (8,)), f"{i % 5}.distcp", i, 9),)
        )
        for i in range(3000)
    }
    data = write_metadata(Metadata(tensors, {}))
    assert read_metadata(data, "here").tensors == tensors
    assert pickle.loads(data).storage_data[MetadataIndex("layer.2999", [0])].offset == 2999


def test_entries_that_were_never_stored_are_listed() -> None:
    said = by_hand()
    said.storage_data = {MetadataIndex("w", [0, 0]): _StorageInfo("__0_0.distcp", 0, 800)}
    with pytest.raises(FormatError, match=r"2 entries .* never stored: w at \(2, 0\), o"):
        read(said)


def test_an_empty_chunk_needs_no_storage() -> None:
    said = by_hand()
    empty = ChunkStorageMetadata(torch.Size([4, 0]), torch.Size([0, 3]))
    said.state_dict_metadata["w"].chunks.append(empty)
    assert read(said).tensors["w"] == RECORD


def test_storage_that_nothing_describes_is_told() -> None:
    said = by_hand()
    said.storage_data[MetadataIndex("lost")] = _StorageInfo("__0_0.distcp", 0, 1)
    assert read(said).extra["unclaimed"] == ("lost",)


@pytest.mark.parametrize("file", ["", "a\0b"])
def test_what_is_no_file_name_is_refused(file: str) -> None:
    said = by_hand()
    said.storage_data[MetadataIndex("o")] = _StorageInfo(file, 0, 1)
    with pytest.raises(FormatError, match="not a file name"):
        read(said)


@pytest.mark.parametrize("file", [".", "..", "../x", "/etc/passwd", "a/b", "..\\x", "C:x"])
def test_a_file_outside_of_the_checkpoint_is_refused(file: str) -> None:
    said = by_hand()
    said.storage_data[MetadataIndex("o")] = _StorageInfo(file, 0, 1)
    text = (
        r"names .*, which is outside of its folder - at dir/\.metadata\n  hint: get the checkpoint"
    )
    with pytest.raises(UnsafeError, match=text):
        read(said)


@pytest.mark.parametrize(
    "place", [(-1, 5), (0, -5), (1 << 63, 5), (1 << 62, 1 << 62), ("0", 5), (None, 5), (True, 5)]
)
def test_a_place_that_no_file_has_is_refused(place: tuple[Any, Any]) -> None:
    said = by_hand()
    said.storage_data[MetadataIndex("o")] = _StorageInfo("f", *place)
    with pytest.raises(FormatError):
        read(said)


@pytest.mark.parametrize(
    ("offsets", "sizes"), [((2, 0), (3, 3)), ((2,), (2,)), ((2, 0, 0), (2, 3, 1)), ((2, 1), (2, 3))]
)
def test_a_chunk_that_is_not_within_its_tensor_is_refused(
    offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    said = by_hand()
    said.state_dict_metadata["w"].chunks[1] = ChunkStorageMetadata(
        torch.Size(offsets), torch.Size(sizes)
    )
    with pytest.raises(FormatError, match="w"):
        read(said)


@pytest.mark.parametrize("first", [0.0, False, -0.0])
def test_what_equals_an_offset_and_is_none_is_refused_after_tensors_cut_alike(first: Any) -> None:
    said = by_hand()
    w = said.state_dict_metadata["w"]
    chunks = [ChunkStorageMetadata((first, 0), (2, 3)), w.chunks[1]]  # type: ignore[arg-type]
    said.state_dict_metadata["x"] = TensorStorageMetadata(properties(), torch.Size([4, 3]), chunks)
    for k in (0, 2):
        said.storage_data[MetadataIndex("x", [k, 0])] = _StorageInfo("__2_0.distcp", k, 2)
    with pytest.raises(FormatError, match="of x is not within"):
        read(said)
    chunks[0] = w.chunks[0]
    assert [c.box for c in read(said).tensors["x"].chunks] == [c.box for c in RECORD.chunks]


def test_sizes_that_lie_are_refused_after_a_tensor_with_the_same_offsets() -> None:
    said = by_hand()
    w = said.state_dict_metadata["w"]
    chunks = [w.chunks[0], ChunkStorageMetadata(w.chunks[1].offsets, torch.Size([3, 3]))]
    said.state_dict_metadata["x"] = TensorStorageMetadata(properties(), w.size, chunks)
    for k in (0, 2):
        said.storage_data[MetadataIndex("x", [k, 0])] = _StorageInfo("__2_0.distcp", k, 2)
    with pytest.raises(FormatError, match="of x is not within"):
        read(said)


def test_chunks_never_stored_are_listed_after_tensors_cut_alike() -> None:
    said = by_hand()
    w = said.state_dict_metadata["w"]
    said.state_dict_metadata["x"] = TensorStorageMetadata(properties(), w.size, w.chunks)
    said.storage_data[MetadataIndex("x", [0, 0])] = _StorageInfo("__2_0.distcp", 0, 2)
    with pytest.raises(FormatError, match=r"never stored: x at \(2, 0\)"):
        read(said)


def test_tensors_that_are_cut_alike_need_not_all_store_a_chunk_without_elements() -> None:
    said, size = by_hand(), torch.Size([4, 3])
    empty = ChunkStorageMetadata(torch.Size([4, 0]), torch.Size([0, 3]))
    whole = ChunkStorageMetadata(torch.Size([0, 0]), size)
    for name in "xy":
        chunks = [empty, whole]
        said.state_dict_metadata[name] = TensorStorageMetadata(properties(), size, chunks)
        said.storage_data[MetadataIndex(name, [0, 0])] = _StorageInfo(f"{name}.distcp", 0, 48)
    said.storage_data[MetadataIndex("y", [4, 0])] = _StorageInfo("none.distcp", 0, 0)
    held = {name: list(read(said).tensors[name].chunks) for name in "xy"}
    assert held["x"] == [Chunk(Box((0, 0), (4, 3)), "x.distcp", 0, 48)]
    assert held["y"] == [
        Chunk(Box((4, 0), (0, 3)), "none.distcp", 0, 0),
        Chunk(Box((0, 0), (4, 3)), "y.distcp", 0, 48),
    ]


def test_compressed_storage_is_refused() -> None:
    said = by_hand()
    said.storage_data[MetadataIndex("o")] = _StorageInfo("f", 0, 1, ["zstd"])
    with pytest.raises(FormatError, match=r"through a transform \(.zstd.\)"):
        read(said)


def test_an_element_type_that_has_no_name_here_is_refused() -> None:
    said = by_hand()
    said.state_dict_metadata["w"].properties.dtype = torch.complex128
    with pytest.raises(FormatError, match="complex128"):
        read(said)


def test_fields_of_other_writers_are_kept_inert() -> None:
    said = by_hand()
    said.mcore_data = {"w": {"shape": (4, 3)}}  # type: ignore[attr-defined]
    said.all_local_plans = ["much"]  # type: ignore[attr-defined]
    found = read(said)
    assert found.extra["mcore_data"] == {"w": {"shape": (4, 3)}}
    assert "all_local_plans" not in found.extra


class Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_hostile_metadata_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    said = by_hand()
    said.planner_data = {"w": Runs(f"touch {marker}")}
    with pytest.raises(UnsafeError, match=r"(posix|os)\.system"):
        read(said)
    assert not marker.exists()


@pytest.mark.parametrize("said", [None, 5, {}, [by_hand()], TorchMetadata({})], ids=repr)
def test_what_is_no_metadata_is_a_format_error(said: Any) -> None:
    with pytest.raises(FormatError, match="no checkpoint metadata"):
        read(said)


SEEDS = [pickle.dumps(by_hand()), pickle.dumps(by_hand(), 2), write_metadata(META)]


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(SEEDS), st.data())
def test_damaged_metadata_raises_nothing_but_our_errors(seed: bytes, data: st.DataObject) -> None:
    broken = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with suppress(IntarsiaError):
        read_metadata(bytes(broken), "here")
