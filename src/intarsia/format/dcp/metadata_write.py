"""Writing the `.metadata` of a PyTorch distributed checkpoint, without torch.

The pickle's opcodes are emitted directly, with every class and every name put into the memo
once, and nothing that differs between two runs or two machines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from intarsia.format.dcp.metadata import BASE, Metadata
from intarsia.mesh import Shape
from intarsia.planning.manifest import Chunk, Entry

FRAME = b"\x80\x04\x95"


def write_metadata(meta: Metadata) -> bytes:
    """A `.metadata` file that torch reads; `extra` is not part of it."""
    return Emitter().metadata(meta)


_GLOBALS = {
    "Metadata": "metadata", "TensorStorageMetadata": "metadata", "TensorProperties": "metadata",
    "ChunkStorageMetadata": "metadata", "BytesStorageMetadata": "metadata",
    "MetadataIndex": "metadata", "StorageMeta": "metadata", "_StorageInfo": "filesystem",
}  # fmt: skip
_WORDS = (
    "properties", "size", "chunks", "offsets", "sizes", "fqn", "index", "offset", "length",
    "relative_path",
)  # fmt: skip


class Opcodes(NamedTuple):
    """What every file has between names, element types, sizes and numbers, in that order.

    A tensor: name `tensor` element type `size` its size `chunks`, of each chunk `chunk` its offsets `sizes`
    its size `END`, and `listed`.  An object: name `object`.  What is stored: `key` name `hint` its number `start`
    its offsets (or N) `END` `place` file `start` number `length` number `END`.
    """

    described: bytes
    tensor: bytes
    size: bytes
    chunks: bytes
    chunk: bytes
    sizes: bytes
    listed: bytes
    object: bytes
    planned: bytes
    stored: bytes
    key: bytes
    hint: bytes
    start: bytes
    place: bytes
    length: bytes
    last: bytes


END = b"ub"


class Emitter:
    """Pickle opcodes; what recurs is first put into the memo, then fetched from there."""

    def __init__(self) -> None:
        self._out: list[bytes] = []
        self._memo: dict[str, bytes] = {}
        self._sizes: dict[tuple[int, ...], bytes] = {}
        for name, module in _GLOBALS.items():
            self._keep(name, b"c%s\n%s\n" % ((BASE + module).encode(), name.encode()))
        self._keep("Size", b"ctorch\nSize\n")
        strided = text_of("torch.strided") + b"\x85R"
        self._keep("layout", b"ctorch.serialization\n_get_layout\n" + strided)
        self._keep("format", b"c%smetadata\n_MEM_FORMAT_ENCODING\nK\0\x85R" % BASE.encode())
        for word in _WORDS:
            self._keep(f".{word}", text_of(word))
        self.head = b"".join(self._out)
        self.slots = len(self._memo)
        self.size_class = self._memo["Size"]
        self.opcodes = self._opcodes()

    def _opcodes(self) -> Opcodes:
        get, made = self._memo, self._made
        properties = get["TensorProperties"] + b")\x81("
        last = [b"u", text_of("storage_meta"), made("StorageMeta"), text_of("checkpoint_id"), b"N"]
        last += [text_of("save_id"), b"N", text_of("load_id"), b"N", text_of("modules"), b"]ub"]
        last += [text_of("version"), text_of("1.0.0"), b"ub."]
        return Opcodes(
            described=made("Metadata") + text_of("state_dict_metadata") + b"}(",
            tensor=made("TensorStorageMetadata") + get[".properties"] + properties,
            size=get["layout"] + b"\x89" + get["format"] + b"\x89tb" + get[".size"],
            chunks=get[".chunks"] + b"](",
            chunk=made("ChunkStorageMetadata") + get[".offsets"],
            sizes=get[".sizes"],
            listed=b"e" + END,
            object=get["BytesStorageMetadata"] + b")\x81",
            planned=b"u" + text_of("planner_data") + b"}(",
            stored=b"u" + text_of("storage_data") + b"}(",
            key=made("MetadataIndex") + get[".fqn"],
            hint=get[".index"],
            start=get[".offset"],
            place=made("_StorageInfo") + get[".relative_path"],
            length=get[".length"],
            last=b"".join(last),
        )

    def _keep(self, name: str, opcodes: bytes) -> bytes:
        """The opcodes that fetch what `opcodes` push, which runs once, here."""
        put, get = memo_of(len(self._memo))
        self._out.append(opcodes + put)
        self._memo[name] = get
        return get

    def _made(self, name: str) -> bytes:
        return self._memo[name] + b")\x81}("

    def _size(self, values: tuple[int, ...]) -> bytes:
        if values not in self._sizes:
            self._sizes[values] = self.size_class + _tuple(map(_int, values)) + b"\x85R"
        return self._sizes[values]

    def metadata(self, meta: Metadata) -> bytes:
        op, out, size = self.opcodes, self._out, self._size
        names = {n: self._keep(f"={n}", text_of(n)) for n in (*meta.tensors, *meta.objects)}
        files = {c.file for t in meta.tensors.values() for c in t.chunks}
        files |= {o.file for o in meta.objects.values()}
        file_of = {f: self._keep(f"@{f}", text_of(f)) for f in sorted(files)}
        types = sorted({t.dtype.torch for t in meta.tensors.values()})
        type_of = {t: self._keep(f":{t}", b"ctorch\n%s\n" % t.encode()) for t in types}
        stored: list[bytes] = []
        place_in = {f: END + op.place + fetched + op.start for f, fetched in file_of.items()}
        lengths: dict[int, bytes] = {}
        chunks: dict[tuple[Shape, Shape], tuple[bytes, bytes]] = {}
        hints: list[bytes] = []

        def store(index: bytes, at: Chunk | Entry) -> None:
            if (length := lengths.get(at.length_bytes)) is None:
                length = lengths[at.length_bytes] = op.length + _int(at.length_bytes) + END
            stored.append(index + place_in[at.file] + _int(at.start_bytes) + length)

        out.append(op.described)
        for name, record in meta.tensors.items():
            out.append(names[name] + op.tensor + type_of[record.dtype.torch] + op.size)
            out.append(size(record.shape) + op.chunks)
            hints += [_int(i) + op.start for i in range(len(hints), len(record.chunks))]
            indexed = op.key + names[name] + op.hint
            for hint, chunk in zip(hints, record.chunks, strict=False):
                box = chunk.box
                if (said := chunks.get((box.offsets, box.shape))) is None:
                    offsets = size(box.offsets)
                    whole = op.chunk + offsets + op.sizes + size(box.shape) + END
                    said = chunks[box.offsets, box.shape] = whole, offsets
                out.append(said[0])
                store(indexed + hint + said[1], chunk)
            out.append(op.listed)
        for name, object_ in meta.objects.items():
            out.append(names[name] + op.object)
            store(op.key + names[name] + op.hint + b"N", object_)
        out.append(op.planned)
        for name, path in meta.paths.items():
            steps = _tuple(text_of(p) if isinstance(p, str) else _int(p) for p in path)
            out.append(names.get(name, text_of(name)) + steps)
        out += [op.stored, *stored, op.last]
        body = b"".join(out)
        # One frame: a reader then takes in all of it at once, not opcode by opcode.
        return FRAME + len(body).to_bytes(8, "little") + body


def memo_of(slot: int) -> tuple[bytes, bytes]:
    """The opcodes that put what was pushed into a place of the memo, and pop it; and those that fetch it."""
    if slot < 256:
        return b"q%c0" % slot, b"h%c" % slot
    return b"r" + slot.to_bytes(4, "little") + b"0", b"j" + slot.to_bytes(4, "little")


def text_of(text: str) -> bytes:
    """The opcode that pushes a text."""
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
