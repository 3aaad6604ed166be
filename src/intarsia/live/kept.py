"""What a load leaves as it was, and why: it is reported, and refused where everything was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from intarsia.errors import CoverageError
from intarsia.live.contents import Contents
from intarsia.live.values import Values

ON_META = "it is on `meta`, and neither the checkpoint nor the model says what it holds"
NOT_HANDED = "its module's state_dict() does not hand it out"


def kept_of(contents: Contents, values: Values, on_meta: Sequence[str]) -> dict[str, str]:
    """The names of everything that a load does not fill, each with the reason."""
    found = dict.fromkeys(contents.left_out, NOT_HANDED)
    return found | dict.fromkeys(on_meta, ON_META) | dict(values.lost)


def check_kept(kept: Mapping[str, str], where: str) -> None:
    """Raise where something that a checkpoint could hold would be left as it was.

    A passing buffer on `meta` is in no checkpoint, and no forward pass goes over it unnoticed.
    """
    lost = {name: why for name, why in kept.items() if why != ON_META}
    if lost:
        name, why = next(iter(lost.items()))
        raise CoverageError(
            f"{len(lost)} tensors or values of the model are not filled from {where}:"
            f" {', '.join([*lost][:4])}{', …' if len(lost) > 4 else ''}; of `{name}`: {why}",
            hint="load with strict=False, which leaves them as they are",
        )
