"""Writing a `torch_dist` checkpoint: parts put under the names and into the files of Megatron.

    DST/latest_checkpointed_iteration.txt
    DST/config.json and other small files, which the caller writes
    DST/iter_0000001/  .metadata  metadata.json  common.pt  __<rank>_0.distcp ...

A target is one layer's, one expert's, one half's; under which name it is stored, and where in
the tensor of that name it lies, follows from its own name and those of its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from intarsia.dtypes import DType
from intarsia.errors import UsageError, few
from intarsia.family import table_for
from intarsia.format.arrangement import SlotColumns, Wrapped
from intarsia.format.base import Arrangement, WriteOptions
from intarsia.format.dcp.metadata import METADATA, Metadata, TensorRecord
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.format.dcp.write import Files
from intarsia.format.megatron.common import (
    archive,
    arguments_of,
    common_in,
    common_state,
    counters_of,
    iteration_to_resume,
    note_on_loading,
    note_on_queries,
    tensor_of_one,
    whole_argument,
)
from intarsia.format.megatron.configuration.command_line import note_on_options
from intarsia.format.megatron.configuration.written_arguments import (
    arguments_for,
    arguments_of_mesh,
    arguments_of_norms,
    arguments_of_tensors,
    arguments_of_words_lacking,
    arguments_with,
    norms_are_centered,
    note_on_norms,
    rows_as_megatron_pads,
)
from intarsia.format.megatron.detection import BACKEND, backend_file
from intarsia.format.megatron.frame import COMMON_FILE, COMMON_OBJECT, COUNTERS, TRACKER
from intarsia.format.megatron.fsdp_dtensor.entries import common_of
from intarsia.format.megatron.fsdp_dtensor.keys import GROUP
from intarsia.format.megatron.optimizer.expert_optimizer import (
    experts_apart,
    note_on_experts,
    saved_later,
)
from intarsia.format.megatron.optimizer.groups import (
    EXPERTS,
    FROM_TORCH,
    SCALER,
    groups_in,
    optimizer_of,
    repeats,
)
from intarsia.format.megatron.optimizer.groups_to_write import (
    as_megatron,
    chained_as,
    check_distinguishable,
)
from intarsia.format.megatron.optimizer.state_tensors import state_of
from intarsia.format.megatron.torch_dist.extra_states import (
    extra_states,
    is_extra_state,
    says_nothing,
)
from intarsia.format.megatron.torch_dist.stacks import StackPart, alike_layers, stack_part
from intarsia.format.optimizer_state.learning_rates import note_on_rates, set_rates
from intarsia.format.optimizer_state.parameter_groups import unplain_settings
from intarsia.format.torch_file.plain import plain
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.mesh import Mesh, Shape
from intarsia.planning.chunks import Chunks
from intarsia.planning.manifest import Chunk, Target
from intarsia.state.names import MASTER, TORCH_GROUPS, TORCH_STATE, is_state


def arrange(targets: Sequence[Target], options: WriteOptions) -> Arrangement:
    """The files of a checkpoint whose tensors are cut as the mesh asks, and stacked where they can be."""
    source = _source_common(options)
    iteration = iteration_to_resume(source.get("iteration"))
    folder = f"iter_{iteration:07d}/"
    files = Files(options.mesh.size, folder)
    stacks = alike_layers(targets, plain(arguments_of(source)))
    slots, tensors, leading = _place(files, targets, options.mesh, stacks)
    shapes = {n: t.shape for n, t in tensors.items() if not is_state(n)}
    trained = len(shapes) < len(tensors)
    centered = _centered(targets, options)
    state = _common(source, shapes, centered, targets if trained else None, options)
    held = _objects({n: shapes[n][: leading[n]] for n in shapes}, options)
    held[COMMON_OBJECT] = archive([state])
    objects = {name: files.append(name, data) for name, data in held.items()}
    paths = {name: (name,) for name in (*tensors, *objects)}
    closing = {
        folder + COMMON_FILE: archive(state),
        folder + METADATA: write_metadata(Metadata(tensors, objects, paths, {})),
        folder + BACKEND: backend_file(),
        TRACKER: str(iteration).encode(),
    }
    remarks = (*_remarks(state, shapes, options), *_left_behind(state, held, options))
    remarks += tuple(_note_on_moments(tensors))
    if old := plain(arguments_of(source)):
        remarks += tuple(note_on_norms(old, centered))
    else:
        remarks += tuple(note_on_options(vars(state["args"]), shapes))
    remarks += (*note_on_queries(shapes), *note_on_loading(held, "optimizer" in state))
    return Arrangement(files.sizes, slots, files.fixed, closing, remarks, folder)


def _centered(targets: Sequence[Target], options: WriteOptions) -> bool:
    """Whether norms are written less one: as the targets are, and as the hub's where none is written."""
    table = table_for(options.config)
    found = norms_are_centered(table, targets) if table else None
    return found if found is not None else table is not None and table.centered


