"""The `.metadata` of a PyTorch distributed checkpoint: which bytes of which file hold what.

It is a pickle of torch's own classes. Reading goes through `load_inert`, so no torch is needed
and nothing runs; writing emits the same opcodes directly, with every class and every name put
into the memo once, and nothing that differs between two runs or two machines.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from intarsia.dtypes import BY_TORCH, DType
from intarsia.errors import FormatError, UnsafeError
from intarsia.format.unpickle import Inert, brief, load_inert

_BASE = "torch.distributed.checkpoint."
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """A box of a tensor and the blob that holds it."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start_bytes: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor and the chunks it is stored in."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    chunks: tuple[ChunkRecord, ...]


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """A Python object and the blob that holds it."""

    name: str
    file: str
    start_bytes: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """A checkpoint's tensors and objects by name, and the path of each in the state dict."""

    tensors: dict[str, TensorRecord]
    objects: dict[str, ObjectRecord]
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


_PLANNED = ("WriteItem", "WriteItemType", "TensorWriteData", "SavePlan")
_KNOWN: dict[tuple[str, str], Any] = {
    **{(_BASE + "metadata", k.__name__): k for k in (_Index, _Tensor, _Bytes, _Chunk, _Properties)},
    (_BASE + "filesystem", "_StorageInfo"): _Place,
    # Gives back a tuple and refuses all else, as fast as the interpreter can.
    ("torch", "Size"): ().__add__,
    **{(_BASE + "planner", n): _Ignored for n in _PLANNED},
}
_FIELDS = {"state_dict_metadata", "storage_data", "planner_data", "all_local_plans"}
_Where = tuple[str, int, int]


def read_metadata(data: bytes, where: str) -> Metadata:
    """The content of a `.metadata` file, with every chunk matched to its blob."""
    collecting = gc.isenabled()
    # Nothing here is garbage before the end; looking for it would take half of the time.
    gc.disable()
    try:
        return _read(data, where)
    finally:
        if collecting:
            gc.enable()


def _read(data: bytes, where: str) -> Metadata:
    loaded = load_inert(data, where, known=_KNOWN)
    fields = loaded.fields if isinstance(loaded, Inert) else {}
    described, stored = fields.get("state_dict_metadata"), fields.get("storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise FormatError(
            f"no checkpoint metadata: found {brief(loaded)}, expected torch's Metadata with "
            f"state_dict_metadata and storage_data - at {where}"
        )
    try:
        return _matched(described, _places(stored), fields)
    except UnsafeError as error:
        raise UnsafeError(f"{error} - at {where}") from None
    except FormatError as error:
        raise FormatError(f"{error} - at {where}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise FormatError(
            f"the metadata is not laid out as torch does ({cause}) - at {where}"
        ) from error


def _places(stored: dict[Any, Any]) -> dict[tuple[str, Any], _Where]:
    """The blob of each (name, offset); an index also carries a hint that is not part of it."""
    places: dict[tuple[str, Any], _Where] = {}
    files: set[str] = set()
    for index, place in stored.items():
        if not isinstance(index, _Index) or not isinstance(place, _Place):
            raise FormatError(f"storage of {brief(index)} is {brief(place)}")
        key = (index.state["fqn"], index.state.get("offset"))
        state = place.state
        file, start, length = state["relative_path"], state["offset"], state["length"]
        if state.get("transform_descriptors"):
            raise FormatError(
                f"{brief(key[0])} is stored through a transform ({brief(state['transform_descriptors'])})",
                hint="save without stream transforms (compression)",
            )
        if file not in files:
            _check_file(file)
            files.add(file)
        if type(start) is not int or type(length) is not int or start < 0 or length < 0:
            raise FormatError(f"{brief(key[0])} is at [{brief(start)}, +{brief(length)}) of {file}")
        if start + length > _LARGEST:
            raise FormatError(f"{brief(key[0])} ends at byte {start + length} of {file}")
        if type(key[0]) is not str or key in places:
            raise FormatError(f"{brief(key[0])} is stored twice at offset {key[1]}")
        places[key] = (file, start, length)
    return places


def _check_file(file: object) -> None:
    if not isinstance(file, str) or not file or file in (".", "..") or "\0" in file:
        raise FormatError(f"{brief(file)} is no file name")
    if "/" in file or "\\" in file or ":" in file:
        raise UnsafeError(f"file {brief(file)} lies outside of the checkpoint's directory")


