"""What many threads read goes to a GPU by one; here memory of the processor stands in for the GPU's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from intarsia.live.loading.filling import to_device
from intarsia.live.loading.filling.to_device import AHEAD, ToDevice
from intarsia.mesh import Box
from intarsia.run.sharing import share_out
from tests.live.loading.gpu_stand_in import StreamStandIn, gpu_stand_in  # noqa: F401

pytestmark = pytest.mark.usefixtures("gpu_stand_in")

PARTS, LENGTH = 64, 100


def carry_out(sent: ToDevice, tensor: torch.Tensor, part: int) -> None:
    """Fill one row of a tensor, as a step of a load does."""
    room = sent.room(4 * LENGTH)
    copy = sent.copy(tensor, Box((part, 0), (1, LENGTH)), part * LENGTH, 0)
    room[:] = torch.full((LENGTH,), float(part)).view(torch.uint8).numpy()
    sent.send([copy])


@pytest.mark.parametrize("workers", [1, 3, 16])
@pytest.mark.parametrize("strided", [False, True])
def test_every_window_arrives_and_one_thread_sends_them(
    workers: int,
    strided: bool,
    gpu_stand_in: set[int],  # noqa: F811
) -> None:
    tensor = torch.zeros(PARTS, LENGTH + 4)[:, :LENGTH] if strided else torch.zeros(PARTS, LENGTH)
    sent = ToDevice(64, workers, [tensor])
    share_out(range(PARTS), workers, lambda part: carry_out(sent, tensor, part))
    sent.settle()
    assert torch.equal(tensor, torch.arange(PARTS).float()[:, None].expand(PARTS, LENGTH))
    assert len(gpu_stand_in) == 1
    assert threading.get_ident() not in gpu_stand_in


def test_all_goes_through_one_stream_which_waits_for_the_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[StreamStandIn] = []

    def stream(device: Any) -> StreamStandIn:
        made.append(StreamStandIn(device))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    tensor = torch.zeros(PARTS, LENGTH)
    sent = ToDevice(64, 1, [tensor])
    for part in range(PARTS):
        carry_out(sent, tensor, part)
    sent.settle()
    assert [len(x.waited_for) for x in made] == [1]


def test_windows_are_kept_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def pinned(count_bytes: int) -> torch.Tensor:
        made.append(count_bytes)
        return torch.empty(count_bytes, dtype=torch.uint8)

    monkeypatch.setattr(to_device, "pinned", pinned)
    tensor = torch.zeros(PARTS, LENGTH)
    sent = ToDevice(1000, 2, [tensor])
    for part in range(PARTS):
        carry_out(sent, tensor, part)
    sent.settle()
    assert len(made) <= 2 + AHEAD
    assert set(made) == {1008}


@pytest.mark.parametrize("workers", [1, 4])
def test_a_copy_that_fails_ends_the_load_with_its_error(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **named: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "_foreach_copy_", fails)
    tensor = torch.zeros(PARTS, LENGTH)
    sent = ToDevice(64, workers, [tensor])
    with pytest.raises(RuntimeError, match="illegal memory access"):
        share_out(range(PARTS), workers, lambda part: carry_out(sent, tensor, part))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        sent.settle()


def test_a_copy_that_fails_last_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: StreamStandIn) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(StreamStandIn, "synchronize", fails)
    tensor = torch.zeros(PARTS, LENGTH)
    sent = ToDevice(64, 1, [tensor])
    carry_out(sent, tensor, 0)
    with pytest.raises(RuntimeError, match="launch failure"):
        sent.settle()
