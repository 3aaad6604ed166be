"""What a user may want to do after two checkpoints were found to differ."""

from __future__ import annotations

from intarsia.checking.pair.compare import Comparison
from intarsia.state.names import is_state


def next_step(found: Comparison) -> str | None:
    """Where nothing explains why the weights of one model differ, they may be two steps of training."""
    weights = [d for d in found.different if not is_state(d.tensor)]
    alike = not (found.only_in_a or found.only_in_b or found.damaged)
    if not weights or not alike or any(d.kind != "unexplained" for d in weights):
        return None
    return (
        "if one of the two was trained further than the other, `intarsia diff A B` shows how"
        " much each tensor changed"
    )