def _matched(
    described: dict[Any, Any], places: dict[tuple[str, Any], _Where], fields: dict[str, Any]
) -> Metadata:
    tensors: dict[str, TensorRecord] = {}
    objects: dict[str, ObjectRecord] = {}
    missing: list[str] = []
    for name, entry in described.items():
        if type(name) is not str:
            raise FormatError(f"the name {brief(name)} is no text")
        if isinstance(entry, _Tensor):
            tensors[name] = _tensor(name, entry.state, places, missing)
        elif not isinstance(entry, _Bytes):
            raise FormatError(f"{name} is {brief(entry)}, neither a tensor nor an object")
        elif place := places.get((name, None)):
            objects[name] = ObjectRecord(name, *place)
        else:
            missing.append(name)
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise FormatError(
            f"{len(missing)} entries are described but were never stored: {shown}",
            hint="a writer thread failed while saving; this checkpoint is incomplete",
        )
    extra = {k: v for k, v in fields.items() if k not in _FIELDS}
    if unclaimed := {name for name, _ in places} - described.keys():
        extra["unclaimed"] = tuple(sorted(unclaimed))
    return Metadata(tensors, objects, _paths(fields.get("planner_data")), extra)


def _tensor(
    name: str, state: Any, places: dict[tuple[str, Any], _Where], missing: list[str]
) -> TensorRecord:
    properties, shape = state["properties"].state, state["size"]
    # The state of TensorProperties is a tuple by its own __getstate__, a dict without it.
    said = properties["dtype"] if isinstance(properties, dict) else properties[0]
    dtype = BY_TORCH.get(said.torch) if isinstance(said, DType) else None
    if dtype is None:
        raise FormatError(f"element type {brief(said)} of {name} is not supported")
    if not {*map(type, shape)} <= {int} or min(shape, default=0) < 0:
        raise FormatError(f"the shape {brief(shape)} of {name} is no shape")
    chunks = []
    for chunk in state["chunks"]:
        offsets, sizes = chunk.state["offsets"], chunk.state["sizes"]
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise FormatError(
                f"a chunk of {name} has {len(offsets)} offsets and {len(sizes)} sizes for "
                f"{len(shape)} axes"
            )
        for at, n, whole in zip(offsets, sizes, shape, strict=True):
            if type(at) is not int or type(n) is not int or at < 0 or n < 0 or at + n > whole:
                raise FormatError(f"chunk {offsets} + {sizes} of {name} is not within {shape}")
        place = places.get((name, offsets))
        if place is not None:
            chunks.append(ChunkRecord(offsets, sizes, *place))
        elif 0 not in sizes:
            missing.append(f"{name} at {offsets}")
    return TensorRecord(name, dtype, shape, tuple(chunks))


def _paths(planned: Any) -> dict[str, tuple[str | int, ...]]:
    paths: dict[str, tuple[str | int, ...]] = {}
    for name, path in (planned or {}).items():
        if type(name) is not str or not {*map(type, path)} <= {str, int}:
            raise FormatError(f"the path of {brief(name)} is {brief(path)}")
        paths[name] = tuple(path)
    return paths


def write_metadata(meta: Metadata) -> bytes:
    """A `.metadata` file that torch reads; `extra` is not part of it."""
    return _Emitter().metadata(meta)


_GLOBALS = {
    "Metadata": "metadata", "TensorStorageMetadata": "metadata", "TensorProperties": "metadata",
    "ChunkStorageMetadata": "metadata", "BytesStorageMetadata": "metadata",
    "MetadataIndex": "metadata", "StorageMeta": "metadata", "_StorageInfo": "filesystem",
}  # fmt: skip
_WORDS = (
    "properties", "size", "chunks", "offsets", "sizes", "fqn", "index", "offset", "length",
    "relative_path",
)  # fmt: skip


