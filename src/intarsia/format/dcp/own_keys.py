"""The keys of a state dict that is carried whole: those under which torch saved it, and its nesting."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from intarsia.errors import FormatError
from intarsia.format.dcp.metadata import Metadata
from intarsia.planning.manifest import Manifest
from intarsia.state.names import StateName


def with_own_keys(src: Manifest | None, metadata: Metadata) -> Metadata:
    """Metadata under the keys of the source, where all of it is asked for: torch then loads it as it did the source."""
    if src is None or src.saved is None:
        return metadata
    keys = {
        (state.as_torch if (state := StateName.of(name)) else name): stored.on_disk
        for name, stored in src.stored.items()
    }
    tensors = {keys.get(name, name): record for name, record in metadata.tensors.items()}
    names = Counter([*(keys.get(name, name) for name in metadata.tensors), *metadata.objects])
    if twice := [name for name, count in names.items() if count > 1]:
        raise FormatError(
            f"`{twice[0]}` would be the key of two things",
            hint="leave out `--section .`: the optimizer is then written under a name of its own",
        )
    return Metadata(
        {name: replace(record, name=name) for name, record in tensors.items()},
        metadata.objects,
        {name: src.saved.paths.get(name, (name,)) for name in names},
        metadata.extra,
    )
