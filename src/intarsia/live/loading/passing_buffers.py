"""Buffers that no checkpoint holds (rotary frequencies, scales of embeddings), computed again as Transformers does.

`_init_weights` of the model that a module belongs to, the nearest one around it, sets them.  It would
also draw weights: everything that is not to be set is hidden behind tensors on `meta` meanwhile.
A buffer counts as computed where two runs over different contents leave the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from intarsia.live.model.holding import is_dtensor
from intarsia.live.model.module_state import equal_bytes
from intarsia.live.model.own_tensors import full_name

BufferOfModule = tuple["nn.Module", str]
_RUNS = (0x00, 0x55)
"""What memory holds before each of the two runs, byte by byte."""


def passing_buffers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """The buffers that are in no state dict: each with its name, its module and its name there."""
    for path, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and key in module._non_persistent_buffers_set:
                yield full_name(path, key), module, key


def computed_by(model: nn.Module, names: Iterable[str]) -> set[str]:
    """Those names of a checkpoint that are buffers which this model computes for itself, or did once.

    Older files hold them, and some for every layer what is now one of the whole model: the module
    that a buffer belongs to and its own name tell.  Of others the classes of Transformers say that
    they are left over; a weight never is.
    """
    names = list(names)
    if not names:
        return set()
    passing = {_last_two(name) for name, _, _ in passing_buffers(model)}
    lists = (getattr(m, "_keys_to_ignore_on_load_unexpected", None) for m in model.modules())
    left_over = [re.compile(x) for each in lists for x in each or () if isinstance(x, str)]
    return {
        name
        for name in names
        if _last_two(name) in passing
        or (not name.endswith("weight") and any(x.search(name) for x in left_over))
    }


def _last_two(name: str) -> tuple[str, ...]:
    return tuple(name.split(".")[-2:])


def compute_buffers(model: nn.Module, passing: Iterable[BufferOfModule], device: Any) -> None:
    """Have a Transformers model compute those of its passing buffers that are on `meta`."""
    todo = [place for place in passing if _buffer(place).is_meta]
    owners = _owners(model) if todo else {}
    direct = [m for m in dict.fromkeys(m for m, _ in todo) if m in owners]
    if not direct:
        return
    _compute(model, todo, direct, owners, device)
    left = [place for place in todo if _buffer(place).is_meta]
    if left:  # a module around them may set them
        _compute(model, left, _around(model, {m for m, _ in left}, owners), owners, device)


def _compute(
    model: nn.Module,
    places: list[BufferOfModule],
    modules: list[nn.Module],
    owners: dict[nn.Module, Callable[[nn.Module], None]],
    device: Any,
) -> None:
    before = {place: _buffer(place) for place in places}
    made: list[dict[BufferOfModule, torch.Tensor]] = []
    with _hidden(model, places), _same_draws(), torch.no_grad():
        for byte in _RUNS:
            torch.default_generator.manual_seed(0)  # and no other device's
            for (module, key), buffer in before.items():
                module._buffers[key] = _filled(buffer, byte, device)
            for module in modules:
                # What a model's code cannot do for a module is seen by what it leaves.
                with suppress(Exception):
                    owners[module](module)
            made.append({place: _buffer(place) for place in places})
    first, second = made
    for place, buffer in before.items():
        module, key = place
        same = not first[place].is_meta and equal_bytes(first[place], second[place])
        module._buffers[key] = first[place] if same else buffer


def _owners(model: nn.Module) -> dict[nn.Module, Callable[[nn.Module], None]]:
    """For every module the initialisation of the nearest model that it is part of."""
    found: dict[nn.Module, Callable[[nn.Module], None]] = {}

    def visit(module: nn.Module, initialise: Callable[[nn.Module], None] | None) -> None:
        initialise = getattr(module, "_init_weights", initialise)
        if initialise is not None:
            found.setdefault(module, initialise)
        for child in module.children():
            visit(child, initialise)

    visit(model, None)
    return found


def _around(model: nn.Module, inner: set[nn.Module], owners: Any) -> list[nn.Module]:
    """The modules that contain one of these, the innermost first."""
    found = [m for m in model.modules() if m in owners and not inner.isdisjoint(m.modules())]
    return found[::-1]


@contextmanager
def _hidden(model: nn.Module, shown: list[BufferOfModule]) -> Iterator[None]:
    """Every parameter and every buffer but those `shown` behind tensors on `meta`, unless it is one itself.

    DTensors on `meta` are hidden, too: to draw one makes the ranks agree on what all of them draw.
    """
    visible = {(id(module), key) for module, key in shown}
    before: list[tuple[dict[str, Any], dict[str, Any]]] = []
    try:
        for module in model.modules():
            both: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for held in both:
                before.append((held, dict(held)))
                for key, x in held.items():
                    if x is None or (x.is_meta and not is_dtensor(x)):
                        continue
                    if (id(module), key) not in visible:
                        veil = torch.empty(x.shape, dtype=x.dtype, device="meta")
                        if held is module._parameters:
                            veil = torch.nn.Parameter(veil, requires_grad=False)
                        veil._is_hf_initialized = True  # type: ignore[attr-defined]
                        held[key] = veil
        yield
    finally:
        for held, own in before:
            held.update(own)


@contextmanager
def _same_draws() -> Iterator[None]:
    """What the processor draws afterwards is what it would have drawn; torch's own looks for other devices."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def _buffer(place: BufferOfModule) -> torch.Tensor:
    module, key = place
    found = module._buffers[key]
    assert found is not None
    return found


def _filled(like: torch.Tensor, byte: int, device: Any) -> torch.Tensor:
    out = torch.empty(like.shape, dtype=like.dtype, device=device)
    if like.dtype == torch.bool:
        return out.fill_(bool(byte))
    out.view(-1).view(torch.uint8).fill_(byte)
    return out
