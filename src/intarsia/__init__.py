"""Intarsia moves LLM weights between meshes, frameworks and formats, and proves that every element arrived."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from intarsia.errors import (
    CoverageError,
    FamilyError,
    FormatError,
    IntarsiaError,
    LayoutError,
    PrecisionError,
    StoreError,
    UnsafeError,
    UsageError,
)

if TYPE_CHECKING:
    from intarsia.api import convert, diff, digest, open, plan, verify
    from intarsia.live.background import save
    from intarsia.live.load import load
    from intarsia.live.parallelize import parallelize

__version__ = "0.1.0"

_LAZY = dict.fromkeys(("convert", "diff", "digest", "open", "plan", "verify"), "intarsia.api") | {
    "load": "intarsia.live.load",
    "parallelize": "intarsia.live.parallelize",
    "save": "intarsia.live.background",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'intarsia' has no attribute {name!r}")


__all__ = [
    "CoverageError",
    "FamilyError",
    "FormatError",
    "IntarsiaError",
    "LayoutError",
    "PrecisionError",
    "StoreError",
    "UnsafeError",
    "UsageError",
    "convert",
    "diff",
    "digest",
    "load",
    "open",
    "parallelize",
    "plan",
    "save",
    "verify",
]
