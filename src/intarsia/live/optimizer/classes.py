"""Which optimizer it is: what lies in a wrapper, its class, and the kinds of state that torch's classes keep."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from intarsia.errors import UsageError
from intarsia.live.optimizer.own_state_dict import check_same_numbers, own_state_dict
from intarsia.live.optimizer.several import SeveralOptimizers, each_of
from intarsia.state.names import SHAPED

# What a class always keeps of a stepped parameter, and what it may keep.
_KINDS = {
    "Adadelta": ("step square_avg acc_delta", ""),
    "Adafactor": ("step", "row_var col_var variance"),
    "Adagrad": ("step sum", ""),
    "Adam": ("step exp_avg exp_avg_sq", "max_exp_avg_sq"),
    "AdamW": ("step exp_avg exp_avg_sq", "max_exp_avg_sq"),
    "Adamax": ("step exp_avg exp_inf", ""),
    "ASGD": ("step eta mu ax", ""),
    "Muon": ("momentum_buffer", ""),
    "NAdam": ("step exp_avg exp_avg_sq mu_product", ""),
    "RAdam": ("step exp_avg exp_avg_sq", ""),
    "RMSprop": ("step square_avg", "momentum_buffer grad_avg"),
    "Rprop": ("step prev step_size", ""),
    "SGD": ("", "momentum_buffer"),
    "SparseAdam": ("step exp_avg exp_avg_sq", ""),
}


NUMBERS = frozenset({"step", "mu_product", "eta", "mu"})
"""Kinds of state that are one number, also of a parameter that is one number itself."""

# What a class keeps beside that with a setting, and does not make again for a parameter that has state.
_ASKED = {
    "Adam": {"amsgrad": "max_exp_avg_sq"},
    "AdamW": {"amsgrad": "max_exp_avg_sq"},
    "RMSprop": {"centered": "grad_avg", "momentum": "momentum_buffer"},
}


@dataclass(frozen=True)
class UnwrappedOptimizer:
    """An optimizer without its wrappers: which object has the state of this rank, and which the settings."""

    held: Any
    settings: Any


def opened(optimizer: Any) -> UnwrappedOptimizer:
    """What lies in the wrappers of an optimizer; raise where one keeps something of its own."""
    if isinstance(optimizer, (Mapping, list, tuple)):
        held = [*(optimizer.values() if isinstance(optimizer, Mapping) else optimizer)]
        each = [opened(one) for one in held]
        if len(each) == 1:
            return each[0]
        if not each:
            raise UsageError(
                "`optimizer` contains no optimizer", hint="give None to leave the optimizer out"
            )
        return UnwrappedOptimizer(
            SeveralOptimizers([x.held for x in each]), SeveralOptimizers([x.settings for x in each])
        )
    if any(c.__name__ == "ZeroRedundancyOptimizer" for c in type(optimizer).__mro__):
        if getattr(optimizer, "_overlap_with_ddp", False):
            raise UsageError(
                "a ZeroRedundancyOptimizer that overlaps with DDP makes its optimizer while it steps",
                hint="make it with overlap_with_ddp=False",
            )
        return UnwrappedOptimizer(optimizer.optim, optimizer)
    for word in ("optimizer", "optim"):
        inner = getattr(optimizer, word, None)
        if not (hasattr(inner, "param_groups") and hasattr(inner, "state")):
            continue
        for field in ("param_groups", "state"):
            if getattr(optimizer, field, None) is not getattr(inner, field):
                raise UsageError(
                    f"{type(optimizer).__name__} wraps {type(inner).__name__}, and its `{field}`"
                    f" is not the `{field}` of the wrapped optimizer",
                    hint=f"give the wrapped optimizer (.{word}), and put what the wrapper keeps"
                    " into `extra`",
                )
        _check_nothing_more(optimizer, inner)
        return opened(inner)
    if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state")):
        raise UsageError(
            f"{type(optimizer).__name__} has no `param_groups` and `state`, so it is not an optimizer",
            hint="give a torch optimizer",
        )
    _check_nothing_more(optimizer)
    return UnwrappedOptimizer(optimizer, optimizer)


def _check_nothing_more(optimizer: Any, inner: Any = None) -> None:
    """Raise where the state dict of an optimizer holds more than states and groups, or than that of one inside."""
    given = own_state_dict(optimizer)
    if given is None:
        return
    known = {"state", "param_groups", *(inner.state_dict() if inner is not None else ())}
    more = sorted(str(key) for key in given.keys() - known)
    if more:
        raise UsageError(
            f"the state dict of {type(optimizer).__name__} holds {', '.join(more)} in addition"
            " to `state` and `param_groups`, which belongs to no parameter",
            hint="keep it in the optimizer's groups, or in its `state` under a text key"
            + (", or give the wrapped optimizer, and the rest in `extra`" if inner else ""),
        )
    check_same_numbers(optimizer, given)


def class_of(optimizer: Any) -> str:
    """The name of an optimizer's class, with its module's."""
    found = type(optimizer)
    return f"{found.__module__}.{found.__qualname__}"


def classes_of(optimizer: Any) -> str | list[str]:
    """The name of the class of all groups, or that of each group where they differ."""
    found = [class_of(one) for one in each_of(optimizer) for _ in one.param_groups]
    return found[0] if len({*found}) == 1 else found


def is_torchs(optimizer: Any) -> bool:
    """Whether an optimizer is of one of torch's own classes."""
    return type(optimizer).__module__.startswith("torch.optim.")


