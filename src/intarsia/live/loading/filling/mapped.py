"""Weights that stay in the page cache: tensors become views of a private mapping of the checkpoint's files.

Nothing is read when they are loaded.  A page comes from the file when it is first touched, and is copied
when it is first written to, so the file never changes.  Only a tensor whose bytes lie in one file as they
lie in memory can be mapped; anything else is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from intarsia.errors import CoverageError, UsageError
from intarsia.live.loading.filling.fill import Filling, mark_as_changed
from intarsia.live.model.holding import Holding, is_dtensor
from intarsia.run.source import Source
from intarsia.value import Change

if TYPE_CHECKING:
    from typing_extensions import Buffer


class FileStretch(NamedTuple):
    """The bytes of a file that are a tensor."""

    file: str
    start_bytes: int


def map_tensors(
    source: Source,
    fillings: Sequence[Filling],
    tensors: Mapping[str, Any],
    loose: Iterable[Any] = (),
) -> int:
    """Make live tensors views of the checkpoint's files; how many bytes.  Raise where one cannot be, before any is.

    `tensors` are the live ones by the names of the holdings; `loose` are of no module.
    """
    wanted = [each for each in fillings if each.holding.layout.size]
    shared = _held_elsewhere([each.holding for each in wanted], tensors, loose)
    shared |= _shared({each.holding.name: tensors[each.holding.name] for each in wanted})
    found: dict[str, FileStretch] = {}
    for each in wanted:
        name, stretch = each.holding.name, _stretch(source, each)
        reason = _reason(tensors[name]) or shared.get(name)
        if reason is not None or isinstance(stretch, str):
            raise UsageError(
                f"`{name}` cannot be mapped: {reason or stretch}",
                hint="load with mapped=False, which reads it into memory of its own",
            )
        found[name] = stretch
    ends: dict[str, int] = {}
    for each in wanted:
        file, start = found[each.holding.name]
        ends[file] = max(ends.get(file, 0), start + each.holding.nbytes)
    files = {file: source.folder.mapped(file, end) for file, end in ends.items()}
    views: dict[int, tuple[str, Any]] = {}
    for each in wanted:
        held, (file, start) = each.holding, found[each.holding.name]
        # A tied tensor has two names, and one memory.
        views.setdefault(id(tensors[held.name]), (held.name, _view(files[file], start, held)))
    mark_as_changed(tensors[name] for name, _ in views.values())
    for name, view in views.values():
        tensors[name].data = view
        if tensors[name].data_ptr() != view.data_ptr():
            raise CoverageError(
                f"`{name}` is a {type(tensors[name]).__name__}, which keeps memory of its own",
                hint="load with mapped=False; the model may be changed in part",
            )
    return sum(each.holding.nbytes for each in wanted)


def _stretch(source: Source, filling: Filling) -> FileStretch | str:
    """Where the bytes of a holding lie; or why they do not lie there as they do in memory."""
    held, copies = filling.holding, filling.proven.stretch(0, filling.holding.layout.size)
    if not copies:
        return "no file holds its elements"
    stored = copies[0].stored
    change = Change(stored.dtype, held.dtype, stored.value, held.value)
    if not change.is_none:
        return f"{source.manifest.path} stores {stored.dtype}, the model has {held.dtype}"
    if len(copies) > 1 or copies[0].piece.run != held.layout.size or copies[0].piece.to:
        return "its elements are not one contiguous stretch of a file"
    (copy,) = copies
    at = source.locate(copy.stored, copy.chunk)
    start = at.start_bytes + copy.piece.at * held.dtype.itemsize
    if at.piece is not None:
        return "its elements are in another order in the file"
    if start % held.dtype.itemsize:
        return f"it begins at byte {start:,} of {copy.chunk.file}, within an element"
    return FileStretch(copy.chunk.file, start)


def _reason(tensor: Any) -> str | None:
    """Why a live tensor cannot be given other memory."""
    if is_dtensor(tensor):
        return "it is a DTensor, whose shards have memory of their own"
    if tensor.device.type != "cpu":
        return f"it is on {tensor.device}"
    if not tensor.is_contiguous():
        return "its memory is not in row-major order"
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        return "its memory is a part of other memory"
    return None


def _shared(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Tensors that share their memory with others, which would not follow them."""
    owner: dict[int, tuple[str, Any]] = {}
    found = {}
    for name, x in tensors.items():
        if is_dtensor(x) or x.device.type != "cpu":
            continue
        other, first = owner.setdefault(x.untyped_storage().data_ptr(), (name, x))
        if first is not x:
            found[name] = f"it shares its memory with `{other}`"
    return found


def _held_elsewhere(
    holdings: Sequence[Holding], tensors: Mapping[str, Any], loose: Iterable[Any]
) -> dict[str, str]:
    """Tensors of a dict whose memory others have too: a module whose state dict it is would not follow them."""
    known = Counter(x.tensor.untyped_storage().data_ptr() for x in holdings)
    of_dicts, found = {*map(id, loose)}, {}
    for each in holdings:
        x = tensors[each.name]
        if id(x) in of_dicts and x.device.type == "cpu" and not is_dtensor(x):
            storage = x.untyped_storage()
            # The tensor has it, and so do the object in hand and what holdings took of it.
            users = 2 + known[storage.data_ptr()]
            if torch._C._storage_Use_Count(storage._cdata) > users:
                found[each.name] = (
                    "tensors outside of the dict share its memory, and would keep their numbers: a"
                    " module's do with its state_dict()"
                )
    return found


def _view(whole: Buffer, start_bytes: int, held: Holding) -> Any:
    kind = getattr(torch, held.dtype.torch)
    flat = torch.frombuffer(whole, dtype=kind, count=held.layout.size, offset=start_bytes)
    return flat.reshape(held.layout.shape)
