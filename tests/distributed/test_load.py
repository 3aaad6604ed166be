"""Loading on real ranks: what each rank's memory holds is what `full_tensor()` makes whole again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

import intarsia
from tests.distributed.ranks import on_ranks, outcomes

SIZES = {"a": (9, 5), "b": (16, 6), "c": (7,), "d": (3, 4, 10), "e": (1, 3), "f": (8, 8), "g": ()}


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {name: torch.randn(shape) for name, shape in SIZES.items()}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same weights in a safetensors folder and in a DCP folder of another mesh."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "hf").mkdir()
    save_file(weights(), folder / "hf" / "model.safetensors")
    intarsia.convert(folder / "hf", folder / "dcp", to="dcp", mesh={"tp": 2, "fsdp": 3})
    return {"hf": folder / "hf", "dcp": folder / "dcp"}


MESHES: dict[int, list[tuple[int, ...]]] = {
    2: [(2,), (1, 2)],
    4: [(4,), (2, 2), (4, 1), (2, 1, 2)],
    8: [(8,), (4, 2), (2, 4), (2, 2, 2)],
}


def cuts(rng: random.Random, shape: tuple[int, ...], mesh: tuple[int, ...]) -> list[Any]:
    """Placements that some framework makes: plain cuts, tensor parallel inside FSDP, replicas."""
    if not shape:
        return [Replicate()] * len(mesh)
    if len(mesh) > 1 and rng.random() < 0.4:
        inner = rng.randrange(len(shape))
        outer: Any = _StridedShard(0, split_factor=mesh[-1]) if inner == 0 else Shard(0)
        rest = [Replicate()] * (len(mesh) - 2)
        return [*rest, outer, Shard(inner)]
    options = [Replicate(), *(Shard(d) for d in range(len(shape)))]
    return [rng.choice(options) for _ in mesh]


def empty(shape: tuple[int, ...], mesh: Any, placements: list[Any]) -> DTensor:
    """An uninitialised DTensor, laid out where `full_tensor()` looks for its data."""
    from intarsia.layout import Layout
    from intarsia.placement import from_torch, local

    place = local(
        Layout.of("", shape), tuple(mesh.shape), from_torch(placements), mesh.get_coordinate()
    )
    blank = torch.full(place.shape, float("nan"))
    stride = torch.empty(shape).stride()
    return DTensor.from_local(blank, mesh, placements, shape=torch.Size(shape), stride=stride)


def random_meshes(path: Path, seeds: list[int]) -> list[str]:
    truth = weights()
    wrong = []
    for seed in seeds:
        rng = random.Random(seed)
        shape = rng.choice(MESHES[dist.get_world_size()])
        mesh = init_device_mesh("cpu", shape)
        state = {name: empty(size, mesh, cuts(rng, size, shape)) for name, size in SIZES.items()}
        intarsia.load(path, into=state)
        for name, tensor in state.items():
            if not torch.equal(tensor.full_tensor(), truth[name]):
                wrong.append(f"seed {seed}: {name} on {shape} as {tensor.placements}")
    return wrong


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.one_in(3)
def test_any_mesh_and_any_placements_are_filled_as_full_tensor_reads_them(
    stored: dict[str, Path], count: int
) -> None:
    for form in ("hf", "dcp"):
        found = on_ranks(count, random_meshes, stored[form], list(range(8)))
        assert found == [[]] * count


class Nine(nn.Module):
    """A column-parallel layer whose nine rows two tensor-parallel ranks cut unevenly."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(5, 9, bias=False)


