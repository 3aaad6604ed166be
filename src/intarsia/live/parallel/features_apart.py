"""Whether what lies between a module's cut layers computes each feature from that feature alone.

A rank sees a part of the features.  A mean over all of them, or halves of a fused projection, would be
of that part: another model, without an error.  So the module is asked, with numbers of no meaning in
place of what its layers give: of a part it must make the part of what it makes of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from intarsia.errors import UsageError
from intarsia.live.parallel.tensor_parallel import FEATURES, STYLES, PlannedModule

_TOKENS = 3


def check_features_apart(model: nn.Module, layers: Iterable[PlannedModule], size: int) -> None:
    """Raise where a module of these layers computes across the features that they are cut along."""
    below: dict[str, list[PlannedModule]] = {}
    for layer in layers:
        below.setdefault(layer.name.rpartition(".")[0], []).append(layer)
    for parent, children in below.items():
        first = [x for child in children for x in _linear(child, "output")]
        last = [x for child in children for x in _linear(child, "given")]
        if not first or len(last) != 1:
            continue
        module = model.get_submodule(parent)
        whole, part = (_reaching(last[0], module, first, share) for share in (1, size))
        if whole is None or part is None:
            continue
        if not torch.allclose(whole[..., : part.shape[-1]], part, rtol=1e-3, atol=1e-5):
            raise UsageError(
                f"{parent} ({type(module).__name__}) computes across the features that its tensor-parallel plan"
                f" cuts over {size} ranks: each would compute another model",
                hint="use these ranks for fsdp or ep, or leave its layers out of the plan, `model.tp_plan`",
            )


def _linear(layer: PlannedModule, side: str) -> Iterator[nn.Linear]:
    """A layer whose output, or whose input as it is given, is a rank's features."""
    style = STYLES.get(layer.style)
    if style and getattr(style, side) == FEATURES and isinstance(layer.module, nn.Linear):
        yield layer.module


def _reaching(
    last: nn.Linear, module: nn.Module, first: list[nn.Linear], share: int
) -> Tensor | None:
    """What reaches the last layer, where the first ones give the first of so many shares of their features.

    None where the module cannot be asked: it takes more than its input, or holds no numbers yet.
    """
    reached: list[Tensor] = []
    device = next((p.device for p in module.parameters() if not p.is_meta), torch.device("cpu"))
    random = torch.Generator().manual_seed(0)

    def take(x: Tensor) -> Tensor:
        reached.append(x)
        return x.new_zeros(*x.shape[:-1], last.weight.shape[0])

    with ExitStack() as changed, torch.no_grad():
        for layer in first:
            numbers = torch.randn(1, _TOKENS, layer.weight.shape[0], generator=random)
            numbers = numbers[..., : numbers.shape[-1] // share].to(device)
            changed.enter_context(_answering(layer, lambda _, numbers=numbers: numbers))
        changed.enter_context(_answering(last, take))
        changed.enter_context(_without_chance(module))
        with suppress(Exception):
            module.forward(torch.zeros(1, _TOKENS, first[0].weight.shape[1], device=device))
    return reached[0] if len(reached) == 1 else None


@contextmanager
def _answering(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    held = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if held is not None:
            module.forward = held


@contextmanager
def _without_chance(module: nn.Module) -> Iterator[None]:
    """For a time, nothing in the module is dropped at random."""
    training = [m for m in module.modules() if m.training]
    module.eval()
    try:
        yield
    finally:
        for m in training:
            m.training = True
