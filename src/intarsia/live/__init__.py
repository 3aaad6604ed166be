"""Live models and state dicts: torch's own objects, seen through layouts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intarsia.live.parallel.gradients import clip_grad_norm_, parameter_groups
    from intarsia.live.parallel.roles import batch_place
    from intarsia.live.parallelizing import parallelize

__all__ = ["batch_place", "clip_grad_norm_", "parallelize", "parameter_groups"]

_HOMES = {
    "batch_place": "parallel.roles",
    "clip_grad_norm_": "parallel.gradients",
    "parallelize": "parallelizing",
    "parameter_groups": "parallel.gradients",
}
"""What is imported when it is asked for: with it comes torch's DTensor, which takes a second.

No module here may be called as one of these: importing it would put it in that one's place.
"""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
