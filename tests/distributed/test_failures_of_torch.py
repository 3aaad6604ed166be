"""What `torch.distributed.checkpoint` keeps, drops or mixes without a word; ours of the same.

Each pair runs torch's own save or load and asserts what it makes, so that a torch that has
learned better turns the test red.
"""

from __future__ import annotations

import errno
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import intarsia
from intarsia.errors import CoverageError, FormatError, IntarsiaError, LayoutError
from tests.distributed.ranks import on_ranks
from tests.distributed.small_model import build, optimizer_of, step


def refusal(act: Any, *given: Any, **named: Any) -> str:
    """What an act of ours is refused with; nothing if it is not."""
    try:
        act(*given, **named)
    except IntarsiaError as error:
        return str(error)
    return ""


def several_runs(folder: Path) -> tuple[list[float], list[float]]:
    """The rows that torch and we read into a shard that is two runs of rows."""
    mesh = init_device_mesh("cpu", (2, 2))
    truth = torch.arange(8.0).reshape(8, 1)
    if dist.get_rank() == 0:
        dcp.save({"w": truth}, checkpoint_id=str(folder), no_dist=True)
    dist.barrier()
    found = []
    for load in (
        lambda x: dcp.load(x, checkpoint_id=str(folder)),
        lambda x: intarsia.load(folder, x),
    ):
        held = DTensor.from_local(
            torch.zeros(4, 1), mesh, [_StridedShard(0, split_factor=2), Replicate()],
            shape=truth.shape, stride=truth.stride(),
        )  # fmt: skip
        load({"w": held})
        found.append(held.to_local().flatten().tolist())
    return found[0], found[1]


def test_a_shard_of_several_runs_is_read_run_by_run(tmp_path: Path) -> None:
    found = on_ranks(4, several_runs, tmp_path / "ck")
    assert [ours for _, ours in found] == [[0, 1, 4, 5]] * 2 + [[2, 3, 6, 7]] * 2
    assert [theirs for theirs, _ in found][:2] == [[0, 1, 2, 3]] * 2


class Experts(nn.Module):
    """Experts stacked in one parameter."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


def local_experts(folder: Path) -> dict[str, Any]:
    """Four experts, two on each rank of an expert-parallel pair, that FSDP then shards over the same pair."""
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("ep",))
    everyone = torch.arange(4.0).reshape(4, 1).expand(4, 3).contiguous()
    mine = everyone[2 * rank : 2 * rank + 2].clone()
    said = {"plain": refusal(intarsia.save, folder / "plain", Experts(mine))}
    model = Experts(mine.clone())
    fully_shard(model, mesh=mesh)
    dcp.save(model.state_dict(), checkpoint_id=str(folder / "torch"))
    whole = Experts(distribute_tensor(everyone, mesh, [Shard(0)]))
    intarsia.save(folder / "ours", whole)
    said["wrapped"] = refusal(intarsia.load, folder / "ours", model)
    again = Experts(distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)]))
    intarsia.load(folder / "ours", again)
    return {**said, "right": torch.equal(again.weight.full_tensor(), everyone)}


def test_experts_that_only_their_rank_has_are_not_half_lost(tmp_path: Path) -> None:
    found = on_ranks(2, local_experts, tmp_path)
    theirs = intarsia.open(tmp_path / "torch")["weight"][:]
    assert theirs[:, 0].tolist() == [0, 3]  # of 0, 1, 2, 3
    assert "`weight` [0:2, 0:3] differs between rank 0 and rank 1" in found[0]["plain"]
    assert all("DTensor of [2, 3]" in each["wrapped"] for each in found)
    assert all("[4, 3]" in each["wrapped"] for each in found)
    assert all(each["right"] for each in found)
    assert not (tmp_path / "plain").exists()


def of_two_stages(folder: Path) -> dict[str, str]:
    rank = dist.get_rank()
    states = {
        "differs": {"bias": torch.full((2,), float(rank))},
        "stages": {"layers.0.weight": torch.full((2 + rank, 2), float(rank))},
    }
    said = {}
    for name, state in states.items():
        dcp.save(state, checkpoint_id=str(folder / name))
        said[name] = refusal(intarsia.save, folder / f"our-{name}", state)
    return said


def test_tensors_of_one_name_that_are_not_one_are_refused(tmp_path: Path) -> None:
    """A plain tensor that ranks do not share, and two pipeline stages that count from zero."""
    found = on_ranks(2, of_two_stages, tmp_path)
    for name, key in (("differs", "bias"), ("stages", "layers.0.weight")):
        kept = intarsia.open(tmp_path / name)[key][:]
        assert len(kept.unique()) == 1  # of two
        assert not (tmp_path / f"our-{name}").exists()
    assert "`bias` [0:2] differs between rank 0 and rank 1" in found[0]["differs"]
    assert all("[2, 2] on rank 0 and F32 [3, 2] on rank 1" in each["stages"] for each in found)


class Full(dcp.FileSystemWriter):
    """A writer whose second rank finds the disk full."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        if dist.get_rank() == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write_data(plan, planner)


