"""The zip archive that `torch.save` writes, which DCP stores once per tensor chunk.

The members are stored, not compressed, each aligned to 64 bytes, so a tensor is a plain run of
bytes once its offset is known. A reader finds it by the local headers at the front of the blob
(one small read) and turns to the central directory at its end only where those do not lead to
it. `torch_frame` writes such archives.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from zlib import MAX_WBITS, crc32, decompressobj
from zlib import error as zlib_error

from intarsia.dtypes import DType
from intarsia.errors import FormatError
from intarsia.format.torch_file.inert import Storage
from intarsia.format.torch_file.storages import storage_bytes, storage_of, tensor_in_pickle
from intarsia.format.torch_file.unpickle import load_inert
from intarsia.format.torch_file.zip_directory import (
    DESCRIBED,
    LOCAL,
    MEMBER_BYTES,
    Member,
    ReadBytes,
    check_end,
    directory,
    exactly,
    listing_of,
    member_name,
    zip_members,
)
from intarsia.frozen import frozen

_HEAD_BYTES = 1024
_TAIL_BYTES = 2048
_DESCRIPTOR_BYTES = 24
_ONE_BYTES = 16
"""The bytes of the widest single number."""
_RECORDS = b"PK\x03\x04", b"PK\x01\x02"
"""What the next member begins with, or the directory."""


@frozen
class Payload:
    """Where the elements of a stored tensor are, in bytes from the start of its blob.

    `front` is all that lies before them, where the rest follows from it and the blob's length alone.
    """

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    start_bytes: int
    length_bytes: int
    front: bytes = b""


_KEPT = 4096
_last: dict[tuple[int, Hashable], Payload] = {}
"""The last payload of blobs that are alike: the chunks of a checkpoint are by the thousand of one shape."""


def keeping_ends(read: ReadBytes, length: int) -> ReadBytes:
    """Reads of a blob whose first and last bytes, where an archive describes itself, are read once."""
    head_bytes = min(length, _HEAD_BYTES)
    tail_at = max(head_bytes, length - _TAIL_BYTES)
    ends: dict[int, bytes] = {}

    def near(at: int, size: int) -> bytes:
        if at >= 0 and at + size <= head_bytes:
            first, last = 0, head_bytes
        elif at >= tail_at and at + size <= length:
            first, last = tail_at, length
        else:
            return read(at, size)
        if first not in ends:
            ends[first] = read(first, last - first)
        return ends[first][at - first : at - first + size]

    return near


def read_payload(read: ReadBytes, length: int, where: str, alike: Hashable = None) -> Payload:
    """The place of the tensor in a blob of `length` bytes, which `read(offset, size)` reads.

    Blobs that are `alike` may well have equal fronts.
    """
    head = exactly(read, 0, min(length, _HEAD_BYTES), where)
    last = _last.get((length, alike))
    if last is not None and head.startswith(last.front):
        return last
    payload = find_payload(read, length, where, head)
    if payload.front:
        if len(_last) >= _KEPT:
            _last.clear()
        _last[length, alike] = payload
    return payload


def find_payload(read: ReadBytes, length: int, where: str, head: bytes = b"") -> Payload:
    """The same, whatever other blobs begin with; `head` is what this one does, where that was read."""
    head = head or exactly(read, 0, min(length, _HEAD_BYTES), where)

    def near(at: int, size: int) -> bytes:
        return head[at : at + size] if at + size <= len(head) else read(at, size)

    members = _walk(head, where)
    found = tensor_in_pickle(_content(near, members, "data.pkl", where), where) if members else None
    if found is None or f"data/{found.storage.key}" not in members:
        members = directory(read, length, where)
        found = tensor_in_pickle(_content(read, members, "data.pkl", where), where)
    if "byteorder" in members:
        order = _content(near, members, "byteorder", where)
        if order != b"little":
            raise FormatError(f"byte order {order!r}, expected b'little'", at=where)
    start, stored, _, described, _ = _member(members, f"data/{found.storage.key}", where)
    size = storage_bytes(found.storage)
    if (stored is not None and stored != size) or start + size > length:
        raise FormatError(
            f"a tensor of {size} bytes from byte {start} on, but {stored or length - start} bytes "
            f"are stored in a blob of {length}",
            at=where,
        )
    after = exactly(near, start + size, min(_DESCRIPTOR_BYTES, length - start - size), where)
    ends = _crc_in(after, size) is not None if described else after.startswith(_RECORDS)
    if size and not ends:
        raise FormatError(
            f"a tensor of {size} bytes from byte {start} on, but no member of the archive ends"
            " where they do",
            at=where,
            hint="the archive is damaged: copy the file again from its source",
        )
    front = head[:start] if stored is None and start <= len(head) else b""
    view = found.dtype, found.shape, found.stride, found.storage_offset
    return Payload(*view, start, size, front)


def read_crc(read: ReadBytes, length: int, payload: Payload, where: str) -> int | None:
    """The CRC-32 recorded for the tensor's bytes; None where torch was set not to compute it."""
    end = payload.start_bytes + payload.length_bytes
    after = exactly(read, end, min(_DESCRIPTOR_BYTES, length - end), where)
    crc = _crc_in(after, payload.length_bytes)
    if crc is None:
        members = directory(read, length, where).values()
        crc = next((m.crc for m in members if m.start == payload.start_bytes), 0)
    return crc if crc or not payload.length_bytes else None


def _crc_in(after: bytes, size_bytes: int) -> int | None:
    """The CRC-32 of content of this size, from what follows it; None where that is not said there."""
    size = size_bytes.to_bytes(8, "little")
    said = after[:4] == b"PK\x07\x08" and after[8:16] in (size, size[:4] * 2)
    return int.from_bytes(after[4:8], "little") if said else None


