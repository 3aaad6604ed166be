"""The optimizers that a load fills, and which part of the checkpoint each of them takes its state from.

Torch names an optimizer's state by the parameters of its model alone.  In a checkpoint of several models that
says nothing of which one, so each optimizer of a dict reads the section of the model that it steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from intarsia.errors import UsageError
from intarsia.family import Param
from intarsia.live.loading.demand import Demand
from intarsia.live.loading.optimizer import rows_of_state
from intarsia.live.model.names import find_rows
from intarsia.live.optimizer.named import NamedOptimizer
from intarsia.live.optimizer.state import unused_state
from intarsia.planning.inventory import Fate, Role
from intarsia.planning.manifest import Manifest


@dataclass(frozen=True)
class WantedState:
    """An optimizer by names, the rows that it may find state of, and the checkpoint that has these.

    `section` are the keys above its model, where others lie beside it.
    """

    own: NamedOptimizer
    rows: Mapping[str, Param]
    manifest: Manifest
    section: str = ""

    @staticmethod
    def of(own: NamedOptimizer, demand: Demand) -> WantedState:
        """An optimizer that finds its state where the model finds its tensors."""
        return WantedState(own, rows_of_state(demand.rows, demand.manifest), demand.manifest)

    def unused(self, demand: Demand) -> frozenset[str]:
        """The parameters that have state in the checkpoint and that this optimizer does not step."""
        found = unused_state(self.own, self.rows, self.manifest)
        return frozenset(self.section + n for n in demand.without_prediction_layers(found))


def states_by_section(
    into: Mapping[str, Any], optimizer: Any, demand: Demand, read: Callable[..., Manifest]
) -> tuple[WantedState, ...]:
    """The optimizers of a dict and the one given beside it, each with the section of the model that it steps.

    None where one steps several models.
    """
    contents = demand.contents
    beside = optimizer.values() if isinstance(optimizer, Mapping) else optimizer
    beside = beside if isinstance(optimizer, (list, tuple, Mapping)) else [optimizer]
    each = [*contents.optimizers.items(), *(("", one) for one in beside if one is not None)]
    of_section: dict[tuple[str, str], list[Any]] = {}
    roots = {x.name for x in demand.manifest.inventory if x.role is Role.OPTIMIZER}
    for key, one in each:
        steps = NamedOptimizer.of(into, one, state=False).steps
        prefixes = {
            max((p for p in contents.modules if s.name.startswith(p)), key=len) for s in steps
        }
        if len(prefixes) != 1:
            return ()
        of_section.setdefault((prefixes.pop(), key if key in roots else ""), []).append(one)
    found = []
    for (prefix, key), held in of_section.items():
        manifest = _of_section(prefix, key, contents.modules[prefix].module, read)
        tensors = {n: x for n, x in demand.tensors.items() if n.startswith(prefix)}
        rows, manifest = find_rows(tensors, manifest)
        own = NamedOptimizer.of(into, held, state=False)
        found.append(WantedState(own, rows_of_state(rows.rows, manifest), manifest, prefix))
    return tuple(found)


def _of_section(prefix: str, key: str, module: Any, read: Callable[..., Manifest]) -> Manifest:
    """A checkpoint by the names of one of its models, with the optimizer under `key` where it is that model's."""
    label = prefix.rstrip(".")
    manifest = read(module, section=(label,))
    if manifest.state_unclear is not None:
        return read(module, section=(label, key)) if key else manifest
    for item in manifest.inventory if key else ():
        if item.role is Role.OPTIMIZER and item.name == key and item.fate is Fate.LEFT_OUT:
            raise UsageError(
                f"`{key}` of {manifest.path} is not the optimizer of `{label}`, and the one that is given"
                f" as `{key}` updates that",
                hint="give the optimizer under the key that it was saved under",
            )
    return manifest
