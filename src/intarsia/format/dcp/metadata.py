"""The `.metadata` of a PyTorch distributed checkpoint: which bytes of which file hold what.

It is a pickle of torch's own classes. Reading goes through `load_inert`, so no torch is needed
and nothing runs; `metadata_write` writes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Self

from intarsia.collector import paused
from intarsia.dtypes import BY_TORCH, DType
from intarsia.errors import FormatError, UnsupportedError, few
from intarsia.format.complaint import Complain, Complaint, refuse
from intarsia.format.dcp.metadata_chunks import Cuts, PlaceOf, chunks_of
from intarsia.format.torch_file.inert import Inert, brief
from intarsia.format.torch_file.tensor_bounds import MAX_AXES, MAX_NAME, bytes_of
from intarsia.frozen import frozen
from intarsia.mesh import Box
from intarsia.planning.chunks import Chunks, FileRange, FileRanges
from intarsia.planning.manifest import Chunk, Entry
from intarsia.store.reading.file_names import check_name
from intarsia.store.reading.headers_once import made_once

BASE = "torch.distributed.checkpoint."
LARGEST = (1 << 63) - 1
METADATA = ".metadata"
MAX_METADATA_BYTES = 1 << 30


@frozen
class TensorRecord:
    """A tensor and the chunks it is stored in."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    chunks: Sequence[Chunk]

    @property
    def files(self) -> tuple[str, ...]:
        """The files that hold it, each once."""
        return tuple(dict.fromkeys(chunk.file for chunk in self.chunks))


@frozen
class Metadata:
    """A checkpoint's tensors and objects by name, and the path of each in the state dict."""

    tensors: dict[str, TensorRecord]
    objects: dict[str, Entry]
    paths: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


class _Stated:
    """A stand-in that keeps nothing but its state."""

    __slots__ = ("state",)
    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _kind(name: str) -> type[_Stated]:
    return type(name, (_Stated,), {"__slots__": ()})


_Index, _Place, _Tensor = map(_kind, ("MetadataIndex", "_StorageInfo", "TensorStorageMetadata"))
_Bytes, _Chunk = map(_kind, ("BytesStorageMetadata", "ChunkStorageMetadata"))
_Properties = _kind("TensorProperties")


class _Ignored:
    """A stand-in for a saver's plan, which says nothing that the chunks do not."""

    __slots__ = ()

    def __new__(cls, *args: Any) -> Self:
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        pass


def _size(axes: Any) -> Any:
    """A tuple of numbers; what is nested cannot be added up."""
    sum(axes)
    return axes if type(axes) is tuple else ().__add__(axes)


_PLANNED = ("WriteItem", "WriteItemType", "TensorWriteData", "SavePlan")
_KNOWN: dict[tuple[str, str], Any] = {
    **{(BASE + "metadata", k.__name__): k for k in (_Index, _Tensor, _Bytes, _Chunk, _Properties)},
    (BASE + "filesystem", "_StorageInfo"): _Place,
    ("torch", "Size"): _size,
    **{(BASE + "planner", n): _Ignored for n in _PLANNED},
}
_FIELDS = {"state_dict_metadata", "storage_data", "planner_data", "all_local_plans"}


def read_metadata(data: bytes, where: str, complain: Complain = refuse) -> Metadata:
    """The content of a `.metadata` file, with every chunk matched to its blob."""
    with paused():
        found, lost = made_once(where, data, lambda: _read(data, where))
    if lost:
        never = FormatError(
            f"{len(lost)} entries are described but were never stored: {few(lost, 5)}",
            at=where,
            hint="a writer thread failed while saving; this checkpoint is incomplete",
            kind="elements-missing",
        )
        complain(Complaint(never))
    return found


def _read(data: bytes, where: str) -> tuple[Metadata, list[str]]:
    from intarsia.format.dcp.metadata_written import read_written

    written = read_written(data)
    return read_pickled(data, where) if written is None else (written, [])


def read_pickled(data: bytes, where: str) -> tuple[Metadata, list[str]]:
    """The content of a `.metadata` file, whoever wrote it, and what of it was never stored."""
    from intarsia.format.torch_file.unpickle import load_inert  # few files need it

    loaded = load_inert(data, where, known=_KNOWN)
    fields = loaded.fields if isinstance(loaded, Inert) else {}
    described, stored = fields.get("state_dict_metadata"), fields.get("storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise FormatError(
            f"no checkpoint metadata: found {brief(loaded)}, expected torch's Metadata with "
            "state_dict_metadata and storage_data",
            at=where,
        )
    try:
        return _matched(described, _places(stored), fields, len(data))
    except FormatError as error:
        hint = error.hint or "the metadata is damaged: restore it, or save the checkpoint again"
        raise type(error)(
            error.brief, at=where, hint=hint, kind=error.kind, tensors=error.tensors
        ) from None
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise FormatError(
            f"the metadata does not have torch's structure ({cause})", at=where
        ) from error