def _left_behind(
    state: Mapping[str, Any], held: Mapping[str, bytes], options: WriteOptions
) -> Iterator[str]:
    """Objects of the source that this format, or this mesh, has no place for."""
    known = {COMMON_OBJECT.partition("/")[0], *state} - {"optimizer"}
    groups = (TORCH_STATE, TORCH_GROUPS, GROUP) if "optimizer" in state else ()
    odd = unplain_settings(options.entries)
    left = [
        name
        for name, data in options.entries.items()
        if name not in held
        and re.split(r"[./]", name)[0] not in known
        and not ("optimizer" in state and repeats(options.entries, name))
        and not (is_extra_state(name) and says_nothing(name, data))
        and (not name.startswith(groups) or name in odd)
        and not (is_state(name) and plain(read_object(data, name)) == [])
    ]
    if left:
        shown = few(left, 4)
        yield f"{len(left)} objects cannot be stored in torch_dist on this mesh and are left out: {shown}"


def _remarks(
    state: Mapping[str, Any], shapes: Mapping[str, Shape], options: WriteOptions
) -> Iterator[str]:
    """What the source says of its parameter groups and Megatron's do not, and the other way round."""
    groups = groups_in(state.get("optimizer"))
    yield from note_on_rates(groups)
    if groups and any(EXPERTS in name for name in shapes):
        apart = any(group.get("is_expert_parallel") for group in groups)
        yield from note_on_experts(options.mesh, apart=apart)
    if groups and getattr(state.get("args"), "use_distributed_optimizer", None) is False:
        yield (
            "optimizer state is written for Megatron's distributed optimizer, which the run that saved the"
            " source did not use: resume with --use-distributed-optimizer"
        )
    if options.groups is None:
        return
    exempt = (g.get("weight_decay") for g in groups if g.get("wd_mult") == 0.0)
    decay = {str(value) for value in exempt if value}
    if decay:
        yield (
            f"vectors and biases decay by {', '.join(sorted(decay))} in the source; Megatron's"
            " groups exempt them (wd_mult=0)"
        )


def _note_on_moments(names: Iterable[str]) -> Iterator[str]:
    """State that Megatron's distributed optimizer, for which it is written, does not have."""
    kinds = {found[0] for name in names if (found := state_of(name))}
    if other := sorted(kinds - {MASTER, "exp_avg", "exp_avg_sq"}):
        yield (
            "Megatron's distributed optimizer, for which optimizer state is written, trains with Adam alone and"
            f" does not load {', '.join(other)}: load it in Megatron-LM with --no-load-optim"
        )


def _place(
    files: Files, targets: Sequence[Target], mesh: Mesh, stacks: Mapping[str, int]
) -> tuple[dict[str, SlotColumns], dict[str, TensorRecord], dict[str, int]]:
    """A place for every box; the tensors that targets are stacked into, and their leading axes."""
    taken: list[tuple[str, StackPart, Wrapped, int]] = []
    kinds: dict[str, tuple[DType, Shape]] = {}
    chunks: dict[str, list[Chunk]] = {}
    leading: dict[str, int] = {}
    for target in targets:
        part = stack_part(target, stacks)
        dtype, shape = kinds.setdefault(part.name, (target.dtype, part.shape))
        if (dtype, shape) != (target.dtype, part.shape):
            raise UsageError(
                f"`{part.name}` would hold {dtype} {list(shape)} and"
                f" {target.dtype} {list(part.shape)}",
                hint="choose one element type with --dtype",
            )
        cut = files.cut(target.dtype, mesh.holders(target.shape, target.rule), part.leading)
        taken.append((target.name, part, cut.wrapped, files.take(cut)))
        leading[part.name] = part.leading
    of_slots, places = files.places()
    slots = {name: SlotColumns(wrapped, of_slots, k) for name, _, wrapped, k in taken}
    for _, part, wrapped, first in taken:
        stored = tuple(map(part.stored, wrapped.boxes))
        chunks.setdefault(part.name, []).extend(Chunks(stored, places, first))
    tensors = {n: TensorRecord(n, *kind, tuple(chunks[n])) for n, kind in kinds.items()}
    return slots, tensors, leading


