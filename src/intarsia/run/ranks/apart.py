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
        import torch

        data = b"" if value is None else pickle.dumps(value)
        counts = [int(n) for n in self._gathered(torch.tensor([len(data)]))]
        if not any(counts):
            return [None] * self._size
        room = torch.frombuffer(bytearray(data.ljust(max(counts), b"\0")), dtype=torch.uint8)
        both = zip(self._gathered(room), counts, strict=True)
        return [pickle.loads(x[:n].numpy().tobytes()) if n else None for x, n in both]

    def _gathered(self, mine: Any) -> Sequence[Any]:
        import torch

        found = [torch.empty_like(mine) for _ in range(self._size)]
        self._backend.allgather([found], [mine]).wait()
        return found

    def close(self) -> None:
        """Let go of the backend; torch may still hold it."""
        self._backend = None
