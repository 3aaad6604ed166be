"""Checkpoints that lack something: experts, layers, tensors, chunks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults import damage
from tests.faults.registry import SHARDED, Fault, Part

FAULTS: list[Fault] = []
part = Part(FAULTS)


def lost(folder: Path, name_is: Callable[[str], bool], chunk_is: Callable[..., bool]) -> None:
    """Forget tensors by their hub names, or chunks by their keys, offsets and shapes."""
    if (folder / damage.INDEX).exists():
        damage.without(folder, name_is)
    else:
        damage.drop_chunks(folder, chunk_is)


def _expert_of(key: str, offsets: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """The expert that a chunk belongs to: its name says it, or the axis of its stack."""
    words = key.split(".")
    if "experts" not in words:
        return -1
    found = re.search(r"experts\.(\d+)\.|linear_fc\d\.weight(\d+)", key)
    number = int(found[1] or found[2]) if found else None
    axis = 1 if "layers" in words and not _layer(key) else 0
    return number if number is not None else offsets[axis] if axis < len(offsets) else -1


def _layer(key: str) -> list[str]:
    words = key.split(".")
    at = words.index("layers") + 1 if "layers" in words else len(words)
    return [w for w in words[at : at + 1] if w.isdigit()]


def _layer_of(key: str, offsets: tuple[int, ...], shape: tuple[int, ...]) -> int:
    if "layers" not in key.split("."):
        return -1
    named_ = _layer(key)
    return int(named_[0]) if named_ else offsets[0]


@part.files("half of the experts are lost", "experts-missing")
def _(folder: Path) -> None:
    lost(folder, lambda name: _expert_of(name, (0, 0), ()) >= 2, lambda *c: _expert_of(*c) >= 2)


@part.files("only the first pipeline stage was saved", "layers-missing")
def _(folder: Path) -> None:
    lost(folder, lambda name: _layer_of(name, (0,), ()) >= 2, lambda *c: _layer_of(*c) >= 2)


@part.files("one tensor is lost", "tensor-missing")
def _(folder: Path) -> None:
    lost(
        folder,
        lambda name: name == "model.norm.weight",
        lambda key, *_: (
            key.endswith(("model.norm.weight", "decoder.final_layernorm.weight"))
            and "optimizer" not in key
        ),
    )


@part.files("a second moment is lost", "state-missing", SHARDED)
def _(folder: Path) -> None:
    damage.drop_chunks(
        folder, lambda key, *_: "exp_avg_sq" in key and ("lm_head" in key or "output_layer" in key)
    )


@part.files("one rank's chunk was never stored", "elements-missing", SHARDED)
def _(folder: Path) -> None:
    gone: list[str] = []

    def first(key: str, offsets: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        vocabulary = key.endswith(("lm_head.weight", "output_layer.weight")) and "optim" not in key
        if vocabulary and offsets[0] and not gone:
            gone.append(key)
            return True
        return False

    damage.drop_chunks(folder, first)
    assert gone


@part.files("described but never stored", "elements-missing", SHARDED)
def _(folder: Path) -> None:
    def edit(metadata: Any) -> None:
        index = next(i for i in metadata.storage_data if "norm" in i.fqn)
        del metadata.storage_data[index]

    damage.edit_metadata(folder, edit)
