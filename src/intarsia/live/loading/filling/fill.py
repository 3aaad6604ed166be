"""Filling this process's tensors from a checkpoint: proven first, then its own bytes, window by window.

Memory that the processor can address is read into in place; any other goes through a window of the
budget: a GPU's through pinned memory, a view with gaps through memory of its own.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.live.loading.filling.runs import RunStep, run_steps
from intarsia.live.loading.filling.to_device import ALIGNED_BYTES, ToDevice
from intarsia.live.model.holding import Holding
from intarsia.mesh import Box
from intarsia.opened.lazy_tensor import as_torch
from intarsia.planning.manifest import Manifest
from intarsia.planning.proof import Gap, Proven, prover_of
from intarsia.planning.window import flat_start, windows
from intarsia.run.budget import Budget
from intarsia.run.gather import gather
from intarsia.run.large_pages import ask_for_large_pages
from intarsia.run.losses import Losses
from intarsia.run.progress import Advance
from intarsia.run.reads import Fill, Straight
from intarsia.run.room import Bytes
from intarsia.run.sharing import in_steps, share_out
from intarsia.run.source import Source
from intarsia.value import PLAIN, Change

if TYPE_CHECKING:
    import torch

SHARE = 4
"""A window of a tensor that is put together from several is at most so large a share of a step."""


@dataclass(frozen=True, slots=True)
class Filling:
    """A holding, and the proof that each element of its memory has exactly one source."""

    holding: Holding
    proven: Proven


FillingWindow = tuple[Filling, Box]
Step = list[FillingWindow]


def prove(holdings: Iterable[Holding], manifest: Manifest) -> list[Filling]:
    """What fills each holding; raise unless every element of it has exactly one source."""
    prover, found = prover_of(manifest), list[Filling]()
    faults: list[Gap] = []
    for each in holdings:
        proven = prover.attempt(each.target)
        if isinstance(proven, Proven):
            found.append(Filling(each, proven))
        else:
            faults += proven
    if faults:
        prover.refuse(faults)
    return found


def fill(
    source: Source,
    fillings: Sequence[Filling],
    budget: Budget,
    progress: Advance = lambda count: None,
) -> Losses:
    """Read every holding's elements, and count what casts do to them; the first failure stops all threads."""
    on_gpus = [each.holding.tensor for each in fillings if each.holding.tensor.is_cuda]
    ask_for_large_pages(each.holding.tensor for each in fillings)
    step_bytes = budget.window_bytes
    of_runs = [each for each in fillings if _is_of_runs(source, each)]
    memories = [_Memory(each.holding) for each in of_runs]
    known = {*map(id, of_runs)}
    others = windows_of_fillings([each for each in fillings if id(each) not in known], step_bytes)
    steps: list[RunStep | Step] = [*run_steps([each.proven for each in of_runs], step_bytes)]
    steps += in_steps(others, step_bytes, _nbytes)
    to_device = ToDevice(step_bytes, budget.workers, on_gpus) if on_gpus else None

    def work(step: RunStep | Step) -> Losses:
        if isinstance(step, RunStep):
            progress(_read_runs(source, step, memories, to_device))
            return Counter()
        # Threads do not count in one counter.
        mine = replace(source, losses=Counter())
        progress(_carry_out(mine, step, to_device))
        return mine.losses

    try:
        return sum(share_out(steps, budget.workers, work), Counter())
    finally:
        if to_device is not None:
            to_device.settle()
        mark_as_changed(each.holding.tensor for each in fillings)


def mark_as_changed(tensors: Iterable[torch.Tensor]) -> None:
    """Have torch refuse to go back through a forward pass that used the old numbers."""
    from torch.autograd.graph import increment_version

    increment_version([x for x in tensors if not x.is_inference()])


def _is_of_runs(source: Source, filling: Filling) -> bool:
    """Whether bytes go from files to a holding's memory as they are, and follow each other there."""
    held, runs = filling.holding, filling.proven.runs
    if not runs or not source.is_plain or filling.proven.src is not source.manifest:
        return False
    if held.tensor.nbytes != filling.proven.target.nbytes:
        return False
    wanted, types = held.dtype, {x.dtype.name: x.dtype for x in runs}.values()
    same = all(Change(dtype, wanted, PLAIN, held.value).is_none for dtype in types)
    return same and held.tensor.device.type in ("cpu", "cuda") and _is_in_order(held.tensor)


class _Memory:
    """The memory of a holding that is filled in order: bytes here, or elements of a GPU."""

    def __init__(self, holding: Holding) -> None:
        self.tensor = holding.tensor
        self.itemsize = holding.dtype.itemsize
        self.bytes: memoryview | None = None
        if not holding.tensor.is_cuda:
            # As `as_bytes`, without five calls of torch: there may be thousands of tensors, which the holdings keep.
            length, place = holding.tensor.nbytes, holding.tensor.data_ptr()
            memory: Any = (ctypes.c_ubyte * length).from_address(place)
            self.bytes = np.frombuffer(memory, np.uint8).data


