"""Edits of JSON by its values, in the files that hold it: documents, headers, journals."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any
from zlib import crc32

from tests.fuzz.values import NUMBERS, TEXTS

_TWICE = "\ufffd twice \ufffd"
Slot = tuple[Any, Any]


def json_edited(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes | None:
    """A document with one value replaced, renamed, removed, moved or given twice."""
    try:
        document = [json.loads(data)]
    except (ValueError, RecursionError):
        return None
    slots = list(_slots(document))
    holder, key = chance.choice(slots)
    kind = chance.randrange(6)
    twice = None
    if kind == 0 and isinstance(holder, dict):
        holder[_name(chance, holder)] = holder.pop(key)
    elif kind == 1 and holder is not document:
        del holder[key]
    elif kind == 2:
        other, its_key = chance.choice(slots)
        holder[key] = deepcopy(other[its_key])
    elif kind == 3 and isinstance(holder, dict):
        twice = key
        holder[_TWICE] = deepcopy(holder[key])
    elif kind == 4 and isinstance(holder[key], (dict, list)):
        _grow(holder[key], chance)
    else:
        holder[key] = _value(holder[key], chance)
    try:
        text = json.dumps(document[0])
    except (ValueError, RecursionError):
        return None
    if twice is not None:
        text = text.replace(json.dumps(_TWICE), json.dumps(twice))
    return text.encode()


def header_edited(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes | None:
    """A safetensors file whose header is edited; its length and, mostly, its offsets stay true."""
    length = int.from_bytes(data[:8], "little")
    text = json_edited(data[8 : 8 + length], others, chance)
    if text is None:
        return None
    content = data[8 + length :]
    if chance.random() < 0.3:
        content = bytes(chance.choice((0, 1, len(content) // 2, 2 * len(content), 64)))
    pad = b" " * (-len(text) % 8) if chance.random() < 0.5 else b""
    return (len(text) + len(pad)).to_bytes(8, "little") + text + pad + content


def journal_edited(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes | None:
    """A journal with one record edited and its checksum made right, or a record put elsewhere."""
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    if chance.random() < 0.2:
        lines.insert(chance.randrange(len(lines)), lines[at])
        return b"\n".join(lines)
    text = json_edited(lines[at][9:], others, chance)
    if text is None:
        return None
    lines[at] = b"%08x %s" % (crc32(text), text)
    return b"\n".join(lines)


def _slots(holder: Any) -> Iterator[Slot]:
    """Every place of a value, as what holds it and the key there."""
    waiting = [holder]
    while waiting:
        holder = waiting.pop()
        for key in holder if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                waiting.append(holder[key])


def _grow(value: dict[str, Any] | list[Any], chance: random.Random) -> None:
    if isinstance(value, dict):
        value[_name(chance, value)] = _value(None, chance)
    else:
        value.insert(chance.randrange(len(value) + 1), _value(None, chance))


def _name(chance: random.Random, known: dict[str, Any]) -> str:
    near = chance.choice([*known, "x"])
    return chance.choice((*TEXTS, near + ".x", near[:-1], near.upper()))


def _value(old: Any, chance: random.Random) -> Any:
    if type(old) is int and chance.random() < 0.7:
        return chance.choice((*NUMBERS, old + 1, old - 1, old * 2, old // 2, -old))
    if isinstance(old, str) and chance.random() < 0.7:
        return chance.choice(TEXTS)
    odd = (None, True, False, 0.5, 1e308, float("inf"), float("nan"), -0.0, [], {}, [[]], [0], {"a": 0})  # fmt: skip
    nested: Any = 0
    for _ in range(chance.choice((1, 30, 63, 64, 65, 900))):
        nested = [nested]
    return deepcopy(chance.choice((*odd, *NUMBERS, *TEXTS, nested)))
