"""Edits of zip archives: lies in headers and directories, and members that are edited and packed again."""

from __future__ import annotations

import io
import random
import re
import warnings
from collections.abc import Sequence
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from tests.fuzz.mutate_pickle import pickle_edited
from tests.fuzz.values import NUMBERS

# Where each record keeps the numbers that readers believe: offset and width.
_FIELDS = {
    b"PK\3\4": ((6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    b"PK\1\2": ((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4)),
    b"PK\7\x08": ((4, 4), (8, 4), (12, 4)),
    b"PK\5\6": ((8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
    b"PK\6\6": ((4, 8), (24, 8), (32, 8), (40, 8), (48, 8)),
    b"PK\6\7": ((8, 8), (16, 4)),
}
_RECORD = re.compile(rb"PK(?:\x03\x04|\x01\x02|\x07\x08|\x05\x06|\x06\x06|\x06\x07)")


def archive_edited(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes | None:
    """An archive with one number of its records replaced, or with its pickle edited."""
    records = list(_RECORD.finditer(data))
    if not records:
        return None
    if chance.random() < 0.4 and len(data) < 10_000:
        return _packed(data, others, chance)
    found = chance.choice(records)
    offset, width = chance.choice(_FIELDS[found[0]])
    at = found.start() + offset
    old = int.from_bytes(data[at : at + width], "little")
    number = chance.choice((*NUMBERS, old + 1, old - 1, old * 2, old // 2, len(data)))
    out = bytearray(data)
    out[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(out)


def _packed(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes | None:
    with ZipFile(io.BytesIO(data)) as archive:
        held = [(i.filename, archive.read(i)) for i in archive.infolist() if i.file_size < 1 << 20]
    if not held:
        return None
    at = chance.randrange(len(held))
    kind = chance.randrange(5)
    if kind == 0:
        held.insert(chance.randrange(len(held)), held[at])
    elif kind == 1:
        del held[at]
    elif kind == 2:
        held[at] = (held[at][0], held[at][1][: len(held[at][1]) // 2])
    else:
        pickles = [k for k, (name, _) in enumerate(held) if name.endswith("data.pkl")]
        if pickles:
            name, content = held[pickles[0]]
            held[pickles[0]] = (name, pickle_edited(content, others, chance) or content)
    out = io.BytesIO()
    deflated = chance.random() < 0.03
    with (
        warnings.catch_warnings(),
        ZipFile(out, "w", ZIP_DEFLATED if deflated else ZIP_STORED) as archive,
    ):
        warnings.simplefilter("ignore")  # a name that comes twice is meant
        for name, content in held:
            archive.writestr(name, content)
    return out.getvalue()