def on_a_full_disk(folder: Path) -> tuple[bool, str]:
    """Whether torch's save fails, and what ours says, when the second save meets a full disk."""
    mesh = init_device_mesh("cpu", (2,))

    def state(value: float) -> dict[str, Any]:
        return {"w": DTensor.from_local(torch.full((4,), value), mesh, [Shard(0)])}

    dcp.save(state(1.0), checkpoint_id=str(folder / "torch"))
    failed = False
    try:
        dcp.save(state(2.0), storage_writer=Full(str(folder / "torch")))
    except dcp.CheckpointException:
        failed = True
    intarsia.save(folder / "ours", state(1.0))
    if dist.get_rank() == 1:
        import intarsia.live.saving.write as saving

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        saving._write_slot = full
    try:
        intarsia.save(folder / "ours", state(2.0), overwrite=True)
    except (OSError, IntarsiaError) as error:
        return failed, str(error)
    return failed, ""


def test_a_save_that_fails_on_one_rank_leaves_the_old_one_whole(tmp_path: Path) -> None:
    found = on_ranks(2, on_a_full_disk, tmp_path)
    assert all(failed for failed, _ in found)
    assert all("No space left" in said for _, said in found)
    theirs = {"w": torch.zeros(8)}
    dcp.load(theirs, checkpoint_id=str(tmp_path / "torch"), no_dist=True)
    assert theirs["w"].tolist() == [2, 2, 2, 2, 1, 1, 1, 1]
    ours = {"w": torch.zeros(8)}
    intarsia.load(tmp_path / "ours", into=ours)
    assert ours["w"].tolist() == [1] * 8


def never_stepped(folder: Path) -> dict[str, Any]:
    """Resuming a model with a parameter that no step has reached."""
    model = build(3, "fsdp=2")
    optimizer = optimizer_of(model)
    step(model, optimizer, 0)
    intarsia.save(folder / "ours", model, optimizer)
    # Asked for its state, torch steps for a parameter that has none: what is saved is what was there.
    plain = {"model": model.state_dict(), "optim": _by_name(model, optimizer)}
    dcp.save(plain, checkpoint_id=str(folder / "torch"))
    fresh = build(4, "fsdp=2")
    other = optimizer_of(fresh)
    weights, state = get_state_dict(fresh, other)
    target = {"model": weights, "optim": state}
    found: dict[str, Any] = {}
    try:
        dcp.load(target, checkpoint_id=str(folder / "torch"))
    except dcp.CheckpointException as error:
        found["torch"] = str(error)
    dcp.load(
        target,
        checkpoint_id=str(folder / "torch"),
        planner=dcp.DefaultLoadPlanner(allow_partial_load=True),
    )
    set_state_dict(fresh, other, model_state_dict=target["model"], optim_state_dict=target["optim"])
    found["partly"] = float(other.state[fresh.spare]["step"])
    again = build(5, "fsdp=2")
    third = optimizer_of(again)
    report = intarsia.load(folder / "ours", into=again, optimizer=third)
    return {**found, "never": report.never_stepped, "state": again.spare in third.state}


