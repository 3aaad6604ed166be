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


@refusal("Several optimizers at once", area="optimizers")
def several(tmp: Path) -> None:
    model, optimizer = _adam(tmp)
    intarsia.save(tmp / "both", model, [optimizer, optimizer])


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
