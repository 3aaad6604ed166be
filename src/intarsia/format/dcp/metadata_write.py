"""Writing the `.metadata` of a PyTorch distributed checkpoint, without torch.

The pickle's opcodes are emitted directly, with every class and every name put into the memo
once, and nothing that differs between two runs or two machines.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from intarsia.format.dcp.metadata import BASE, Metadata
from intarsia.mesh import Box
from intarsia.planning.chunks import Chunks, FileRanges, Numbers, boxes_of, places_of
from intarsia.planning.manifest import Entry

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
        self.slots = 0
        for name, module in _GLOBALS.items():
            self._keep(name, b"c%s\n%s\n" % ((BASE + module).encode(), name.encode()))
        self._keep("Size", b"ctorch\nSize\n")
        strided = text_opcode("torch.strided") + b"\x85R"
        self._keep("layout", b"ctorch.serialization\n_get_layout\n" + strided)
        self._keep("format", b"c%smetadata\n_MEM_FORMAT_ENCODING\nK\0\x85R" % BASE.encode())
        for word in _WORDS:
            self._keep(f".{word}", text_opcode(word))
        self.head = b"".join(self._out)
        self.size_class = self._memo["Size"]
        self.opcodes = self._opcodes()

    def _opcodes(self) -> Opcodes:
        get, made = self._memo, self._made
        properties = get["TensorProperties"] + b")\x81("
        nothing = [text_opcode(word) + b"N" for word in ("checkpoint_id", "save_id", "load_id")]
        last = [b"u", text_opcode("storage_meta"), made("StorageMeta"), *nothing]
        last += [text_opcode("modules"), b"]ub", text_opcode("version"), text_opcode("1.0.0")]
        return Opcodes(
            described=made("Metadata") + text_opcode("state_dict_metadata") + b"}(",
            tensor=made("TensorStorageMetadata") + get[".properties"] + properties,
            size=get["layout"] + b"\x89" + get["format"] + b"\x89tb" + get[".size"],
            chunks=get[".chunks"] + b"](",
            chunk=made("ChunkStorageMetadata") + get[".offsets"],
            sizes=get[".sizes"],
            listed=b"e" + END,
            object=get["BytesStorageMetadata"] + b")\x81",
            planned=b"u" + text_opcode("planner_data") + b"}(",
            stored=b"u" + text_opcode("storage_data") + b"}(",
            key=made("MetadataIndex") + get[".fqn"],
            hint=get[".index"],
            start=get[".offset"],
            place=made("_StorageInfo") + get[".relative_path"],
            length=get[".length"],
            last=b"".join(last) + b"ub.",
        )

    def _keep(self, name: str, opcodes: bytes) -> None:
        """Run what `opcodes` push once, here, and name the opcodes that fetch it."""
        (self._memo[name],) = self._keep_each([opcodes])

    def _keep_each(self, pushed: Iterable[bytes]) -> list[bytes]:
        """The opcodes that fetch what each of these push, which run once, here."""
        fetched: list[bytes] = []
        for slot, opcodes in enumerate(pushed, self.slots):
            put, get = memo_of(slot)
            self._out.append(opcodes + put)
            fetched.append(get)
        self.slots += len(fetched)
        return fetched

    def _made(self, name: str) -> bytes:
        return self._memo[name] + b")\x81}("

    def _size(self, values: tuple[int, ...]) -> bytes:
        if values not in self._sizes:
            self._sizes[values] = self.size_class + _tuple(map(_int, values)) + b"\x85R"
        return self._sizes[values]

    def pieces(self, meta: Metadata) -> list[bytes]:
        """The opcodes of metadata, one after another."""
        op, out = self.opcodes, self._out
        tensors = meta.tensors.values()
        places = places_of([record.chunks for record in tensors])
        texts = {name: text_opcode(name) for name in (*meta.tensors, *meta.objects)}
        names = dict(zip(texts, self._keep_each(texts.values()), strict=True))
        files = sorted({*places.names, *(o.file for o in meta.objects.values())})
        file_of = dict(zip(files, self._keep_each(map(text_opcode, files)), strict=True))
        types = sorted({t.dtype.torch for t in tensors})
        pushed = [b"ctorch\n%s\n" % t.encode() for t in types]
        type_of = dict(zip(types, self._keep_each(pushed), strict=True))
        place_in = {f: END + op.place + get + op.start for f, get in file_of.items()}
        groups: dict[Hashable, TensorsCutAlike] = {}
        cuts: dict[tuple[Box, ...], tuple[Box, ...]] = {}
        out.append(op.described)
        end = 0
        for number, (record, fetched) in enumerate(zip(tensors, names.values(), strict=False)):
            boxes = boxes_of(record.chunks)
            if not isinstance(record.chunks, Chunks):
                boxes = cuts.setdefault(boxes, boxes)
            # Tensors that are cut alike share their boxes, which are kept so that no others come to have that identity.
            kind = id(boxes), record.dtype.torch, record.shape, len(fetched)
            if (alike := groups.get(kind)) is None:
                alike = self.alike(type_of[record.dtype.torch], record.shape, boxes)
                groups[kind] = alike
            out += fetched, alike.described
            alike.add(number, fetched, end)
            end += len(boxes)
        stored = [b""] * len(tensors)
        for alike in groups.values():
            alike.fill(stored, op, places, place_in)
        for name, object_ in meta.objects.items():
            out.append(names[name] + op.object)
            stored.append(self.object_place(names[name], file_of[object_.file], object_))
        out += [op.planned, *_planned(meta.paths, names, texts), op.stored, *stored, op.last]
        # One frame: a reader then takes in all of it at once, not opcode by opcode.
        out[:0] = FRAME, sum(map(len, out)).to_bytes(8, "little")
        return out

    def alike(
        self, dtype: bytes, shape: tuple[int, ...], boxes: tuple[Box, ...]
    ) -> TensorsCutAlike:
        """What tensors of an element type and a shape that are cut alike are described by, without any of them."""
        op, size = self.opcodes, self._size
        listed = [(size(box.offsets), size(box.shape)) for box in boxes]
        whole = [op.chunk + at + op.sizes + shape + END for at, shape in listed]
        described = op.tensor + dtype + op.size + size(shape)
        described += op.chunks + b"".join(whole) + op.listed
        indices = [op.hint + _int(k) + op.start + at for k, (at, _) in enumerate(listed)]
        return TensorsCutAlike(described, indices, boxes)

    def object_place(self, name: bytes, file: bytes, object_: Entry) -> bytes:
        """Where an object is stored, by the opcodes that fetch its name and its file."""
        op = self.opcodes
        place = END + op.place + file + op.start + _int(object_.start_bytes)
        return op.key + name + op.hint + b"N" + place + op.length + _int(object_.length_bytes) + END


def _planned(
    paths: Mapping[str, tuple[str | int, ...]],
    names: Mapping[str, bytes],
    texts: Mapping[str, bytes],
) -> list[bytes]:
    """The opcodes of paths, of which `names` and `texts` fetch and push those that are in the memo."""
    out: list[bytes] = []
    for name, path in paths.items():
        steps = [(texts.get(p) or text_opcode(p)) if isinstance(p, str) else _int(p) for p in path]
        out += names.get(name) or text_opcode(name), b"(" + b"".join(steps) + b"t"
    return out


class TensorsCutAlike:
    """Tensors that are cut alike: their names, and the numbers of the places at which their chunks begin."""

    def __init__(self, described: bytes, indices: list[bytes], boxes: tuple[Box, ...]) -> None:
        self.described = described
        self.indices = indices
        self._boxes = boxes
        self._numbers: list[int] = []
        self._names: list[bytes] = []
        self._firsts: list[int] = []

    def add(self, number: int, name: bytes, first: int) -> None:
        """Count a tensor in, whose first chunk has number `first` among all."""
        self._numbers.append(number)
        self._names.append(name)
        self._firsts.append(first)

    def fill(
        self, stored: list[bytes], op: Opcodes, places: FileRanges, place_in: Mapping[str, bytes]
    ) -> None:
        """Put what is said of where the chunks of each tensor are at the number of the tensor."""
        if not self._boxes:
            return
        at = np.array(self._firsts)[:, None] + np.arange(len(self._boxes))
        starts = places.starts[at]
        common = np.concatenate([places.files[at], places.lengths[at], _widths(starts)], 1)
        # What is said of those with the same files, lengths and widths differs by names and starts alone.
        same: dict[bytes, list[int]] = {}
        for member, key in enumerate(common.view(f"V{common[0].nbytes}")[:, 0].tolist()):
            same.setdefault(key, []).append(member)
        width = len(self._names[0])
        names = np.frombuffer(b"".join(self._names), np.uint8).reshape(-1, width)
        for members in same.values():
            some, row, holes = np.array(members), b"", list[tuple[int, int]]()
            first = self._firsts[members[0]]
            each = zip(*places.lists(first, first + len(self._boxes)), strict=True)
            for index, (file, start, length) in zip(self.indices, each, strict=True):
                before = index + place_in[file]
                row += op.key
                holes.append((len(row), len(row) + width + len(before)))
                row += self._names[members[0]] + before + _int(start)
                row += op.length + _int(length) + END
            rows = np.tile(np.frombuffer(row, np.uint8), (len(members), 1))
            held = starts[some].astype("<i8")
            for k, (name, number) in enumerate(holes):
                rows[:, name : name + width] = names[some]
                skipped, size = _NUMBERS[row[number : number + 1]]
                number += skipped
                rows[:, number : number + size] = held[:, k : k + 1].view(np.uint8)[:, :size]
            for member, said in zip(members, rows, strict=True):
                stored[self._numbers[member]] = said.tobytes()


_NUMBERS = {b"K": (1, 1), b"J": (1, 4), b"\x8a": (2, 8)}
"""Where in an opcode the bytes of its number begin, and how many may be others than zero."""


def _widths(values: Numbers) -> Numbers:
    """How long the opcodes are that push numbers."""
    return np.where(values < 256, 2, np.where(values < 1 << 31, 5, 11))


def memo_of(slot: int) -> tuple[bytes, bytes]:
    """The opcodes that put what was pushed into a place of the memo, and pop it; and those that fetch it."""
    if slot < 256:
        return b"q%c0" % slot, b"h%c" % slot
    number = slot.to_bytes(4, "little")
    return b"r" + number + b"0", b"j" + number


def text_opcode(text: str) -> bytes:
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
