"""What goes along with the tensors of a conversion: entries, parameter groups, and the step.

Entries are carried as they are.  Where the destination spells parameter groups in another way than the
source does, they are spelled in both: an old spelling leads back, the new one is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from intarsia.format.entries import too_much
from intarsia.format.optimizer_state.parameter_groups import ParameterGroups
from intarsia.format.registry import folder_of, format_named
from intarsia.format.request import EntriesToWrite, Request, SourceWithEntries, Wanted
from intarsia.planning.manifest import Manifest
from intarsia.run.budget import Budget
from intarsia.store.reading.folder import Folder

_MOST_ALONE_BYTES = 256 << 20


def entries_to_write(
    src: Manifest, request: Request, wanted: Wanted, budget: Budget
) -> EntriesToWrite:
    """What goes along to the destination that a request asks for."""
    writer = format_named(request.to)
    if not wanted.entries:
        return EntriesToWrite(writer.entries_for_weights(src, partial(named_entries, src)))
    if writer.keeps_keys and src.saved:
        src = replace(src, entries=src.saved.objects)
    entries = read_entries(src, budget.memory_bytes // 2)
    groups, number = partial(groups_of, src, entries), partial(_number, src)
    return writer.entries_to_write(SourceWithEntries(src, entries, groups, number), wanted)


def named_entries(src: Manifest, names: Iterable[str]) -> dict[str, bytes]:
    """The bytes of some of a source's entries."""
    held = {name: src.entries[name] for name in names}
    with folder_of(src) as folder:
        found = each_entry(replace(src, entries=held), folder, _MOST_ALONE_BYTES)
        return {name: data for name, data in found if name in held}


def read_entries(src: Manifest, limit_bytes: int) -> dict[str, bytes]:
    """The bytes of a source's entries, equal ones held once: Megatron-FSDP repeats its settings for
    every parameter.  Raise where they come to more than `limit_bytes`.
    """
    held: dict[bytes, bytes] = {}
    found: dict[str, bytes] = {}
    total = 0
    with folder_of(src) as folder:
        for name, data in each_entry(src, folder, limit_bytes):
            if data not in held:
                held[data] = data
                total += len(data)
                if total > limit_bytes:
                    raise too_much(src, name, limit_bytes)
            found[name] = held[data]
    return found


def each_entry(src: Manifest, folder: Folder, limit_bytes: int) -> Iterator[tuple[str, bytes]]:
    """The bytes of every entry, one at a time."""
    return format_named(src.format).entries(src, folder, limit_bytes)


def groups_of(src: Manifest, entries: Mapping[str, bytes]) -> ParameterGroups | None:
    """The parameter groups in the entries of a source, in whichever framework's form."""
    return format_named(src.format).groups(src, entries)


def _number(src: Manifest, name: str) -> float:
    """The one element of a tensor."""
    from intarsia.checkpoint import Checkpoint

    with Checkpoint(src) as checkpoint:
        return checkpoint[name].number()
