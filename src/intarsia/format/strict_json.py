"""JSON out of a checkpoint: read only where every program would read the same.

Python's parser takes lone surrogates, keys that come twice and nesting that it cannot write back;
each ends in an error far from its cause, so each is refused here.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from intarsia.errors import FormatError

MAX_DEPTH = 64
"""How deep objects and lists may be nested; a model configuration has five levels."""

_NESTING = frozenset({dict, list})


def parse_json(data: bytes, where: str, *, unique: bool = True, hint: str | None = None) -> Any:
    """The value that a file holds; a key that comes twice is an error where `unique`."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(found)
        if unique and len(out) < len(found):
            twice = Counter(name for name, _ in found).most_common(1)[0][0]
            raise FormatError(f"{where} names {twice[:200]!r} twice", hint=hint)
        return out

    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=pairs)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not JSON ({str(error)[:200]})", hint=hint) from error
    _check_depth(value, where)
    return value


def _check_depth(value: Any, where: str) -> None:
    level = [value] if type(value) in _NESTING else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) in _NESTING
        ]
        if not level:
            return
    raise FormatError(f"{where} is nested deeper than {MAX_DEPTH} levels")