def described_bytes(after: bytes, size_bytes: int) -> int:
    """How much of what follows content of this size repeats its checksum and its size; 0 where nothing does."""
    size = size_bytes.to_bytes(8, "little")
    if after[:4] != b"PK\x07\x08":
        return 0
    return 24 if after[8:24] == size * 2 else 16 if after[8:16] == size[:4] * 2 else 0


def check_directory(
    read: ReadBytes, length: int, payload: Payload, crc: int | None, where: str
) -> None:
    """Raise where the directory by which torch finds the tensor is damaged, or a small member is.

    `crc` is what stands beside the tensor's bytes.
    """
    infos = listing_of(read, length, where).infos
    members = zip_members(read, length, infos, where)
    if sum(m.size or 0 for m in members.values()) > length:
        raise FormatError("members of the archive overlap", at=where)
    check_end(read, length, infos, where)
    own = {m.crc for m in members.values() if m.start == payload.start_bytes and m.size}
    if payload.length_bytes and not own:
        raise FormatError("the directory does not point to the tensor's bytes", at=where)
    if crc is not None and own - {crc}:
        raise FormatError(
            f"the directory says CRC-32 {max(own):08x} of the tensor's bytes, {crc:08x} is"
            " stored beside them",
            at=where,
        )
    for name, member in members.items():
        if member.start != payload.start_bytes:
            _content(read, members, name, where)


def read_object(data: bytes, where: str) -> Any:
    """The object of a `torch.save` archive or of a bare pickle, as inert values."""
    if data.startswith(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."):
        raise FormatError("a torch.save file from before torch 1.6", at=where)
    if not data.startswith(b"PK"):
        return load_inert(data, where)

    def read(at: int, size: int) -> bytes:
        return data[at : at + size]

    members = directory(read, len(data), where, packed=True)
    most_bytes = max(len(data), MEMBER_BYTES)
    contents: dict[str, bytes] = {}

    def storage(pid: Any) -> Storage:
        found = storage_of(pid)
        if found.key not in contents:
            member = f"data/{found.key}"
            # Members may lie on one another, so that little data would become much.
            left = most_bytes - sum(map(len, contents.values()))
            contents[found.key] = _content(read, members, member, where, left)
        size, content = storage_bytes(found), contents[found.key]
        if len(content) != size:
            raise FormatError(f"{len(content)} bytes stored for a storage of {size}")
        return found._replace(data=content)

    return load_inert(_content(read, members, "data.pkl", where, most_bytes), where, storage)


def read_outline(read: ReadBytes, length: int, where: str) -> Any:
    """The object of a `torch.save` archive, in which tensors of more than one element have no content."""
    members = directory(read, length, where, packed=True)

    def storage(pid: Any) -> Storage:
        found = storage_of(pid)
        if storage_bytes(found) > _ONE_BYTES:
            return found
        return found._replace(data=_content(read, members, f"data/{found.key}", where, _ONE_BYTES))

    pickled = _content(read, members, "data.pkl", where, max(length, MEMBER_BYTES))
    return load_inert(pickled, where, storage)


def _member(members: dict[str, Member], name: str, where: str) -> Member:
    if name not in members:
        raise FormatError(f"no member {name} in the archive", at=where)
    return members[name]


def _content(
    read: ReadBytes,
    members: dict[str, Member],
    name: str,
    where: str,
    most_bytes: int = MEMBER_BYTES,
) -> bytes:
    start, size, crc, _, packed = _member(members, name, where)
    if max(size or 0, packed or 0) > most_bytes:
        raise FormatError(f"{name} has {size} bytes, at most {most_bytes} are read", at=where)
    content = exactly(read, start, size or 0 if packed is None else packed, where)
    if packed is not None:
        content = _inflated(content, size or 0, name, where)
    if crc and (found := crc32(content)) != crc:
        raise FormatError(f"{name} has CRC-32 {found:08x}, recorded {crc:08x}", at=where)
    return content


def _inflated(packed: bytes, size: int, name: str, where: str) -> bytes:
    """What was deflated to these bytes."""
    inflating = decompressobj(-MAX_WBITS)
    try:
        content = inflating.decompress(packed, size + 1)
    except zlib_error as error:
        raise FormatError(f"{name} cannot be unpacked: {error}", at=where) from error
    if len(content) != size:
        raise FormatError(f"{len(content)} of {size} bytes were unpacked of {where}")
    return content


def _walk(head: bytes, where: str) -> dict[str, Member]:
    """The members at the front, up to the first with data, whose size is not known there."""
    members: dict[str, Member] = {}
    at = 0
    while head[at : at + 4] == b"PK\x03\x04" and at + LOCAL.size <= len(head):
        _, _, flags, method, _, _, crc, size, _, named, extra = LOCAL.unpack_from(head, at)
        start = at + LOCAL.size + named + extra
        name = member_name(head[at + LOCAL.size :][:named], method, where)
        if name.startswith("data/") and "data.pkl" in members:
            return members | {name: Member(start, None, 0, bool(flags & DESCRIBED))}
        at = start + size
        if flags & DESCRIBED:
            # The sizes follow the content; a signature inside the content has other sizes.
            end = head.find(b"PK\x07\x08", start)
            while end >= 0 and int.from_bytes(head[end + 8 : end + 12], "little") != end - start:
                end = head.find(b"PK\x07\x08", end + 1)
            size, at = end - start, end + 16
            crc = int.from_bytes(head[end + 4 : end + 8], "little")
        if size < 0 or at > len(head):
            break
        members[name] = Member(start, size, crc)
    return {}
