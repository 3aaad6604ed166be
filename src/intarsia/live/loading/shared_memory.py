"""Live tensors that share memory under several names, a tied head and its embedding say.

One memory has one content: where the checkpoint has two different ones for it, whichever is read last
would win, so the load is refused before the first byte is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError, few
from intarsia.family import table_for
from intarsia.layout import Layout, unravel
from intarsia.live.loading.filling.fill import Filling
from intarsia.live.loading.settled import Settled
from intarsia.live.model.holding import Holding
from intarsia.live.model.module_state import places_of
from intarsia.live.model.names import config_of_model, model_in
from intarsia.live.model.own_tensors import every_tensor
from intarsia.mesh import Box
from intarsia.planning.manifest import Manifest
from intarsia.planning.proof import Proven
from intarsia.planning.window import windows
from intarsia.run.budget import Budget
from intarsia.value.bits import as_float64, bits_dtype


@dataclass(frozen=True, slots=True)
class Overlap:
    """The elements that two holdings have in common: ranges or lists of places in each."""

    a: Holding
    b: Holding
    places: tuple[slice, slice] | tuple[NDArray[Any], NDArray[Any]]


def with_one_source(
    settled: Settled, manifest: Manifest, tied: Mapping[str, str], budget: Budget, *, strict: bool
) -> Settled:
    """What was settled, where every memory has one content; raise where it has two.

    `tied` are tensors that the model takes from others.  Without `strict`, one of them that differs is
    left out, and so reported.
    """
    for each in settled.fillings:
        _check_apart(each.holding)
    left: set[int] = set()
    unused: set[str] = set()
    pairs = list(overlaps([each.holding for each in settled.fillings]))
    if not pairs:
        return settled
    with Checkpoint(manifest) as checkpoint:
        for pair in pairs:
            found = _first_difference(checkpoint, pair, budget.window_bytes)
            if found is None:
                continue
            extra = _tied_one(pair, tied)
            if strict or extra is None:
                raise _contradiction(pair, found, manifest, loose=extra)
            left.add(id(extra))
            unused.update(extra.layout.tensors)
    fillings: list[Filling] = [f for f in settled.fillings if id(f.holding) not in left]
    return replace(settled, fillings=fillings, unused=sorted({*settled.unused, *unused}))


def _check_apart(holding: Holding) -> None:
    """Raise where several elements of one tensor are the same memory, as in an expanded one."""
    x = holding.tensor
    if _shares_within(x):
        raise CoverageError(
            f"`{holding.name}` is a view in which several elements share memory: shape"
            f" {list(x.shape)}, strides {list(x.stride())}",
            hint="give it memory of its own: x.clone()",
        )


def _shares_within(x: Any) -> bool:
    """Whether several elements of a tensor are the same memory."""
    if x.is_contiguous() or not x.numel():
        return False
    span = 0
    for stride, n in sorted(zip(x.stride(), x.shape, strict=True)):
        if n > 1 and stride <= span:
            break
        span += (n - 1) * stride
    else:
        return False
    return bool(len(np.unique(_ids(x))) < x.numel())


def set_expanded_buffers_apart(model: Any) -> None:
    """Give a buffer that was expanded memory of its own, which can be filled, unless another tensor is in its memory."""
    buffers = [
        (module._buffers, key, x)
        for module in model.modules()
        for key, x in module._buffers.items()
        if type(x) is torch.Tensor and key not in module._non_persistent_buffers_set
    ]
    expanded = {id(x): x for _, _, x in buffers if not x.is_meta and _shares_within(x)}
    if not expanded:
        return
    others = {p for x in every_tensor(model) if id(x) not in expanded for p in places_of(x)}
    own = {n: x.clone(memory_format=torch.contiguous_format) for n, x in expanded.items()}
    counts = Counter(p for x in expanded.values() for p in places_of(x))
    for held, key, x in buffers:
        if id(x) in own and all(p not in others and counts[p] == 1 for p in places_of(x)):
            held[key] = own[id(x)]


def overlaps(holdings: Iterable[Holding]) -> Iterator[Overlap]:
    """Holdings that share memory and are filled from different elements."""
    by_device: dict[Any, list[tuple[int, int, Holding]]] = {}
    for each in holdings:
        x = each.tensor
        if not x.numel() or x.is_meta:
            continue
        start, length = x.data_ptr(), x.nbytes
        if not x.is_contiguous():
            span = sum((int(n) - 1) * int(s) for n, s in zip(x.shape, x.stride(), strict=True))
            length = (span + 1) * x.element_size()
        by_device.setdefault(x.device, []).append((start, start + length, each))
    for group in by_device.values():
        group.sort(key=lambda item: item[0])
        for k, (_, end, a) in enumerate(group):
            for start, _, b in group[k + 1 :]:
                if start >= end:
                    break
                same = (a.layout, a.value, _form(a)) == (b.layout, b.value, _form(b))
                if not same and (places := _common(a, b)) is not None:
                    yield Overlap(a, b, places)


def _form(x: Holding) -> tuple[Any, ...]:
    t = x.tensor
    return t.storage_offset(), tuple(t.shape), t.stride(), t.dtype


def _common(
    a: Holding, b: Holding
) -> tuple[slice, slice] | tuple[NDArray[Any], NDArray[Any]] | None:
    """The places of each that are the same memory; None where they only lie between each other."""
    x, y = a.tensor, b.tensor
    if _form(a) == _form(b):
        return slice(0, x.numel()), slice(0, y.numel())
    if x.dtype != y.dtype:
        raise CoverageError(
            f"`{a.name}` and `{b.name}` share memory as {x.dtype} and {y.dtype}, so both cannot be filled",
            hint="give each its own memory",
        )
    if x.is_contiguous() and y.is_contiguous():
        lo = max(x.storage_offset(), y.storage_offset())
        hi = min(x.storage_offset() + x.numel(), y.storage_offset() + y.numel())
        at = (lo - x.storage_offset(), lo - y.storage_offset())
        return slice(at[0], at[0] + hi - lo), slice(at[1], at[1] + hi - lo)
    _, i, j = np.intersect1d(_ids(x), _ids(y), assume_unique=True, return_indices=True)
    return (i, j) if len(i) else None


def _ids(x: Any) -> NDArray[np.int64]:
    """The place in its storage of each element, in row-major order."""
    found = np.full((), x.storage_offset(), np.int64)
    for n, stride in zip(x.shape, x.stride(), strict=True):
        found = found[..., None] + np.arange(n, dtype=np.int64) * stride
    return found.reshape(-1)


def _first_difference(
    checkpoint: Checkpoint, pair: Overlap, window_bytes: int
) -> tuple[int, int, float, float] | None:
    """How many elements of the memory have two contents, the first in A's order, and both numbers."""
    dtype = pair.a.dtype
    count, first = 0, None
    for at, x, y in _both(checkpoint, pair, window_bytes):
        if np.array_equal(x, y):
            continue
        u, v = as_float64(x, dtype), as_float64(y, dtype)
        wrong = (x != y) & ~(np.isnan(u) & np.isnan(v))
        count += int(np.count_nonzero(wrong))
        if first is None and wrong.any():
            k = int(wrong.argmax())
            first = (int(at[k]), float(u[k]), float(v[k]))
    return None if first is None else (count, *first)


