"""What goes along with the tensors of a conversion: entries, parameter groups, and the step.

Entries are carried as they are.  Where the destination spells parameter groups in another way than the
source does, they are spelled in both: an old spelling leads back, the new one is read.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from intarsia.conversion.targets import (
    SAME_FORMATS,
    STEP,
    Wanted,
    Wish,
    has_megatron_groups,
    is_state,
)
from intarsia.errors import CoverageError, UsageError
from intarsia.family import table_for
from intarsia.format.hf import checkpoint as hf
from intarsia.format.megatron.common import COMMON_OBJECT, archive, arguments_of
from intarsia.format.megatron.fsdp_dtensor.entries import (
    arguments_in,
    common_in,
    common_of,
    groups_by_parameter,
)
from intarsia.format.megatron.groups import FROM_TORCH, as_torch, groups_in, optimizer_of
from intarsia.format.naming.logical_names import members_of
from intarsia.format.optimizer_state.parameter_groups import (
    Groups,
    flat_entries,
    groups_of_torch,
    has_torch_groups,
    numbered_entries,
)
from intarsia.format.registry import folder_of
from intarsia.format.torch_file.plain import plain
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.planning.manifest import Manifest
from intarsia.quantity import human
from intarsia.run.budget import Budget
from intarsia.store.local import Folder


@dataclass(frozen=True)
class Carried:
    """Entries by name, and the groups and the step of an optimizer that is not Megatron's yet."""

    entries: Mapping[str, bytes] = field(default_factory=dict)
    groups: Groups | None = None
    step: float | None = None


