"""State of another shape than its parameter's: one number (`mu_product` of NAdam, `eta` of ASGD), or factors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from intarsia.errors import CoverageError
from intarsia.family import Param
from intarsia.mesh import Shape
from intarsia.planning.manifest import Logical
from intarsia.state.names import SHAPED, StateName, kind_of


def kinds_of_numbers(states: Iterable[tuple[str, Shape]]) -> frozenset[str]:
    """The kinds of state that are one number for every parameter: a moment that lost its shape is none of them."""
    numbers, others = set[str](), {*SHAPED}
    for name, shape in states:
        if state := StateName.of(name):
            (others if shape else numbers).add(state.kind)
    return frozenset(numbers - others)


def other_shape(states: Iterable[str], row: Param, logical: Mapping[str, Logical]) -> str | None:
    """The first state of a row's parameters that has not its parameter's shape (Adafactor's factors, a single number)."""
    for name in states:
        state, shape = StateName.of(name), logical[name].shape
        param = logical.get(state.parameter) if state else None
        if shape != param.shape if param else not shape and row.layout.shape:
            return name
    return None


def no_place_for(state: str, shape: Shape, row: Param, format: str) -> CoverageError:
    """Why such state cannot be written where state is fused and cut as its parameter is."""
    has = f"has shape {list(shape)}" if shape else "is a single number"
    return CoverageError(
        f"`{state}` {has}, and {format} holds the state `{kind_of(state)}` of `{row.name}` in the shape of"
        f" that, {list(row.layout.shape)}",
        hint="use --optimizer drop, or convert to hf or dcp with --dialect same, which keep it as it is",
        tensors=(state,),
    )
