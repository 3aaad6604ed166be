"""Optimizers of live models that cannot be saved or filled as asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import intarsia
from tests.refusals.case import refusal


def _adam(tmp: Path, **settings: Any) -> Any:
    """A module after a step of Adam, and its optimizer; saved at `saved`."""
    import torch

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), **settings)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    intarsia.save(tmp / "saved", model, optimizer)
    return model, optimizer


@refusal("Another class of optimizer than the one that was saved", area="optimizers")
def another_class(tmp: Path) -> None:
    import torch

    model, _ = _adam(tmp)
    intarsia.load(tmp / "saved", into=model, optimizer=torch.optim.AdamW(model.parameters()))


@refusal("State that the optimizer does not use", area="optimizers")
def another_state(tmp: Path) -> None:
    import torch

    model, _ = _adam(tmp)
    intarsia.load(
        tmp / "saved",
        into=model,
        optimizer=torch.optim.SGD(model.parameters(), momentum=0.9),
        optimizer_class="any",
        hyperparameters="mine",
    )


@refusal("A parameter that two optimizers step", area="optimizers")
def shared_parameter(tmp: Path) -> None:
    model, optimizer = _adam(tmp)
    intarsia.save(tmp / "both", model, [optimizer, optimizer])


@refusal("State of no parameter in one of several optimizers", area="optimizers")
def whose_state(tmp: Path) -> None:
    import torch

    model, _ = _adam(tmp)
    each = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    each[1].state["tokens"] = 7
    intarsia.save(tmp / "both", model, each)


@refusal("LBFGS with its parameters in another order", area="optimizers")
def other_order(tmp: Path) -> None:
    import torch
    from torch import nn

    model = nn.Linear(2, 3)
    optimizer = torch.optim.LBFGS(model.parameters())
    intarsia.save(tmp / "lbfgs", model, optimizer)
    turned = torch.optim.LBFGS([*model.parameters()][::-1])
    intarsia.load(tmp / "lbfgs", into=model, optimizer=turned)


@refusal("An optimizer whose state dict holds more than states and groups", area="optimizers")
def more_in_state_dict(tmp: Path) -> None:
    import torch

    class Counting(torch.optim.SGD):
        def state_dict(self) -> Any:
            return super().state_dict() | {"tokens": 7}

    model, _ = _adam(tmp)
    intarsia.save(tmp / "other", model, Counting(model.parameters()))


@refusal("A parameter called by a number", area="optimizers")
def numbered_parameter(tmp: Path) -> None:
    import torch
    from torch import nn

    model = nn.ParameterList([torch.ones(2)])
    intarsia.save(tmp / "other", model, torch.optim.SGD(model.parameters()))


@refusal("A wrapper that keeps something beside its optimizer", area="optimizers")
def wrapper(tmp: Path) -> None:
    class Warmup:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer, self.steps = optimizer, 0

    model, optimizer = _adam(tmp)
    intarsia.save(tmp / "wrapped", model, Warmup(optimizer))


@refusal("A setting that no checkpoint holds", area="optimizers")
def setting(tmp: Path) -> None:
    model, optimizer = _adam(tmp)
    optimizer.param_groups[0]["own"] = {1, 2}
    intarsia.save(tmp / "other", model, optimizer)


@refusal("State under a name that no checkpoint holds", area="optimizers")
def odd_kind(tmp: Path) -> None:
    model, optimizer = _adam(tmp)
    optimizer.state[model.bias]["a.b"] = 1
    intarsia.save(tmp / "other", model, optimizer)


@refusal("State of a tensor that is in no group", area="optimizers")
def stray_state(tmp: Path) -> None:
    import torch

    model, optimizer = _adam(tmp)
    optimizer.state[torch.zeros(3)] = {"step": 1}
    intarsia.save(tmp / "other", model, optimizer)


@refusal("State of another shape for a parameter that is cut over ranks now", area="optimizers")
def factor_for_shards(tmp: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model, optimizer = _adam(tmp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight] = {"momentum_buffer": torch.ones(3)}
    intarsia.save(tmp / "factors", model, optimizer)
    store = dist.FileStore(str(tmp / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        again = torch.optim.SGD(fully_shard(model).parameters(), lr=0.1)
        intarsia.load(tmp / "factors", into=model, optimizer=again)
    finally:
        dist.destroy_process_group()
