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
from typing import TYPE_CHECKING, Any, Protocol

from intarsia.dtypes import DType
from intarsia.errors import UsageError
from intarsia.family import Param, Table
from intarsia.format.complaint import Complain, refuse
from intarsia.layout import Piece
from intarsia.mesh import Box, Mesh
from intarsia.planning.manifest import Chunk, Manifest, Stored, Target
from intarsia.store.local import Folder

if TYPE_CHECKING:
    from intarsia.format.optimizer_state.learning_rates import Rates
    from intarsia.format.optimizer_state.parameter_groups import Groups

PAGE_BYTES = 4096
"""Elements that start at a multiple of this are written, and mapped, fastest."""


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
    notes: tuple[str, ...] = ()

    @property
    def held_bytes(self) -> int:
        """What the fixed parts and the closing files take in memory, equal ones counted once."""
        held = {id(data): len(data) for _, _, data in self.fixed}
        return sum(held.values()) + sum(map(len, self.closing.values()))


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a writer needs to know beside the targets.

    `groups` and `step` are those of an optimizer whose source has none of Megatron's own; `dtype` is the
    type that weights were asked to be cast to.
    `stem` is how the names of files with weights begin, where the format leaves it open.
    `metadata` is what the headers of safetensors files say beside their tensors.
    `rates` are those of the Megatron run that will resume.
    """

    mesh: Mesh = Mesh()
    max_shard_bytes: int = 5_000_000_000
    entries: Mapping[str, bytes] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    groups: Groups | None = None
    step: float | None = None
    dtype: DType | None = None
    stem: str = "model"
    metadata: Mapping[str, str] = field(default_factory=dict)
    rates: Rates | None = None


class Format(Protocol):
    """One kind of checkpoint.

    `dialects` are those that it is written in, the usual one first; `sharded` says whether a
    mesh cuts its tensors; `carries_anything` whether it takes tensors that no table knows.
    """

    name: str
    dialects: tuple[str, ...]
    sharded: bool
    carries_anything: bool

    def detect(self, path: Path) -> bool:
        """Whether this is such a checkpoint, from its content."""
        ...

    def read(
        self,
        path: Path,
        config: Mapping[str, Any] | None,
        complain: Complain = refuse,
        section: Sequence[str] = (),
    ) -> Manifest:
        """The manifest of a checkpoint, from its headers alone; what `complain` keeps does not end it.

        `section` names the model among several, and its optimizer where that is to be told.
        """
        ...

    def locate(self, folder: Folder, stored: Stored, chunk: Chunk) -> Located:
        """Where a chunk's elements are inside its bytes."""
        ...

    def rows(self, table: Table, dialect: str, mesh: Mesh, spec: str) -> Sequence[Param]:
        """The tensors of a model as this format stores them."""
        ...

    def spell(self, name: str) -> str:
        """A tensor's name on disk; optimizer state comes with its kind before its parameter."""
        ...

    def arrange(self, targets: Sequence[Target], options: WriteOptions) -> Arrangement:
        """Give every box of every target its place."""
        ...


def refuse_section(section: Sequence[str], name: str) -> None:
    """Raise where a section is asked of a format that holds one model."""
    if section:
        raise UsageError(
            f"{name} holds one model and its optimizer, and no section {section[0]!r}",
            hint="leave --section out",
        )
