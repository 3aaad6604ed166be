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
    needing_torch,
)

if TYPE_CHECKING:
    from intarsia.api import diff, digest, open, verify
    from intarsia.checking.alone.soundness import Soundness
    from intarsia.checking.digests.digest import Digests
    from intarsia.checking.pair.change import Changes
    from intarsia.checking.pair.comparison import Comparison
    from intarsia.checkpoint import Checkpoint
    from intarsia.conversion.report import Report
    from intarsia.converting import convert, plan
    from intarsia.live.background import save
    from intarsia.live.load import load
    from intarsia.live.parallelizing import parallelize
    from intarsia.opened.explanation import Explanation, explain
    from intarsia.opened.inspection import Inspection, inspect
    from intarsia.opened.lazy_tensor import Tensor
    from intarsia.options import Options
    from intarsia.planning.plan import Plan

__version__ = "0.1.0"

_HOMES = {
    "intarsia.api": ("diff", "digest", "open", "verify"),
    "intarsia.checking.pair.change": ("Changes",),
    "intarsia.checking.pair.comparison": ("Comparison",),
    "intarsia.checking.digests.digest": ("Digests",),
    "intarsia.checking.alone.soundness": ("Soundness",),
    "intarsia.checkpoint": ("Checkpoint",),
    "intarsia.conversion.report": ("Report",),
    "intarsia.converting": ("convert", "plan"),
    "intarsia.opened.explanation": ("Explanation", "explain"),
    "intarsia.opened.inspection": ("Inspection", "inspect"),
    "intarsia.opened.lazy_tensor": ("Tensor",),
    "intarsia.live.background": ("save",),
    "intarsia.live.load": ("load",),
    "intarsia.live.parallelizing": ("parallelize",),
    "intarsia.options": ("Options",),
    "intarsia.planning.plan": ("Plan",),
}
"""What is imported when it is first asked for, by its module."""

_LAZY = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'intarsia' has no attribute {name!r}")
    with needing_torch(f"intarsia.{name}"):
        return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Changes", "Checkpoint", "Comparison", "CoverageError", "Digests", "Explanation", "FamilyError",
    "FormatError", "Inspection", "IntarsiaError", "LayoutError", "Options", "Plan", "PrecisionError",
    "Report", "Soundness", "StoreError", "Tensor", "UnsafeError", "UsageError", "__version__",
    "convert", "diff", "digest", "explain", "inspect", "load", "open", "parallelize", "plan", "save",
    "verify",
]  # fmt: skip
