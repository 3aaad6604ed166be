"""Safetensors files of torch's distributed writer: whole tensors of one rank, or a shard of each rank."""

from __future__ import annotations

from collections.abc import Mapping

from intarsia.errors import FormatError
from intarsia.format.strict_json import parse_json
from intarsia.store.reading.folder import Folder

SHARDING = "DCP_SHARDING_INFO"
OF_WRITER = (SHARDING, "DCP_VERSION")
"""What the writer says in the header of a file, of that file alone."""


def begins_every_tensor(metadata: Mapping[str, str], where: str) -> bool:
    """Whether a file holds the first elements of all its tensors: whole ones, or the first shards."""
    said = parse_json(metadata[SHARDING].encode(), where)
    places = said.values() if isinstance(said, dict) else ()
    offsets = [x.get("saved_offsets") if isinstance(x, dict) else None for x in places]
    return bool(offsets) and all(isinstance(x, list) and not any(x) for x in offsets)


def unconsolidated(folder: Folder, file: str) -> FormatError:
    return FormatError(
        f"{folder.root / file} is a shard that torch's distributed writer left unconsolidated",
        hint="load it with torch's HuggingFaceStorageReader and save it with intarsia.save:"
        " torch's consolidation writes zeros for numbers and for absent shards",
    )
