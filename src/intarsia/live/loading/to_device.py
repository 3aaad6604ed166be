"""Bytes on their way to a GPU: each thread has windows of pinned memory and a stream of its own.

While the GPU takes one window, the thread reads into the next; both are kept for the whole load.
Threads meet at the interpreter's lock after nearly every call of torch, so a window takes few of them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from intarsia.mesh import Box
from intarsia.run.room import Bytes

if TYPE_CHECKING:
    import torch

Copies = Sequence[tuple["torch.Tensor", "torch.Tensor"]]
"""Each tensor of a GPU, and the pinned one that it is filled from."""

ALIGNED_BYTES = 16
"""What goes to a GPU begins at multiples of this: torch views no other memory as wider types."""

_WINDOWS = 2


class _Window:
    """Pinned memory, and events that come when GPUs have taken what lies in it."""

    def __init__(self, count_bytes: int) -> None:
        import torch

        whole = -(-count_bytes // ALIGNED_BYTES) * ALIGNED_BYTES
        self.pinned = torch.empty(whole, dtype=torch.uint8, pin_memory=True)
        self.memory: Bytes = self.pinned.numpy()
        self.taken: list[Any] = []
        self._views: dict[torch.dtype, torch.Tensor] = {}

    def view(self, dtype: torch.dtype) -> torch.Tensor:
        """The memory as numbers of a type."""
        if dtype not in self._views:
            self._views[dtype] = self.pinned.view(dtype)
        return self._views[dtype]

    def wait(self) -> None:
        for event in self.taken:
            event.synchronize()
        self.taken = []


class _Mine(threading.local):
    """What one thread has."""

    def __init__(self) -> None:
        self.windows: list[_Window] = []
        self.streams: dict[torch.device, Any] = {}


class ToDevice:
    """The windows and streams of the threads that fill tensors of GPUs."""

    def __init__(self, window_bytes: int, tensors: Sequence[torch.Tensor]) -> None:
        import torch

        self._window_bytes = window_bytes
        self._mine = _Mine()
        self._streams: list[Any] = []
        self._flat = {id(x): x.detach().view(-1) for x in tensors if x.is_contiguous()}
        # The caller's streams may still be making the tensors.
        self._made = {
            device: torch.cuda.current_stream(device).record_event()
            for device in {x.device for x in tensors}
        }

    def room(self, count_bytes: int) -> Bytes:
        """Pinned memory to read into; `send` comes next."""
        windows = self._mine.windows
        if len(windows) < _WINDOWS:
            windows.append(_Window(max(count_bytes, self._window_bytes)))
        else:
            windows.append(windows.pop(0))
        windows[-1].wait()
        if len(windows[-1].memory) < count_bytes:
            windows[-1] = _Window(count_bytes)
        return windows[-1].memory[:count_bytes]

    def copy(
        self, tensor: torch.Tensor, box: Box, start: int, at_bytes: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A box of a tensor, whose elements follow each other from `start` on, and its place in the room."""
        at = at_bytes // tensor.dtype.itemsize
        read = self._mine.windows[-1].view(tensor.dtype)[at : at + box.size]
        flat = self._flat.get(id(tensor))
        if flat is not None:
            return flat[start : start + box.size], read
        index = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))
        return tensor[index], read.view(box.shape)

    def send(self, copies: Copies) -> None:
        """Have GPUs take what was read into the room; nothing waits for them."""
        import torch

        used = {to.device: self._stream(to.device) for to, _ in copies}
        with torch.no_grad():
            for device, stream in used.items():
                mine = [copy for copy in copies if copy[0].device == device]
                to, at = [to for to, _ in mine], [at for _, at in mine]
                with torch.cuda.stream(stream):
                    torch._foreach_copy_(to, at, non_blocking=True)
        self._mine.windows[-1].taken = [stream.record_event() for stream in used.values()]

    def _stream(self, device: torch.device) -> Any:
        import torch

        streams = self._mine.streams
        if device not in streams:
            made: Any = torch.cuda.Stream
            streams[device] = made(device)
            streams[device].wait_event(self._made[device])
            self._streams.append(streams[device])
        return streams[device]

    def settle(self) -> None:
        """Wait until every byte is where it belongs."""
        for stream in self._streams:
            stream.synchronize()
