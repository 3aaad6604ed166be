"""JSON documents of values: what `as_json` gives and `--json` prints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from math import isfinite
from typing import Any


class Document:
    """A value whose document has all of its fields, each under its own name."""

    __slots__ = ()

    def as_json(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return fields_of(self)


def fields_of(value: Any, but: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a value as JSON has them, but for some."""
    return {f.name: in_json(getattr(value, f.name)) for f in fields(value) if f.name not in but}


def in_json(x: Any) -> Any:
    """A value as JSON has it, which has no number that is not finite: that is a text.

    >>> in_json({"max_abs": float("inf"), "first": (0, 3)})
    {'max_abs': 'inf', 'first': [0, 3]}
    """
    if isinstance(x, Document):
        return x.as_json()
    if isinstance(x, Mapping):
        return {key: in_json(each) for key, each in x.items()}
    if isinstance(x, tuple | list):
        return [in_json(each) for each in x]
    return str(x) if isinstance(x, float) and not isfinite(x) else x
