"""What a format is: bytes turned into a manifest, and targets into files.

Reading: `detect` looks at a folder, `read` turns its headers into a manifest, `locate` finds
the elements inside a chunk.  Writing: `arrange` gives every box of every target its place in
a file before any byte is written; `Arrangement.closing` are the small files that are written
last, and make the checkpoint one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from intarsia.layout import Piece
from intarsia.mesh import Box, Mesh
from intarsia.planning.manifest import Chunk, Manifest, Stored, Target
from intarsia.store.local import Folder


@dataclass(frozen=True, slots=True)
class Located:
    """Where a chunk's elements begin in its file.

    `piece`, where the elements are not in row-major order, leads from their places there to
    their row-major places.
    """

    start_bytes: int
    piece: Piece | None = None


class Wrapping(Protocol):
    """Bytes around the elements of a chunk; they depend on the elements' checksum."""

    @property
    def start_bytes(self) -> int: ...

    @property
    def length_bytes(self) -> int: ...

    def head(self, crc: int) -> bytes: ...

    def tail(self, crc: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the elements of one box of a target go."""

    box: Box
    file: str
    start_bytes: int
    wrapping: Wrapping | None = None


@dataclass(frozen=True)
class Arrangement:
    """The files of a checkpoint before their bytes: sizes, slots, fixed parts, closing files."""

    files: Mapping[str, int]
    slots: Mapping[str, tuple[Slot, ...]]
    fixed: Sequence[tuple[str, int, bytes]] = ()
    closing: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a writer needs to know beside the targets."""

    mesh: Mesh = Mesh()
    max_shard_bytes: int = 5_000_000_000
    entries: Mapping[str, bytes] = field(default_factory=dict)


class Format(Protocol):
    """One kind of checkpoint."""

    name: str

    def detect(self, path: Path) -> bool:
        """Whether this is such a checkpoint, from its content."""
        ...

    def read(self, path: Path, config: Mapping[str, Any] | None) -> Manifest:
        """The manifest of a checkpoint, from its headers alone."""
        ...

    def locate(self, folder: Folder, stored: Stored, chunk: Chunk) -> Located:
        """Where a chunk's elements are inside its bytes."""
        ...

    def arrange(self, targets: Sequence[Target], options: WriteOptions) -> Arrangement:
        """Give every box of every target its place."""
        ...
