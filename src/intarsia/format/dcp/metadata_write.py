"""Writing the `.metadata` of a PyTorch distributed checkpoint, without torch.

The pickle's opcodes are emitted directly, with every class and every name put into the memo
once, and nothing that differs between two runs or two machines.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from intarsia.format.dcp.metadata import BASE, Metadata
from intarsia.mesh import Box
from intarsia.planning.chunks import Chunks, Numbers, boxes_of, places_of

FRAME = b"\x80\x04\x95"


def write_metadata(meta: Metadata) -> bytes:
    """A `.metadata` file that torch reads; `extra` is not part of it."""
    return b"".join(Emitter().pieces(meta))


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

    def pieces(self, meta: Metadata) -> list[bytes]:
        """The opcodes of metadata, one after another."""
        op, out, size = self.opcodes, self._out, self._size
        tensors = meta.tensors.values()
        places = places_of([record.chunks for record in tensors])
        names = {n: self._keep(f"={n}", text_of(n)) for n in (*meta.tensors, *meta.objects)}
        files = {*places.names, *(o.file for o in meta.objects.values())}
        file_of = {f: self._keep(f"@{f}", text_of(f)) for f in sorted(files)}
        types = sorted({t.dtype.torch for t in tensors})
        type_of = {t: self._keep(f":{t}", b"ctorch\n%s\n" % t.encode()) for t in types}
        place_in = {f: END + op.place + get + op.start for f, get in file_of.items()}
        described: dict[Hashable, tuple[bytes, Sequence[bytes], Sequence[Box]]] = {}
        groups: dict[Hashable, _Alike] = {}
        cuts: dict[tuple[Box, ...], tuple[Box, ...]] = {}
        columns = np.stack([places.files, places.lengths, _widths(places.starts)], 1)
        out.append(op.described)
        end = 0
        for number, (name, record) in enumerate(meta.tensors.items()):
            boxes, fetched = boxes_of(record.chunks), names[name]
            boxes = (
                cuts.setdefault(boxes, boxes) if not isinstance(record.chunks, Chunks) else boxes
            )
            first, end = end, end + len(boxes)
            # Tensors that are cut alike share their boxes, which are kept so that no others come to have that identity.
            kind = id(boxes), record.dtype.torch, record.shape
            if (said := described.get(kind)) is None:
                listed = [(size(box.offsets), size(box.shape)) for box in boxes]
                whole = [op.chunk + at + op.sizes + shape + END for at, shape in listed]
                what = op.tensor + type_of[record.dtype.torch] + op.size + size(record.shape)
                what += op.chunks + b"".join(whole) + op.listed
                indices = [op.hint + _int(k) + op.start + at for k, (at, _) in enumerate(listed)]
                said = described[kind] = what, indices, boxes
            out.append(fetched + said[0])
            key = id(boxes), len(fetched), columns[first:end].tobytes()
            if (alike := groups.get(key)) is None:
                each = zip(said[1], *places.lists(first, end), strict=True)
                alike = groups[key] = _Alike(
                    [(x + place_in[f], at, op.length + _int(n) + END) for x, f, at, n in each]
                )
            alike.add(number, fetched, first)
        stored = [b""] * len(tensors)
        for alike in groups.values():
            alike.fill(stored, op.key, places.starts)
        for name, object_ in meta.objects.items():
            out.append(names[name] + op.object)
            place = place_in[object_.file] + _int(object_.start_bytes)
            length = op.length + _int(object_.length_bytes) + END
            stored.append(op.key + names[name] + op.hint + b"N" + place + length)
        out.append(op.planned)
        for name, path in meta.paths.items():
            steps = _tuple(text_of(p) if isinstance(p, str) else _int(p) for p in path)
            out.append(names.get(name, text_of(name)) + steps)
        out += [op.stored, *stored, op.last]
        # One frame: a reader then takes in all of it at once, not opcode by opcode.
        out[:0] = FRAME, sum(map(len, out)).to_bytes(8, "little")
        return out


class _Alike:
    """Tensors whose chunks are stored alike: what is said of them differs by their name and by where chunks begin."""

    def __init__(self, chunks: Sequence[tuple[bytes, int, bytes]]) -> None:
        self._chunks = chunks
        self._numbers: list[int] = []
        self._names: list[bytes] = []
        self._firsts: list[int] = []

    def add(self, number: int, name: bytes, first: int) -> None:
        """Count a tensor in, whose first chunk has number `first` among all."""
        self._numbers.append(number)
        self._names.append(name)
        self._firsts.append(first)

    def fill(self, stored: list[bytes], key: bytes, starts: Numbers) -> None:
        """Put what is said of where the chunks of each tensor are at the number of the tensor."""
        row, width, holes = b"", len(self._names[0]), list[tuple[int, int]]()
        for before, at, after in self._chunks:
            row += key
            holes.append((len(row), len(row) + width + len(before)))
            row += self._names[0] + before + _int(at) + after
        rows = np.tile(np.frombuffer(row, np.uint8), (len(self._names), 1))
        names = np.frombuffer(b"".join(self._names), np.uint8).reshape(-1, width)
        for k, (name, number) in enumerate(holes):
            rows[:, name : name + width] = names
            held = starts[np.array(self._firsts) + k].astype("<i8")[:, None].view(np.uint8)
            first, length = _NUMBERS[row[number : number + 1]]
            rows[:, number + first : number + first + length] = held[:, :length]
        for number, each in zip(self._numbers, rows, strict=True):
            stored[number] = each.tobytes()


_NUMBERS = {b"K": (1, 1), b"J": (1, 4), b"\x8a": (2, 8)}
"""Where in an opcode the bytes of its number begin, and how many may be others than zero."""


def _widths(values: Numbers) -> Numbers:
    """How long the opcodes are that push numbers."""
    return np.where(values < 256, 2, np.where(values < 1 << 31, 5, 11))


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
