"""Writing DCP's files: every box and every object gets its place before any byte is written.

All formats whose bytes lie in `.distcp` files are laid out here; what they differ in is the
names, and what stands beside the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from intarsia.dtypes import DType
from intarsia.errors import FormatError, UsageError
from intarsia.format.arrangement import SlotColumns, SlotPlaces, Wrapped
from intarsia.format.base import PAGE_BYTES, Arrangement, HeldTarget, WriteOptions
from intarsia.format.dcp.metadata import METADATA, Metadata, TensorRecord, check_tensor_name
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.format.dcp.own_keys import with_own_keys
from intarsia.format.torch_file.torch_frame import Frame, frame
from intarsia.mesh import Box, Mesh
from intarsia.planning.chunks import Chunks, FileRanges, Numbers, repeated
from intarsia.planning.manifest import Entry, Manifest, Target

LINE_BYTES = 64
_OF_RANK = re.compile(r"__(\d+)_\d+\.distcp")


class AlikeTargets(NamedTuple):
    """What targets of one element type have in common that the same ranks hold.

    `columns` are, for each box, where elements begin in its archive, the length of that, and what elements are
    aligned to.  `takers` are its ranks, and the numbers that lead from the end of a file to its end with the box:
    one to add, a mask, and another to add.  `held` is kept so that nothing else comes to have its identity.
    """

    number: int
    held: Mapping[Box, Sequence[int]]
    wrapped: Wrapped
    takers: Sequence[tuple[Sequence[int], int, int, int]]
    columns: Numbers


@dataclass
class Files:
    """The data files of a checkpoint, one a rank, as far as they are laid out."""

    ranks: int
    folder: str = ""
    fixed: list[tuple[str, int, bytes]] = field(default_factory=list)
    _ends: list[int] = field(init=False)
    _cuts: dict[tuple[int, str, int], AlikeTargets] = field(default_factory=dict, init=False)
    _taken: list[int] = field(default_factory=list, init=False)
    _files: list[int] = field(default_factory=list, init=False)
    _before: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._ends = [0] * self.ranks

    def cut(
        self, dtype: DType, held: Mapping[Box, Sequence[int]], leading: int = 0
    ) -> AlikeTargets:
        """The boxes of a target; each has so many `leading` axes of length one more on disk."""
        key = id(held), dtype.torch, leading
        if (found := self._cuts.get(key)) is None:
            shapes = {box.shape for box in held}
            wraps = {shape: frame(dtype, (1,) * leading + shape) for shape in shapes}
            around = tuple([wraps[box.shape] for box in held])
            rows = [(x.start_bytes, x.length_bytes, alignment_bytes(x)) for x in around]
            takers = [
                (sorted(held[box]), before + to - 1, -to, length - before)
                for box, (before, length, to) in zip(held, rows, strict=True)
            ]
            columns = np.array(rows, np.int64).reshape(-1, 3).T
            wrapped = Wrapped(tuple(held), around)
            found = self._cuts[key] = AlikeTargets(len(self._cuts), held, wrapped, takers, columns)
        return found

    def take(self, cut: AlikeTargets) -> int:
        """Give each box to the rank that has the least to write of those that hold it; the number of the first."""
        ends, files, before, first = self._ends, self._files, self._before, len(self._files)
        for holding, more, mask, rest in cut.takers:
            rank = holding[0] if len(holding) == 1 else min(holding, key=ends.__getitem__)
            end = ends[rank]
            files.append(rank)
            before.append(end)
            ends[rank] = ((end + more) & mask) + rest
        self._taken.append(cut.number)
        return first

    def places(self) -> tuple[SlotPlaces, FileRanges]:
        """Where the elements of all boxes are that were taken; and the archives around them."""
        names = [*map(file_of, range(self.ranks))]
        columns = [np.empty((3, 0), np.int64), *(cut.columns for cut in self._cuts.values())]
        starts, lengths, to = repeated(columns, [number + 1 for number in self._taken])
        files, before = np.array(self._files, np.int64), np.array(self._before, np.int64)
        gaps = -(before + starts) % to
        at = before + gaps
        slots = SlotPlaces([self.folder + name for name in names], files, at + starts, gaps)
        return slots, FileRanges(names, files, at, lengths)

    def append(self, name: str, data: bytes) -> Entry:
        """Put an object behind all that the first rank writes."""
        check_name(name)
        file, at = file_of(0), self._ends[0]
        self._ends[0] += len(data)
        self.fixed.append((self.folder + file, at, data))
        return Entry(name, file, at, len(data))

    @property
    def sizes(self) -> dict[str, int]:
        """The files that hold anything, and how long they are."""
        return {self.folder + file_of(rank): end for rank, end in enumerate(self._ends) if end}


def arrange(targets: Sequence[Target], options: WriteOptions) -> Arrangement:
    """The files of a checkpoint whose tensors are cut as the mesh asks."""
    held = cut_by(options.mesh, targets)
    return lay_out(held, options.entries, options.mesh.size, options.source)


def cut_by(mesh: Mesh, targets: Iterable[Target]) -> Iterator[HeldTarget]:
    """Each target, with the ranks of a mesh that hold its boxes."""
    return ((t.name, t.dtype, t.shape, mesh.holders(t.shape, t.rule)) for t in targets)


def lay_out(
    held: Iterable[HeldTarget],
    entries: Mapping[str, bytes],
    ranks: int,
    source: Manifest | None = None,
    paths: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Arrangement:
    """The files of a checkpoint, from the ranks that hold each box of each tensor."""
    files = Files(ranks)
    slots, tensors = place_all(files, held)
    objects = {name: files.append(name, data) for name, data in sorted(entries.items())}
    nested = {name: paths.get(name, (name,)) for name in (*tensors, *objects)}
    metadata = with_own_keys(source, Metadata(tensors, objects, nested, {}))
    return Arrangement(files.sizes, slots, files.fixed, {METADATA: write_metadata(metadata)})


def place_all(
    files: Files, held: Iterable[HeldTarget]
) -> tuple[dict[str, SlotColumns], dict[str, TensorRecord]]:
    """A place for every box of every tensor, and what the metadata say of it."""
    taken = [
        (check_name(name), dtype, shape, (cut := files.cut(dtype, boxes)).wrapped, files.take(cut))
        for name, dtype, shape, boxes in held
    ]
    of_slots, places = files.places()
    return {name: SlotColumns(cut, of_slots, first) for name, _, _, cut, first in taken}, {
        name: TensorRecord(name, dtype, shape, Chunks(cut.boxes, places, first))
        for name, dtype, shape, cut, first in taken
    }


def check_name(name: str) -> str:
    """The name of a tensor or an object; raise where it is one that no reader would take."""
    try:
        check_tensor_name(name)
    except FormatError as error:
        raise UsageError(f"{error.brief}, so nothing is written", hint="rename it") from None
    return name


def file_of(rank: int) -> str:
    """The file that a rank writes."""
    return f"__{rank}_0.distcp"


def rank_of(file: str) -> int | None:
    """The rank that wrote a file.

    >>> rank_of("iter_0000005/__3_0.distcp"), rank_of("common.pt")
    (3, None)
    """
    found = _OF_RANK.fullmatch(file.rpartition("/")[2])
    return int(found[1]) if found else None


def alignment_bytes(wrap: Frame) -> int:
    """What the elements of an archive are aligned to: a page where they are many, a line where few.

    Readers go by the offsets of the metadata, so the gaps before archives mean nothing to them.
    """
    return PAGE_BYTES if wrap.length_bytes >= 16 * PAGE_BYTES else LINE_BYTES
