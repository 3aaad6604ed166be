"""Model families: which tensors a model has in each dialect, from its `config.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family.config.fields import MAX_LAYERS, Config
from intarsia.family.rows import Param, Rows, RowsOfDialects
from intarsia.family.table import DISK, HUB, Layer, Table
from intarsia.mesh import Shape

Fill = Callable[[Table], None]

_TYPES = {
    "deepseek_v3": ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2"),
    "gemma": ("gemma", "gemma2", "gemma3", "gemma3_text"),
    "glm4_moe": ("glm4_moe",),
    "gpt_oss": ("gpt_oss",),
    "llama": (
        "cwm", "ernie4_5", "granite", "llama", "ministral", "ministral3", "mistral", "mistral3",
        "seed_oss", "smollm3",
    ),
    "mixtral": ("mixtral",),
    "olmoe": ("olmoe",),
    "phi3": ("phi3",),
    "qwen2": ("qwen2", "qwen2_5_vl", "qwen2_vl"),
    "qwen2_moe": ("qwen2_moe",),
    "qwen3": ("qwen3", "qwen3_vl"),
    "qwen3_5": ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"),
    "qwen3_moe": ("qwen3_moe",),
    "qwen3_next": ("qwen3_next",),
}  # fmt: skip
"""The files of `families/`, and every `model_type` that each knows."""

ANSWERING = (
    "llama", "ministral", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3",
)  # fmt: skip
"""Those whose class of Transformers for question answering calls the inner model `transformer`."""

_FILES = {model_type: file for file, types in _TYPES.items() for model_type in types}
_REGISTERED: dict[str, Fill] = {}


class Adopted(dict[str, Any]):
    """A configuration with the table that was adopted for it: another checkpoint of its model has none, or another."""

    def __init__(self, config: Config, table: Table) -> None:
        super().__init__(config)
        self.table = table


def register(model_type: str, fill: Fill) -> None:
    """Have `fill` write the table of a `model_type`, in place of the library's own if it has one."""
    _REGISTERED[model_type] = fill
    _table.cache_clear()


def unregister(model_type: str) -> None:
    """Take back what `register` said of a `model_type`."""
    _REGISTERED.pop(model_type, None)
    _table.cache_clear()


def model_types() -> tuple[str, ...]:
    """Every `model_type` that has a table."""
    return tuple(sorted({*_FILES, *_REGISTERED}))


def table_for(config: Config | None, *, zero_centered: bool | None = None) -> Table | None:
    """The family's table for a model configuration; None where the family is not known.

    `zero_centered` is Megatron's `layernorm_zero_centered_gamma` where a checkpoint's stored
    arguments give it; otherwise the table takes Megatron-Bridge's convention, which is the hub's.
    A table is shared between callers and is not to be changed.

        >>> table_for({"model_type": "gpt2"}) is None
        True
    """
    if config is None:
        return None
    model_type = config.get("model_type")
    if isinstance(model_type, str) and (model_type in _FILES or model_type in _REGISTERED):
        return _table(_text(config), zero_centered)
    return config.table if isinstance(config, Adopted) else None


def adopt(config: Config, stored: Mapping[str, Shape]) -> Adopted:
    """Take the rules of the installed Transformers as the table of a model that has none.

    `stored` are the names and shapes of a checkpoint, in the hub's dialect or the module's.  Where
    Transformers finds none of them, the table is that of the model as it would be saved.
    """
    from intarsia.family.from_transformers import rules

    table = None
    with suppress(FamilyError):
        table = rules.table_by_rules(config)
    if table is None or not all(name in table.known for name in stored):
        by_stored = rules.table_by_rules(config, stored)
        table = by_stored if table is None or by_stored.dialects["hf-module"] else table
    return Adopted(config, table)


def _text(config: Config) -> str:
    return json.dumps(config, sort_keys=True, default=str)


@lru_cache(maxsize=8)
def _table(config: str, zero_centered: bool | None) -> Table:
    table = Table("", json.loads(config), zero_centered)
    table.family = str(table.config["model_type"])
    fill = _REGISTERED.get(table.family)
    if fill is None:
        fill = import_module(f"intarsia.family.families.{_FILES[table.family]}").fill
    fill(table)
    if table.bare and table.head in table.optional:
        for dialect in DISK:
            table.respell(f"{dialect}-bare", dialect, table.hf.partition(".")[0] + ".", "")
        table.respell_usual("hf-module", table.module.partition(".")[0] + ".", "")
    answers = any(kind.endswith("ForQuestionAnswering") for kind in table.architectures)
    if answers and table.family in ANSWERING:
        for dialect in HUB:
            table.respell_usual(dialect, "model.", "transformer.")
    return table


__all__ = [
    "MAX_LAYERS", "Adopted", "Config", "Fill", "RowsOfDialects", "Layer", "Param", "Rows", "Table", "adopt",
    "model_types", "register", "table_for", "unregister",
]  # fmt: skip