def _both(
    checkpoint: Checkpoint, pair: Overlap, window_bytes: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """A's places, and the contents that both are to have there, as bits, a window at a time."""
    dtype = pair.a.dtype

    def prove(each: Holding, layout: Layout) -> Proven:
        return checkpoint.prove(each.name, layout, dtype, each.value)

    def read(proven: Proven, box: Box) -> NDArray[Any]:
        return checkpoint.read_box(proven, box).view(bits_dtype(dtype))

    a, b = (h.layout.reshape(h.layout.size) for h in (pair.a, pair.b))
    i, j = pair.places
    if isinstance(i, slice) and isinstance(j, slice):
        a, b = a.narrow(0, i.start, i.stop), b.narrow(0, j.start, j.stop)
        proofs = prove(pair.a, a), prove(pair.b, b)
        for box in windows(a.shape, 8 * dtype.itemsize, window_bytes):
            lo = i.start + box.offsets[0]
            at = np.arange(lo, lo + box.size)
            yield at, read(proofs[0], box), read(proofs[1], box)
        return
    whole = [read(prove(h, x), Box.whole(x.shape)) for h, x in ((pair.a, a), (pair.b, b))]
    yield np.asarray(i), whole[0][i], whole[1][j]


def _tied_one(pair: Overlap, tied: Mapping[str, str]) -> Holding | None:
    """The holding that is all of tied tensors, where the other is their twins."""
    for one, other in ((pair.a, pair.b), (pair.b, pair.a)):
        names = one.layout.tensors
        if names and all(tied.get(n) in other.layout.tensors for n in names):
            return one
    return None


def _contradiction(
    pair: Overlap,
    found: tuple[int, int, float, float],
    manifest: Manifest,
    *,
    loose: Holding | None,
) -> CoverageError:
    count, at, x, y = found
    a, b = pair.a, pair.b
    place = [*unravel(at, a.tensor.shape)]
    hint = (
        "give each its own memory in the model (a head: tie_word_embeddings=false, or where the model"
        " is tied all the same, as T5, lm_head.weight = torch.nn.Parameter(lm_head.weight.clone()))"
    )
    if loose is not None:
        kept = b if loose is a else a
        hint += (
            f"; or load with strict=False, which keeps `{kept.name}` and leaves `{loose.name}`"
            " of the checkpoint out"
        )
    return CoverageError(
        f"`{a.name}` and `{b.name}` share memory in the model, and {manifest.path} has different"
        f" numbers for them: {count:,} elements\n  first: {place} is {x!r} in"
        f" {few(a.layout.tensors, 2)}, {y!r} in {few(b.layout.tensors, 2)}",
        hint=hint,
    )


def tied_in(into: Any, manifest: Manifest) -> dict[str, str]:
    """The tensors that the model or the checkpoint takes from others by its configuration."""
    tables = (table_for(config) for config in (manifest.config, config_of_model(model_in(into))))
    return {name: to for table in tables if table for name, to in table.tied.items()}
