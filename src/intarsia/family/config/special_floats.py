"""Infinity and NaN as Transformers 5 writes them into `config.json`, which plain JSON cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TAG = "__float__"
_VALUES = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


def with_special_floats(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with numbers for `{"__float__": "Infinity"}` and its like, at any depth.

    >>> with_special_floats({"time_step_limit": [0.0, {"__float__": "Infinity"}]})
    {'time_step_limit': [0.0, inf]}
    """
    return {name: _number(value) for name, value in config.items()}


def _number(value: Any) -> Any:
    if isinstance(value, Mapping):
        tag = value.get(_TAG) if len(value) == 1 else None
        known = isinstance(tag, str) and tag in _VALUES
        return _VALUES[tag] if known else with_special_floats(value)  # type: ignore[index]
    if isinstance(value, list):
        return [_number(x) for x in value]
    return value