def keeps_shape(kind: str, optimizer: Any) -> bool:
    """Whether a kind of state has its parameter's shape: all that torch's optimizers keep, but for Adafactor's factors
    and the history of LBFGS."""
    known = is_torchs(optimizer) and type(optimizer).__name__ in _KINDS
    return kind in SHAPED or (known and kind not in ("row_var", "col_var"))


_DECIDED = ("decoupled_weight_decay",)
"""The setting that distinguishes torch's AdamW from its Adam."""


def check_class(stored: str | None, optimizer: Any, where: str) -> None:
    """Raise where a checkpoint names another class than the optimizer's."""
    if stored is not None and stored != class_of(optimizer):
        raise UsageError(
            f"{where} was saved with {stored}, the optimizer is {class_of(optimizer)}",
            hint='make the same optimizer, or load with optimizer_class="any" and'
            ' hyperparameters="mine" if its state is intended for this one',
        )


def check_kinds(
    name: str, stored: Collection[str], optimizer: Any, settings: Mapping[str, Any], where: str
) -> None:
    """Raise where the state stored of a parameter is not what a class of torch's keeps with the settings of its group."""
    found = type(optimizer)
    if not is_torchs(optimizer) or found.__name__ not in _KINDS:
        return
    needed, allowed = (frozenset(words.split()) for words in _KINDS[found.__name__])
    if needed <= set(stored) <= needed | allowed:
        for setting, kind in _ASKED.get(found.__name__, {}).items():
            if settings.get(setting) and kind not in stored:
                raise UsageError(
                    f"{where} holds no {kind} of `{name}`, which {found.__name__} needs with"
                    f" {setting}={settings[setting]}",
                    hint=f"make the optimizer without {setting}, or load only the model (optimizer=None)",
                )
        return
    raise UsageError(
        f"{where} holds {', '.join(sorted(stored))} of `{name}`, {found.__name__} keeps"
        f" {', '.join(sorted(needed | allowed))}",
        hint="make the optimizer that was saved, or load only the model (optimizer=None)",
    )


def fixed_settings(optimizer: Any) -> dict[str, Any]:
    """The settings that an optimizer's class itself decides.

    Others that its constructor does not take may change as it steps: counters, sums, modes.
    """
    taken = signature(type(optimizer).__init__).parameters
    if any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        return {}
    defaults = getattr(optimizer, "defaults", None) or {}
    return {key: defaults[key] for key in _DECIDED if key in defaults and key not in taken}
