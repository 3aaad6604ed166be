"""An optimizer as a load and a save see it: without wrappers, by whole parameters, each by its name in the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from intarsia.live.optimizer.classes import opened
from intarsia.live.optimizer.fsdp1 import WholeOptimizer
from intarsia.live.optimizer.stepped import Stepped, stepped


@dataclass(frozen=True)
class NamedOptimizer:
    """`held` has the state of this rank, that of the parameters in `steps`; `settings` has the groups of `members`.

    With FSDP1, `model` and both are of whole parameters, which `whole` has for the real ones.
    """

    held: Any
    steps: tuple[Stepped, ...]
    settings: Any
    members: tuple[Stepped, ...]
    model: Any
    whole: WholeOptimizer | None

    @staticmethod
    def of(model: Any, optimizer: Any, *, state: bool) -> NamedOptimizer:
        """With its state gathered, if asked for; with FSDP1, collective."""
        own = opened(optimizer)
        whole = WholeOptimizer.of(model, own, state=state)
        if whole is not None:
            own, model = whole.opened, whole.model
        steps = stepped(model, own.held)
        members = steps if own.settings is own.held else stepped(model, own.settings)
        return NamedOptimizer(own.held, steps, own.settings, members, model, whole)
