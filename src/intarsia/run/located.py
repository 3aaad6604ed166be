"""Where the elements of a chunk are, by its format's word, which may not lead out of the chunk."""

from __future__ import annotations

from intarsia.errors import CoverageError
from intarsia.format.base import Format, Located
from intarsia.planning.manifest import Chunk, Stored
from intarsia.store.reading.folder import Folder


def locate_chunk(format: Format, folder: Folder, stored: Stored, chunk: Chunk) -> Located:
    """Where a chunk's elements are in its file; raise where that is outside of the chunk's bytes."""
    found = format.locate(folder, stored, chunk)
    piece, first = found.piece, found.start_bytes
    reach = chunk.box.size if piece is None else piece.at + piece.span + 1
    last, end = first + reach * stored.dtype.itemsize, chunk.start_bytes + chunk.length_bytes
    if chunk.box.size and not chunk.start_bytes <= first <= last <= end:
        raise CoverageError(
            f"{format.name} locates {chunk.box} of `{stored.name}` in bytes [{first:,}:{last:,}) of"
            f" {folder.root / chunk.file}, outside of its chunk [{chunk.start_bytes:,}:{end:,})",
            hint=f"fix `locate` of the format {format.name}",
        )
    return found
