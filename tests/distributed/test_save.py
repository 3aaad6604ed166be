"""Saving on real ranks, and going on from there on other ranks."""

from __future__ import annotations

import atexit
import importlib
import itertools
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import intarsia
from intarsia.live import background
from intarsia.live.saving import copying
from intarsia.run.ranks.crew import Crew
from intarsia.store.writing import staging
from tests.distributed.ranks import on_ranks, outcomes
from tests.distributed.small_model import build, everything, optimizer_of, step

ROUTE = ["fsdp=2,tp=2", "", "fsdp=1,tp=4", "fsdp=4,tp=1", "fsdp=8", "replicate=2,fsdp=2", "tp=2"]
"""Meshes of a run that moves after every second step."""


def ranks_of(layout: str) -> int:
    sizes = [int(part.split("=")[1]) for part in layout.split(",") if part]
    count = 1
    for n in sizes:
        count *= n
    return count


def leg(
    folder: Path, number: int, layout: str
) -> tuple[list[float], dict[str, Any], dict[str, Any]]:
    """Go on from the last checkpoint for two steps, and save: losses, what was loaded, what is saved."""
    model = build(3 if not number else 100 + number, layout, meta=bool(number))
    extra: dict[str, Any] = {}
    loaded: dict[str, Any] = {}
    if not number:
        optimizer = optimizer_of(model)
    else:
        intarsia.load(folder, into=model)
        optimizer = optimizer_of(model, lr=123.0)
        extra = intarsia.load(folder, into=model, optimizer=optimizer).extra
        loaded = everything(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    if number:
        schedule.load_state_dict(extra["schedule"])
        torch.set_rng_state(extra["rng"])
    losses = []
    for k in range(2):
        losses.append(step(model, optimizer, 2 * number + k))
        schedule.step()
    torch.manual_seed(5)
    intarsia.save(
        folder / f"step-{number}",
        model,
        optimizer,
        extra={
            "schedule": schedule.state_dict(),
            "position": {"epoch": 1, "sample": 24 * (number + 1)},
            "rng": torch.get_rng_state(),
            "rank": dist.get_rank(),
        },
    )
    return losses, loaded, everything(model, optimizer)


def straight(count: int) -> list[float]:
    model = build(3, "")
    optimizer = optimizer_of(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    losses = []
    for k in range(count):
        losses.append(step(model, optimizer, k))
        schedule.step()
    return losses


@pytest.mark.parametrize("legs", [3, pytest.param(len(ROUTE), marks=pytest.mark.slow)])
def test_a_run_that_moves_from_mesh_to_mesh_goes_on_as_if_it_had_not(
    legs: int, tmp_path: Path
) -> None:
    losses: list[float] = []
    saved: dict[str, torch.Tensor] = {}
    for number, layout in enumerate(ROUTE[:legs]):
        found = on_ranks(ranks_of(layout), leg, tmp_path, number, layout)
        for _, loaded, _ in found:
            if number:
                assert loaded.keys() == saved.keys()
                different = [n for n in saved if not torch.equal(loaded[n], saved[n])]
                assert not different, f"{layout}: {different}"
        losses += found[0][0]
        saved = found[0][2]
        assert (tmp_path / "latest").read_text() == f"step-{number}\n"
    (expected,) = on_ranks(1, straight, 2 * legs)  # a process that no other test has touched
    assert losses == pytest.approx(expected, rel=2e-6)
    assert "spare" in saved
    assert not any(name.startswith("spare:") for name in saved)


def test_what_was_saved_converts_and_verifies(tmp_path: Path) -> None:
    on_ranks(4, leg, tmp_path, 0, "fsdp=2,tp=2")
    intarsia.convert(tmp_path / "step-0", tmp_path / "hf", to="hf")
    assert intarsia.verify(tmp_path / "step-0", tmp_path / "hf")
    told = json.loads((tmp_path / "step-0" / "intarsia-digests.json").read_text())
    assert told["tensors"] == intarsia.digest(tmp_path / "hf").tensors
    found = on_ranks(2, through, tmp_path / "hf")
    assert all(found)


def through(path: Path) -> bool:
    """Whether what went through another format is what one process reads of it with torch alone."""
    model = build(9, "fsdp=2")
    optimizer = optimizer_of(model)
    intarsia.load(path, into=model, optimizer=optimizer)
    plain = {n: torch.empty_like(x) for n, x in build(1, "").state_dict().items()}
    dcp.load(plain, checkpoint_id=str(path.with_name("step-0")), no_dist=True)
    held = everything(model, optimizer)
    return all(torch.equal(held[n], x) for n, x in plain.items()) and "head.weight:exp_avg" in held


def with_torch(folder: Path) -> bool:
    """Whether plain DCP restores a model and an optimizer from what we saved."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = build(3, "fsdp=2,tp=2")
    model.spare.requires_grad_(False)
    optimizer = optimizer_of(model)
    for k in range(2):
        step(model, optimizer, k)
    truth = everything(model, optimizer)
    intarsia.save(folder / "ours", model, optimizer)
    fresh = build(4, "fsdp=2,tp=2")
    fresh.spare.requires_grad_(False)
    other = optimizer_of(fresh)
    state, held = get_state_dict(fresh, other)
    target = {**state, "optimizer": held}
    dcp.load(target, checkpoint_id=str(folder / "ours"))
    held = target.pop("optimizer")
    set_state_dict(fresh, other, model_state_dict=target, optim_state_dict=held)
    found = everything(fresh, other)
    return found.keys() == truth.keys() and all(torch.equal(found[n], truth[n]) for n in truth)


def test_plain_dcp_restores_model_and_optimizer(tmp_path: Path) -> None:
    assert on_ranks(4, with_torch, tmp_path) == [True] * 4


def unlike(folder: Path) -> str:
    try:
        intarsia.save(folder / "ck", {"stage.weight": torch.full((2, 2), float(dist.get_rank()))})
    except intarsia.IntarsiaError as error:
        return str(error)
    return ""


def test_plain_tensors_of_one_name_that_differ_are_refused(tmp_path: Path) -> None:
    found = on_ranks(2, unlike, tmp_path)
    assert "`stage.weight` [0:2, 0:2] differs between rank 0 and rank 1" in found[0]
    assert "rank 0 failed" in found[1]
    assert list(tmp_path.iterdir()) == []


def shapes(folder: Path) -> str:
    rows = 2 + dist.get_rank()
    try:
        intarsia.save(folder / "ck", {"w": torch.zeros(rows, 2)})
    except intarsia.IntarsiaError as error:
        return str(error)
    return ""


def test_one_name_with_two_shapes_is_refused(tmp_path: Path) -> None:
    for said in on_ranks(2, shapes, tmp_path):
        assert "F32 [2, 2] on rank 0 and F32 [3, 2] on rank 1" in said


def elsewhere(folder: Path) -> list[str]:
    """Rank 1 has another path, or another disk under the same one, with what a killed run left there."""
    rank = dist.get_rank()
    left = folder / ".ck-1.intarsia-partial"
    if rank == 1:
        left.mkdir()
        (left / "__1_0.distcp").write_bytes(bytes(4096))
    told = []
    saving = importlib.import_module("intarsia.live.saving.write")
    staging.AWAIT_SECONDS = 0.5
    held = {"w": DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (2,)), [Shard(0)])}
    for where in ("other path", "other disk"):
        if where == "other disk":
            saving.real = lambda path: "ck"
        try:
            intarsia.save(folder / f"ck-{rank}", held)
        except intarsia.IntarsiaError as error:
            told.append(str(error))
    return told


def test_a_rank_that_would_write_elsewhere_stops_all(tmp_path: Path) -> None:
    first, second = on_ranks(2, elsewhere, tmp_path)
    for told in (first, second):
        assert "rank 1 was called with something else than rank 0" in told[0]
        assert f"destination: {tmp_path}/ck-0 on rank 0, {tmp_path}/ck-1 on rank 1" in told[0]
        assert f"does not see {tmp_path}/.ck-1.intarsia-partial, which rank 0 has made" in told[1]
    assert [x.name for x in tmp_path.iterdir()] == [".ck-1.intarsia-partial"]


def some_in_the_background(folder: Path) -> tuple[list[str], bool]:
    """Before a first save in the background, and after one."""
    told = []
    for name in ("ck-1", "ck-2"):
        try:
            intarsia.save(folder / name, {"w": torch.ones(2)}, background=dist.get_rank() == 0)
        except intarsia.IntarsiaError as error:
            told.append(str(error))
        saving = intarsia.save(folder / name, {"w": torch.ones(2)}, background=True)
        saving.wait()
        intarsia.save(folder / name, {"w": torch.ones(2)}, overwrite=True)
    return told, bool(intarsia.verify(folder))


def test_ranks_of_which_some_save_in_the_background_all_stop(tmp_path: Path) -> None:
    for told, sound in on_ranks(2, some_in_the_background, tmp_path, seconds=30):
        assert len(told) == 2
        assert sound
        assert all("background: True on rank 0, False on rank 1" in each for each in told)


def without_closing(folder: Path) -> bool:
    """A strided shard that no later axis closes is two runs of rows on each rank."""
    mesh = init_device_mesh("cpu", (2, 2))
    rows = {0: [0, 1, 4, 5], 1: [2, 3, 6, 7]}[mesh.get_coordinate()[0]]
    truth = torch.arange(24.0).reshape(8, 3)
    from torch.distributed.tensor import Replicate

    placements = [_StridedShard(0, split_factor=2), Replicate()]
    held = DTensor.from_local(
        truth[rows].clone(), mesh, placements, shape=truth.shape, stride=truth.stride()
    )
    intarsia.save(folder / "ck", {"w": held})
    again = {"w": torch.empty(8, 3)}
    dcp.load(again, checkpoint_id=str(folder / "ck"), no_dist=True)
    blank = DTensor.from_local(
        torch.zeros(4, 3), mesh, placements, shape=truth.shape, stride=truth.stride()
    )
    intarsia.load(folder / "ck", into={"w": blank})
    return torch.equal(again["w"], truth) and torch.equal(blank.to_local(), truth[rows])


def test_a_shard_of_several_runs_is_saved_in_as_many_boxes(tmp_path: Path) -> None:
    assert on_ranks(4, without_closing, tmp_path) == [True] * 4


def too_much(folder: Path) -> str:
    """Rank 1 holds a row more than its placement gives it."""
    mesh = init_device_mesh("cpu", (2,))
    rows = torch.zeros(2 + dist.get_rank(), 2)
    held = DTensor.from_local(rows, mesh, [Shard(0)], shape=torch.Size((4, 2)), stride=(2, 1))
    try:
        intarsia.save(folder / "ck", {"w": held})
    except intarsia.IntarsiaError as error:
        return str(error)
    return ""


def test_a_shard_that_is_not_its_placement_stops_all_ranks(tmp_path: Path) -> None:
    found = on_ranks(2, too_much, tmp_path)
    assert "gives this rank 4 elements; it holds 6" in found[1]
    assert "rank 1 failed, so rank 0 stops too" in found[0]


def by_rank(folder: Path) -> Any:
    return intarsia.load(folder, into={"w": torch.empty(2)}).extra["rank"]


def one(folder: Path) -> None:
    intarsia.save(folder / "ck", {"w": torch.ones(2)}, extra={"rank": dist.get_rank()})


def test_a_value_of_each_rank_comes_back_to_it_or_as_the_list_of_all(tmp_path: Path) -> None:
    on_ranks(2, one, tmp_path)
    assert on_ranks(2, by_rank, tmp_path / "ck") == [0, 1]
    assert on_ranks(3, by_rank, tmp_path / "ck") == [[0, 1]] * 3


def in_background(folder: Path) -> tuple[float, list[bool]]:
    mesh = init_device_mesh("cpu", (2,))
    held = DTensor.from_local(torch.zeros(1000, 100), mesh, [Shard(0)])
    good = []
    pause = 0.0
    for k in range(3):
        with torch.no_grad():
            held.to_local().fill_(float(k))
        saving = intarsia.save(folder / f"step-{k}", {"w": held}, background=True)
        pause = saving.pause_seconds
        with torch.no_grad():
            held.to_local().fill_(-1.0)  # what the next step does must not be in it
        for _ in range(3):
            dist.all_reduce(torch.ones(1000))  # what a training does meanwhile
        if k == 1:
            saving.wait()
    saving.wait()
    for k in range(3):
        again = {"w": torch.empty(2000, 100)}
        intarsia.load(folder / f"step-{k}", into=again)
        good.append(bool((again["w"] == k).all()))
    good += training_in_background(folder)
    return pause, good


def training_in_background(folder: Path) -> list[bool]:
    """Whether each save of a training with FSDP2 is that of its step, though only the first names tensors."""
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))
    for each in (*model, model):
        fully_shard(each)
    optimizer = torch.optim.AdamW(model.parameters())
    good, named = [], copying.snapshot
    for k in range(3):
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        intarsia.save(folder / f"now-{k}", model, optimizer)
        model(torch.ones(2, 6))  # shards are put back in their places by the save
        saving = intarsia.save(folder / f"aside-{k}", model, optimizer, background=True)
        copying.snapshot = None  # type: ignore[assignment]
        saving.wait()
        good.append(bool(intarsia.verify(folder / f"now-{k}", folder / f"aside-{k}")))
    copying.snapshot = named
    return good


def test_a_background_save_holds_what_was_there_when_it_was_called(tmp_path: Path) -> None:
    for _, good in on_ranks(2, in_background, tmp_path):
        assert good == [True] * 6
    assert intarsia.verify(tmp_path / "step-2", tmp_path / "step-2")


def threads_of_groups() -> int:
    """Threads of this process that work for a gloo group."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            names.append((thread / "comm").read_text())
    return sum("gloo_runloop" in name for name in names)


def ended_after_background_saves(folder: Path) -> tuple[bool, int]:
    found = []
    for k in range(2):
        intarsia.save(folder / f"step-{k}", {"w": torch.ones(2)}, background=True).wait()
        found.append(background._groups[dist.group.WORLD])
    dist.destroy_process_group()
    return found[0] is found[1], threads_of_groups()


def test_the_group_of_background_saves_ends_with_the_others(tmp_path: Path) -> None:
    """A thread of a group that outlives the interpreter ends the process with an abort."""
    for one_for_all, threads in on_ranks(2, ended_after_background_saves, tmp_path):
        assert one_for_all
        assert threads == 0


def left_open_after_a_background_save(folder: Path) -> tuple[bool, bool]:
    intarsia.save(folder / "step-0", {"w": torch.ones(2)}, background=True).wait()
    group = background._groups[dist.group.WORLD]
    before = group() is not None
    dist.barrier()
    atexit._run_exitfuncs()
    return before, group() is not None


def test_a_script_that_ends_no_group_ends_that_of_background_saves_all_the_same(
    tmp_path: Path,
) -> None:
    for before, after in on_ranks(2, left_open_after_a_background_save, tmp_path):
        assert before
        assert not after


def failing_in_background(folder: Path) -> list[str]:
    said = []
    (folder / "taken").mkdir(exist_ok=True)
    (folder / "taken" / "file").write_text("in use")
    dist.barrier()
    saving = intarsia.save(folder / "taken", {"w": torch.ones(2)}, background=True)
    while not saving.done:
        time.sleep(0.01)
    try:
        intarsia.save(folder / "next", {"w": torch.ones(2)})
    except intarsia.IntarsiaError as error:
        said.append(str(error))
    return said


def test_what_went_wrong_in_the_background_is_raised_by_the_next_save(tmp_path: Path) -> None:
    found = on_ranks(2, failing_in_background, tmp_path)
    assert "exists" in found[0][0]
    assert "rank 0 failed" in found[1][0]
    assert (tmp_path / "taken" / "file").read_text() == "in use"


def group_ended_first(folder: Path) -> bool:
    """The script ends its groups while the save is still being written."""
    import intarsia.live.saving.write as saving

    write = saving._write_slot

    def slowly(*given: Any) -> None:
        time.sleep(0.3)
        write(*given)

    saving._write_slot = slowly
    mesh = init_device_mesh("cpu", (2,))
    held = DTensor.from_local(torch.full((2, 2), float(dist.get_rank())), mesh, [Shard(0)])
    under_way = intarsia.save(folder / "step-1", {"w": held}, background=True)
    dist.destroy_process_group()
    still = not under_way.done  # type: ignore[union-attr]
    under_way.wait()  # type: ignore[union-attr]
    return still


def test_a_background_save_outlives_the_groups_of_the_training(tmp_path: Path) -> None:
    assert all(on_ranks(2, group_ended_first, tmp_path))
    again = {"w": torch.empty(4, 2)}
    intarsia.load(tmp_path, into=again)
    assert again["w"][:, 0].tolist() == [0, 0, 1, 1]


def unlike_extras(folder: Path) -> tuple[str, list[Any]]:
    rank = dist.get_rank()
    bad: dict[str, Any] = {"open file": object()} if rank == 1 else {}
    said = ""
    for background_ in (False, True):
        try:
            intarsia.save(folder / "a", {"w": torch.ones(2)}, extra=bad, background=background_)
        except intarsia.IntarsiaError as error:
            said += str(error)
    given: dict[str, Any] = {"some": rank} if rank else {}
    given |= {"one": 11} if rank == 0 else {}
    intarsia.save(folder / "b", {"w": torch.ones(2)}, extra=given)
    found = intarsia.load(folder / "b", into={"w": torch.empty(2)}).extra
    return said, [found]


def test_a_rank_whose_extra_cannot_be_saved_stops_all_at_once(tmp_path: Path) -> None:
    """And values that only some ranks give come back as they were given."""
    found = on_ranks(3, unlike_extras, tmp_path, seconds=40)
    assert all(said.count("extra['open file']") == 2 for said, _ in found)
    assert not (tmp_path / "a").exists()
    assert [extra for _, (extra,) in found] == [
        {"one": 11},
        {"one": 11, "some": 1},
        {"one": 11, "some": 2},
    ]


def dying(folder: Path) -> str:
    """Rank 1 is gone when it should write its part."""
    mesh = init_device_mesh("cpu", (3,))
    held = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)])
    intarsia.save(folder / "step-1", {"w": held})
    if dist.get_rank() == 1:
        import intarsia.live.saving.write as saving

        saving._write_slot = lambda *_: os._exit(9)
    try:
        intarsia.save(folder / "step-2", {"w": held})
    except intarsia.IntarsiaError as error:
        return str(error)
    return ""


