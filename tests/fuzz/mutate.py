"""Damage that keeps most of a file's structure: flips, cuts, splices, lying lengths, odd words.

Half of the damage knows what it damages: the fields of JSON, the opcodes of a pickle, the
directory of an archive, the records of a journal or of DCP's metadata.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.fuzz.mutate_archive import archive_edited
from tests.fuzz.mutate_json import header_edited, journal_edited, json_edited
from tests.fuzz.mutate_metadata import metadata_edited
from tests.fuzz.mutate_pickle import pickle_edited
from tests.fuzz.values import NUMBERS, WORDS

MAX_BYTES = 1 << 18
Edit = Callable[[bytes, Sequence[bytes], random.Random], bytes | None]


def mutated(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """The file with one to four kinds of damage."""
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 4))):
        edits = edits_for(data) if chance.random() < 0.6 else ()
        edited = _edited(chance.choice(edits), data, others, chance) if edits else None
        data = _damaged(data, others, chance) if edited is None else edited
        data = data[:MAX_BYTES]
    return data


def _edited(
    edit: Edit, data: bytes, others: Sequence[bytes], chance: random.Random
) -> bytes | None:
    try:
        return edit(data, others, chance)
    except Exception:  # what an edit cannot understand is left to plain damage
        return None


def edits_for(data: bytes) -> Sequence[Edit]:
    """The edits that understand a file, by how it begins; each gives None where it does not."""
    if data[:1] in (b"{", b"["):
        return (json_edited,)
    if data[8:9] == b"{":
        return (header_edited,)
    if data[:2] == b"PK" or b"PK\5\6" in data[-400:]:
        return (archive_edited,)
    if data[8:10] == b" {":
        return (journal_edited,)
    if data[:1] == b"\x80":
        return (metadata_edited, pickle_edited) if b"Metadata" in data else (pickle_edited,)
    return ()


def _damaged(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    out = bytearray(data)
    at = chance.randrange(len(out) + 1)
    size = chance.choice((1, 1, 2, 4, 8, 16, 64))
    kind = chance.randrange(8)
    if kind == 0 and out:
        out[at % len(out)] ^= 1 << chance.randrange(8)
    elif kind == 1:
        out[at : at + size] = chance.randbytes(chance.choice((0, 1, size)))
    elif kind == 2:
        del out[at:]
    elif kind == 3:
        out[at:at] = out[at : at + size] * chance.choice((1, 2, 16))
    elif kind == 4:
        other = chance.choice(others)
        start = chance.randrange(len(other) + 1)
        out[at : at + size] = other[start : start + 4 * size]
    elif kind == 5:
        width = chance.choice((1, 2, 4, 8))
        number = chance.choice(NUMBERS) + chance.randrange(-1, 2)
        out[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    elif kind == 6:
        out[at : at + chance.choice((0, size))] = chance.choice(WORDS)
    else:
        _renumber(out, chance)
    return bytes(out)


def _renumber(out: bytearray, chance: random.Random) -> None:
    """Replace a number that is written in digits."""
    places = [k for k, byte in enumerate(out) if 48 <= byte <= 57]
    if places:
        at = end = chance.choice(places)
        while end < len(out) and 48 <= out[end] <= 57:
            end += 1
        out[at:end] = str(chance.choice(NUMBERS) - chance.randrange(3)).encode()