def _places(stored: dict[Any, Any]) -> PlaceOf:
    """The blob of each (name, offset); an index also carries a hint that is not part of it."""
    places: PlaceOf = {}
    files: set[str] = set()
    for index, place in stored.items():
        if not isinstance(index, _Index) or not isinstance(place, _Place):
            raise FormatError(f"storage of {brief(index)} is {brief(place)}")
        name, offset = index.state["fqn"], index.state.get("offset")
        check_tensor_name(name)
        if offset is not None and (type(offset) is not tuple or {*map(type, offset)} - {int}):
            raise FormatError(f"{name} is stored at offset {brief(offset)}")
        state = place.state
        file, start, length = state["relative_path"], state["offset"], state["length"]
        if through := state.get("transform_descriptors"):
            names = few([brief(x) for x in through], 4) if type(through) is list else brief(through)
            raise FormatError(
                f"{brief(name)} is stored through a transform ({names})",
                hint="save without stream transforms (compression)",
            )
        if type(file) is not str or file not in files:
            files.add(check_name(file, f"the storage of {name}"))
        if type(start) is not int or type(length) is not int or start < 0 or length < 0:
            raise FormatError(f"{brief(name)} is at [{brief(start)}, +{brief(length)}) of {file}")
        if start + length > LARGEST:
            raise FormatError(f"{brief(name)} ends at byte {start + length} of {file}")
        if (name, offset) in places:
            raise FormatError(f"`{name}` is stored twice at offset {offset}", tensors=(name,))
        places[name, offset] = (file, start, length)
    return places


def check_tensor_name(name: Any) -> None:
    """Raise where the name of a tensor is none, or none that could be written again."""
    if type(name) is not str or len(name) > MAX_NAME:
        raise FormatError(f"the name {brief(name)} is not text of at most {MAX_NAME} characters")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise FormatError(f"the name {brief(name)} has half a character") from None


def _matched(
    described: dict[Any, Any], places: PlaceOf, fields: dict[str, Any], size_bytes: int
) -> tuple[Metadata, list[str]]:
    """What the metadata describes, and what of it was never stored."""
    # Lists that many tensors share are stored once and gone through many times.
    left = size_bytes
    tensors: dict[str, tuple[DType, tuple[int, ...], tuple[Box, ...], int]] = {}
    objects: dict[str, Entry] = {}
    missing: list[str] = []
    held: list[FileRange] = []
    cuts: Cuts = {}
    for name, entry in described.items():
        check_tensor_name(name)
        if isinstance(entry, _Tensor):
            shape, listed = entry.state["size"], entry.state["chunks"]
            left -= len(listed)
            if left < 0:
                raise FormatError(f"more chunks than the metadata has bytes ({size_bytes:,})")
            # The state of TensorProperties is a tuple by its own __getstate__, a dict without it.
            said = entry.state["properties"].state
            said = said["dtype"] if isinstance(said, dict) else said[0]
            dtype = type_of(name, said, shape)
            boxes, more = chunks_of(name, shape, listed, places, missing, cuts)
            tensors[name] = dtype, shape, boxes, len(held)
            held += more
        elif not isinstance(entry, _Bytes):
            raise FormatError(f"{name} is {brief(entry)}, neither a tensor nor an object")
        elif place := places.get((name, None)):
            objects[name] = Entry(name, *place)
        else:
            missing.append(name)
    extra = {k: v for k, v in fields.items() if k not in _FIELDS}
    if unclaimed := {name for name, _ in places} - described.keys():
        extra["unclaimed"] = tuple(sorted(unclaimed))
    columns = FileRanges.of(held)
    records = {
        name: TensorRecord(name, dtype, shape, Chunks(boxes, columns, first))
        for name, (dtype, shape, boxes, first) in tensors.items()
    }
    return Metadata(records, objects, paths_of(fields.get("planner_data")), extra), missing


def type_of(name: str, said: Any, shape: Any) -> DType:
    """The element type that the metadata gives a tensor of a shape, which is checked, too."""
    dtype = BY_TORCH.get(said.torch) if isinstance(said, DType) else None
    if dtype is None:
        text = f"element type {brief(said)} of {name} is not supported"
        if not isinstance(said, type) or said.__module__ != "torch":
            raise FormatError(text)
        raise UnsupportedError(
            text, hint="safetensors has no such type either: save the tensor in another one"
        )
    if type(shape) is not tuple or len(shape) > MAX_AXES or {*map(type, shape)} - {int}:
        raise FormatError(f"the shape {brief(shape)} of {name} is no shape")
    if min(shape, default=0) < 0:
        raise FormatError(f"the shape {shape} of {name} has a negative axis")
    bytes_of(shape, dtype.itemsize, name)
    return dtype


def chunk_of(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    """A chunk as the metadata lists it."""
    chunk = _Chunk()
    chunk.state = {"offsets": offsets, "sizes": sizes}
    return chunk


def paths_of(planned: Any) -> dict[str, tuple[str | int, ...]]:
    """The path of each tensor and object in the state dict."""
    paths: dict[str, tuple[str | int, ...]] = {}
    for name, path in (planned or {}).items():
        short = type(path) in (tuple, list) and len(path) <= MAX_NAME
        if type(name) is not str or not short or not {*map(type, path)} <= {str, int}:
            raise FormatError(f"the path of {brief(name)} is {brief(path)}")
        paths[name] = tuple(path)
    return paths
