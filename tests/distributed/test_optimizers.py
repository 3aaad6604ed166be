"""Optimizers on real ranks: a state that ranks share out, and settings that they do not share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

import intarsia
from intarsia.errors import IntarsiaError
from tests.distributed.ranks import on_ranks
from tests.distributed.small_model import Small, build, step


def zero(model: torch.nn.Module, lr: float) -> ZeroRedundancyOptimizer:
    held = [p for p in model.parameters() if p.requires_grad]
    halves = [{"params": held[:3], "lr": lr}, {"params": held[3:], "lr": 2 * lr}]
    return ZeroRedundancyOptimizer(halves, torch.optim.AdamW, lr=lr, foreach=False)


def states_by_name(model: torch.nn.Module, optimizer: Any) -> dict[str, torch.Tensor]:
    names = {p: n for n, p in model.named_parameters()}
    state = optimizer.optim.state if hasattr(optimizer, "optim") else optimizer.state
    return {f"{names[p]}.{k}": x.clone() for p, held in state.items() for k, x in held.items()}


def zero_resumed(folder: Path) -> tuple[list[float], list[float], dict[str, torch.Tensor], Any]:
    """Losses of a run that goes on and of one that was resumed, the state of this rank, and the settings."""
    torch.manual_seed(0)
    model = Small()
    optimizer = zero(model, 0.01)
    step(model, optimizer, 0)
    intarsia.save(folder / "zero", model, optimizer)
    held = states_by_name(model, optimizer)
    other = build(9, "")
    again = zero(other, 7.0)
    intarsia.load(folder / "zero", into=other, optimizer=again)
    assert all(x.equal(held[n]) for n, x in states_by_name(other, again).items())
    assert states_by_name(other, again).keys() == held.keys()
    losses = [step(model, optimizer, k) for k in (1, 2)]
    resumed = [step(other, again, k) for k in (1, 2)]
    return losses, resumed, held, [g["lr"] for g in again.param_groups]


def test_a_zero_redundancy_optimizer_is_saved_whole_and_goes_on(tmp_path: Path) -> None:
    found = on_ranks(2, zero_resumed, tmp_path)
    for losses, resumed, _, settings in found:
        assert losses == resumed
        assert settings == [0.01, 0.02]
    parts = [set(held) for _, _, held, _ in found]
    assert parts[0]
    assert parts[1]
    assert not parts[0] & parts[1]
    model = Small()
    held = [p for p in model.parameters() if p.requires_grad]
    alone = torch.optim.AdamW([{"params": held[:3]}, {"params": held[3:]}])
    intarsia.load(tmp_path / "zero", into=model, optimizer=alone)
    whole = states_by_name(model, alone)
    assert whole.keys() == parts[0] | parts[1]
    assert all(x.equal(whole[n]) for _, _, held_here, _ in found for n, x in held_here.items())


def disagreeing(folder: Path, case: str) -> str:
    """How a save of optimizers that are not alike on two ranks ends."""
    rank = dist.get_rank()
    model = build(0, "")
    held = [p for p in model.parameters() if p.requires_grad]
    optimizer: Any = torch.optim.AdamW(held, lr=0.01, foreach=False)
    if case == "lr":
        optimizer = torch.optim.AdamW(held, lr=0.01 * (1 + rank), foreach=False)
    elif case == "class" and rank:
        optimizer = torch.optim.Adam(held, lr=0.01, foreach=False)
    elif case == "groups" and rank:
        optimizer.param_groups[0]["initial_lr"] = 0.5
    step(model, optimizer, 0)
    if case == "class":
        build(0, "")
    if case == "state" and rank:
        optimizer.state.pop(model.head.weight)
    if case == "value":
        optimizer.state[model.head.weight]["count"] = 3 + rank
    try:
        intarsia.save(folder / case, model, optimizer)
    except IntarsiaError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("lr", ("0.01", "0.02")),
        ("class", ("AdamW", "Adam")),
        ("groups", ("initial_lr", "rank 0")),
        ("state", ("head.weight", "rank 1")),
        ("value", ("head.weight.count", "3", "4")),
    ],
)
@pytest.mark.one_in(6)
def test_ranks_that_are_not_alike_are_refused(
    case: str, said: tuple[str, ...], tmp_path: Path
) -> None:
    for found in on_ranks(2, disagreeing, tmp_path, case):
        assert all(word in found for word in said), found
    assert not (tmp_path / case).exists()


def factors(folder: Path) -> str:
    model = build(0, "fsdp=2")
    held = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(held, foreach=False)
    step(model, optimizer, 0)
    optimizer.state[held[0]]["row"] = torch.zeros(5)
    try:
        intarsia.save(folder / "factors", model, optimizer)
    except IntarsiaError as error:
        return str(error)
    return ""


def test_a_state_of_another_shape_is_refused_for_shards(tmp_path: Path) -> None:
    for found in on_ranks(2, factors, tmp_path):
        assert "has shape [5]" in found
        assert "plain parameters only" in found
    assert not (tmp_path / "factors").exists()


def a_single_number(folder: Path) -> tuple[set[str], set[str]]:
    """The states of a replicated parameter without axes that are DTensors, before and after."""
    mesh = init_device_mesh("cpu", (2,))
    found = []
    for number in (1.5, 0.25):
        whole = distribute_tensor(torch.tensor(number), mesh, [Replicate()])
        model = torch.nn.ParameterDict({"scale": torch.nn.Parameter(whole)})
        optimizer = torch.optim.NAdam(model.parameters(), foreach=False)
        if not found:
            model["scale"].square().full_tensor().backward()
            optimizer.step()
            intarsia.save(folder / "number", model, optimizer)
        else:
            intarsia.load(folder / "number", model, optimizer)
        state = optimizer.state[model["scale"]]
        found.append({kind for kind, x in state.items() if isinstance(x, DTensor)})
    return found[0], found[1]


def test_counters_of_a_single_number_are_plain_numbers(tmp_path: Path) -> None:
    for before, after in on_ranks(2, a_single_number, tmp_path):
        assert before == after == {"exp_avg", "exp_avg_sq"}
