"""Live models and state dicts: torch's own objects, seen through layouts."""

from __future__ import annotations

from intarsia.live.parallel.gradients import clip_grad_norm_, parameter_groups
from intarsia.live.parallel.roles import batch_place
from intarsia.live.parallelize import parallelize

__all__ = ["batch_place", "clip_grad_norm_", "parallelize", "parameter_groups"]
