"""Filling this process's tensors from a checkpoint: its own bytes, one window at a time.

Memory that the processor can address is read into in place; any other (a GPU's, or a view with
gaps) goes through a window of the budget.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.checkpoint import as_torch
from intarsia.live.holding import Holding
from intarsia.mesh import Box
from intarsia.planning.window import flat_start, windows
from intarsia.run.budget import Budget
from intarsia.run.gather import Bytes, Fill, gather
from intarsia.run.source import Source, fill_box

if TYPE_CHECKING:
    import torch

Progress = Callable[[int], None]
Step = list[tuple[Holding, Box]]


def fill_holdings(
    source: Source,
    holdings: Sequence[Holding],
    budget: Budget,
    progress: Progress = lambda count: None,
) -> None:
    """Read every holding's elements; the first failure stops all threads and is raised."""
    todo = iter(_steps(holdings, budget.window_bytes))
    lock, stop = threading.Lock(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            with lock:
                step = next(todo, None)
            if step is None:
                return
            progress(_carry_out(source, step))

    with ThreadPoolExecutor(budget.workers, "intarsia-load") as pool:
        futures = [pool.submit(work) for _ in range(budget.workers)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
        for future in futures:
            future.result()


def _steps(holdings: Iterable[Holding], window_bytes: int) -> Iterable[Step]:
    """Windows of the holdings, in steps of at most so many bytes."""
    step: Step = []
    used = 0
    for held in holdings:
        if not held.layout.size:
            continue
        for box in windows(held.layout.shape, held.dtype.itemsize, window_bytes):
            nbytes = box.size * held.dtype.itemsize
            if step and used + nbytes > window_bytes:
                yield step
                step, used = [], 0
            step.append((held, box))
            used += nbytes
    if step:
        yield step


def _carry_out(source: Source, step: Step) -> int:
    import torch

    fills: list[Fill] = []
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    total = 0
    for held, box in step:
        start = flat_start(box, Box.whole(held.layout.shape))
        memory = addressable(held.tensor)
        size = held.dtype.itemsize
        if memory is not None:
            buffer = memory[start * size : (start + box.size) * size]
        else:
            buffer = np.empty(box.size * size, np.uint8)
            index = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))
            copies.append((held.tensor[index], as_torch(buffer, held.dtype, box.shape)))
        fills += fill_box(source, held.target, box, buffer)
        total += len(buffer)
    gather(source.folder, fills)
    with torch.no_grad():
        for to, at in copies:
            to.copy_(at)
    return total


def addressable(tensor: torch.Tensor) -> Bytes | None:
    """A tensor's memory as bytes, where the processor can write it in order."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    return as_bytes(tensor)


def as_bytes(tensor: torch.Tensor) -> Bytes:
    """The bytes of a contiguous tensor of the processor's, without a copy."""
    import torch

    flat: Any = tensor.detach().reshape(-1)
    if not flat.numel():
        return np.empty(0, np.uint8)
    found: Bytes = flat.view(torch.uint8).numpy()
    return found
