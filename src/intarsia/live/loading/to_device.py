"""Bytes on their way to a GPU: each thread has windows of pinned memory and a stream of its own.

While the GPU takes one window, the thread reads into the next; both are kept for the whole load.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from intarsia.run.room import Bytes

if TYPE_CHECKING:
    import torch

Copies = Sequence[tuple["torch.Tensor", "torch.Tensor"]]
"""Each tensor of a GPU, and the pinned one that it is filled from."""

_WINDOWS = 2


@dataclass
class _Window:
    """Pinned memory, and events that come when GPUs have taken what lies in it."""

    memory: Bytes
    taken: list[Any] = field(default_factory=list)

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

    def __init__(self, window_bytes: int, tensors: Iterable[torch.Tensor]) -> None:
        import torch

        self._window_bytes = window_bytes
        self._mine = _Mine()
        self._streams: list[Any] = []
        # The caller's streams may still be making the tensors.
        self._made = {
            device: torch.cuda.current_stream(device).record_event()
            for device in {x.device for x in tensors}
        }

    def room(self, count_bytes: int) -> Bytes:
        """Pinned memory to read into; `send` comes next."""
        import torch

        windows = self._mine.windows
        if len(windows) < _WINDOWS:
            size = max(count_bytes, self._window_bytes)
            made = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            windows.append(_Window(made.numpy()))
        else:
            windows.append(windows.pop(0))
        windows[-1].wait()
        if len(windows[-1].memory) < count_bytes:
            made = torch.empty(count_bytes, dtype=torch.uint8, pin_memory=True)
            windows[-1].memory = made.numpy()
        return windows[-1].memory[:count_bytes]

    def send(self, copies: Copies) -> None:
        """Have GPUs take what was read into the room; nothing waits for them."""
        import torch

        used = {to.device: self._stream(to.device) for to, _ in copies}
        with torch.no_grad():
            for to, at in copies:
                with torch.cuda.stream(used[to.device]):
                    to.copy_(at, non_blocking=True)
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
