"""What follows the tensor in archives that are alike, so that thousands are checked by comparing bytes.

Archives of one length that begin with the same bytes end with the same ones too, but for the checksum of
the tensor, which stands in two places, and torch's `serialization_id` with its own.  Once one archive was
checked by its directory, another that differs from it in nothing else would pass the same checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from zipfile import ZipInfo
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from intarsia.format.torch_file.torch_zip import Payload, described_bytes
from intarsia.format.torch_file.zip_directory import (
    CENTRAL,
    END,
    END64,
    LOCAL,
    LOCATOR,
    ReadBytes,
    exactly,
    listing_of,
)
from intarsia.frozen import frozen

Bytes = NDArray[np.uint8]
Marks = NDArray[np.bool_]

_MOST_BYTES = 4096
"""What follows a tensor in the archives of torch is some thousand bytes."""
_CRC_BYTES = 4
_IN_DESCRIPTOR, _IN_DIRECTORY = 4, 16
"""Where a checksum stands in what follows a member, and in what the directory says of it."""
_IDENTITY = ".data/serialization_id"


@frozen
class Varying:
    """What may differ of one member: its content, none for the tensor, and the places of its checksum."""

    start: int
    stop: int
    crcs: tuple[int, ...]

    @property
    def places(self) -> list[slice]:
        """All that may differ."""
        return [slice(self.start, self.stop), *(slice(at, at + _CRC_BYTES) for at in self.crcs)]


@frozen
class Ending:
    """What follows the tensor of an archive, and of all that are alike, and where it may differ."""

    like: Bytes
    varies: Marks
    tensor: Varying
    identity: Varying | None

    def recorded(self, ends: Bytes) -> tuple[Marks, NDArray[np.uint32]]:
        """Of what follows the tensors of archives, a row each: whether it is as it must be, and the
        CRC-32 that is recorded there."""
        same = ends == self.like
        same |= self.varies
        sound: Marks = same.all(axis=1)
        crcs, agreed = _recorded(ends, self.tensor)
        sound &= agreed
        if self.identity is not None:
            said, agreed = _recorded(ends, self.identity)
            content = np.ascontiguousarray(ends[:, self.identity.start : self.identity.stop])
            found = np.fromiter(map(crc32, content), np.uint32, len(content))
            sound &= agreed & ((found == said) | (said == 0))  # torch may be set not to compute any
        return sound, crcs


def _recorded(ends: Bytes, varying: Varying) -> tuple[NDArray[np.uint32], Marks]:
    """The checksum of a member in each row, and whether it is the same in all of its places."""
    places = [np.ascontiguousarray(ends[:, at : at + _CRC_BYTES]) for at in varying.crcs]
    found = [place.view("<u4")[:, 0] for place in places]
    same: Any = np.logical_and.reduce([each == found[0] for each in found])
    return found[0], same


def ending_of(read: ReadBytes, length: int, payload: Payload, where: str) -> Ending | None:
    """What follows the tensor of an archive that was checked; None where anything but what torch writes
    lies there, or members lie anywhere else than one after another."""
    first = payload.start_bytes + payload.length_bytes
    if not payload.length_bytes or length - first > _MOST_BYTES:
        return None
    end = exactly(read, first, length - first, where)
    infos, directory = listing_of(read, length, where)
    own = _header_of(read, [x for x in infos if x.header_offset < first], payload, where)
    later = {x.header_offset: x for x in infos if x.header_offset >= first}
    walked = _members(end, first, directory, payload.length_bytes, later)
    if own is None or walked is None:
        return None
    walked[own] = Varying(0, 0, (_IN_DESCRIPTOR,))
    at, identity = directory - first, None
    for info in infos:
        if (member := walked.get(info.header_offset)) is not None:
            member = replace(member, crcs=(*member.crcs, at + _IN_DIRECTORY))
            walked[info.header_offset] = member
            if info.orig_filename.partition("/")[2] == _IDENTITY and info.header_offset != own:
                identity = member
        at += CENTRAL.size + sum(CENTRAL.unpack_from(end, at)[10:13])
    if len(walked) != len(later) + 1 or not _ends(end, first, at):
        return None
    varies = np.zeros(len(end), np.bool_)
    found = Ending(np.frombuffer(end, np.uint8), varies, walked[own], identity)
    for x in (found.tensor, found.identity):
        for place in x.places if x is not None else ():
            found.varies[place] = True
    return found if found.recorded(found.like[None])[0].all() else None


def _header_of(
    read: ReadBytes, infos: Sequence[ZipInfo], payload: Payload, where: str
) -> int | None:
    """Where the tensor's member begins; None where it is not one, or another reaches into its bytes."""
    found = None
    for info in infos:
        local = LOCAL.unpack(exactly(read, info.header_offset, LOCAL.size, where))
        start = info.header_offset + LOCAL.size + local[9] + local[10]
        if (start, info.file_size) == (payload.start_bytes, payload.length_bytes):
            if found is not None:
                return None
            found = info.header_offset
        elif start + info.file_size > payload.start_bytes:
            return None
    return found


def _members(
    end: bytes, first: int, directory: int, tensor_bytes: int, later: dict[int, ZipInfo]
) -> dict[int, Varying] | None:
    """The members that follow the tensor, one after another up to the directory, by where they begin."""
    found: dict[int, Varying] = {}
    at = described_bytes(end, tensor_bytes)
    while at and first + at < directory:
        info = later.get(first + at)
        if info is None or at + LOCAL.size > len(end):
            return None
        start = at + LOCAL.size + sum(LOCAL.unpack_from(end, at)[9:11])
        stop = start + info.file_size
        after = described_bytes(end[stop:], info.file_size)
        found[first + at] = Varying(start, stop, (stop + _IN_DESCRIPTOR,) if after else ())
        at = stop + after
    return found if at and first + at == directory else None


def _ends(end: bytes, first: int, at: int) -> bool:
    """Whether nothing but the end records follows the directory, which point to each other."""
    last = len(end) - END.size
    if end[last : last + 4] != b"PK\5\6":
        return False
    if at == last:
        return True
    if at + END64.size + LOCATOR.size != last:
        return False
    locator = LOCATOR.unpack_from(end, at + END64.size)
    return bool(locator[0] == b"PK\6\7" and locator[2] == first + at)
