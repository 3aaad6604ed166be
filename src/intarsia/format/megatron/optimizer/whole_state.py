"""Optimizer state that Megatron could not go on with: some parameters lack what the others have."""

from __future__ import annotations

from intarsia.errors import CoverageError, few
from intarsia.planning.manifest import Manifest
from intarsia.state.names import MASTER, STEP, StateName, state_among


def check_whole(src: Manifest) -> None:
    """Raise where some of the parameters that were trained lack the main weight or step that others have."""
    held: dict[str, set[str]] = {}
    for name in state_among(src.logical):
        if state := StateName.of(name):
            known = state.kind if state.kind in (MASTER, STEP) else ""
            held.setdefault(known, set()).add(state.parameter)
    trained, masters, steps = (held.get(kind, set()) for kind in ("", MASTER, STEP))
    narrow = {n for n in trained if n in src.logical and src.logical[n].dtype.itemsize < 4}
    lacking = {"fp32 main weight": (narrow, masters), "step": (trained, steps)}
    for what, (needing, having) in lacking.items():
        lost = sorted(needing - having)
        # Megatron's steps are its groups', and those are carried as they are.
        if having and lost and not (what == "step" and src.format == "torch_dist"):
            raise CoverageError(
                f"{len(lost)} of {len(trained)} parameters with optimizer state have no {what}, the"
                f" other {len(having)} have one: {few(lost, 4)} - at {src.path}",
                hint="use a checkpoint that has all of them, or only the weights with --optimizer drop",
            )
