"""Numbers of bytes as people write and read them."""

from __future__ import annotations

import re
from math import inf

from intarsia.errors import UsageError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{p}b": 1000**k for k, p in enumerate("kmgt", 1)}
_UNITS |= {f"{p}ib": 1024**k for k, p in enumerate("kmgt", 1)}
_UNITS |= {p: 1024**k for k, p in enumerate("kmgt", 1)}


def human(count: int) -> str:
    """Bytes as people read them.

    >>> human(1536), human(12)
    ('1.50 KiB', '12 B')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.2f} {unit}" if unit != "B" else f"{count} B"
        size /= 1024
    return f"{size:.2f} TiB"


def bytes_in(text: str | int) -> int:
    """Bytes as people write them.

    >>> bytes_in("2GiB"), bytes_in("5GB"), bytes_in(4096)
    (2147483648, 5000000000, 4096)
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if not isinstance(text, str):
        raise UsageError(f"{text!r} is not a size", hint="write for example 512MiB, 2GiB or 5GB")
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    size = float(found[1]) * _UNITS.get(found[2].lower(), inf) if found else inf
    if not size < 1 << 63:
        raise UsageError(
            f"{text[:40]!r} is not a size", hint="write for example 512MiB, 2GiB or 5GB"
        )
    return int(size)
