"""A checkpoint to read from: which bytes of which files fill a box."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from intarsia.errors import CoverageError
from intarsia.format.base import Format, Located
from intarsia.layout import meet
from intarsia.mesh import Box
from intarsia.planning.copy import Copy, copies_into, sources_of
from intarsia.planning.manifest import Manifest, Target
from intarsia.run.gather import Bytes, Fill
from intarsia.run.losses import Losses, Watch
from intarsia.store.local import Folder


@dataclass
class Source:
    """A checkpoint to read from: its manifest, its files, and where its chunks' elements are."""

    manifest: Manifest
    format: Format
    folder: Folder
    losses: Losses = field(default_factory=Counter)
    _located: dict[tuple[str, int], Located] = field(default_factory=dict)

    def fills(
        self, copies: Sequence[Copy], target: Target, box: Box, buffer: Bytes
    ) -> Iterator[Fill]:
        """What reading these copies takes, into `buffer`, which holds a box of the target."""
        watch = Watch(target, box, self.losses)
        for copy in copies:
            found = self.locate(copy)
            pieces = [copy.piece] if found.piece is None else meet(found.piece.flip(), copy.piece)
            for piece in pieces:
                yield Fill(
                    copy.chunk.file,
                    found.start_bytes,
                    piece,
                    copy.stored.dtype,
                    target.dtype,
                    buffer,
                    target.shift - copy.stored.shift,
                    watch,
                )

    def locate(self, copy: Copy) -> Located:
        key = (copy.chunk.file, copy.chunk.start_bytes)
        found = self._located.get(key)
        if found is None:
            found = self.format.locate(self.folder, copy.stored, copy.chunk)
            self._located[key] = found
        return found


def fill_box(source: Source, target: Target, box: Box, buffer: Bytes) -> list[Fill]:
    """The reads that fill the row-major buffer of a box of a target; padding is zeroed."""
    copies = list(copies_into(target.layout, box, sources_of(target.layout, source.manifest)))
    held = sum(copy.piece.size for copy in copies)
    if held < box.size:
        wanted = target.layout.box(box.offsets, box.shape).mapped
        if held != wanted:
            raise CoverageError(
                f"{wanted - held:,} of {wanted:,} elements of `{target.name}` {box} have no source"
            )
        buffer[:] = 0
    return list(source.fills(copies, target, box, buffer))