class _Emitter:
    """Pickle opcodes; what recurs is first put into the memo, then fetched from there."""

    def __init__(self) -> None:
        self._out: list[bytes] = []
        self._memo: dict[str, bytes] = {}
        self._sizes: dict[tuple[int, ...], bytes] = {}
        for name, module in _GLOBALS.items():
            self._keep(name, b"c%s\n%s\n" % ((_BASE + module).encode(), name.encode()))
        self._keep("Size", b"ctorch\nSize\n")
        strided = _text("torch.strided") + b"\x85R"
        self._keep("layout", b"ctorch.serialization\n_get_layout\n" + strided)
        self._keep("format", b"c%smetadata\n_MEM_FORMAT_ENCODING\nK\0\x85R" % _BASE.encode())
        for word in _WORDS:
            self._keep(f".{word}", _text(word))

    def _keep(self, name: str, opcodes: bytes) -> bytes:
        """The opcodes that fetch what `opcodes` push, which runs once, here."""
        put, get = _memo(len(self._memo))
        self._out.append(opcodes + put + b"0")
        self._memo[name] = get
        return get

    def _made(self, name: str) -> bytes:
        return self._memo[name] + b")\x81}("

    def _size(self, values: tuple[int, ...]) -> bytes:
        if values not in self._sizes:
            self._sizes[values] = self._memo["Size"] + _tuple(map(_int, values)) + b"\x85R"
        return self._sizes[values]

    def metadata(self, meta: Metadata) -> bytes:
        get, out, size = self._memo, self._out, self._size
        names = {n: self._keep(f"={n}", _text(n)) for n in (*meta.tensors, *meta.objects)}
        files = {c.file for t in meta.tensors.values() for c in t.chunks}
        files |= {o.file for o in meta.objects.values()}
        file_of = {f: self._keep(f"@{f}", _text(f)) for f in sorted(files)}
        types = sorted({t.dtype.torch for t in meta.tensors.values()})
        type_of = {t: self._keep(f":{t}", b"ctorch\n%s\n" % t.encode()) for t in types}
        index = self._made("MetadataIndex") + get[".fqn"]
        place = self._made("_StorageInfo") + get[".relative_path"]
        hinted, start, length = get[".index"], get[".offset"], get[".length"]
        tensor = self._made("TensorStorageMetadata") + get[".properties"]
        chunk_ = self._made("ChunkStorageMetadata") + get[".offsets"]
        properties = get["TensorProperties"] + b")\x81("
        rest = get["layout"] + b"\x89" + get["format"] + b"\x89tb"
        stored: list[bytes] = []

        def store(name: bytes, hint: bytes, at: ChunkRecord | ObjectRecord) -> None:
            start_, length_ = _int(at.start_bytes), _int(at.length_bytes)
            where = place + file_of[at.file] + start + start_ + length + length_
            stored.append(index + name + hinted + hint + b"ub" + where + b"ub")

        out.append(self._made("Metadata") + _text("state_dict_metadata") + b"}(")
        for name, record in meta.tensors.items():
            out.append(names[name] + tensor + properties)
            out.append(type_of[record.dtype.torch] + rest + get[".size"] + size(record.shape))
            out.append(get[".chunks"] + b"](")
            for i, chunk in enumerate(record.chunks):
                offsets = size(chunk.offsets)
                out.append(chunk_ + offsets + get[".sizes"] + size(chunk.shape) + b"ub")
                store(names[name], _int(i) + start + offsets, chunk)
            out.append(b"eub")
        for name, object_ in meta.objects.items():
            out.append(names[name] + get["BytesStorageMetadata"] + b")\x81")
            store(names[name], b"N", object_)
        out.append(b"u" + _text("planner_data") + b"}(")
        for name, path in meta.paths.items():
            steps = _tuple(_text(p) if isinstance(p, str) else _int(p) for p in path)
            out.append(names.get(name, _text(name)) + steps)
        out += [b"u", _text("storage_data"), b"}(", *stored, b"u", _text("storage_meta")]
        out.append(self._made("StorageMeta") + _text("checkpoint_id") + b"N" + _text("save_id"))
        out += [b"N", _text("load_id"), b"N", _text("modules"), b"]ub", _text("version")]
        out.append(_text("1.0.0") + b"ub.")
        body = b"".join(out)
        # One frame: a reader then takes in all of it at once, not opcode by opcode.
        return b"\x80\x04\x95" + len(body).to_bytes(8, "little") + body


def _memo(slot: int) -> tuple[bytes, bytes]:
    if slot < 256:
        return b"q%c" % slot, b"h%c" % slot
    return b"r" + slot.to_bytes(4, "little"), b"j" + slot.to_bytes(4, "little")


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return b"X" + len(raw).to_bytes(4, "little") + raw


def _int(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K%c" % value
    if 0 <= value < 1 << 31:
        return b"J" + value.to_bytes(4, "little")
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def _tuple(items: Iterable[bytes]) -> bytes:
    return b"(" + b"".join(items) + b"t"
