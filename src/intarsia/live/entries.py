"""Small values beside the tensors of a live checkpoint: hyperparameters, and whatever the caller adds.

They are plain Python values, and tensors among them (a generator's state) as torch stores them, so that
it reads them too.  A value that ranks do not share is kept rank by rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from types import NoneType
from typing import Any

import numpy as np
import torch

from intarsia.dtypes import BY_NAME
from intarsia.errors import IntarsiaError, UsageError, few
from intarsia.format.torch_file.inert import Inert, InertTensor
from intarsia.format.torch_file.torch_frame import write_object
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.live.model.holding import dtype_of, is_dtensor
from intarsia.live.model.module_state import is_extra_state
from intarsia.opened.lazy_tensor import as_torch

EXTRA = "extra."
OF_RANK = "extra_of_rank."
_RANK = re.compile(r"^(?P<rank>\d+)_of_(?P<size>\d+)\.(?P<name>.*)$", re.S)
_TENSOR = "intarsia.tensor"
_NUMBERS = (bool, int, float, type(None))
MOST_LEVELS = 128
"""How deep a caller's dicts and lists may be nested; Python itself ends at some hundreds."""


def check_nesting(value: Any, where: str, levels: int = MOST_LEVELS) -> None:
    """Raise where dicts and lists lie in each other deeper than can be written and read, or without end."""
    if not levels:
        raise UsageError(
            f"{where} is nested deeper than {MOST_LEVELS} levels, or contains itself",
            hint="give its contents in fewer levels",
        )
    for inner in value.values() if isinstance(value, Mapping) else value:
        if isinstance(inner, (Mapping, list, tuple)):
            check_nesting(inner, where, levels - 1)


def packed(extra: Mapping[str, Any] | None) -> dict[str, bytes]:
    """What a caller adds, each value as an archive under the name of its entry."""
    if not isinstance(extra, (Mapping, NoneType)):
        raise UsageError(
            f"`extra` is a {type(extra).__name__}", hint='give a dict, for example {"step": 7}'
        )
    for key in extra or {}:
        if not isinstance(key, str):
            raise UsageError(
                f"`extra` has the key {key!r} of type {type(key).__name__}", hint="use text as keys"
            )
    return {EXTRA + key: pack(value, f"extra[{key!r}]") for key, value in (extra or {}).items()}


def pack(value: Any, where: str) -> bytes:
    """A value as an archive that torch reads, and we do without executing it."""
    if isinstance(value, (Mapping, list, tuple)):
        check_nesting(value, f"`{where}`")
    try:
        if type(value) in _NUMBERS:
            return _packed(value, repr(value))
        tensors: list[torch.Tensor] = []

        def whole(tensor: torch.Tensor) -> torch.Tensor:
            tensors.append(_whole(tensor))
            return tensors[-1]

        found = with_each_tensor(value, whole)
        return _as_torch_saves(found) if tensors else write_object(found)
    except UsageError as error:
        raise UsageError(
            f"`{where}` cannot be saved: {error}",
            hint="save its state_dict(): numbers, text, lists, dicts and tensors; of NumPy, x.item() or"
            " torch.from_numpy(x)",
        ) from error


@lru_cache(1 << 10, typed=True)
def _packed(value: Any, text: str) -> bytes:
    """A number as an archive; the text distinguishes 0.0 from -0.0."""
    return write_object(value)


def unpack(data: bytes, where: str) -> Any:
    """The value of an archive; classes of others stay inert."""
    return _live(read_object(data, where))


