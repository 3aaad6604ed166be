"""JSON out of a checkpoint: read only where every program would read the same.

Python's parser takes lone surrogates, keys that come twice and nesting that it cannot write back;
each ends in an error far from its cause, so each is refused here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from itertools import chain
from typing import Any

from intarsia.errors import FormatError

MAX_DEPTH = 64
"""How deep objects and lists may be nested; a model configuration has five levels."""


def parse_json(data: bytes, where: str, *, unique: bool = True, hint: str | None = None) -> Any:
    """The value that a file holds; a key that comes twice is an error where `unique`."""
    try:
        text = data.decode("utf-8")
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not JSON ({str(error)[:200]})", hint=hint) from error

    def pairs(found: list[tuple[str, Any]]) -> None:
        name, times = Counter(name for name, _ in found).most_common(1)[0] if found else ("", 0)
        if times > 1:
            raise FormatError(f"{where} names {name[:200]!r} twice", hint=hint)

    # Each key is followed by a colon: where no more colons than keys are left, none came twice.
    if _count_keys(value, where) < text.count(":") and unique:
        json.loads(text, object_pairs_hook=pairs)
    return value


def _count_keys(value: Any, where: str) -> int:
    """The keys of all objects, which may be nested only so deep."""
    keys = 0
    level: Collection[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        kinds = {*map(type, level)}
        objects = [each for each in level if type(each) is dict] if dict in kinds else []
        lists = [each for each in level if type(each) is list] if list in kinds else []
        if not objects and not lists:
            return keys
        keys += sum(map(len, objects))
        level = [*chain.from_iterable(map(dict.values, objects)), *chain.from_iterable(lists)]
    raise FormatError(f"{where} is nested deeper than {MAX_DEPTH} levels")