def carried(src: Manifest, wish: Wish, wanted: Wanted, budget: Budget) -> Carried:
    """What goes along to the destination that a wish asks for."""
    if not wanted.entries:
        return Carried(dict(_arguments_alone(src, wish)))
    entries = read_entries(src, budget.memory_bytes // 2)
    if has_megatron_groups(src):
        if wish.to in SAME_FORMATS:
            entries = _spelled_for_torch(src, wish, wanted, entries) | entries
        elif wish.to == "torch_dist":
            _check_steps(src, entries)
        return Carried(entries)
    if wish.to != "torch_dist":
        return Carried(entries)
    steps = (names[0] for names in wanted.equal if names[0].startswith(STEP))
    counter = next(steps, None)
    step = _step_in(src, entries)
    if step is None and counter is not None:
        step = _step(src, counter)
    return Carried(entries, _groups_of_torch(src, entries), step)


def _arguments_alone(src: Manifest, wish: Wish) -> Iterator[tuple[str, bytes]]:
    """The arguments that say what the model is, without the run's counters: training starts anew."""
    held = {name: src.entries[name] for name in (COMMON_OBJECT, ARGS) if name in src.entries}
    if wish.to not in ("torch_dist", "fsdp_dtensor") or not held:
        return
    with folder_of(src) as folder:
        found = dict(each_entry(replace(src, entries=held), folder, MAX_PLAIN_BYTES))
    args = arguments_in(found[ARGS]) if ARGS in found else arguments_of(common_in(found))
    kept = Namespace(**{k: v for k, v in plain(args).items() if k not in _COUNTERS})
    if vars(kept) and wish.to == "torch_dist":
        yield COMMON_OBJECT, archive([{ARGS: kept}])
    elif vars(kept):
        yield ARGS, archive(kept)


ARGS, MAX_PLAIN_BYTES = "args", 256 << 20
_COUNTERS = (
    "iteration",
    "consumed_train_samples",
    "consumed_valid_samples",
    "skipped_train_samples",
)


def read_entries(src: Manifest, limit_bytes: int) -> dict[str, bytes]:
    """The bytes of a source's entries, equal ones held once: Megatron-FSDP repeats its settings for
    every parameter.  Raise where they come to more than `limit_bytes`.
    """
    held: dict[bytes, bytes] = {}
    found: dict[str, bytes] = {}
    total = 0
    with folder_of(src) as folder:
        for name, data in each_entry(src, folder, limit_bytes):
            if data not in held:
                held[data] = data
                total += len(data)
                if total > limit_bytes:
                    raise _too_much(src, name, limit_bytes)
            found[name] = held[data]
    return found


def each_entry(src: Manifest, folder: Folder, limit_bytes: int) -> Iterator[tuple[str, bytes]]:
    if src.format == "hf":
        yield from hf.read_entries(folder).items() if src.entries else ()
        return
    for name, e in src.entries.items():
        if e.length_bytes > limit_bytes:
            raise _too_much(src, name, limit_bytes)
        yield name, folder.read(e.file, e.start_bytes, e.length_bytes)


def _too_much(src: Manifest, name: str, limit_bytes: int) -> UsageError:
    return UsageError(
        f"the entries of {src.path} take more than {human(limit_bytes)}, half of the"
        f" memory budget; `{name}` is the one too many of {len(src.entries)}",
        hint="give more with --memory, or leave them out with --optimizer drop",
    )


def groups_of(src: Manifest, entries: Mapping[str, bytes]) -> Groups | None:
    """The parameter groups that the entries of a source tell of, whoever spelled them."""
    common = common_in(entries)
    if came := Groups.of_plain(common.get(FROM_TORCH)):
        return came
    if has_torch_groups(entries):
        return _groups_of_torch(src, entries)
    if src.format == "fsdp_dtensor":
        return groups_by_parameter(entries, src.stored.values(), src.logical)
    if src.format == "torch_dist":
        told = groups_in(optimizer_of(common, entries))
        return as_torch(told, src.stored.values(), src.logical, plain(arguments_of(common)))
    return None


def _groups_of_torch(src: Manifest, entries: Mapping[str, bytes]) -> Groups | None:
    table = table_for(src.config)
    return groups_of_torch(entries, lambda name: members_of(name, table))


def _spelled_for_torch(
    src: Manifest, wish: Wish, wanted: Wanted, entries: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Megatron's groups as torch spells them: as they once came, or in both of its spellings.

    In `hf` they lie where torch does not look, so the shorter spelling is enough there.
    """
    params = {t.name: t.layout.tensors for t in wanted.targets if not is_state(t.name)}
    groups = groups_of(src, entries)
    if Groups.of_plain(common_in(entries).get(FROM_TORCH)) and groups is not None:
        return (flat_entries if groups.flat else numbered_entries)(groups, params)
    if groups is None:
        return {}
    flat = flat_entries(groups, params) if wish.to == "dcp" else {}
    return numbered_entries(groups, params) | flat


def _check_steps(src: Manifest, entries: Mapping[str, bytes]) -> None:
    """Raise where the counters of parameters contradict the steps of the groups, which are written."""
    if src.format == "torch_dist":
        return
    common = common_in(entries) or common_of(entries)
    told = {float(g["step"]) for g in groups_in(optimizer_of(common, entries)) if "step" in g}
    names = [name for name in src.logical if name.startswith("optimizer.step.")]
    found = {name: _step(src, name) for name in names}
    if told and found and set(found.values()) != told:
        wrong = next((n for n, step in found.items() if step not in told), names[0])
        raise CoverageError(
            f"`{wrong}` is {found[wrong]:g}, and the parameter groups of {src.path} are at step"
            f" {', '.join(f'{x:g}' for x in sorted(told))}: torch_dist keeps the groups' alone",
            hint="one of them is stale: convert the checkpoint as it was saved, or --optimizer drop",
        )


def _step_in(src: Manifest, entries: Mapping[str, bytes]) -> float | None:
    """The step that is stored as a number beside the tensors; raise where more than that is."""
    start, steps = "optimizer.state.", set[float]()
    for name, data in entries.items():
        if name.startswith(start):
            value = plain(read_object(data, name))
            if not name.endswith(".step") or type(value) not in (int, float):
                raise UsageError(
                    f"`{name}` of {src.path} is optimizer state that torch_dist has no place for",
                    hint="convert to dcp or hf, which keep it, or leave it out with --optimizer drop",
                )
            steps.add(value)
    if len(steps) > 1:
        raise CoverageError(
            f"the parameters of {src.path} are at steps {sorted(steps)}, and torch_dist keeps one",
            hint="take a checkpoint of one step, or leave the state out with --optimizer drop",
        )
    return steps.pop() if steps else None


def _step(src: Manifest, name: str) -> float:
    """The step that all parameters are at."""
    from intarsia.checkpoint import Checkpoint

    with Checkpoint(src) as checkpoint:
        return checkpoint[name].number()
