"""How many parameters a checkpoint holds: the numbers of its weights, not the codes that stand for them."""

from __future__ import annotations

from math import prod

from intarsia.family import table_for
from intarsia.frozen import frozen
from intarsia.planning.manifest import Manifest
from intarsia.quantised.shapes import count_numbers
from intarsia.state.names import is_state


@frozen
class Parameters:
    """Their count, and how many weights it takes by their stored elements as nothing says what they stand for."""

    count: int
    unknown: int = 0

    def __str__(self) -> str:
        codes = f", {self.unknown:,} quantised weights among them by their stored elements"
        return f"{self.count:,}{codes if self.unknown else ''}"


def parameters_of(manifest: Manifest) -> Parameters:
    """The parameters of the model; neither scales nor an optimizer's state are any."""
    table, parts = table_for(manifest.config), manifest.quantised.kind_of_part
    known = table.known if table else {}
    logical = manifest.logical.items()
    count = sum(x.size for name, x in logical if name not in parts and not is_state(name))
    unknown = 0
    for kind in manifest.quantised.alike:
        alike = count_numbers(kind.first)
        for of, _ in kind.names:
            size = known[of].layout.size if of in known else alike
            unknown += size is None
            count += prod(kind.first.main.shape) if size is None else size
    return Parameters(count, unknown)
