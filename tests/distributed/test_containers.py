"""Containers of torch that change names or hand out copies, on two ranks: filled, saved and resumed as plain models."""

from __future__ import annotations

import warnings
from itertools import product
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.tensor import Shard, distribute_tensor

import intarsia
from intarsia.errors import IntarsiaError
from intarsia.live import clip_grad_norm_
from tests.distributed.ranks import on_ranks
from tests.distributed.small_model import build, optimizer_of, step, whole


def fsdp1(seed: int, kind: StateDictType, *, original: bool, shard: bool = True) -> Any:
    warnings.simplefilter("ignore")
    model = build(seed, "")
    how: dict[str, Any] = {"use_orig_params": original, "device_id": torch.device("cpu")}
    how |= {} if shard else {"sharding_strategy": ShardingStrategy.NO_SHARD}
    model.blocks[0] = FullyShardedDataParallel(model.blocks[0], **how)
    for p in () if original else model.parameters():
        p.requires_grad_(True)  # the parts of a flat parameter want gradients together
    model = FullyShardedDataParallel(model, **how)
    FullyShardedDataParallel.set_state_dict_type(model, kind)
    return model


def plain_of(model: Any) -> dict[str, torch.Tensor]:
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        named = {n.replace("_fsdp_wrapped_module.", ""): x for n, x in model.named_parameters()}
        return {n: x.detach().clone() for n, x in named.items()}


def _through_fsdp1(folder: Path) -> None:
    truth = build(1, "").state_dict()
    ways = [(k, o) for k in StateDictType for o in (True, False)]
    for at, (kind, original) in enumerate(ways):
        model = fsdp1(2, kind, original=original)
        report = intarsia.load(folder / "plain", into=model)
        assert report.complete
        found = plain_of(model)
        assert len(found) == 16
        assert all(torch.equal(x, truth[n]) for n, x in found.items())
        intarsia.save(folder / f"again{at}", model)
        into = build(3, "")
        intarsia.load(folder / f"again{at}", into=into)
        assert all(torch.equal(x, truth[n]) for n, x in into.state_dict().items())


def test_fsdp1_is_filled_and_saved_whatever_its_kind_of_state_dict(tmp_path: Path) -> None:
    intarsia.save(tmp_path / "plain", build(1, ""))
    on_ranks(2, _through_fsdp1, tmp_path)