def uneven(path: Path) -> tuple[bool, bool | str]:
    """Whether ours, and whether torch's own loader, give the rows that `full_tensor()` reads."""
    import torch.distributed.checkpoint as dcp

    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    model = Nine()
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    truth = torch.arange(45.0).reshape(9, 5)
    intarsia.load(path, into=model)
    ours = torch.equal(model.up.weight.full_tensor(), truth)
    intarsia.save(path.with_name("ours"), model)
    again = {"up.weight": torch.empty(9, 5)}
    dcp.load(again, checkpoint_id=str(path.with_name("ours")), no_dist=True)
    theirs: bool | str
    try:
        dcp.save(model.state_dict(), checkpoint_id=str(path.with_name("torch")))
        with torch.no_grad():
            model.up.weight.to_local().zero_()
        dcp.load(model.state_dict(), checkpoint_id=str(path.with_name("torch")))
        theirs = torch.equal(model.up.weight.full_tensor(), truth)
    except Exception as error:
        theirs = f"{type(error).__name__}"
    return ours and torch.equal(again["up.weight"], truth), theirs


def test_an_uneven_strided_shard_is_right_where_torch_is_silently_wrong(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    save_file(
        {"up.weight": torch.arange(45.0).reshape(9, 5)}, tmp_path / "hf" / "model.safetensors"
    )
    found = on_ranks(8, uneven, tmp_path / "hf")
    assert [ours for ours, _ in found] == [True] * 8
    assert [theirs for _, theirs in found] != [True] * 8


def read_bytes(path: Path, placement: Any) -> tuple[int, int]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {"w": empty((512, 1024), mesh, [placement])}
    report = intarsia.load(path, into=state)
    return report.read_bytes, report.held_bytes


@pytest.mark.parametrize("placement", [Shard(0), Shard(1)])
@pytest.mark.one_in(2)
def test_ranks_together_read_a_checkpoint_once(tmp_path: Path, placement: Shard) -> None:
    (tmp_path / "hf").mkdir()
    save_file({"w": torch.randn(512, 1024)}, tmp_path / "hf" / "model.safetensors")
    intarsia.convert(tmp_path / "hf", tmp_path / "dcp", to="dcp", mesh={"fsdp": 3})
    for form in ("hf", "dcp"):
        found = on_ranks(4, read_bytes, tmp_path / form, placement)
        assert sum(held for _, held in found) == 512 * 1024 * 4
        for read, held in found:
            assert read <= 1.05 * held


def objection(path: Path) -> None:
    rows = 4 if dist.get_rank() == 1 else 3
    intarsia.load(path, into={"d": torch.empty(rows, 4, 10)}, strict=False)


def test_a_rank_that_objects_stops_all_before_a_byte_is_read(stored: dict[str, Path]) -> None:
    found = outcomes(2, objection, stored["hf"])
    assert [good for good, _ in found] == [False, False]
    assert "`d` is a plain tensor of [4, 4, 10]" in found[1][1]
    assert "rank 1 failed, so rank 0 stops too" in found[0][1]


def dying(path: Path) -> None:
    import os
    import threading

    if dist.get_rank() == 1:
        threading.Timer(0.0, lambda: os._exit(9)).start()
        threading.Event().wait()
    intarsia.load(path, into={name: torch.empty(size) for name, size in SIZES.items()})


def test_the_others_learn_of_a_rank_that_died(stored: dict[str, Path]) -> None:
    found = outcomes(3, dying, stored["hf"], seconds=90)
    assert found[1] == (False, "it died")
    for rank in (0, 2):
        assert "lost the connection to the other 2 ranks" in found[rank][1]


def without_shape(path: Path) -> str:
    mesh = init_device_mesh("cpu", (4,))
    rows = [3, 3, 3, 0][dist.get_rank()]
    held = DTensor.from_local(torch.empty(rows, 5), mesh, [Shard(0)])
    try:
        intarsia.load(path, into={"a": held}, strict=False)
    except intarsia.IntarsiaError as error:
        return str(error)
    return ""


def test_a_dtensor_made_without_its_shape_is_refused(stored: dict[str, Path]) -> None:
    for said in on_ranks(4, without_shape, stored["hf"]):
        assert "`a`" in said
        assert "[9, 5]" in said
