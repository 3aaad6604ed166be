"""What follows the tensor in archives that are alike, so that thousands are checked by comparing bytes.

Archives of one length that begin with the same bytes end with the same ones too, but for the checksum of
the tensor, which stands in two places, and torch's `serialization_id` with its own.  Once one archive was
checked by its directory, another that differs from it in nothing else would pass the same checks.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from intarsia.format.torch_file.torch_zip import Payload, described_bytes
from intarsia.format.torch_file.zip_directory import (
    CENTRAL,
    ReadBytes,
    exactly,
    listing_of,
    zip_members,
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
    """What follows the tensor of an archive that was checked; None where its checksum is not said there, or
    members lie on one another, so that what varies of one would be a part of another."""
    first = payload.start_bytes + payload.length_bytes
    if not payload.length_bytes or length - first > _MOST_BYTES:
        return None
    end = exactly(read, first, length - first, where)
    infos, directory = listing_of(read, length, where)
    if (at := directory - first) < 0:
        return None
    spans, held = [(directory, length)], dict[str, Varying]()
    for info, (name, member) in zip(
        infos, zip_members(read, length, infos, where).items(), strict=True
    ):
        start, stop = member.start - first, member.start + info.file_size - first
        after = described_bytes(end[stop:], info.file_size) if stop >= 0 else 0
        spans.append((info.header_offset, first + stop + after))
        crcs = (*((stop + _IN_DESCRIPTOR,) if after else ()), at + _IN_DIRECTORY)
        if (member.start, stop) == (payload.start_bytes, 0) and after:
            held["tensor"] = Varying(0, 0, crcs)
        elif name == _IDENTITY and start >= 0:
            held["identity"] = Varying(start, stop, crcs)
        at += CENTRAL.size + sum(CENTRAL.unpack_from(end, at)[10:13])
    spans.sort()
    if "tensor" not in held or any(stop > start for (_, stop), (start, _) in pairwise(spans)):
        return None
    varies = np.zeros(len(end), np.bool_)
    for place in chain(*(x.places for x in held.values())):
        varies[place] = True
    found = Ending(np.frombuffer(end, np.uint8), varies, held["tensor"], held.get("identity"))
    return found if found.recorded(found.like[None])[0].all() else None
