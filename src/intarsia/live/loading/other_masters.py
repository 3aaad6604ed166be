"""Main weights among the state of an optimizer that names them its own way, as TransformerEngine's FusedAdam does.

They are state of that optimizer, come back to it, and are not taken for the model's weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from intarsia.live.model.holding import Holding
from intarsia.planning.manifest import Manifest
from intarsia.state.names import of_kind

_KIND = "master_param"


def note_on_other_masters(holdings: Iterable[Holding], src: Manifest) -> Iterator[str]:
    """That an fp32 model is filled with shorter weights where fp32 ones are among the optimizer's state."""
    held, state = src.logical, of_kind(_KIND)
    found = [
        name
        for each in holdings
        if each.dtype.name == "F32"
        for name in each.layout.tensors
        if state(name) in held and name in held and held[name].dtype.name in ("BF16", "F16")
    ]
    if found:
        yield (
            f"{len(found)} weights of 16 bits fill an fp32 model, and not what they are rounded from, which is"
            f" among the optimizer's state: `{state(found[0])}` is {held[state(found[0])].dtype}"
        )
