"""Whether the files in which a trainer keeps its state go along with a conversion: all, or none.

Trainer's and accelerate's `optimizer.pt` numbers the parameters in the order of the model, and
`trainer_state.json` counts the steps.  The one without the other resumes at step N with moments
that begin anew, so they travel together, and only where every tensor of the model stays as it is.
"""

from __future__ import annotations

from intarsia.format.folder.inventory import is_training
from intarsia.format.folder.side_files import leaving_out
from intarsia.format.folder.trainer_files import lost_half
from intarsia.format.registry import format_named
from intarsia.format.request import Request, Wanted
from intarsia.planning.inventory import Fate, Role, items_left_out
from intarsia.planning.manifest import Manifest
from intarsia.state.names import is_state, state_among


def settle_files(
    src: Manifest, request: Request, wanted: Wanted
) -> tuple[Manifest, tuple[str, ...]]:
    """The manifest with the fates that files have in this conversion, and what is to be said."""
    held = [i for i in src.inventory if is_training(i) and i.fate is Fate.COPIED]
    why = _unlike(src, request, wanted)
    if not held or not why:
        return src, ()
    lost = {item.name for item in held}
    note = f"training state is left out ({', '.join(sorted(lost))}): {why}"
    return leaving_out(src, lost, why), (note,)


def _unlike(src: Manifest, request: Request, wanted: Wanted) -> str:
    """Why a trainer could not go on with the result; "" where it can."""
    if request.optimizer == "drop":
        return "dropped as asked"
    if not all(format_named(name).trainer_files for name in (src.format, request.to)):
        return f"it is valid only for the files of the source, and {request.to} writes others"
    if lacks := lost_half(src.inventory, bool(state_among(src.logical))):
        return lacks
    if lost := [i.name for i in items_left_out(src.inventory) if i.role is Role.OPTIMIZER]:
        return f"{lost[0]} holds optimizer state that is not read"
    before = {(s.key, s.shape, s.dtype) for s in src.stored.values() if not is_state(s.name)}
    after = {(t.name, t.shape, t.dtype) for t in wanted.targets if not is_state(t.name)}
    if before == after:
        return ""
    name = min(key for key, _, _ in before ^ after)
    return f"it numbers the parameters of the source, and `{name}` changes"
