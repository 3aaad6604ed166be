"""Steps that one side counts by parameter, and the other by group, as the Adam of TransformerEngine and of Apex do."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.checkpoint import Checkpoint
from intarsia.errors import IntarsiaError
from intarsia.format.registry import folder_of
from intarsia.format.torch_file.plain import number_in
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.mesh import Box
from intarsia.state.names import STEP, TORCH_GROUPS, kind_of, state_among
from intarsia.value.bits import as_float64, bits_dtype


def counted_by_groups(lacking: Checkpoint, having: Checkpoint, names: Sequence[str]) -> list[str]:
    """The steps among `names` that the groups of the side which lacks them are all at."""
    steps = [name for name in names if kind_of(name) == STEP]
    if not steps or any(kind_of(name) == STEP for name in state_among(lacking.manifest.logical)):
        return []
    found = _steps_of_groups(lacking)
    return [name for name in steps if {_number(having, name)} == found]


def _steps_of_groups(checkpoint: Checkpoint) -> set[float]:
    entries = checkpoint.manifest.entries
    said = [e for n, e in entries.items() if n.startswith(TORCH_GROUPS) and n.endswith(f".{STEP}")]
    with folder_of(checkpoint.manifest) as folder:
        try:
            values = [number_in(read_object(folder.read_small(*e.place), e.name)) for e in said]
        except IntarsiaError:
            return set()  # reported where entries are compared
    return {float(x) for x in values if type(x) in (int, float)}


def _number(checkpoint: Checkpoint, name: str) -> float:
    dtype = checkpoint.manifest.logical[name].dtype
    bits = checkpoint.read_box(checkpoint.prover.tensor(name), Box.whole(()))
    return float(as_float64(bits.view(bits_dtype(dtype)), dtype)[0])
