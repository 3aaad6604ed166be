"""The name of a tensor of optimizer state: its kind, and the parameter that it is the state of.

optimizer.<kind>.<parameter>          as Intarsia names it, wherever it was read
optimizer.state.<parameter>.<kind>    as torch flattens an optimizer's state dict
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

ROOT = "optimizer."
MASTER, STEP = "master", "step"
"""The kinds that are no moments: the fp32 main weight, and the counter of steps."""

SHAPED = ("exp_avg", "exp_avg_sq", MASTER, "max_exp_avg_sq", "momentum_buffer", "exp_inf")
"""Kinds that have the shape of their parameter."""

SETTING = "setting"

TORCH_STATE = f"{ROOT}state."
TORCH_GROUPS = f"{ROOT}param_groups."
SHARED_STATE = f"{ROOT}shared_state."
"""Begins the names of state that belongs to no parameter."""

CLASS = f"{ROOT}class"
"""The entry that names the class of the optimizer that was saved; torch writes none."""

_OF_TORCH = ("state", "param_groups")
"""Torch's words in the place of a kind: what follows is no name of ours."""


@dataclass(frozen=True, slots=True, order=True)
class StateName:
    """A kind of state (`exp_avg`, `master`, `step`, …) of one parameter."""

    kind: str
    parameter: str

    @staticmethod
    def of(name: str) -> StateName | None:
        """The state that a logical name means; None for a weight, and for what else an optimizer keeps.

        >>> StateName.of("optimizer.exp_avg.lm_head.weight")
        StateName(kind='exp_avg', parameter='lm_head.weight')
        >>> StateName.of("lm_head.weight"), StateName.of("optimizer.param_groups.0.lr")
        (None, None)
        """
        if not name.startswith(ROOT):
            return None
        kind, _, parameter = name[len(ROOT) :].partition(".")
        return StateName(kind, parameter) if parameter and kind not in ("", *_OF_TORCH) else None

    @staticmethod
    def of_torch(key: str) -> StateName | None:
        """The state that a key means in which torch put the parameter before the kind.

        >>> StateName.of_torch("optimizer.state.lm_head.weight.exp_avg")
        StateName(kind='exp_avg', parameter='lm_head.weight')
        """
        if not key.startswith(TORCH_STATE):
            return None
        parameter, _, kind = key[len(TORCH_STATE) :].rpartition(".")
        return StateName(kind, parameter) if parameter and kind else None

    def __str__(self) -> str:
        return f"{ROOT}{self.kind}.{self.parameter}"

    @property
    def as_torch(self) -> str:
        """The key under which torch stores it.

        >>> StateName("exp_avg", "lm_head.weight").as_torch
        'optimizer.state.lm_head.weight.exp_avg'
        """
        return f"{TORCH_STATE}{self.parameter}.{self.kind}"


def is_state(name: str) -> bool:
    """Whether a logical name is the optimizer's: state of a parameter, or what else it keeps."""
    return name.startswith(ROOT)


def state_among(names: Collection[str]) -> list[str]:
    """The names that are the optimizer's; whether there are any is asked of all names at once."""
    return [*filter(is_state, names)] if f"\n{ROOT}" in "\n".join(("", *names)) else []


def parameter_of(name: str) -> str:
    """The parameter that a tensor is the state of; a weight is its own.

    >>> parameter_of("optimizer.step.lm_head.weight"), parameter_of("lm_head.weight")
    ('lm_head.weight', 'lm_head.weight')
    """
    state = StateName.of(name) if name.startswith(ROOT) else None
    return state.parameter if state else name


def kind_of(name: str) -> str:
    """The kind of state that a name means; empty for a weight, `SETTING` for what else an optimizer keeps."""
    if not name.startswith(ROOT):
        return ""
    state = StateName.of(name)
    return state.kind if state else SETTING


def kinds_by_parameter(states: Iterable[StateName | None]) -> dict[str, set[str]]:
    """For each parameter, the kinds of state that it has; names of no state are passed over."""
    found: dict[str, set[str]] = {}
    for state in states:
        if state is not None:
            found.setdefault(state.parameter, set()).add(state.kind)
    return found


def of_kind(kind: str) -> Callable[[str], str]:
    """Gives a parameter's state of one kind its name, as where a layout of parameters is renamed.

    >>> of_kind("master")("lm_head.weight")
    'optimizer.master.lm_head.weight'
    """
    return f"{ROOT}{kind}.".__add__


def like(name: str) -> Callable[[str], str]:
    """Names what another parameter has in the place of `name`: its state of that kind, or itself.

    >>> like("optimizer.step.a")("b"), like("a")("b")
    ('optimizer.step.b', 'b')
    """
    state = StateName.of(name)
    return of_kind(state.kind) if state else str


master_of = of_kind(MASTER)
step_of = of_kind(STEP)
