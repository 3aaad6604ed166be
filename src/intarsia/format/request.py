"""What a destination should be, the tensors that it then holds, and what goes along with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from intarsia.dtypes import DType
from intarsia.format.optimizer_state.learning_rates import Rates
from intarsia.format.optimizer_state.parameter_groups import ParameterGroups
from intarsia.frozen import frozen, frozen_open
from intarsia.mesh import Mesh
from intarsia.planning.inventory import Reason
from intarsia.planning.manifest import Manifest, Target


@frozen
class Request:
    """What a destination should be; without a dialect, the one that users of the format expect."""

    to: str
    mesh: Mesh = Mesh()
    dialect: str | None = None
    dtype: DType | None = None
    optimizer: str = "keep"
    spec: str = "te"
    rates: Rates | None = None


@frozen
class Wanted:
    """The tensors to write, the logical tensors to leave out with the reason, and remarks.

    `equal` are groups of logical tensors of which one stands for all, if they are equal.  `rounded` are
    weights that must be their main weights rounded.
    """

    targets: tuple[Target, ...]
    drop: Mapping[str, Reason]
    entries: bool
    notes: tuple[str, ...]
    equal: tuple[tuple[str, ...], ...] = ()
    rounded: tuple[str, ...] = ()


@frozen_open
class EntriesToWrite:
    """Entries by name, and the groups and the step of an optimizer that the format spells by itself."""

    entries: Mapping[str, bytes] = field(default_factory=dict)
    groups: ParameterGroups | None = None
    step: float | None = None


@frozen_open
class SourceWithEntries:
    """A source with the bytes of its entries; its groups and numbers are read when they are asked for."""

    manifest: Manifest
    entries: Mapping[str, bytes]
    groups: Callable[[], ParameterGroups | None]
    number: Callable[[str], float]
