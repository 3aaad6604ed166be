"""The tensors that a state dict of a module is to have: its parameters and its lasting buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def own_tensors(module: Any) -> Iterator[tuple[str, Any]]:
    """Those of one module, by the names that it has for them."""
    for key, x in (*module._parameters.items(), *module._buffers.items()):
        if x is not None and key not in module._non_persistent_buffers_set:
            yield key, x


def named_tensors(model: Any, *, remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
    """Those of a module and of all inside it, by their full names."""
    for path, each in model.named_modules(remove_duplicate=remove_duplicate):
        yield from ((full_name(path, key), x) for key, x in own_tensors(each))


def every_tensor(model: Any) -> Iterator[Any]:
    """All parameters and buffers; Megatron's wrapper has something else under the name `buffers`."""
    for module in model.modules():
        for x in (*module._parameters.values(), *module._buffers.values()):
            if x is not None:
                yield x


def full_name(path: str, key: str) -> str:
    """The full name of what a module has under a key."""
    return f"{path}.{key}" if path else key
