"""Writing the zip archive that `torch.save` writes, without torch.

Every byte but the checksums is known before the data are: `frame` gives what lies around them.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from enum import Enum
from functools import cache, lru_cache, reduce
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from intarsia.dtypes import DType
from intarsia.errors import UsageError
from intarsia.format.torch_file.inert import brief
from intarsia.format.torch_file.storages import STORAGE_OF
from intarsia.format.torch_file.zip_directory import CENTRAL, END, END64, LOCAL, LOCATOR, WIDE
from intarsia.frozen import frozen


class _Hole(Enum):
    DATA, CRC, IDENTITY, IDENTITY_CRC = range(4)


_Parts = list[bytes | _Hole]
_HOLE_BYTES = {_Hole.DATA: 0, _Hole.CRC: 4, _Hole.IDENTITY: 40, _Hole.IDENTITY_CRC: 4}


@frozen
class Frame:
    """The blob around the bytes of one contiguous tensor; no checksum of these is part of the `head`."""

    length_bytes: int
    start_bytes: int
    head: bytes
    _tail: bytes
    _holes: tuple[tuple[_Hole, int], ...]
    _mixed: int
    _empty: bool

    def tail(self, crc: int) -> bytes:
        """Everything after the data, whose CRC-32 is `crc`."""
        mixed = self._mixed if self._empty else _mix(self._mixed, crc)
        identity = b"%s%020d" % (_NAMES[1], _mix(mixed, _VERSION_CRC))
        filled = {
            _Hole.CRC: crc.to_bytes(4, "little"),
            _Hole.IDENTITY: identity,
            _Hole.IDENTITY_CRC: crc32(identity).to_bytes(4, "little"),
        }
        tail = bytearray(self._tail)
        for hole, at in self._holes:
            tail[at : at + _HOLE_BYTES[hole]] = filled[hole]
        return bytes(tail)

    def tails(self, crcs: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """The tail for each CRC-32, in rows: that of thousands of archives is worked out at once."""
        mixed = np.full(len(crcs), self._mixed, np.uint64)
        for more in [_VERSION_CRC] if self._empty else [crcs, _VERSION_CRC]:
            moved = (mixed << np.uint64(6)) + (mixed >> np.uint64(2))
            mixed ^= moved + np.asarray(more, np.uint64) + np.uint64(_GOLDEN)
        digits = mixed[:, None] // _TENS % np.uint64(10)
        identities = np.tile(np.frombuffer(_NAMES[1] + b"0" * 20, np.uint8), (len(crcs), 1))
        identities[:, 20:] += digits.astype(np.uint8)
        first, of_digits = _identity_crcs()
        found = np.bitwise_xor.reduce(of_digits[np.arange(20), digits.astype(np.int64)], axis=1)
        filled = {
            _Hole.CRC: crcs.astype("<u4")[:, None].view(np.uint8),
            _Hole.IDENTITY: identities,
            _Hole.IDENTITY_CRC: (found ^ first).astype("<u4")[:, None].view(np.uint8),
        }
        rows = np.tile(np.frombuffer(self._tail, np.uint8), (len(crcs), 1))
        for hole, at in self._holes:
            rows[:, at : at + _HOLE_BYTES[hole]] = filled[hole]
        return rows


@cache
def _identity_crcs() -> tuple[np.uint32, NDArray[np.uint32]]:
    """The CRC-32 of an identity with the digits of zero, and what each digit at each place adds to it."""
    plain = _NAMES[1] + b"0" * 20
    first = crc32(plain)
    changed = [
        [crc32(plain[: 20 + k] + b"%d" % digit + plain[21 + k :]) ^ first for digit in range(10)]
        for k in range(20)
    ]
    return np.uint32(first), np.array(changed, np.uint32)


def _mix(seed: int, crc: int) -> int:
    return seed ^ ((crc + _GOLDEN + (seed << 6) + (seed >> 2)) & 0xFFFFFFFFFFFFFFFF)


def _joined(parts: _Parts, held: Mapping[_Hole, bytes]) -> bytes:
    """Parts, their holes filled, or zero."""
    return b"".join(
        p if isinstance(p, bytes) else held.get(p, bytes(_HOLE_BYTES[p])) for p in parts
    )


def _archive(members: list[tuple[str, bytes | _Hole]], data_bytes: int = 0) -> tuple[_Parts, int]:
    """The parts of an archive and its length, with holes for what depends on the data."""
    parts: _Parts = []
    directory: _Parts = []
    at = 0
    for name, content in members:
        path = b"archive/" + name.encode()
        stamp: bytes | _Hole
        if isinstance(content, bytes):
            size, stamp = len(content), crc32(content).to_bytes(4, "little")
        else:
            data = content is _Hole.DATA
            size, stamp = (data_bytes, _Hole.CRC) if data else (40, _Hole.IDENTITY_CRC)
        # Bit 3: the checksum and the sizes follow the content, unless there is none.
        flags = 0x808 if size else 0x800
        wide = b"".join(v.to_bytes(8, "little") for v in (size, size, at) if v >= WIDE)
        wide = wide and b"\1\0" + len(wide).to_bytes(2, "little") + wide
        # torch leaves the second size of the local header zero; readers go by the directory.
        begun = wide[:12] + bytes(8) + wide[20:] if size >= WIDE else wide
        pad = -(at + 34 + len(path) + len(wide)) % 64
        extra = begun + b"FB" + pad.to_bytes(2, "little") + b"Z" * pad
        local = LOCAL.pack(b"PK\3\4", 0, flags, 0, 0, 0, 0, 0, 0, len(path), len(extra))
        short = (min(size, WIDE), min(size, WIDE), len(path), len(wide), 0, 0, 0, 0)
        entry = CENTRAL.pack(b"PK\1\2", 0, 0, flags, 0, 0, 0, 0, *short, min(at, WIDE))
        sizes = size.to_bytes(8 if wide else 4, "little") * 2
        described: _Parts = [b"PK\7\x08", stamp, sizes] if size else []
        parts += [local + path + extra, content, *described]
        directory += [entry[:16], stamp, entry[20:] + path + wide]
        at += len(local) + len(path) + len(extra) + size + (8 + len(sizes) if size else 0)
    length = len(_joined(directory, {}))
    count = len(members)
    end = END64.pack(b"PK\6\6", 44, 0x31E, 45, 0, 0, count, count, length, at)
    end += LOCATOR.pack(b"PK\6\7", 0, at + length, 1)
    end += END.pack(b"PK\5\6", 0, 0, count, count, length, min(at, WIDE), 0)
    return [*parts, *directory, end], at + length + len(end)


# The member serialization_id holds a hash of the names of the members, without or with data/0,
# and one of their checksums.
_NAMES = (b"02908468677762923104", b"15728199511854643026")
_VERSION_CRC = crc32(b"3\n")
_GOLDEN = 0x9E3779B9
_TENS = np.array([10**k for k in range(19, -1, -1)], np.uint64)
_FRONT: list[tuple[str, bytes | _Hole]] = [
    (".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", b"little"),
]  # fmt: skip
_BACK: list[tuple[str, bytes | _Hole]] = [
    ("version", b"3\n"), (".data/serialization_id", _Hole.IDENTITY),
]  # fmt: skip


@lru_cache(maxsize=4096)
def frame(dtype: DType, shape: tuple[int, ...]) -> Frame:
    """The blob, but for its data, of a contiguous tensor that is all of its storage."""
    numel = prod(shape)
    size = numel * dtype.itemsize
    data_pkl = _data_pkl(dtype, shape, numel)
    members = [("data.pkl", data_pkl), *_FRONT, ("data/0", _Hole.DATA), *_BACK]
    parts, length = _archive(members, size)
    split = parts.index(_Hole.DATA)
    head, after = _joined(parts[:split], {}), parts[split + 1 :]
    holes = [(p, len(_joined(after[:k], {}))) for k, p in enumerate(after) if isinstance(p, _Hole)]
    mixed = reduce(_mix, [crc32(c) for c in (data_pkl, b"1", b"64", b"little")], 0)
    return Frame(length, len(head), head, _joined(after, {}), tuple(holes), mixed, _empty=size == 0)


def _data_pkl(dtype: DType, shape: tuple[int, ...], numel: int) -> bytes:
    """The pickle that torch writes for such a tensor, memo entries included."""
    typed = STORAGE_OF.get(dtype.torch)
    memo = iter(range(20))

    def put() -> bytes:
        return b"q%c" % next(memo)

    def axes(values: tuple[int, ...]) -> bytes:
        ints = b"".join(map(_int, values))
        if not values:
            return b")"
        short = len(values) < 4
        return (ints + b"%c" % (0x84 + len(values)) if short else b"(" + ints + b"t") + put()

    stride: list[int] = []
    step = 1
    for n in reversed(shape):
        stride.insert(0, step)
        step *= max(n, 1)
    kind = typed or "UntypedStorage"
    module = b"torch" if typed else b"torch.storage"
    numel = numel if typed else numel * dtype.itemsize
    out = [b"\x80\x02ctorch._utils\n_rebuild_tensor_v%d\n" % (2 if typed else 3), put()]
    out += [b"((X\7\0\0\0storage", put(), b"c%s\n%s\n" % (module, kind.encode()), put()]
    out += [b"X\1\0\0\x000", put(), b"X\3\0\0\0cpu", put(), _int(numel), b"t", put(), b"QK\0"]
    out += [axes(shape), axes(tuple(stride)), b"\x89ccollections\nOrderedDict\n", put()]
    out += [b")R", put()]
    if not typed:
        out += [b"ctorch\n%s\n" % dtype.torch.encode(), put()]
    return b"".join([*out, b"t", put(), b"R", put(), b"."])


def _int(value: int) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def write_object(obj: Any) -> bytes:
    """A `torch.save` archive of plain Python values."""
    try:
        _check_plain(obj)
        data_pkl = pickle.dumps(obj, 2)
    except RecursionError:
        raise UsageError("the object is nested too deeply to be written") from None
    parts, _ = _archive([("data.pkl", data_pkl), *_FRONT, *_BACK])
    contents = (data_pkl, b"1", b"64", b"little", b"3\n")
    identity = b"%s%020d" % (_NAMES[0], reduce(_mix, map(crc32, contents), 0))
    stamp = crc32(identity).to_bytes(4, "little")
    return _joined(parts, {_Hole.IDENTITY: identity, _Hole.IDENTITY_CRC: stamp})


def _check_plain(obj: Any) -> None:
    if type(obj) in (list, tuple):
        for item in obj:
            _check_plain(item)
    elif type(obj) is dict:
        for key, value in obj.items():
            _check_plain(key)
            _check_plain(value)
    elif type(obj) not in (type(None), bool, int, float, str, bytes):
        raise UsageError(f"{brief(obj)} is not a plain Python value, so it cannot be written")
