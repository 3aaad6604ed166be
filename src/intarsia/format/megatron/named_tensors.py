"""What the names of a Megatron checkpoint's tensors lead to: stored tensors, and the logical ones that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from intarsia.dtypes import DType
from intarsia.errors import FamilyError, IntarsiaError
from intarsia.family import Table
from intarsia.family.optional_parts import must_be_there
from intarsia.mesh import Shape
from intarsia.planning.manifest import Logical, Stored
from intarsia.planning.problem import Problem, absences
from intarsia.state.names import parameter_of

_NO_SHAPES: Mapping[str, Shape] = {}

BY_THEIR_NAMES = (
    "tensors are read under the names that they are stored by, and --dialect same carries them so to"
    " hf or dcp; --config gives the model's configuration"
)
"""What becomes of a model whose family is not known."""


@dataclass
class MegatronTensors:
    """Stored tensors, and what their names say.

    `copies` hold what is stored for another rank as well; of `repeated` counters the first is kept, and
    the second must equal it; `unclear` is why optimizer state has no names.
    """

    stored: dict[str, Stored] = field(default_factory=dict)
    logical: dict[str, Logical] = field(default_factory=dict)
    copies: list[Stored] = field(default_factory=list)
    repeated: list[tuple[Stored, Stored]] = field(default_factory=list)
    absent: tuple[Logical, ...] = ()
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unclear: IntarsiaError | None = None

    def add(self, stored: Stored, shapes: Mapping[str, Shape] = _NO_SHAPES) -> None:
        """Add a stored tensor; `shapes` are those of the model, what is not there has the shape stored."""
        if (other := self.stored.get(stored.name)) is not None:
            keys = other.key, stored.key
            raise FamilyError(f"`{keys[0]}` and `{keys[1]}` are the same", tensors=keys)
        self.stored[stored.name] = stored
        for name in stored.layout.tensors:
            if name not in self.logical:
                shape = shapes.get(parameter_of(name), stored.shape)
                self.logical[name] = Logical(name, shape, stored.dtype)

    def cannot_name(self, why: IntarsiaError, state: Iterable[str], where: str) -> None:
        """Note optimizer state where nothing says which parameter it belongs to."""
        self.unclear = why
        self.problems.append(Problem("", tuple(state), (), f"optimizer state stays {where}: {why}"))

    def count(self, steps: Mapping[str, Stored]) -> None:
        """Add steps that parameter groups count."""
        self.stored |= steps
        self.logical |= {name: Logical(name, s.shape, s.dtype) for name, s in steps.items()}

    @property
    def floating(self) -> DType | None:
        """The element type of the first floating-point tensor."""
        return next((s.dtype for s in self.stored.values() if s.dtype.floating), None)

    def miss(self, table: Table, dtype: DType | None) -> None:
        """Note which tensors of the model must be there and are not."""
        if dtype is not None:
            names = must_be_there(table, self.logical)
            self.absent = tuple(Logical(name, table.logical[name], dtype) for name in names)
            self.problems += absences(self.absent)
