"""Ranks that meet apart from the groups of a training, so that ending those ends nothing here.

`dist.all_gather_object` refuses a group that `destroy_process_group` has ended; the gloo backend
below it works on for as long as somebody holds it.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any


class Apart:
    """A gloo backend that this object alone keeps alive, from its making to `close`."""

    def __init__(self, backend: Any, size: int) -> None:
        self._backend = backend
        self._size = size

    def all_gather(self, value: Any) -> list[Any]:
        """What every rank brought, by rank; where none brought anything, one exchange of a number."""
        data = b"" if value is None else message_of(value)
        counts = self._counts(len(data))
        if not any(counts):
            return [None] * self._size
        both = zip(self._gathered(_room(data, max(counts))), counts, strict=True)
        return [value_of_message(_bytes(x[:n])) if n else None for x, n in both]

    def gather(self, value: Any, rank: int) -> list[Any]:
        """What every rank brought, on the first rank; nothing on the others."""
        import torch
        from torch.distributed import GatherOptions

        data = message_of(value)
        most = max(self._counts(len(data)))
        room, options = _room(data, most), GatherOptions()
        options.rootRank = 0
        found = [[torch.empty_like(room) for _ in range(self._size)]] if rank == 0 else []
        self._backend.gather(found, [room], options).wait()
        return [value_of_message(_bytes(x)) for x in (found[0] if found else ())]

    def scatter(self, values: Sequence[Any], rank: int) -> Any:
        """What the first rank has for this one."""
        from torch.distributed import ScatterOptions

        rows = [message_of(value) for value in values] if rank == 0 else []
        most = self._counts(max(map(len, rows), default=0))[0]
        mine, options = _room(b"", most), ScatterOptions()
        options.rootRank = 0
        rooms = [[_room(row, most) for row in rows]] if rank == 0 else []
        self._backend.scatter([mine], rooms, options).wait()
        return value_of_message(_bytes(mine))

    def broadcast(self, value: Any, rank: int) -> Any:
        """What the first rank says to all."""
        from torch.distributed import BroadcastOptions

        data = message_of(value) if rank == 0 else b""
        room = _room(data, self._counts(len(data))[0])
        options = BroadcastOptions()
        options.rootRank = 0
        self._backend.broadcast([room], options).wait()
        return value_of_message(_bytes(room))

    def _counts(self, mine: int) -> list[int]:
        import torch

        return [int(n) for n in self._gathered(torch.tensor([mine], device="cpu"))]

    def _gathered(self, mine: Any) -> Sequence[Any]:
        import torch

        found = [torch.empty_like(mine) for _ in range(self._size)]
        self._backend.allgather([found], [mine]).wait()
        return found

    def close(self) -> None:
        """Let go of the backend; torch may still hold it."""
        self._backend = None


def message_of(value: Any) -> bytes:
    """A value as one rank of a job sends it to another."""
    return pickle.dumps(value)


def value_of_message(message: bytes) -> Any:
    """The value that another rank of the job sent; what follows it is not read."""
    return pickle.loads(message)


def _room(data: bytes, size: int) -> Any:
    """Memory of `size` bytes that begins with `data`."""
    import torch

    return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)


def _bytes(room: Any) -> bytes:
    return bytes(room.numpy().tobytes())
