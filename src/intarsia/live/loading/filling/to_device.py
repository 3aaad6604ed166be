"""Bytes on their way to GPUs: many threads read into windows of pinned memory, one sends them.

Threads that talk to a GPU meet at locks of its driver, and with many of them that costs more than the
copies do.  So a thread that has filled a window hands it over and takes the next; windows come
back when GPUs have taken what lies in them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from intarsia.mesh import Box
from intarsia.run.room import Bytes

if TYPE_CHECKING:
    import torch

Copies = Sequence[tuple["torch.Tensor", "torch.Tensor"]]
"""Each tensor of a GPU, and the pinned one that it is filled from."""

ALIGNED_BYTES = 16
"""What goes to a GPU begins at multiples of this: torch views no other memory as wider types."""

AHEAD = 4
"""Windows that are on their way while each thread fills one."""


def pinned(count_bytes: int) -> torch.Tensor:
    """Memory that a GPU reads by itself."""
    import torch

    return torch.empty(count_bytes, dtype=torch.uint8, pin_memory=True)


class _PinnedMemory:
    """Pinned memory to read into."""

    def __init__(self, count_bytes: int) -> None:
        self.pinned = pinned(-(-count_bytes // ALIGNED_BYTES) * ALIGNED_BYTES)
        self.memory: Bytes = self.pinned.numpy()
        self._views: dict[torch.dtype, torch.Tensor] = {}

    def view(self, dtype: torch.dtype) -> torch.Tensor:
        """The memory as numbers of a type."""
        if dtype not in self._views:
            self._views[dtype] = self.pinned.view(dtype)
        return self._views[dtype]


@dataclass(frozen=True)
class _Sent:
    """A window, and events that come when GPUs have taken what lies in it."""

    window: _PinnedMemory
    taken: list[Any] = field(default_factory=list)

    def is_taken(self) -> bool:
        return all(event.query() for event in self.taken)

    def wait(self) -> None:
        for event in self.taken:
            event.synchronize()


class ToDevice:
    """The windows of the threads that fill tensors of GPUs, and the thread that sends them."""

    def __init__(self, window_bytes: int, workers: int, tensors: Sequence[torch.Tensor]) -> None:
        import torch

        self._window_bytes = window_bytes
        self._mine = threading.local()
        self._flat = {id(x): x.detach().view(-1) for x in tensors if x.is_contiguous()}
        # The caller's streams may still be making the tensors.
        self._made = {
            device: torch.cuda.current_stream(device).record_event()
            for device in {x.device for x in tensors}
        }
        self._free: SimpleQueue[_PinnedMemory | None] = SimpleQueue()
        for _ in range(workers + AHEAD):
            self._free.put(None)  # made when it is needed
        self._filled: SimpleQueue[tuple[_PinnedMemory, Copies] | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self._sender = threading.Thread(target=self._send_all, name="intarsia-gpu", daemon=True)
        self._sender.start()

    def room(self, count_bytes: int) -> Bytes:
        """Pinned memory to read into; `send` comes next."""
        window = self._free.get()
        if self._failure is not None:
            self._free.put(window)
            raise self._failure
        if window is None or len(window.memory) < count_bytes:
            window = _PinnedMemory(max(count_bytes, self._window_bytes))
        self._mine.window = window
        return window.memory[:count_bytes]

    def copy(
        self, tensor: torch.Tensor, box: Box, start: int, at_bytes: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A box of a tensor, whose elements follow each other from `start` on, and its place in the room."""
        if id(tensor) in self._flat:
            return self.copy_run(tensor, start, box.size, at_bytes)
        return tensor[box.slices], self._read(tensor.dtype, box.size, at_bytes).view(box.shape)

    def copy_run(
        self, tensor: torch.Tensor, start: int, count: int, at_bytes: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Elements of a contiguous tensor that follow each other, and their place in the room."""
        read = self._read(tensor.dtype, count, at_bytes)
        return self._flat[id(tensor)][start : start + count], read

    def _read(self, dtype: torch.dtype, count: int, at_bytes: int) -> torch.Tensor:
        at, window = at_bytes // dtype.itemsize, self._mine.window
        found: torch.Tensor = window.view(dtype)[at : at + count]
        return found

    def send(self, copies: Copies) -> None:
        """Have GPUs take what was read into the room; nothing waits for them."""
        self._filled.put((self._mine.window, copies))

    def settle(self) -> None:
        """Wait until every byte is where it belongs; raise what kept one from it."""
        self._filled.put(None)
        self._sender.join()
        if self._failure is not None:
            raise self._failure

    def _send_all(self) -> None:
        """Send windows as they come, and give back those that were taken."""
        streams: dict[torch.device, Any] = {}
        under_way: deque[_Sent] = deque()
        while True:
            try:
                filled = self._filled.get(block=not under_way)
            except Empty:  # nothing to send: the oldest is waited for
                sent = under_way.popleft()
                self._attempt(sent.wait)
                self._free.put(sent.window)
                continue
            if filled is None:
                break
            window, copies = filled
            sent = _Sent(window)
            self._attempt(partial(self._send, copies, sent, streams))
            under_way.append(sent)
            while under_way and self._attempt(under_way[0].is_taken):
                self._free.put(under_way.popleft().window)
        for stream in streams.values():
            self._attempt(stream.synchronize)

    def _attempt(self, call: Callable[[], Any]) -> Any:
        """What a call gives; True from the first that fails on: then windows only go round."""
        if self._failure is None:
            try:
                return call()
            except BaseException as failure:
                self._failure = failure
        return True

    def _send(self, copies: Copies, sent: _Sent, streams: dict[torch.device, Any]) -> None:
        import torch

        with torch.no_grad():
            for device in {to.device for to, _ in copies}:
                if device not in streams:
                    made: Any = torch.cuda.Stream
                    streams[device] = made(device)
                    streams[device].wait_event(self._made[device])
                mine = [copy for copy in copies if copy[0].device == device]
                with torch.cuda.stream(streams[device]):
                    torch._foreach_copy_(
                        [to for to, _ in mine], [at for _, at in mine], non_blocking=True
                    )
                sent.taken.append(streams[device].record_event())
