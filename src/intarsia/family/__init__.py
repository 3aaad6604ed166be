"""Model families: which logical tensors a model has, from its `config.json`."""

from __future__ import annotations

from importlib import import_module

from intarsia.family.spec import Config, Param, Table

_FILES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen3": "qwen3",
}
"""The file that knows each `model_type`."""


def table_for(config: Config | None) -> Table | None:
    """The family's table for a model configuration; None where the family is not known.

        >>> table_for({"model_type": "gpt2"}) is None
        True
    """
    model_type = (config or {}).get("model_type")
    if config is None or model_type not in _FILES:
        return None
    module = import_module(f"intarsia.family.{_FILES[model_type]}")
    table = Table(str(model_type), config)
    module.fill(table)
    return table


__all__ = ["Config", "Param", "Table", "table_for"]
