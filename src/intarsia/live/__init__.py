"""Live models and state dicts: torch's own objects, seen through layouts."""

from __future__ import annotations

from intarsia.live.gradients import clip_grad_norm_, parameter_groups
from intarsia.live.parallelize import parallelize
from intarsia.live.roles import batch_place

__all__ = ["batch_place", "clip_grad_norm_", "parallelize", "parameter_groups"]
