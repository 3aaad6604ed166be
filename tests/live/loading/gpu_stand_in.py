"""A GPU that the processor's memory stands in for: its streams do at once what they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from intarsia.live.loading.filling import to_device


class EventStandIn:
    """An event of a GPU that has done a thing when it is asked the second time."""

    def __init__(self) -> None:
        self._asked = 0

    def query(self) -> bool:
        self._asked += 1
        return self._asked > 1

    def synchronize(self) -> None:
        pass


class StreamStandIn:
    """A stream of a GPU that does at once what it is asked for."""

    def __init__(self, device: Any = None) -> None:
        self.waited_for: list[EventStandIn] = []

    def record_event(self) -> EventStandIn:
        return EventStandIn()

    def wait_event(self, event: EventStandIn) -> None:
        self.waited_for.append(event)

    def synchronize(self) -> None:
        pass


class TensorStandIn(torch.Tensor):
    """Memory of the processor that says it is a GPU's."""

    is_cuda = True  # type: ignore[assignment]
    device = torch.device("cuda")  # type: ignore[assignment]


@pytest.fixture
def gpu_stand_in(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that sent something to the GPU."""
    used_by: set[int] = set()

    @contextmanager
    def stream(at: StreamStandIn) -> Iterator[None]:
        used_by.add(threading.get_ident())
        yield

    monkeypatch.setattr(torch.cuda, "Stream", StreamStandIn)
    monkeypatch.setattr(torch.cuda, "current_stream", StreamStandIn)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(to_device, "pinned", lambda n: torch.empty(n, dtype=torch.uint8))
    return used_by
