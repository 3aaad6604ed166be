"""What is done with each container, on all ranks: load, save, optimizer, resume elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

import intarsia
from intarsia.errors import IntarsiaError
from intarsia.format.naming.wrappers import bare
from tests.containers.containers import Build, Container
from tests.distributed.small_model import build, optimizer_of, step, whole

WORKS = "works"
CELLS = ("load", "save", "optimizer", "resume elsewhere")
Cells = dict[str, str]
_PEFT = ("base_model.model.", "base_layer.")


def outcome(act: Callable[[], None], folder: Path) -> str:
    """That it works, or the text of its refusal."""
    try:
        act()
    except IntarsiaError as error:
        return str(error).replace(f"{folder}/", "")
    return WORKS


def tensors_of(model: Any) -> dict[str, torch.Tensor]:
    """Every parameter whole, under its name in the plain model; collective."""
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            return {_plain(n): x.detach().clone() for n, x in model.named_parameters()}
    return {_plain(n): whole(x) for n, x in model.named_parameters()}


def _plain(name: str) -> str:
    name = bare(name).removeprefix("module.")
    for word in _PEFT:
        name = name.replace(word, "")
    return name


def same(found: Mapping[str, Any], want: Mapping[str, Any]) -> None:
    """Fail unless everything that is wanted is there, bit by bit."""
    assert want
    for name, x in want.items():
        assert torch.equal(found[name], x), name


def close(found: list[float], want: list[float]) -> None:
    assert max(abs(a - b) for a, b in zip(found, want, strict=True)) < 1e-5, (found, want)


def cells_of(container: Container, folder: Path) -> Cells:
    """The outcome of each cell on this rank."""
    mine = folder / container.title.replace(" ", "-")
    return {
        "load": outcome(lambda: load(container, folder), folder),
        "save": outcome(lambda: save(container, mine), folder),
        "optimizer": outcome(lambda: optimizer(container, mine), folder),
        "resume elsewhere": outcome(lambda: elsewhere(container, mine), folder),
    }


def load(container: Container, folder: Path) -> None:
    """A checkpoint of the plain model fills it."""
    truth = build(1, "")
    path = folder / "plain"
    if not path.exists():
        intarsia.save(path, truth)
    model = container.build(2)
    intarsia.load(path, model, **container.options)
    same(tensors_of(model), dict(truth.named_parameters()))


def save(container: Container, mine: Path) -> None:
    """What is saved is what it holds, under the names of the plain model."""
    model = container.build(3)
    intarsia.save(mine / "saved", model)
    truth = tensors_of(model)
    with intarsia.open(mine / "saved") as checkpoint:
        found = {name: checkpoint[name][...] for name in checkpoint}
    same(found, truth)


def optimizer(container: Container, mine: Path) -> None:
    """A training that was saved with its optimizer goes on in the same container as if it had not stopped."""
    losses, resumed = _trained(container.build, mine / "trained"), container.build(5)
    assert _resumed(mine / "trained", resumed) == losses


def elsewhere(container: Container, mine: Path) -> None:
    """It goes on in another container, and a training from there goes on in this one."""
    close(_resumed(mine / "trained", container.other(6)), _losses(mine / "trained"))
    losses = _trained(container.other, mine / "back")
    close(_resumed(mine / "back", container.build(7)), losses)


def _trained(make: Build, path: Path) -> list[float]:
    """Two steps, a save, and the losses of two steps more."""
    model = make(4)
    held = optimizer_of(model, lr=0.03)
    for number in range(2):
        step(model, held, number)
    intarsia.save(path, model, held)
    losses = [step(model, held, number) for number in (2, 3)]
    torch.save(losses, path.with_suffix(f".{dist.get_rank()}"))
    return losses


def _losses(path: Path) -> list[float]:
    found: list[float] = torch.load(path.with_suffix(f".{dist.get_rank()}"))
    return found


def _resumed(path: Path, model: Any) -> list[float]:
    held = optimizer_of(model, lr=0.5)
    assert intarsia.load(path, model, held).complete
    assert held.param_groups[0]["lr"] == 0.03
    return [step(model, held, number) for number in (2, 3)]


def all_cells(containers: tuple[Container, ...], folder: Path) -> dict[str, Cells]:
    """The cells of several containers, one after the other on the same ranks."""
    return {each.title: cells_of(each, folder) for each in containers}
