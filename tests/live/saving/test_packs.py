"""Small tensors of a GPU are copied together, and every number is where it belongs.

There is no GPU here: memory of the host stands in for its memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import intarsia
from intarsia.live.background import release
from intarsia.live.saving import copying, packs
from intarsia.live.saving.packs import Pack, packs_of


@pytest.fixture(autouse=True)
def _host_memory_stands_in_for_a_gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    honest = packs.is_packed
    on_gpu = type("OnGpu", (), {"is_cuda": True})

    def is_packed(x: torch.Tensor) -> bool:
        seen = on_gpu()
        seen.nbytes, seen.dtype = x.nbytes, x.dtype
        return honest(seen)  # type: ignore[arg-type]

    monkeypatch.setattr(packs, "is_packed", is_packed)
    release()
    yield
    release()


def tensors() -> dict[str, torch.Tensor]:
    return {
        "a": torch.randn(3, 5),
        "half": torch.randn(7).to(torch.bfloat16),
        "turned": torch.randn(4, 6).t(),
        "nothing": torch.empty(0, 3),
        "one": torch.tensor(2.5),
        "flags": torch.tensor([True, False]),
        "more": torch.randn(2, 2).to(torch.bfloat16),
        "count": torch.tensor([7]),
    }


def bits(x: torch.Tensor) -> bytes:
    return bytes(x.contiguous().reshape(-1).view(torch.uint8).tolist())


def test_each_tensor_of_a_pack_has_its_part_in_its_own_shape() -> None:
    memory = tensors()
    memory["a"][0, 0] = float("nan")
    found = packs_of(memory)
    assert [pack.names for pack in found] == [("a", "turned", "one"), ("half", "more"), ("count",)]
    for pack in found:
        assert pack.take([memory[name] for name in pack.names])
        for name, part in pack.parts(memory):
            assert part.shape == memory[name].shape
            assert bits(part) == bits(memory[name])


def test_a_pack_takes_no_more_of_the_gpu_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_BYTES", 100)
    monkeypatch.setattr(packs, "SMALL_BYTES", 80)
    memory = {str(k): torch.randn(n) for k, n in enumerate([10, 10, 10, 21, 20, 5, 1])}
    found = [pack.names for pack in packs_of(memory)]
    assert found == [("0", "1"), ("2",), ("4", "5"), ("6",)]


def test_memory_is_used_again_for_the_same_tensors_alone() -> None:
    memory = tensors()
    first = packs_of(memory)
    assert [x is y for x, y in zip(first, packs_of(tensors(), first), strict=True)] == [True] * 3
    memory["one"] = torch.tensor([1.0, 2.0])
    again = packs_of(memory, first)
    assert [pack.memory.data_ptr() for pack in again[1:]] == [
        p.memory.data_ptr() for p in first[1:]
    ]
    assert len(again[0].memory) == 15 + 24 + 2


def test_tensors_that_are_elsewhere_now_are_not_taken() -> None:
    memory = tensors()
    pack = packs_of(memory)[0]
    moved = Pack(pack.names, torch.device("meta"), pack.memory)
    assert not moved.take([memory[name] for name in pack.names])
    assert not moved.fits(memory)


def test_without_room_on_the_gpu_tensors_are_copied_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    monkeypatch.setattr(torch._C._nn, "flatten_dense_tensors", full)
    assert_saved(tmp_path / "full", model)


def test_what_changed_since_the_last_save_is_saved(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    for number in range(3):
        with torch.no_grad():
            for x in model.state_dict().values():
                x.add_(1 + number)
        assert_saved(tmp_path / f"step{number}", model)
    assert copying._kept.packs
    model[2] = nn.Linear(4, 5)
    assert_saved(tmp_path / "wider", model)
    model[0].weight.data = model[0].weight.data.double()
    assert_saved(tmp_path / "double", model)


def assert_saved(path: Path, model: nn.Module) -> None:
    saving = intarsia.save(path, model, background=True)
    saving.wait()  # type: ignore[union-attr]
    intarsia.save(path.with_name(path.name + "-now"), model)
    beside = path.with_name(path.name + "-now")
    assert {x.name: x.read_bytes() for x in path.iterdir()} == {
        x.name: x.read_bytes() for x in beside.iterdir()
    }
