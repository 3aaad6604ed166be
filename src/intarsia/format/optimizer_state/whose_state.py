"""Of which weights an optimizer's state is, where a checkpoint has others beside the model's.

    model.weight, head.weight, optimizer.state.0.exp_avg    the state of either, where shapes are alike

Each part of a saved dict that may be trained is a candidate, whether the model, carried beside it or left
out; so is each order of several, where nothing but the order says what a number means.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from intarsia.errors import SectionError, few_lines
from intarsia.format.naming.wrappers import bare, without_wrappers
from intarsia.format.optimizer_state.numbered_state import NumberedState, is_buffer
from intarsia.frozen import frozen
from intarsia.mesh import Shape

_MOST = 6
"""Of more parts than these no order is looked for."""


@frozen
class Parts:
    """The parts of a saved dict: the shapes of their tensors of floating point, by the names inside of each.

    `model` is the one that is read as the model, those in `apart` are left out; `root` is the optimizer's.
    """

    held: Mapping[str, Mapping[str, Shape]]
    model: str
    apart: Collection[str]
    root: str
    where: str

    def beside(self, given: Mapping[str, str], states: Sequence[NumberedState]) -> dict[str, str]:
        """The parameters by what names them, where the `given` names are those of one part beside the model."""
        fits = {
            label: found
            for label in self.held
            if (found := self._inside(label, given)) and self._have_shapes(label, found, states)
        }
        if len(fits) > 1:
            raise self._unclear([(label,) for label in fits])
        owner = next(iter(fits), self.model)
        if owner in self.apart:
            raise SectionError(
                f"the state of {self._optimizer} is that of {owner}, which is left out",
                at=self.where,
                hint=f"choose both (--section {owner},{self._optimizer}), or leave optimizer state"
                " out (--optimizer drop)",
            )
        if owner == self.model:
            return {}
        return {number: f"{owner}.{name}" for number, name in fits[owner].items()}

    def refuse_two_orders(
        self, states: Sequence[NumberedState], count: int, tied: Collection[str]
    ) -> None:
        """Raise where other parts than one, or in another order, have the shapes of numbered states, too."""
        shapes: dict[int, set[Shape]] = {}
        for state in states:
            if state.shape:
                shapes.setdefault(int(state.number), set()).add(state.shape)
        ways = {
            label: {
                tuple(held[name] for name in names),
                tuple(held[name] for name in names if name not in tied),
            }
            for label, held in self.held.items()
            if any(held.values()) and (names := [name for name in held if not is_buffer(name)])
        }

        def orders(before: tuple[str, ...], at: int) -> Iterator[tuple[str, ...]]:
            if at == count:
                yield before
            for label in ways if len(ways) <= _MOST or not before else ():
                for way in ways[label] if label not in before else ():
                    if at + len(way) <= count and all(
                        shapes.get(at + k, {shape}) == {shape} for k, shape in enumerate(way)
                    ):
                        yield from orders((*before, label), at + len(way))

        found = [*islice(orders((), 0), 8)] if shapes else []
        if len(found) > 1:
            raise self._unclear(found)

    @property
    def _optimizer(self) -> str:
        return self.root.removesuffix(".") or "."

    def _inside(self, label: str, given: Mapping[str, str]) -> dict[str, str]:
        """What the names are inside of a part, if it has all of them."""
        held = self.held[label]
        plain = {number: bare(name).removeprefix(f"{label}.") for number, name in given.items()}
        found = {number: without_wrappers(name, held) for number, name in plain.items()}
        return (
            {number: name for number, name in found.items() if name} if all(found.values()) else {}
        )

    def _have_shapes(
        self, label: str, names: Mapping[str, str], states: Sequence[NumberedState]
    ) -> bool:
        held = self.held[label]
        return all(not s.shape or held.get(names.get(s.number, "")) == s.shape for s in states)

    def _unclear(self, found: Sequence[tuple[str, ...]]) -> SectionError:
        listed = few_lines([", then ".join(labels) for labels in found])
        alone = next((labels[0] for labels in found if len(labels) == 1), "")
        choose = f"choose one (--section {alone},{self._optimizer}), " if alone else ""
        return SectionError(
            f"the state of {self._optimizer} may be that of any of these, and nothing says"
            f" which{listed}",
            at=self.where,
            hint=f"{choose}give the optimizer model.named_parameters() and save again, or leave"
            " optimizer state out (--optimizer drop; optimizer=None in load)",
        )
