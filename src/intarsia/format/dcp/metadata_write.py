"""Writing the `.metadata` of a PyTorch distributed checkpoint, without torch.

The pickle's opcodes are emitted directly, with every class and every name put into the memo
once, and nothing that differs between two runs or two machines.
"""

from __future__ import annotations

from collections.abc import Iterable

from intarsia.format.dcp.metadata import BASE, Metadata
from intarsia.mesh import Shape
from intarsia.planning.manifest import Chunk, Entry


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
            self._keep(name, b"c%s\n%s\n" % ((BASE + module).encode(), name.encode()))
        self._keep("Size", b"ctorch\nSize\n")
        strided = _text("torch.strided") + b"\x85R"
        self._keep("layout", b"ctorch.serialization\n_get_layout\n" + strided)
        self._keep("format", b"c%smetadata\n_MEM_FORMAT_ENCODING\nK\0\x85R" % BASE.encode())
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
        place_in = {f: b"ub" + place + fetched + start for f, fetched in file_of.items()}
        lengths: dict[int, bytes] = {}
        chunks: dict[tuple[Shape, Shape], tuple[bytes, bytes]] = {}
        hints: list[bytes] = []

        def store(index: bytes, at: Chunk | Entry) -> None:
            if (length_ := lengths.get(at.length_bytes)) is None:
                length_ = lengths[at.length_bytes] = length + _int(at.length_bytes) + b"ub"
            stored.append(index + place_in[at.file] + _int(at.start_bytes) + length_)

        out.append(self._made("Metadata") + _text("state_dict_metadata") + b"}(")
        for name, record in meta.tensors.items():
            out.append(names[name] + tensor + properties)
            out.append(type_of[record.dtype.torch] + rest + get[".size"] + size(record.shape))
            out.append(get[".chunks"] + b"](")
            hints += [_int(i) + start for i in range(len(hints), len(record.chunks))]
            indexed = index + names[name] + hinted
            for hint, chunk in zip(hints, record.chunks, strict=False):
                box = chunk.box
                if (said := chunks.get((box.offsets, box.shape))) is None:
                    offsets = size(box.offsets)
                    whole = chunk_ + offsets + get[".sizes"] + size(box.shape) + b"ub"
                    said = chunks[box.offsets, box.shape] = whole, offsets
                out.append(said[0])
                store(indexed + hint + said[1], chunk)
            out.append(b"eub")
        for name, object_ in meta.objects.items():
            out.append(names[name] + get["BytesStorageMetadata"] + b")\x81")
            store(index + names[name] + hinted + b"N", object_)
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
