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
    Read,
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
    def places(self) -> list[tuple[int, int]]:
        found = [(at, at + _CRC_BYTES) for at in self.crcs]
        return [*found, (self.start, self.stop)] if self.stop else found


@frozen
class Ending:
    """What follows the tensor of an archive, and of all that are alike, and where it may differ."""

    like: bytes
    fixed: Sequence[slice]
    tensor: Varying
    identity: Varying | None

    def recorded_in(self, end: bytes) -> int | None:
        """The CRC-32 that is recorded in what follows the tensor of an archive; None where that is not
        as it must be."""
        if len(end) != len(self.like) or any(end[part] != self.like[part] for part in self.fixed):
            return None
        if self.identity is not None:
            content, said = end[self.identity.start : self.identity.stop], _said(end, self.identity)
            if said not in (0, crc32(content)):  # torch may be set not to compute any
                return None
        return _said(end, self.tensor)

    def recorded(self, ends: Bytes) -> tuple[Marks, NDArray[np.uint32]]:
        """Of what follows the tensors of archives, a row each: whether it is as it must be, and the
        CRC-32 that is recorded there."""
        sound: Marks = np.ones(len(ends), np.bool_)
        like = np.frombuffer(self.like, np.uint8)
        for part in self.fixed:
            sound &= (ends[:, part] == like[part]).all(axis=1)
        crcs, same = _recorded(ends, self.tensor)
        sound &= same
        if self.identity is not None:
            said, same = _recorded(ends, self.identity)
            content = np.ascontiguousarray(ends[:, self.identity.start : self.identity.stop])
            found = np.fromiter(map(crc32, content), np.uint32, len(content))
            sound &= same & ((found == said) | (said == 0))
        return sound, crcs


def _said(end: bytes, varying: Varying) -> int | None:
    """The checksum of a member; None where it is not the same in all of its places."""
    said = {end[at : at + _CRC_BYTES] for at in varying.crcs}
    return int.from_bytes(said.pop(), "little") if len(said) == 1 else None


def _recorded(ends: Bytes, varying: Varying) -> tuple[NDArray[np.uint32], Marks]:
    """The checksum of a member in each row, and whether it is the same in all of its places."""
    places = [np.ascontiguousarray(ends[:, at : at + _CRC_BYTES]) for at in varying.crcs]
    found = [place.view("<u4")[:, 0] for place in places]
    same: Any = np.logical_and.reduce([each == found[0] for each in found])
    return found[0], same


def ending_of(read: Read, length: int, payload: Payload, where: str) -> Ending | None:
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
    varying = [x for x in (walked[own], identity) if x is not None]
    places = sorted(place for x in varying for place in x.places)
    edges = [0, *(edge for place in places for edge in place), len(end)]
    fixed = [slice(lo, hi) for lo, hi in zip(edges[::2], edges[1::2], strict=True)]
    found = Ending(end, fixed, walked[own], identity)
    return found if found.recorded_in(end) is not None else None


def _header_of(read: Read, infos: Sequence[ZipInfo], payload: Payload, where: str) -> int | None:
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
