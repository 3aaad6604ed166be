"""The members of a zip archive by the directory at its end, checked as torch's readers go by it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct
from typing import IO, NamedTuple, cast
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from intarsia.errors import FormatError

ReadBytes = Callable[[int, int], bytes]

MEMBER_BYTES = 16 << 20
"""The most that is read of an archive at once to find a tensor: its pickle, or its directory."""
LOCAL = Struct("<4s5H3I2H")
CENTRAL = Struct("<4s6H3I5H2I")
END = Struct("<4s4H2IH")
END64 = Struct("<4sQ2H2I4Q")
LOCATOR = Struct("<4sIQI")
MEMBER = b"PK\3\4"
"""What each member begins with."""
DESCRIBED = 8
"""The flag of a member whose checksum and size follow its content."""
WIDE = 0xFFFFFFFF  # from here on a size or an offset takes its zip64 form
BROKEN_ZIP = (BadZipFile, ValueError, EOFError, OverflowError, NotImplementedError, struct.error)


class Member(NamedTuple):
    """Where the content of a member begins; its size is None where the archive is not read so far.

    `described`: whether its checksum and size follow its content; `packed`: how many bytes that was
    deflated to, None where it is stored as it is.
    """

    start: int
    size: int | None
    crc: int
    described: bool = False
    packed: int | None = None


def exactly(read: ReadBytes, at: int, size: int, where: str) -> bytes:
    """As many bytes as were asked for, or an error."""
    got = read(at, size) if size > 0 else b""
    if size < 0 or len(got) != size:
        raise FormatError(f"{len(got)} of {size} bytes at offset {at}", at=where)
    return got


def member_name(raw: bytes, method: int, where: str) -> str:
    """The name of a member inside the archive's one folder; a compressed one is refused."""
    name = raw.partition(b"/")[2].decode("latin1")
    if method != 0:
        raise FormatError(f"member {name} is compressed (method {method})", at=where)
    return name


class _File:
    """A blob as the file that `zipfile` expects."""

    def __init__(self, read: ReadBytes, length: int) -> None:
        self._read, self._length, self._at = read, length, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, to: int, whence: int = 0) -> int:
        self._at = to + (0, self._at, self._length)[whence]
        if self._at < 0:
            raise ValueError(f"offset {self._at}")
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._length - self._at)
        if (left if size < 0 else min(size, left)) > MEMBER_BYTES:
            raise ValueError(f"a directory of more than {MEMBER_BYTES} bytes")
        got = self._read(self._at, left if size < 0 else min(size, left))
        self._at += len(got)
        return got


class Listing(NamedTuple):
    """The directory of an archive: what it says of each member, and where it begins."""

    infos: list[ZipInfo]
    start: int


def check_end(read: ReadBytes, length: int, infos: list[ZipInfo], where: str) -> None:
    """Raise where the records at the end, or the names in the directory, are none that torch goes by."""
    end = END.unpack(exactly(read, length - END.size, END.size, where))
    at = length - END.size - LOCATOR.size
    locator = LOCATOR.unpack(exactly(read, at, LOCATOR.size, where))
    if end[0] != b"PK\5\6":
        return  # a comment follows, which torch does not write
    disks, counts = set(end[1:3]), set(end[3:5])
    if locator[0] == b"PK\6\7":
        wide = END64.unpack(exactly(read, locator[2], END64.size, where))
        disks, counts = {*wide[4:6], locator[3] - 1}, set(wide[6:8])
        if wide[0] != b"PK\6\6" or wide[1] < END64.size - 12:
            raise FormatError("the archive has no end record", at=where)
    if disks != {0} or counts != {len(infos)}:
        raise FormatError(
            f"the end of the archive counts {max(counts)} members on {max(disks) + 1} disks, its"
            f" directory has {len(infos)}",
            at=where,
        )
    folders = set[str]()
    for info in infos:
        local = LOCAL.unpack(exactly(read, info.header_offset, LOCAL.size, where))
        name = exactly(read, info.header_offset + LOCAL.size, local[9], where)
        if local[0] != MEMBER:
            raise FormatError(f"{info.orig_filename} does not begin as a member", at=where)
        folders.add(info.orig_filename.partition("/")[0])
        same = name == info.orig_filename.encode("utf-8" if local[2] & 0x800 else "cp437")
        if not same or local[2] != info.flag_bits or info.compress_size != info.file_size:
            raise FormatError(f"the directory and {name!r} contradict each other", at=where)
    if len(folders) > 1:
        raise FormatError(f"members are in {len(folders)} different folders", at=where)


def opened(read: ReadBytes, length: int) -> ZipFile:
    """A blob as an archive of Python's."""
    return ZipFile(cast(IO[bytes], _File(read, length)))


def listing_of(read: ReadBytes, length: int, where: str) -> Listing:
    """What the directory says of each member, and where it begins."""
    try:
        with opened(read, length) as archive:
            return Listing(archive.infolist(), archive.start_dir)
    except BROKEN_ZIP as error:
        text = f"no zip archive in these {length} bytes ({error})"
        raise FormatError(text, at=where) from error


def directory(
    read: ReadBytes, length: int, where: str, *, packed: bool = False
) -> dict[str, Member]:
    """The members by the central directory at the end; those that are `packed` are refused unless asked for."""
    infos = listing_of(read, length, where).infos
    return zip_members(read, length, infos, where, packed=packed)


def zip_members(
    read: ReadBytes, length: int, infos: list[ZipInfo], where: str, *, packed: bool = False
) -> dict[str, Member]:
    """The members that a directory names, each within the archive."""
    members: dict[str, Member] = {}
    for info in infos:
        deflated = packed and info.compress_type == ZIP_DEFLATED
        method = ZIP_STORED if deflated else info.compress_type
        name = member_name(info.filename.encode(), method, where)
        if info.header_offset < 0:
            raise FormatError(f"{name} begins before its archive", at=where)
        local = LOCAL.unpack(exactly(read, info.header_offset, LOCAL.size, where))
        start, size = info.header_offset + LOCAL.size + local[9] + local[10], info.file_size
        held = info.compress_size if deflated else size
        if start + held > length or name in members:
            raise FormatError(f"{name}: {held} bytes from {start} on, of {length}", at=where)
        described = bool(local[2] & DESCRIBED)
        members[name] = Member(start, size, info.CRC, described, held if deflated else None)
    return members
