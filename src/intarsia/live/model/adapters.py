"""PEFT's modules in a live model: the words that they put into names, and the tensors that they add.

`base_model.model.blocks.0.up.base_layer.weight` is the weight `blocks.0.up.weight` of the model inside;
`blocks.0.up.lora_A.default.weight` beside it is an adapter's, which a checkpoint of that model does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from intarsia.errors import UsageError
from intarsia.live.model.own_tensors import full_name, named_tensors
from intarsia.live.model.wrapper_classes import Wrappers, is_pefts

_WORDS = ("base_model", "model", "base_layer", "original_module", "token_adapter")
"""What PEFT calls the module that it wraps, the outermost first."""


def inner_words(model: Any) -> set[tuple[str, str]]:
    """The path of each module of PEFT's with the word under which it holds what it wraps."""
    if not Wrappers.of(model).peft:
        return set()
    return {
        (path, word)
        for path, each in model.named_modules()
        if (word := inner_word(each)) is not None
    }


def inner_word(module: Any) -> str | None:
    """The word under which a module of PEFT's holds what it wraps; None for any other module."""
    if not is_pefts(type(module)):
        return None
    words = _WORDS[2:] if is_layer(module) else _WORDS[:2]
    return next((word for word in words if module._modules.get(word) is not None), None)


def is_layer(module: Any) -> bool:
    """Whether a module of PEFT's wraps a layer: its tuners and models have a configuration."""
    return not hasattr(module, "peft_config")


def adapter_tensors(model: Any) -> Iterator[tuple[str, Any, bool]]:
    """The parameters and lasting buffers that PEFT added to a model, under their full names.

    The last value says whether one is only a second name of a tensor that the model inside has.
    """
    inner = inner_words(model)
    if not inner:
        return
    held = [*named_tensors(model, remove_duplicate=False)]
    own = {id(x) for name, x in held if not _is_added(name, inner)}
    yield from ((name, x, id(x) in own) for name, x in held if _is_added(name, inner))


def _is_added(name: str, inner: set[tuple[str, str]]) -> bool:
    """Whether a name leads into a module of PEFT's and not on into what that wraps."""
    paths = {path for path, _ in inner}
    at = ""
    for word in name.split("."):
        if at in paths and (at, word) not in inner:
            return True
        at = full_name(at, word)
    return False


def refuse_merged(model: Any) -> None:
    """Raise where an adapter is merged into a weight, which then is neither the model's nor apart from it."""
    for path, each in model.named_modules():
        if is_pefts(type(each)) and getattr(each, "merged", False) is True:
            raise UsageError(
                f"an adapter is merged into the weights of `{path}`, and is also stored beside them",
                hint="undo the merge (unmerge_adapter()), or make it part of the model"
                " (merge_and_unload())",
            )
