"""State that is one number for each parameter, such as `mu_product` of NAdam and `eta` of ASGD."""

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


def single_number(states: Iterable[str], row: Param, logical: Mapping[str, Logical]) -> str | None:
    """The first state of a row's parameters that is one number, though the row is more."""
    if not row.layout.shape:
        return None
    return next((name for name in states if not logical[name].shape), None)


def no_place_for(state: str, row: Param, format: str) -> CoverageError:
    """Why such state cannot be written where state is fused and cut as its parameter is."""
    return CoverageError(
        f"`{state}` is a single number, and {format} holds the state `{kind_of(state)}` of `{row.name}` in the shape of"
        f" that, {list(row.layout.shape)}",
        hint="use --optimizer drop, or convert to hf or dcp with --dialect same, which keep it as it is",
        tensors=(state,),
    )
