"""The `.metadata` of a PyTorch distributed checkpoint: which bytes of which file hold what.

It is a pickle of torch's own classes. Reading goes through `load_inert`, so no torch is needed
and nothing runs; `metadata_write` writes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from itertools import chain
from operator import add, attrgetter, itemgetter
from typing import Any, Self

from intarsia.collector import paused
from intarsia.dtypes import BY_TORCH, DType
from intarsia.errors import FormatError, UnsafeError, UnsupportedError, few
from intarsia.format.complaint import Complain, Complaint, refuse
from intarsia.format.torch_file.inert import Inert, brief
from intarsia.format.torch_file.tensor_bounds import MAX_AXES, MAX_NAME, bytes_of
from intarsia.format.torch_file.unpickle import load_inert
from intarsia.frozen import frozen
from intarsia.mesh import Box
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
    chunks: tuple[Chunk, ...]

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
_Where = tuple[str, int, int]
Places = dict[tuple[str, Any], _Where]
_Axes = tuple[int, ...]
_Cut = tuple[_Axes, tuple[_Axes, ...], tuple[_Axes, ...]]
Cuts = dict[_Cut, tuple[Box, ...]]
_STATE, _OFFSETS, _SIZES = attrgetter("state"), itemgetter("offsets"), itemgetter("sizes")


def read_metadata(data: bytes, where: str, complain: Complain = refuse) -> Metadata:
    """The content of a `.metadata` file, with every chunk matched to its blob."""
    with paused():
        found, lost = made_once(where, data, lambda: _read(data, where))
    if lost:
        never = FormatError(
            f"{len(lost)} entries are described but were never stored: {few(lost, 5)} - at {where}",
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
    loaded = load_inert(data, where, known=_KNOWN)
    fields = loaded.fields if isinstance(loaded, Inert) else {}
    described, stored = fields.get("state_dict_metadata"), fields.get("storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise FormatError(
            f"no checkpoint metadata: found {brief(loaded)}, expected torch's Metadata with "
            f"state_dict_metadata and storage_data - at {where}"
        )
    try:
        return _matched(described, _places(stored), fields, len(data))
    except UnsafeError as error:
        raise UnsafeError(f"{error} - at {where}") from None
    except FormatError as error:
        hint = error.hint or "the metadata is damaged: restore it, or save the checkpoint again"
        raise FormatError(
            f"{error.brief} - at {where}", hint=hint, kind=error.kind, tensors=error.tensors
        ) from None
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise FormatError(
            f"the metadata does not have torch's structure ({cause}) - at {where}"
        ) from error


def _places(stored: dict[Any, Any]) -> Places:
    """The blob of each (name, offset); an index also carries a hint that is not part of it."""
    places = None
    with suppress(AttributeError, FormatError, LookupError, TypeError, UnsafeError, ValueError):
        places = _places_at_once(stored)
    return _places_one_by_one(stored) if places is None else places


def _places_at_once(stored: dict[Any, Any]) -> Places | None:
    """Where every entry is as it should be, the blobs; each check is one of a whole column."""
    if {*map(type, stored)} != {_Index} or {*map(type, stored.values())} != {_Place}:
        return None
    indices, held = [*map(_STATE, stored)], [*map(_STATE, stored.values())]
    names, offsets = [*map(itemgetter("fqn"), indices)], [index.get("offset") for index in indices]
    files, starts, lengths = (
        [*map(itemgetter(f), held)] for f in ("relative_path", "offset", "length")
    )
    inner = chain.from_iterable([offset for offset in offsets if offset is not None])
    plain = (
        {*map(type, names), *map(type, files)} == {str}
        and {*map(type, offsets)} <= {tuple, type(None)}
        and {*map(type, inner), *map(type, starts), *map(type, lengths)} == {int}
        and min(starts) >= 0
        and min(lengths) >= 0
        and max(map(add, starts, lengths)) <= LARGEST
        and not any(place.get("transform_descriptors") for place in held)
    )
    if not plain:
        return None
    for name in {*names}:
        check_tensor_name(name)
    for file in {*files}:
        check_name(file, "the storage")
    places = dict(
        zip(zip(names, offsets, strict=True), zip(files, starts, lengths, strict=True), strict=True)
    )
    return places if len(places) == len(stored) else None


def _places_one_by_one(stored: dict[Any, Any]) -> Places:
    """The same, up to the first entry that is wrong."""
    places: Places = {}
    files: set[str] = set()
    for index, place in stored.items():
        if not isinstance(index, _Index) or not isinstance(place, _Place):
            raise FormatError(f"storage of {brief(index)} is {brief(place)}")
        name, offset = index.state["fqn"], index.state.get("offset")
        check_tensor_name(name)
        if offset is not None and (type(offset) is not tuple or {*map(type, offset)} - {int}):
            raise FormatError(f"{name} is stored at offset {brief(offset)}")
        key = (name, offset)
        state = place.state
        file, start, length = state["relative_path"], state["offset"], state["length"]
        if state.get("transform_descriptors"):
            raise FormatError(
                f"{brief(key[0])} is stored through a transform"
                f" ({brief(state['transform_descriptors'])})",
                hint="save without stream transforms (compression)",
            )
        if type(file) is not str or file not in files:
            files.add(check_name(file, f"the storage of {name}"))
        if type(start) is not int or type(length) is not int or start < 0 or length < 0:
            raise FormatError(f"{brief(key[0])} is at [{brief(start)}, +{brief(length)}) of {file}")
        if start + length > LARGEST:
            raise FormatError(f"{brief(key[0])} ends at byte {start + length} of {file}")
        if key in places:
            raise FormatError(f"`{name}` is stored twice at offset {offset}", tensors=(name,))
        places[key] = (file, start, length)
    return places


def check_tensor_name(name: Any) -> None:
    """Raise where the name of a tensor is none, or none that could be written again."""
    if type(name) is not str or len(name) > MAX_NAME:
        raise FormatError(f"the name {brief(name)} is not text of at most {MAX_NAME} characters")
    if not name.isascii():
        name.encode()  # what holds half a character could not be written again


def _matched(
    described: dict[Any, Any],
    places: Places,
    fields: dict[str, Any],
    size_bytes: int,
) -> tuple[Metadata, list[str]]:
    """What the metadata describes, and what of it was never stored."""
    # Lists that many tensors share are stored once and gone through many times.
    left = size_bytes
    tensors: dict[str, TensorRecord] = {}
    objects: dict[str, Entry] = {}
    missing: list[str] = []
    cuts: Cuts = {}
    for name, entry in described.items():
        check_tensor_name(name)
        if isinstance(entry, _Tensor):
            left -= len(entry.state["chunks"])
            if left < 0:
                raise FormatError(f"more chunks than the metadata has bytes ({size_bytes:,})")
            tensors[name] = _tensor(name, entry.state, places, missing, cuts)
        elif not isinstance(entry, _Bytes):
            raise FormatError(f"{name} is {brief(entry)}, neither a tensor nor an object")
        elif place := places.get((name, None)):
            objects[name] = Entry(name, *place)
        else:
            missing.append(name)
    extra = {k: v for k, v in fields.items() if k not in _FIELDS}
    if unclaimed := {name for name, _ in places} - described.keys():
        extra["unclaimed"] = tuple(sorted(unclaimed))
    return Metadata(tensors, objects, paths_of(fields.get("planner_data")), extra), missing


def _tensor(name: str, state: Any, places: Places, missing: list[str], cuts: Cuts) -> TensorRecord:
    properties = state["properties"].state
    # The state of TensorProperties is a tuple by its own __getstate__, a dict without it.
    said = properties["dtype"] if isinstance(properties, dict) else properties[0]
    return tensor_of(name, said, state["size"], state["chunks"], places, missing, cuts)


def tensor_of(
    name: str, said: Any, shape: Any, listed: Any, places: Places, missing: list[str], cuts: Cuts
) -> TensorRecord:
    """A tensor of the element type, the shape and the chunks that the metadata gives it."""
    dtype = BY_TORCH.get(said.torch) if isinstance(said, DType) else None
    if dtype is None:
        torchs = isinstance(said, type) and said.__module__ == "torch"
        error = UnsupportedError if torchs else FormatError
        raise error(f"element type {brief(said)} of {name} is not supported")
    if type(shape) is not tuple or len(shape) > MAX_AXES or {*map(type, shape)} - {int}:
        raise FormatError(f"the shape {brief(shape)} of {name} is no shape")
    if min(shape, default=0) < 0:
        raise FormatError(f"the shape {shape} of {name} has a negative axis")
    bytes_of(shape, dtype.itemsize, name)
    return TensorRecord(name, dtype, shape, _chunks(name, shape, listed, places, missing, cuts))


def chunk_of(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    """A chunk as the metadata lists it."""
    chunk = _Chunk()
    chunk.state = {"offsets": offsets, "sizes": sizes}
    return chunk


def _chunks(
    name: str, shape: _Axes, listed: Any, places: Places, missing: list[str], cuts: Cuts
) -> tuple[Chunk, ...]:
    """The chunks of a tensor; a cut that many tensors have is checked once."""
    cut = _cut_of(shape, listed)
    if cut is not None and cut in cuts:
        held = [place for offsets in cut[1] if (place := places.get((name, offsets)))]
        if len(held) == len(cut[1]):
            return tuple([Chunk(box, *place) for box, place in zip(cuts[cut], held, strict=True)])
    chunks = _chunks_one_by_one(name, shape, listed, places, missing)
    if cut is not None and len(chunks) == len(listed):
        cuts[cut] = tuple([chunk.box for chunk in chunks])
    return chunks


def _cut_of(shape: _Axes, listed: Any) -> _Cut | None:
    """A shape with the offsets and the sizes of its chunks; None where one of those is no tuple of integers."""
    try:
        states = [*map(_STATE, listed)]
        offsets, sizes = tuple(map(_OFFSETS, states)), tuple(map(_SIZES, states))
    except (AttributeError, LookupError, TypeError):
        return None
    tuples = {*map(type, offsets), *map(type, sizes)} <= {tuple}
    plain = tuples and {*map(type, chain(*offsets, *sizes))} <= {int}
    return (shape, offsets, sizes) if plain else None


def _chunks_one_by_one(
    name: str, shape: _Axes, listed: Any, places: Places, missing: list[str]
) -> tuple[Chunk, ...]:
    """The same, up to the first that is wrong; those that were never stored go to `missing`."""
    chunks = []
    taken = set()
    for chunk in listed:
        offsets, sizes = chunk.state["offsets"], chunk.state["sizes"]
        if type(offsets) is not tuple or type(sizes) is not tuple:
            raise FormatError(f"a chunk of {name} has no offsets or no sizes")
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise FormatError(
                f"a chunk of {name} has {len(offsets)} offsets and {len(sizes)} sizes for "
                f"{len(shape)} axes"
            )
        for at, n, whole in zip(offsets, sizes, shape, strict=True):
            if type(at) is not int or type(n) is not int or at < 0 or n < 0 or at + n > whole:
                raise FormatError(f"chunk {offsets} + {sizes} of {name} is not within {shape}")
        place = places.get((name, offsets))
        if 0 not in sizes:
            if offsets in taken:
                raise FormatError(f"{name} has two chunks at {offsets}")
            taken.add(offsets)
        if place is not None:
            chunks.append(Chunk(Box(offsets, sizes), *place))
        elif 0 not in sizes:
            missing.append(f"{name} at {offsets}")
    return tuple(chunks)


def paths_of(planned: Any) -> dict[str, tuple[str | int, ...]]:
    """The path of each tensor and object in the state dict."""
    paths: dict[str, tuple[str | int, ...]] = {}
    for name, path in (planned or {}).items():
        short = type(path) in (tuple, list) and len(path) <= MAX_NAME
        if type(name) is not str or not short or not {*map(type, path)} <= {str, int}:
            raise FormatError(f"the path of {brief(name)} is {brief(path)}")
        paths[name] = tuple(path)
    return paths