def with_each_tensor(value: Any, as_: Callable[[torch.Tensor], Any]) -> Any:
    """A value of plain dicts and lists, each tensor of it as `as_` gives it."""
    if isinstance(value, torch.Tensor):
        return as_(value)
    if isinstance(value, Mapping):
        return {key: with_each_tensor(x, as_) for key, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(with_each_tensor(x, as_) for x in value)
    return value


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor as a file can hold it."""
    if is_dtensor(tensor):
        raise UsageError("it holds a DTensor, and each rank has only a part of it")
    if tensor.is_nested or tensor.layout is not torch.strided:
        raise UsageError(f"it holds a tensor of layout {tensor.layout}")
    dtype_of(tensor, "a tensor")
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def _as_torch_saves(value: Any) -> bytes:
    """An archive with tensors, made by torch once everything else in it is known to be plain."""
    write_object(with_each_tensor(value, lambda _: None))
    file = BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _live(value: Any) -> Any:
    if isinstance(value, dict):
        if _TENSOR in value:
            data = np.frombuffer(value["data"], np.uint8).copy()
            return as_torch(data, BY_NAME[value[_TENSOR]], tuple(value["shape"]))
        return {key: _live(x) for key, x in value.items()}
    if isinstance(value, InertTensor) and value.storage.data is not None:
        return _strided(value)
    if type(value) in (list, tuple):
        return type(value)(_live(x) for x in value)
    return value


def _strided(found: InertTensor) -> Any:
    assert found.storage.data is not None
    kind = getattr(torch, found.dtype.torch)
    data = bytearray(found.storage.data)
    flat = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
    return flat.as_strided(found.shape, found.stride, found.storage_offset).clone()


def extra_in(
    entries: Mapping[str, bytes], rank: int, size: int, beside: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """What a caller had added, and remarks; what ranks did not share goes to the rank it came from.

    So are values of a dict that was saved, whose names begin with the words that are `beside` its model, and the
    extra state of modules; objects are not.  Where there are now more or fewer ranks, what they did not share is the list of all that were saved.
    """
    found: dict[str, Any] = {}
    by_rank: dict[str, dict[int, Any]] = {}
    sizes: dict[str, int] = {}
    objects: list[str] = []
    for name, data in entries.items():
        if name.startswith(EXTRA):
            found[name.removeprefix(EXTRA)] = unpack(data, f"`{name}`")
        elif own := _RANK.match(name.removeprefix(OF_RANK)) if name.startswith(OF_RANK) else None:
            by_rank.setdefault(own["name"], {})[int(own["rank"])] = unpack(data, f"`{name}`")
            sizes[own["name"]] = int(own["size"])
        elif name.partition(".")[0] in beside or is_extra_state(name):
            try:
                found[name] = _without_objects(unpack(data, f"`{name}`"))
            except IntarsiaError:
                objects.append(name)
    notes = []
    if objects:
        notes.append(f"not loaded, because they are objects of other classes: {few(objects, 4)}")
    for key, held in by_rank.items():
        before = sizes.get(key, len(held))
        if before == size:
            if rank in held:
                found[key] = held[rank]
        else:
            found[key] = [held[k] for k in sorted(held)]
            notes.append(
                f"extra `{key}` was saved by {len(held)} of {before} ranks, there are {size}"
                " now: it is loaded as the list of all values"
            )
    return found, notes


def _without_objects(value: Any) -> Any:
    """A value as it is; raise where it is or holds an object of a class that is not loaded."""
    if isinstance(value, dict):
        _without_objects([*value, *value.values()])
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            _without_objects(each)
    elif isinstance(value, (Inert, InertTensor)) or isinstance(type(value), type(Inert)):
        raise UsageError(f"{value!r} is an object")
    return value


def spread(entries: Iterable[str], size: int) -> tuple[set[str], set[str]]:
    """The keys of values that ranks did not share: of as many ranks as there are now, and of another number."""
    found = (_RANK.match(n.removeprefix(OF_RANK)) for n in entries if n.startswith(OF_RANK))
    each = [(m["name"], int(m["size"])) for m in found if m]
    return {n for n, before in each if before != size}, {n for n, before in each if before == size}


def shared_entries(values: Sequence[Mapping[str, bytes]]) -> dict[str, bytes]:
    """The hyperparameters that all ranks have; a group's members are those of all ranks together."""
    found: dict[str, bytes] = {}
    for held in values:
        for name, data in held.items():
            old = found.setdefault(name, data)
            if old == data:
                continue
            if not name.endswith((".params", ".param_names")):
                raise UsageError(
                    f"ranks have different values of `{name}`: {unpack(old, name)!r} and"
                    f" {unpack(data, name)!r}",
                    hint="give the optimizers of all ranks the same groups in the same order",
                )
            members = dict.fromkeys([*unpack(old, name), *unpack(data, name)])
            found[name] = pack([*members], name)
    return found


def extra_entries(values: Sequence[Mapping[str, bytes]]) -> dict[str, bytes]:
    """The entries to write: once where all ranks that gave a value agree, else rank by rank."""
    found: dict[str, bytes] = {}
    for key in sorted({key for held in values for key in held}):
        given = {rank: held[key] for rank, held in enumerate(values) if key in held}
        if len({*given.values()}) == 1:
            found[key] = next(iter(given.values()))
            continue
        for rank, data in given.items():
            found[f"{OF_RANK}{rank}_of_{len(values)}.{key.removeprefix(EXTRA)}"] = data
    return found