def test_a_rank_that_dies_while_saving_leaves_the_last_checkpoint_good(tmp_path: Path) -> None:
    found = outcomes(3, dying, tmp_path, seconds=90)
    assert found[1] == (False, "it died")
    assert "lost the connection to the other 2 ranks" in found[0][1]
    assert (tmp_path / "latest").read_text() == "step-1\n"
    assert not (tmp_path / "step-2").exists()
    again = {"w": torch.empty(6, 2)}
    intarsia.load(tmp_path, into=again)
    assert bool((again["w"] == 1).all())


def dying_late(folder: Path) -> str:
    """Rank 1 dies when it has told the first what it wrote; all that is left is to commit."""
    mesh = init_device_mesh("cpu", (3,))
    held = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)])
    if dist.get_rank() == 1:
        honest, times = Crew._gather, itertools.count()

        def last(self: Crew, value: object) -> list[object]:
            found = honest(self, value)
            if next(times) == 1:
                time.sleep(0.5)  # the first has it by then
                os._exit(9)
            return found

        Crew._gather = last  # type: ignore[method-assign]
    try:
        intarsia.save(folder / "step-1", {"w": held})
    except intarsia.IntarsiaError as error:
        return str(error)
    return ""


def test_a_rank_that_dies_when_it_has_written_hides_no_commit(tmp_path: Path) -> None:
    found = outcomes(3, dying_late, tmp_path, seconds=90)
    assert found[1] == (False, "it died")
    assert "lost the connection to the other 2 ranks" in found[0][1]
    assert f"{tmp_path / 'step-1'} is complete and in its place" in found[0][1]
    assert (tmp_path / "latest").read_text() == "step-1\n"
    assert intarsia.verify(tmp_path / "step-1")


def gone_before_the_first(folder: Path) -> str:
    """Rank 1 is gone before ranks save in the background for the first time."""
    dist.barrier()
    if dist.get_rank() == 1:
        os._exit(9)
    try:
        intarsia.save(folder / "step-1", {"w": torch.ones(2)}, background=True).wait()
    except intarsia.IntarsiaError as error:
        return str(error)
    return ""


def test_a_rank_that_died_before_the_first_save_in_the_background_is_missed_at_once(
    tmp_path: Path,
) -> None:
    found = outcomes(3, gone_before_the_first, tmp_path, seconds=20)
    assert found[1] == (False, "it died")
    assert all("lost the connection to the other 2 ranks" in said for _, said in found[::2])
    assert not [*tmp_path.iterdir()]
