"""Objects that describe a run rather than a model: Megatron's common state, arguments and counters.

Entries are carried as they are through every format, so these may lie in any of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from intarsia.errors import IntarsiaError
from intarsia.format.megatron.frame import COMMON_OBJECT, COUNTERS, SCHEDULER
from intarsia.format.optimizer_state.parameter_groups import PARAMETERS_GROUP
from intarsia.format.torch_file.plain import DROPPED, plain
from intarsia.format.torch_file.zip_directory import BROKEN_ZIP

ARGUMENTS = "args"
_RUN = ("iteration", SCHEDULER, "num_floating_point_operations_so_far")
"""What the common state says of a run; the rest of it depends on the mesh."""

_DATA = ("consumed_", "skipped_")
"""How the counters of the data that a run has read begin, which are among its arguments."""

_STORING = "content_metadata"
"""What the common state says only of how the tensors of its checkpoint are stored."""

_OPTIMIZER, _OF_GROUPS = "optimizer", ("param_groups", "param_state_sharding_type")

_FEWER_BITS = ("fp8_param_gather", "fp4_param_gather")


def run_objects(names: Collection[str]) -> set[str]:
    """The objects of these names that are the frame of a run."""
    frame = {n for n in names if n in (ARGUMENTS, *COUNTERS) or n.startswith(f"{SCHEDULER}.")}
    return (frame if ARGUMENTS in names else set()) | {COMMON_OBJECT}.intersection(names)


def group_objects(names: Collection[str]) -> set[str]:
    """The objects of these names in which Megatron-FSDP says of each parameter what its group is."""
    return {n for n in names if n.startswith(PARAMETERS_GROUP)}


def is_of_the_mesh(name: str) -> bool:
    """Whether an object says only whether a parameter's experts are parallel, as those of a mesh are or are not."""
    return name.startswith(PARAMETERS_GROUP) and name.endswith(".is_expert_parallel")


def is_of_buckets(name: str) -> bool:
    """Whether an object says only how Megatron's buffers are cut, or what its optimizer's groups are."""
    return re.search(r"\.dp_group_idx_\d+\.(per_bucket_numel\w*|optimizer)/", name) is not None


def is_settings(name: str) -> bool:
    """Whether an object is a mapping of settings, most of which depend on the mesh."""
    return name in (COMMON_OBJECT, ARGUMENTS)


def beside_groups(settings: Mapping[Any, Any]) -> dict[Any, Any]:
    """The common state without its optimizer's groups and the way its state is stored."""
    return {k: _beside_groups(v) if k == _OPTIMIZER else v for k, v in settings.items()}


def _beside_groups(optimizer: Any) -> Any:
    if not isinstance(optimizer, Mapping):
        return optimizer
    held = {k: _beside_groups(v) for k, v in optimizer.items() if k not in _OF_GROUPS}
    return {k: v for k, v in held.items() if v is not None} or None


def is_of_the_run(key: Any, x: Any, y: Any) -> bool:
    """Whether a setting counts what a run did, in one of two objects at least."""
    counted = key in _RUN or str(key).removeprefix(f"{ARGUMENTS}.").startswith(_DATA)
    start = (None, 0, 1) if key == "iteration" else (None, 0)  # Megatron's first iteration is 1
    return counted and not (x in start and y in start)


def kept_in_fewer_bits(name: str, data: bytes) -> str:
    """The argument among settings by which a run kept its weights in fewer bits; empty where none says so."""
    settings = plain_object(name, data)
    held = settings if isinstance(settings, Mapping) else {}
    said = (x for x in _FEWER_BITS if True in (held.get(x), held.get(f"{ARGUMENTS}.{x}")))
    return next(said, "")


def plain_object(name: str, data: bytes, take: Callable[[Any], Any] = plain) -> Any:
    """An object as plain values, as `take` takes them; `DROPPED` where it is none."""
    from intarsia.format.megatron.common import read_state  # few have objects
    from intarsia.format.torch_file.torch_zip import read_object

    try:
        value = (read_state if name == COMMON_OBJECT else read_object)(data, name)
        if name == ARGUMENTS:
            value = _arguments({ARGUMENTS: value}, beside_storing=take is plain)
        if name == COMMON_OBJECT and take is plain and isinstance(value, dict):
            said = _arguments(value, beside_storing=True)
            value = {k: v for k, v in value.items() if k not in (ARGUMENTS, _STORING)}
            value |= {f"{ARGUMENTS}.{k}": v for k, v in said.items()}
        return take(value)
    except (IntarsiaError, *BROKEN_ZIP):
        return DROPPED


def _arguments(common: Mapping[str, Any], *, beside_storing: bool) -> dict[str, Any]:
    """Megatron's arguments, perhaps without those that say how its tensors are stored."""
    from intarsia.format.megatron.common import arguments_of
    from intarsia.format.megatron.configuration.written_arguments import OF_STORING

    held = arguments_of(common).items()
    return {k: v for k, v in held if not (beside_storing and k in OF_STORING)}