def _common(
    source: Mapping[str, Any],
    shapes: Mapping[str, Shape],
    centered: bool,
    trained: Sequence[Target] | None,
    options: WriteOptions,
) -> dict[str, Any]:
    """The common state: the source's where it had one, with what is different now."""
    args = plain(arguments_of(source))
    table = table_for(options.config)
    if options.config is not None and table is not None:
        if args:
            args |= arguments_of_norms(args, centered) | arguments_of_tensors(shapes, centered)
            args |= arguments_of_mesh(options.mesh, args)
            args |= arguments_of_words_lacking(options.config, args)
        else:
            args = arguments_for(options.config, options.mesh, shapes, centered)
        if rows := whole_argument(args, "padded_vocab_size"):
            args["padded_vocab_size"] = rows_as_megatron_pads(rows, args, options.mesh.tp)
    counters = counters_of(options.entries)
    args |= {k: v for k, v in counters.items() if k.endswith("_samples") and k not in args}
    optimizer = None if trained is None else _optimizer(source, trained, options)
    args = arguments_with(args, options.dtype)
    state = common_state(args, iteration_to_resume(source.get("iteration")), optimizer)
    for name in ("opt_param_scheduler", "num_floating_point_operations_so_far", FROM_TORCH):
        if name in source:
            state[name] = plain(source[name])
    if trained is not None and options.groups is not None:
        state[FROM_TORCH] = options.groups.as_plain()
    return state


def _optimizer(
    source: Mapping[str, Any], targets: Sequence[Target], options: WriteOptions
) -> dict[Any, Any]:
    """The optimizer's groups and counters, in the form that goes with state by parameter."""
    found = optimizer_of(source, options.entries)
    later = options.rates is not None or saved_later(arguments_of(source), groups_in(found))
    chained = experts_apart(options.mesh, later=later)
    rows = [
        (t.name, len(t.shape), member)
        for t in targets
        if not is_state(t.name)
        for member in t.layout.tensors
    ]
    found = chained_as(found, rows, chained)
    step = None if options.step is None else int(options.step)
    for group in groups_in(found) if step is not None else ():
        group.setdefault("step", step)
    if not found and (options.groups is not None or step is not None):
        found = as_megatron(options.groups, rows, step, chained)
    elif COMMON_OBJECT not in options.entries:
        check_distinguishable(groups_in(found))
    set_rates(groups_in(found), options.rates)
    each = [v for k, v in found.items() if isinstance(k, int) and isinstance(v, dict)] or [found]
    for one in each:
        one["param_state_sharding_type"] = "fully_reshardable"
        scaler = one.get(SCALER)
        if isinstance(scaler, dict) and type(scaler.get("scale")) in (int, float):
            one[SCALER] = scaler | {"scale": tensor_of_one(scaler["scale"])}
    return found


def _source_common(options: WriteOptions) -> dict[str, Any]:
    """The common state that the source had, in this format's terms."""
    counters = counters_of(options.entries)
    if COMMON_OBJECT in options.entries:
        return {k: v for k, v in counters.items() if k in COUNTERS} | common_in(options.entries)
    state = common_of(options.entries)
    return state | {"args": vars(state["args"])} if "args" in state else state


def _objects(leading: Mapping[str, Shape], options: WriteOptions) -> dict[str, bytes]:
    """The objects that Megatron asks for, and the source's that still hold on this mesh."""
    objects = extra_states(leading)
    mesh = options.mesh
    for name, data in options.entries.items():
        if name in objects or re.match(rf"^rng_state/shard_\d+\.\d+_{mesh.pp}\.{mesh.tp}$", name):
            objects[name] = data
    return objects
