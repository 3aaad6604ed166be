"""The element type that a `config.json` names, set to the one that its tensors were cast to."""

from __future__ import annotations

import re

from intarsia.dtypes import BY_TORCH, DType

_NAMED = re.compile(r'("(?:torch_)?dtype"\s*:\s*")(?:torch\.)?(?P<name>\w+)(")')


def with_dtype(text: str, dtype: DType) -> str:
    """The text of a configuration with another type, every other character as it was.

    >>> from intarsia.dtypes import BY_NAME
    >>> with_dtype('{"torch_dtype":  "float32", "vocab_size": 7}', BY_NAME["BF16"])
    '{"torch_dtype":  "bfloat16", "vocab_size": 7}'
    """

    def renamed(found: re.Match[str]) -> str:
        known = BY_TORCH.get(found["name"])
        if known is None or not known.floating:
            return found[0]
        return f"{found[1]}{dtype.torch}{found[3]}"

    return _NAMED.sub(renamed, text)