def _by_name(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state that an optimizer has, in torch's spelling by name."""
    held = {n: optimizer.state[p] for n, p in model.named_parameters() if p in optimizer.state}
    return {"state": {n: dict(s) for n, s in held.items() if s}}


def test_a_parameter_that_was_never_stepped_gets_no_step(tmp_path: Path) -> None:
    for each in on_ranks(2, never_stepped, tmp_path):
        assert "Missing key in checkpoint state_dict: optim.state.spare." in each["torch"]
        assert each["partly"] == 1.0  # of no step at all
        assert each["never"] == ["spare"]
        assert not each["state"]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    folder = tmp_path / "stored"
    dcp.save(
        {"w": torch.full((4,), 1.75), "more": torch.ones(2)},
        checkpoint_id=str(folder),
        no_dist=True,
    )
    return folder


def test_numbers_are_not_cut_to_whole_ones(stored: Path) -> None:
    held = {"w": torch.zeros(4, dtype=torch.int32)}
    dcp.load(held, checkpoint_id=str(stored), no_dist=True)
    assert held["w"].tolist() == [1, 1, 1, 1]
    with pytest.raises(LayoutError, match="I32 in the model and F32"):
        intarsia.load(stored, into=held, strict=False)


def test_a_tensor_that_the_model_lacks_is_told(stored: Path) -> None:
    held = {"w": torch.zeros(4)}
    dcp.load(held, checkpoint_id=str(stored), no_dist=True)
    with pytest.raises(CoverageError, match="are not in the model: more"):
        intarsia.load(stored, into=held)


def test_a_chunk_that_is_missing_is_told(stored: Path) -> None:
    file = stored / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    tensor = metadata.state_dict_metadata["w"]
    tensor.chunks[0].sizes = torch.Size([2])
    file.write_bytes(pickle.dumps(metadata))
    held = {"w": torch.full((4,), -7.0), "more": torch.zeros(2)}
    dcp.load(held, checkpoint_id=str(stored), no_dist=True)
    assert held["w"][2:].tolist() == [-7, -7]  # as it was before
    with pytest.raises(IntarsiaError, match="chunks of `w` do not tile it: 2 of 4 elements"):
        intarsia.load(stored, into=held)


def as_shards_and_ours(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    state = {
        "w": distribute_tensor(torch.arange(1.0, 9.0), mesh, [Shard(0)]),
        "scale": distribute_tensor(torch.tensor(3.5), mesh, [Replicate()]),
    }
    writer = dcp.HuggingFaceStorageWriter(str(folder / "shards"), save_distributed=True)
    dcp.save(state, storage_writer=writer)
    intarsia.save(folder / "dcp", state)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """One state of two ranks: `shards`, the safetensors files that torch writes, and ours, `dcp`."""
    on_ranks(2, as_shards_and_ours, tmp_path)
    return tmp_path


def test_the_file_of_a_rank_that_is_missing_is_told(saved: Path) -> None:
    shards = saved / "shards"
    first, _ = sorted(shards.glob("*.safetensors"))
    first.unlink()
    theirs = {"w": torch.full((8,), -7.0)}
    dcp.load(theirs, storage_reader=dcp.HuggingFaceStorageReader(str(shards)), no_dist=True)
    assert theirs["w"].tolist() == [-7, -7, -7, -7, 5, 6, 7, 8]
    with pytest.raises(FormatError, match="unconsolidated"):
        intarsia.load(shards, into={"w": torch.zeros(8)}, strict=False)
    (saved / "dcp" / "__0_0.distcp").unlink()
    with pytest.raises(IntarsiaError, match=r"__0_0\.distcp"):
        intarsia.load(saved / "dcp", into={"w": torch.zeros(8)}, strict=False)


def test_a_number_keeps_its_value_when_shards_are_joined(saved: Path) -> None:
    (saved / "torch").mkdir()
    consolidate_safetensors_files(str(saved / "shards"), str(saved / "torch"), {"w": 1, "scale": 1})
    assert intarsia.open(saved / "torch")["scale"][...].item() == 0.0
    intarsia.convert(saved / "dcp", saved / "hf", to="hf")
    assert intarsia.open(saved / "hf")["scale"][...].item() == 3.5
    assert intarsia.open(saved / "hf")["w"][:].tolist() == list(range(1, 9))
