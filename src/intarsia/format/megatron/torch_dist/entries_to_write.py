"""What goes along into a `torch_dist` checkpoint: entries, and one step for all that torch trained."""

from __future__ import annotations

from intarsia.errors import CoverageError, UsageError
from intarsia.format.megatron.common import common_in
from intarsia.format.megatron.fsdp_dtensor.entries import common_of
from intarsia.format.megatron.optimizer.groups import groups_in, optimizer_of
from intarsia.format.optimizer_state.groups_in_entries import torch_groups_of
from intarsia.format.optimizer_state.parameter_groups import (
    has_megatron_groups,
    megatron_groups_count,
)
from intarsia.format.request import EntriesToWrite, SourceWithEntries, Wanted
from intarsia.format.torch_file.plain import plain
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.state.names import SHARED_STATE, STEP, TORCH_STATE, StateName, kind_of


def entries_to_write(src: SourceWithEntries, wanted: Wanted) -> EntriesToWrite:
    """Entries as they are where Megatron's groups have the step; else the step, and the groups of torch's."""
    if megatron_groups_count(src.manifest.entries):
        _check_steps(src)
        return EntriesToWrite(src.entries)
    counters = (names[0] for names in wanted.equal if kind_of(names[0]) == STEP)
    counter = next(counters, None)
    step = _step_in(src)
    if step is None and counter is not None:
        step = src.number(counter)
    if step is not None and not float(step).is_integer():
        raise UsageError(
            f"the parameters of {src.manifest.path} are at step {step:g}, and torch_dist stores whole steps",
            hint="convert to dcp or hf, which keep it, or leave it out with --optimizer drop",
        )
    grouped = has_megatron_groups(src.manifest.entries)
    groups = None if grouped else torch_groups_of(src.manifest, src.entries)
    return EntriesToWrite(src.entries, groups, step)


def _check_steps(source: SourceWithEntries) -> None:
    """Raise where the counters of parameters contradict the steps of the groups, which are written."""
    src, entries = source.manifest, source.entries
    if src.format == "torch_dist":
        return
    common = common_in(entries) or common_of(entries)
    group_steps = {
        float(g["step"]) for g in groups_in(optimizer_of(common, entries)) if "step" in g
    }
    names = [name for name in src.logical if kind_of(name) == STEP]
    found = {name: source.number(name) for name in names}
    if group_steps and found and set(found.values()) != group_steps:
        wrong = next((n for n, step in found.items() if step not in group_steps), names[0])
        raise CoverageError(
            f"`{wrong}` is {found[wrong]:g}, and the parameter groups of {src.path} are at step"
            f" {', '.join(f'{x:g}' for x in sorted(group_steps))}: torch_dist stores only the step of"
            " the groups",
            hint="one of them is stale: convert the checkpoint as it was saved, or use"
            " --optimizer drop",
        )


def _step_in(src: SourceWithEntries) -> float | None:
    """The step that is stored as a number beside the tensors; raise where more than that is."""
    steps = set[float]()
    for name, data in src.entries.items():
        if name.startswith((TORCH_STATE, SHARED_STATE)):
            value, state = plain(read_object(data, name)), StateName.of_torch(name)
            if state is None or state.kind != STEP or type(value) not in (int, float):
                raise UsageError(
                    f"`{name}` of {src.manifest.path} is optimizer state that torch_dist cannot hold",
                    hint="convert to dcp or hf, which keep it, or leave it out with --optimizer drop",
                )
            steps.add(value)
    if len(steps) > 1:
        raise CoverageError(
            f"the parameters of {src.manifest.path} are at steps {sorted(steps)}, and torch_dist"
            " stores one step",
            hint="take a checkpoint of one step, or leave the state out with --optimizer drop",
        )
    return steps.pop() if steps else None