def _read_runs(
    source: Source, step: RunStep, memories: Sequence[_Memory], to_device: ToDevice | None
) -> int:
    """Carry out a step of runs; how many bytes it fills."""
    views, room = list[memoryview](), memoryview(b"")
    sent: list[tuple[torch.Tensor, torch.Tensor]] = []
    if to_device is not None and any(memories[x.target].bytes is None for x in step.stretches):
        room = to_device.room(step.room_bytes).data
    for target, to, length, at in step.stretches:
        memory = memories[target]
        if memory.bytes is not None:
            views.append(memory.bytes[to : to + length])
        elif to_device is not None:
            size = memory.itemsize
            views.append(room[at : at + length])
            sent.append(to_device.copy_run(memory.tensor, to // size, length // size, at))
    for file, reads in groupby(step.reads, itemgetter(0)):
        ranges = [(start, views[k][at : at + length]) for _, start, length, k, at in reads]
        source.folder.read_each(file, ranges)
    if sent and to_device is not None:
        to_device.send(sent)
    return step.nbytes


def windows_of_fillings(fillings: Iterable[Filling], window_bytes: int) -> list[FillingWindow]:
    """The windows of all holdings, those that are read from one part of a file beside each other."""
    found: list[FillingWindow] = []
    for filling in fillings:
        held = filling.holding
        if held.layout.size:
            # Of what is put together from many tensors a step takes a little, and what lies between them.
            parts = SHARE if len(filling.proven.sources) > 1 else 1
            boxes = windows(held.layout.shape, held.dtype.itemsize, window_bytes // parts)
            found += [(filling, box) for box in boxes]
    return sorted(found, key=_whence)


def _whence(window: FillingWindow) -> tuple[str, int]:
    """The file that a window is read from, and about where it lies in it."""
    filling, box = window
    layout, sources = filling.holding.layout, filling.proven.sources
    share = flat_start(box, Box.whole(layout.shape)) / layout.size
    chunks = sources[int(share * len(sources))].chunks if sources else ()
    if not chunks:
        return "", 0
    chunk = chunks[0 if len(sources) > 1 else int(share * len(chunks))]
    return chunk.file, chunk.start_bytes


def _nbytes(window: FillingWindow) -> int:
    filling, box = window
    return box.size * filling.holding.dtype.itemsize


def _carry_out(source: Source, step: Step, to_device: ToDevice | None) -> int:
    import torch

    fills: list[Fill | Straight] = []
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    sent: list[tuple[torch.Tensor, torch.Tensor]] = []
    rooms = _rooms(step, to_device)
    for filling, box in step:
        held = filling.holding
        start = flat_start(box, Box.whole(held.layout.shape))
        memory = addressable(held.tensor)
        size = held.dtype.itemsize
        length = box.size * size
        if memory is not None:
            buffer = memory[start * size : start * size + length]
        elif to_device is not None and held.tensor.is_cuda:
            at_bytes, buffer = next(rooms)
            sent.append(to_device.copy(held.tensor, box, start, at_bytes))
        else:
            buffer = np.empty(length, np.uint8)
            copies.append((held.tensor[box.slices], as_torch(buffer, held.dtype, box.shape)))
        fills += source.fill_stretch(filling.proven, box, start, buffer)
    gather(source.folder, fills)
    if sent and to_device is not None:
        to_device.send(sent)
    with torch.no_grad():
        for to, at in copies:
            to.copy_(at)
    return sum(map(_nbytes, step))


def _rooms(step: Step, to_device: ToDevice | None) -> Iterator[tuple[int, Bytes]]:
    """Pinned memory for each window of a step that goes to a GPU, in their order, and where it begins."""
    lengths = [_nbytes(window) for window in step if window[0].holding.tensor.is_cuda]
    if to_device is not None and lengths:
        aligned = (-(-n // ALIGNED_BYTES) * ALIGNED_BYTES for n in lengths)
        starts = list(accumulate(aligned, initial=0))
        room = to_device.room(starts[-1])
        for start, length in zip(starts, lengths, strict=False):
            yield start, room[start : start + length]


def addressable(tensor: torch.Tensor) -> Bytes | None:
    """A tensor's memory as bytes, where the processor can write it in order."""
    return as_bytes(tensor) if tensor.device.type == "cpu" and _is_in_order(tensor) else None


def _is_in_order(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements follow each other in memory, as they are: a conjugate or negative view changes them."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def as_bytes(tensor: torch.Tensor) -> Bytes:
    """The bytes of a contiguous tensor of the processor's, without a copy."""
    import torch

    if not tensor.numel():
        return np.empty(0, np.uint8)
    # Not a view: that of a single element may have any stride.
    flat: Any = tensor.detach().as_strided((tensor.numel(),), (1,))
    found: Bytes = flat.view(torch.uint8).numpy()
    return found