def groups(model: Any, lr: float) -> torch.optim.Optimizer:
    """AdamW with two groups, of which the second begins in the middle of a unit of FSDP's."""
    held = [p for p in model.parameters() if p.requires_grad]
    first, second = held[: len(held) // 2], held[len(held) // 2 :]
    return torch.optim.AdamW(
        [{"params": first, "lr": lr}, {"params": second, "lr": 2 * lr, "betas": (0.7, 0.9)}],
        foreach=False,
    )


def _fsdp1_resumed(folder: Path) -> None:
    kind = StateDictType.SHARDED_STATE_DICT
    for at, (original, shard) in enumerate(product((True, False), repeat=2)):
        model = fsdp1(1, kind, original=original, shard=shard)
        optimizer = groups(model, 0.03)
        for number in range(2):
            step(model, optimizer, number)
        intarsia.save(folder / f"flat{at}", model, optimizer)
        losses = [step(model, optimizer, number) for number in (2, 3)]
        other = fsdp1(2, kind, original=original, shard=shard)
        fresh = groups(other, 0.5)
        report = intarsia.load(folder / f"flat{at}", other, fresh)
        assert report.complete
        assert [g["lr"] for g in fresh.param_groups] == [0.03, 0.06]
        assert [step(other, fresh, number) for number in (2, 3)] == losses
        intarsia.save(folder / "again", other, fresh, overwrite=True)
        intarsia.save(folder / "went on", model, optimizer, overwrite=True)
        assert intarsia.verify(folder / "again", folder / "went on")
    # A parameter that no step touched has no state, and a flat parameter has all or none.
    plain = build(1, "")
    optimizer = optimizer_of(plain)
    step(plain, optimizer, 0)
    intarsia.save(folder / "plain", plain, optimizer)
    losses = [step(plain, optimizer, number) for number in (1, 2)]
    model = fsdp1(3, kind, original=True)
    fresh = optimizer_of(model, lr=0.7)
    intarsia.load(folder / "plain", model, fresh)
    for number, loss in zip((1, 2), losses, strict=True):
        assert abs(step(model, fresh, number) - loss) < 1e-5
    model = fsdp1(3, kind, original=False)
    with pytest.raises(IntarsiaError, match=r"parts of one flat parameter of FSDP1"):
        intarsia.load(folder / "plain", model, optimizer_of(model), strict=False)


def _fsdp1_elsewhere(folder: Path) -> None:
    model = fsdp1(1, StateDictType.FULL_STATE_DICT, original=True)
    optimizer = groups(model, 0.03)
    step(model, optimizer, 0)
    intarsia.save(folder / "saved", model, optimizer, background=True)
    losses = [step(model, optimizer, number) for number in (1, 2)]
    for layout in ("fsdp=2", ""):
        other: Any = build(2, layout)
        fresh = groups(other, 0.5)
        assert intarsia.load(folder / "saved", other, fresh).complete
        for number, loss in zip((1, 2), losses, strict=True):
            assert abs(step(other, fresh, number) - loss) < 1e-5


def _fsdp1_with_two_optimizers(folder: Path) -> None:
    def made(seed: int, lr: float) -> tuple[Any, list[torch.optim.Optimizer]]:
        model = fsdp1(seed, StateDictType.FULL_STATE_DICT, original=True)
        held = [p for p in model.parameters() if p.requires_grad]
        adam = torch.optim.AdamW(held[:7], lr=lr, foreach=False)
        return model, [adam, torch.optim.SGD(held[7:], lr=3 * lr, momentum=0.9, foreach=False)]

    def steps(model: Any, each: list[Any], numbers: tuple[int, ...]) -> list[float]:
        found = []
        for number in numbers:
            each[1].zero_grad()
            found.append(step(model, each[0], number))
            each[1].step()
        return found

    model, both = made(1, 0.01)
    for optimizer in both:
        optimizer.zero_grad()
    steps(model, both, (0, 1))
    intarsia.save(folder / "two", model, both)
    losses = steps(model, both, (2, 3))
    again, fresh = made(2, 0.5)
    report = intarsia.load(folder / "two", again, fresh)
    assert report.complete
    assert [o.param_groups[0]["lr"] for o in fresh] == [0.01, 0.03]
    assert steps(again, fresh, (2, 3)) == losses


def test_two_optimizers_of_fsdp1_are_resumed(tmp_path: Path) -> None:
    on_ranks(2, _fsdp1_with_two_optimizers, tmp_path)


def test_an_optimizer_of_fsdp1_is_resumed_bit_by_bit(tmp_path: Path) -> None:
    on_ranks(2, _fsdp1_resumed, tmp_path)


def test_a_training_of_fsdp1_goes_on_in_fsdp2_and_in_one_process(tmp_path: Path) -> None:
    on_ranks(2, _fsdp1_elsewhere, tmp_path)


def with_batch_norm(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def normed(seed: int, *, sends: bool = True) -> Any:
    """A model in DDP with a batch norm, whose buffers are of each rank's own batch after a step."""
    return nn.parallel.DistributedDataParallel(with_batch_norm(seed), broadcast_buffers=sends)


def _saved_buffers_of_ddp(folder: Path) -> None:
    rank, sender = dist.get_rank(), normed(1)
    for model in (sender, alone := normed(1, sends=False)):
        torch.manual_seed(min(rank, 1))
        for _ in range(2):
            model(torch.randn(5, 4)).sum().backward()
    without_first = dist.new_group([1, 2])
    for first, group in ((0, None), (1, without_first)):
        if rank < first:
            continue
        told = {n: x.clone() for n, x in sender.module.state_dict().items()}
        for x in told.values():
            dist.broadcast(x, first, group=group)
        given = (sender, torch.compile(sender, backend="eager"), {"model": sender})
        for at, what in enumerate(given * 2):
            path = folder / f"{first} {at}"
            saved = intarsia.save(path, what, background=at > 2, group=group)
            assert at < 3 or saved.wait()
            into = with_batch_norm(2)
            assert intarsia.load(path, into=into, group=group).complete
            found = into.state_dict()
            assert all(torch.equal(found[n], x) for n, x in told.items())
    told = r"(?s)`1.running_mean` .* differs between rank 0 and rank .* make it equal on all ranks"
    with pytest.raises(IntarsiaError, match=told):
        intarsia.save(folder / "refused", alone)


def test_buffers_that_ddp_sends_are_saved_as_its_first_rank_has_them(tmp_path: Path) -> None:
    on_ranks(3, _saved_buffers_of_ddp, tmp_path)


def wrapped(seed: int, how: str) -> nn.Module:
    """The small model under FSDP2, with wrappers round some of its layers."""
    model: Any = build(seed, "")
    if "some" in how:
        model.blocks[1] = checkpoint_wrapper(model.blocks[1])
    if "all" in how:
        for k in range(2):
            model.blocks[k].up = checkpoint_wrapper(model.blocks[k].up)
            model.blocks[k] = checkpoint_wrapper(model.blocks[k])
    if "layer" in how:
        model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return torch.compile(model, backend="eager") if "compile" in how else model


def named(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    found = {}
    for name, param in model.named_parameters():
        name = name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")
        found[name] = whole(param)
        for kind, value in optimizer.state.get(param, {}).items():
            found[f"{name}:{kind}"] = whole(value)
    return found


def _resumed_in_another_wrapper(folder: Path) -> None:
    for at, (before, after) in enumerate(
        [
            ("some", "all"),
            ("all", "plain"),
            ("plain", "all"),
            ("compile", "some"),
            ("layer", "all compile"),
        ]
    ):
        model = wrapped(1, before)
        optimizer = optimizer_of(model, lr=0.03)
        for number in range(2):
            step(model, optimizer, number)
        intarsia.save(folder / f"ck{at}", model, optimizer)
        truth = named(model, optimizer)
        assert sum(":" in name for name in truth) > 20
        other = wrapped(2, after)
        fresh = optimizer_of(other, lr=0.5)
        report = intarsia.load(folder / f"ck{at}", other, fresh)
        found = named(other, fresh)
        assert found.keys() == truth.keys()
        assert all(torch.equal(x, truth[n]) for n, x in found.items())
        assert fresh.param_groups[0]["lr"] == 0.03
        assert not any("wrapped" in name or "orig_mod" in name for name in report.filled)
        assert step(other, fresh, 2) == step(model, optimizer, 2)


def test_state_and_settings_are_found_behind_every_wrapper(tmp_path: Path) -> None:
    on_ranks(2, _resumed_in_another_wrapper, tmp_path)


def _norms(kind: float) -> list[float]:
    mesh = init_device_mesh("cpu", (2,))
    found = []
    for bad in (0, 1, None):
        p = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
        p.grad = distribute_tensor(torch.tensor([3.0, 1.0, 2.0, 5.0]), mesh, [Shard(0)])
        if dist.get_rank() == bad:
            p.grad.to_local()[0] = float("nan")
        found.append(clip_grad_norm_(p, 1.0, kind).item())
    return found


@pytest.mark.parametrize(("kind", "norm"), [(float("inf"), 5.0), (1.0, 11.0)])
def test_a_gradient_that_is_no_number_on_one_rank_is_so_for_all(kind: float, norm: float) -> None:
    for found in on_ranks(2, _norms, kind):
        assert isnan(found[0])
        assert isnan(found[1])
        assert found[2] == norm


def _disagreeing(folder: Path, case: str) -> str:
    rank = dist.get_rank()
    path, options = folder / "a", dict[str, Any]()
    if case == "path":
        path = folder / ("a" if rank == 0 else "b")
    elif case == "strict":
        options["strict"] = rank == 0
    model = build(7, "")
    before = {n: x.clone() for n, x in model.state_dict().items()}
    try:
        intarsia.load(path, into=model, **options)
    except IntarsiaError as error:
        assert all(torch.equal(x, before[n]) for n, x in model.state_dict().items())
        return str(error)
    return "done"


@pytest.mark.parametrize("case", ["path", "strict", "same"])
def test_ranks_that_load_something_else_all_stop(tmp_path: Path, case: str) -> None:
    intarsia.save(tmp_path / "a", build(1, ""))
    intarsia.save(tmp_path / "b", build(2, ""))
    told = on_ranks(2, _disagreeing, tmp_path, case)
    if case == "same":
        assert told == ["done", "done"]
        return
    for said in told:
        assert "rank 1 was called with something else than rank 0" in said
        if case == "path":
            assert f"{tmp_path / 'a'} on rank 0" in said
            assert f"{tmp_path / 'b'} on rank 1" in said
        else:
            assert "strict: True on rank 0, False on rank 1" in said
