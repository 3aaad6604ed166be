"""What metadata that we wrote says of where chunks are stored: rows of the same bytes for tensors that are cut alike,
but for names, files and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.format.dcp.metadata_write import END, Opcodes
from intarsia.planning.chunks import Numbers

GETS = {b"h"[0]: (1, 1, 2), b"j"[0]: (1, 4, 5)}
INTS = {b"K"[0]: (1, 1, 2), b"J"[0]: (1, 4, 5), 0x8A: (2, 8, 11)}
"""Where in an opcode the bytes of its number begin, how many may be others than zero, and how long the opcode is."""


class OtherwiseError(Exception):
    """The file is not as we write it."""


class _Hole(NamedTuple):
    """A number in a row: the byte at which its opcode begins, the opcode, and what the opcode is."""

    at: int
    op: int
    form: tuple[int, int, int]


class MetadataRows:
    """Tensors whose rows have the same opcodes at the same bytes: of each its number, that of its first chunk, and its row."""

    def __init__(
        self, data: bytes, at: int, op: Opcodes, indices: Sequence[bytes], width: int
    ) -> None:
        """By the row that begins at a byte of a file, of a tensor whose name is fetched by so many bytes."""
        row, self._names, self._holes = b"", list[int](), list[tuple[_Hole, _Hole, _Hole]]()
        for index in indices:
            self._names.append(len(row) + len(op.key))
            row += op.key + bytes(width) + index + END + op.place
            holes = list[_Hole]()
            for forms, after in ((GETS, op.start), (INTS, op.length), (INTS, END)):
                kind = data[at + len(row)]
                holes.append(_Hole(len(row), kind, forms[kind]))
                row += bytes([kind]) + bytes(forms[kind][2] - 1) + after
            self._holes.append((holes[0], holes[1], holes[2]))
        self._row, self.length, self.width = row, len(row), width
        self.members: list[tuple[int, int]] = []
        self.held: list[bytes] = []

    def put(self, columns: Sequence[Numbers], names: Sequence[bytes]) -> None:
        """Put the files, starts and lengths of chunks at their numbers; raise where any other byte is not what we write.

        `names` are the opcodes that fetch the names of all tensors.
        """
        numbers, firsts = (np.array(column) for column in zip(*self.members, strict=True))
        held = np.frombuffer(b"".join(self.held), np.uint8).reshape(len(numbers), -1)
        expected = np.frombuffer(self._row, np.uint8)
        alike = (held == expected).all(axis=0)
        named = np.frombuffer(b"".join([names[k] for k in numbers.tolist()]), np.uint8)
        for chunk, (at, holes) in enumerate(zip(self._names, self._holes, strict=True)):
            if (held[:, at : at + self.width] != named.reshape(len(numbers), -1)).any():
                raise OtherwiseError
            alike[at : at + self.width] = True
            for column, hole in zip(columns, holes, strict=True):
                first, size, _ = hole.form
                inside = slice(hole.at + first, hole.at + first + size)
                column[firsts + chunk] = values = _values(held[:, inside])
                alike[inside] = True
                if hole.op == 0x8A:
                    alike[hole.at + 1] = (held[:, hole.at + 1] == 9).all()
                least, most = _LIMITS[hole.op]
                if values.min() < least or values.max() > most:
                    raise OtherwiseError
        if not alike.all():
            raise OtherwiseError


_LIMITS = {
    b"h"[0]: (0, 255), b"j"[0]: (256, 1 << 31), b"K"[0]: (0, 255), b"J"[0]: (256, (1 << 31) - 1),
    0x8A: (1 << 31, (1 << 63) - 1),
}  # fmt: skip
"""The numbers for which we write an opcode."""


def _values(held: NDArray[np.uint8]) -> Numbers:
    whole = np.zeros((len(held), 8), np.uint8)
    whole[:, : held.shape[1]] = held
    return whole.view("<i8")[:, 0]


def metadata_rows(
    data: bytes, at: int, op: Opcodes, tensors: Sequence[tuple[Sequence[bytes], bytes]]
) -> tuple[list[MetadataRows], int]:
    """The rows of tensors, which follow each other from a byte on, by what each says of its chunks before their places
    and the opcodes that fetch its name; and the byte after them."""
    last: dict[int, MetadataRows] = {}
    found: list[MetadataRows] = []
    chunk = 0
    for number, (indices, name) in enumerate(tensors):
        if not indices:
            continue
        rows = last.get(id(indices))
        if rows is None or len(name) != rows.width or not data.startswith(op.key, at + rows.length):
            rows = last[id(indices)] = MetadataRows(data, at, op, indices, len(name))
            found.append(rows)
        rows.members.append((number, chunk))
        rows.held.append(data[at : at + rows.length])
        at, chunk = at + rows.length, chunk + len(indices)
    return found, at
