"""Modules that do something of their own when a state dict is loaded into them.

A load writes into the memory of a module and calls nothing of it, so what the module derives from its
weights (a transposed copy, a table) would stay that of the old ones.  Such a module is given its new
state once more by `load_state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

TRANSLATORS = ("torch.", "transformers.")
"""Packages whose hooks only rename what old versions saved, or prepare shards that a load has prepared already."""


def modules_with_hooks(module: Any) -> Iterator[Any]:
    """The outermost modules inside of one, itself included, whose loading is not torch's own."""
    return _outermost(module, (type(module).load_state_dict,))


def _outermost(module: Any, more: tuple[Any, ...] = ()) -> Iterator[Any]:
    # torch calls `load_state_dict` of the outermost module alone, and these of every one.
    calls = (
        *more,
        type(module)._load_from_state_dict,
        *module._load_state_dict_pre_hooks.values(),
        *module._load_state_dict_post_hooks.values(),
    )
    if not all(_origin(call).startswith(TRANSLATORS) for call in calls):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)


def _origin(call: Any) -> str:
    while isinstance(call, partial):
        call = call.func
    return str(getattr(call, "__module__", ""))
