"""Everything that a caller gives to be saved or filled: a module, or a dict of modules, tensors and values.

    {"actor": module, "critic": module, "actor_optimizer": optimizer, "alpha": tensor, "step": 7}

Modules in a dict are sections of the checkpoint, tensors go by their keys, an optimizer's state by the
names of its parameters, and what is none of these (a number, text, a list) is an entry.  Nothing is
skipped: what cannot be carried is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from intarsia.errors import UsageError
from intarsia.format.naming.wrappers import bare
from intarsia.format.optimizer_state.optimizer_names import roots_of
from intarsia.live.entries import check_nesting
from intarsia.live.model.module_state import ModuleState, is_module, of_numbers

Leaf = tuple[Any, Any]
"""A dict, and the key of one of its values."""


@dataclass(frozen=True)
class ModelContents:
    """What was given: modules by the prefix of their names, tensors and other values of dicts by name."""

    modules: Mapping[str, ModuleState] = field(default_factory=dict)
    loose: Mapping[str, Any] = field(default_factory=dict)
    leaves: Mapping[str, Leaf] = field(default_factory=dict)
    optimizers: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The keys that lead to each module, by its prefix, and to each tensor and value of a dict."""

    @staticmethod
    def of(given: Any) -> ModelContents:
        """Take apart what a caller gives; with FSDP1, collective."""
        if is_module(given):
            return ModelContents({"": ModuleState.by(given)})
        if not isinstance(given, Mapping):
            raise UsageError(
                f"{type(given).__name__} can neither be loaded into nor saved",
                hint="give a torch module, or a dict of modules and tensors",
            )
        modules: dict[str, ModuleState] = {}
        loose: dict[str, Any] = {}
        leaves: dict[str, Leaf] = {}
        optimizers: dict[str, Any] = {}
        keys: dict[str, tuple[str, ...]] = {}
        taken: set[str] = set()
        for path, held, key in _leaves(given, ()):
            name, value = ".".join(path), held[key]
            if name in taken:
                raise UsageError(
                    f"two values of the dict have the name `{name}` after their keys are joined"
                    " by dots",
                    hint="rename a key",
                )
            taken.add(name)
            if is_module(value):
                modules[f"{name}."] = ModuleState.by(value)
                keys[f"{name}."] = path
            elif isinstance(value, torch.Tensor):
                loose[name] = of_numbers(value, name)
                keys[name] = path[:-1]
            elif hasattr(value, "param_groups"):
                optimizers[name] = value
            else:
                _check_plain(value, name)
                leaves[name] = (held, key)
                keys[name] = path[:-1]
        return ModelContents(modules, loose, leaves, optimizers, keys)

    def optimizer_with(self, given: Any) -> Any:
        """The optimizers of the dict and the one that was given beside it; None where there are none."""
        if not self.optimizers:
            return given
        each = given.values() if isinstance(given, Mapping) else given
        more = each if isinstance(given, (Mapping, list, tuple)) else [given]
        return [x for x in (*self.optimizers.values(), *more) if x is not None]

    @cached_property
    def tensors(self) -> dict[str, Any]:
        """All tensors by name; raise where two have one."""
        found: dict[str, Any] = {}
        handed = ((p + n, x) for p, h in self.modules.items() for n, x in h.tensors.items())
        for given, x in (*self.loose.items(), *handed):
            name = bare(given)
            if name in found:
                raise UsageError(
                    f"two tensors have the name `{name}` after wrapper names are removed from it",
                    hint="rename a key of the dict, or the submodule whose name is a wrapper's",
                )
            found[name] = x
        return found

    @property
    def nesting(self) -> dict[str, tuple[str, ...]]:
        """The keys above each tensor and value that lies in a dict of the one that was given."""
        found = {name: self.keys[name] for name in (*self.loose, *self.leaves) if self.keys[name]}
        for prefix, held in self.modules.items():
            found |= dict.fromkeys((prefix + n for n in held.tensors), self.keys.get(prefix, ()))
        return {n: keys for n, keys in found.items() if keys and n == bare(n)}

    def check_names(self) -> None:
        """Raise where a module has a name that a checkpoint keeps for optimizer state."""
        shapes = {
            p + n: tuple(x.shape) for p, h in self.modules.items() for n, x in h.tensors.items()
        }
        if roots := roots_of({bare(name): shape for name, shape in shapes.items()}, ()):
            grouped = (n for n in shapes if "param_groups" in n.split("."))
            name = next(grouped, None) or next(n for n in shapes if n.startswith(roots[0]))
            raise UsageError(
                f"`{name}` of the model has a name that is reserved for optimizer state",
                hint="rename the submodule: `optimizer.` and `optim.` at the start of a name,"
                " and `param_groups` anywhere in it, are reserved for optimizer state",
            )

    @property
    def values(self) -> dict[str, Any]:
        """What is no tensor, by name."""
        return {name: held[key] for name, (held, key) in self.leaves.items()}

    @property
    def extra_state(self) -> dict[str, Any]:
        """What modules gave by `get_extra_state`, by name."""
        return {prefix + n: x for prefix, h in self.modules.items() for n, x in h.extra.items()}

    def set_extra_state(self, found: Mapping[str, Any]) -> None:
        """Give modules the extra state that was stored of them."""
        for prefix, handed in self.modules.items():
            for name in handed.extra:
                if prefix + name in found:
                    handed.set_extra(name, found[prefix + name])

    @property
    def copies(self) -> list[str]:
        """The names of tensors that are only copies of what their module has."""
        return [prefix + n for prefix, h in self.modules.items() for n in h.copies]

    @property
    def adapters(self) -> dict[str, bool]:
        """The names of the tensors that PEFT added, and whether one is a second name of the model's own."""
        return {p + n: again for p, h in self.modules.items() for n, again in h.adapters.items()}

    @property
    def sent(self) -> dict[str, int]:
        """The buffers that DDP sends from one rank to all others before each step, and that rank."""
        return {
            prefix + n: rank for prefix, h in self.modules.items() for n, rank in h.sent.items()
        }

    @property
    def names_of_peft(self) -> dict[str, str]:
        """For each name the one that PEFT's own state dict has, where PEFT is at work."""
        return {
            prefix + n: prefix + spelled
            for prefix, h in self.modules.items()
            for n, spelled in h.names_of_peft.items()
        }

    @property
    def left_out(self) -> list[str]:
        """What modules have that their state dicts do not hold."""
        return [prefix + n for prefix, h in self.modules.items() for n in h.left_out]

    def apart(self) -> ModelContents:
        """The same, with the tensors of modules in memory of their own."""
        return replace(self, modules={p: h.apart() for p, h in self.modules.items()})

    def give(self, where: str) -> None:
        """Give every module what was read for it."""
        for handed in self.modules.values():
            handed.give(where)

    def run_hooks(self, where: str) -> None:
        """Have modules do what they do of their own when they are loaded."""
        for handed in self.modules.values():
            handed.run_hooks(where)


def check_given(given: Any) -> None:
    """Raise where a class is in the place of an object, or dicts are nested without end."""
    if isinstance(given, Mapping):
        check_nesting(given, "the dict")
    held = _leaves(given, ()) if isinstance(given, Mapping) else [((), {"": given}, "")]
    for path, above, key in held:
        if isinstance(kind := above[key], type):
            place = f" under `{'.'.join(path)}`" if path else ""
            raise UsageError(
                f"the class {kind.__name__} was given{place}, not an object of it",
                hint=f"make one, {kind.__name__}(...), and give that",
            )


def _leaves(
    given: Mapping[Any, Any], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    for key, value in given.items():
        if not isinstance(key, (str, int)):
            raise UsageError(
                f"the dict has the key {key!r} of type {type(key).__name__}",
                hint="use text as keys",
            )
        path = (*above, str(key))
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, given, key


def _check_plain(value: Any, name: str) -> None:
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        raise UsageError(
            f"`{name}` is a {type(value).__name__}, which is neither a module nor a plain value",
            hint=f'give its state_dict(): extra={{"{name}": x.state_dict()}}',
        )
