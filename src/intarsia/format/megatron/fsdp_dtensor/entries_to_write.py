"""The entries of an `fsdp_dtensor` checkpoint that is written, out of those of its source.

What the source has is carried on, byte by byte where it still holds.  Arguments are made anew
where the mesh is another one, since a fused tensor is read by them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from intarsia.family import table_for
from intarsia.format.base import WriteOptions
from intarsia.format.megatron.common import archive, arguments_of, common_in, counters_of
from intarsia.format.megatron.configuration.argument_table import CENTERED
from intarsia.format.megatron.configuration.written_arguments import (
    arguments_for,
    arguments_of_norms,
    arguments_of_words_lacking,
    arguments_with,
    norms_are_centered,
)
from intarsia.format.megatron.frame import COUNTERS, SCHEDULER
from intarsia.format.megatron.fsdp_dtensor.entries import arguments_in
from intarsia.format.megatron.fsdp_dtensor.keys import (
    GROUP,
    MODEL,
    PART,
    STATE,
    WRAPPERS,
    canonical,
    group_of,
    live,
    spellings,
)
from intarsia.format.megatron.optimizer.groups import group_for, groups_in, optimizer_of
from intarsia.format.torch_file.plain import plain
from intarsia.mesh import Mesh, Shape
from intarsia.planning.manifest import Target


def written_entries(targets: Sequence[Target], options: WriteOptions) -> dict[str, bytes]:
    """Everything that is written beside the tensors, by name, in order."""
    shapes = {t.name.removeprefix(MODEL): t.shape for t in targets if t.name.startswith(MODEL)}
    common = common_in(options.entries)
    found = dict(_translated(common))
    if groups := groups_in(optimizer_of(common, options.entries)):
        found |= _grouped(groups, targets, shapes, plain(arguments_of(common)))
    # What the source holds in this format's own spelling is nearer than a translation.
    found |= _copied(options.entries, {PART.sub("", name) for name in shapes})
    found |= _arguments(found, targets, shapes, options)
    counters = counters_of(options.entries)
    found.setdefault("iteration", archive(counters.get("iteration") or 1))
    found.setdefault("checkpoint_version", archive(3.0))
    found.setdefault("num_floating_point_operations_so_far", archive(0))
    written = {t.name for t in targets}
    return {name: found[name] for name in sorted(found) if name not in written}


def _translated(common: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Counters and schedule of `torch_dist`, each under a name of its own."""
    args = plain(arguments_of(common))
    if args:
        yield "args", archive(Namespace(**args))
    for name in COUNTERS:
        if name in common:
            yield name, archive(plain(common[name]))
    scheduler = plain(common.get(SCHEDULER))
    for name, value in scheduler.items() if isinstance(scheduler, dict) else ():
        yield f"{SCHEDULER}.{name}", archive(value)


def _grouped(
    groups: list[dict[str, Any]],
    targets: Sequence[Target],
    shapes: Mapping[str, Shape],
    args: Mapping[str, Any],
) -> dict[str, bytes]:
    """The group of every parameter that has state."""
    found: dict[str, bytes] = {}
    start = STATE + WRAPPERS
    trained = {
        t.name.removeprefix(start).rpartition(".")[0] for t in targets if t.name.startswith(start)
    }
    archived = [{field: archive(value) for field, value in group.items()} for group in groups]
    for name in sorted(trained):
        place = group_for(groups, canonical(name), len(shapes.get(name, ())), args)
        if place is None:
            continue
        whole = PART.sub("", name)
        for field, data in archived[place].items():
            found[f"{GROUP}{WRAPPERS}{whole}.{field}"] = data
    return found


def _copied(entries: Mapping[str, bytes], params: set[str]) -> dict[str, bytes]:
    """The source's entries, those of parameter groups under the names of what is written."""
    found: dict[str, bytes] = {}
    respelled: dict[str, str] = {}
    for name, data in entries.items():
        group = group_of(name)
        if group is not None:
            of, field = group
            if of not in respelled:
                respelled[of] = _respelled(of, params)
            name = f"{GROUP}{WRAPPERS}{respelled[of]}.{field}"
        found[name] = data
    return found


def _respelled(name: str, params: set[str]) -> str:
    names = [live(n, spec) for n in spellings(name) for spec in ("te", "local")]
    return next((n for n in names if n in params), names[0])


def _arguments(
    found: Mapping[str, bytes],
    targets: Sequence[Target],
    shapes: Mapping[str, Shape],
    options: WriteOptions,
) -> dict[str, bytes]:
    """The arguments that go with what is written; none where they still hold, or are not known."""
    said = plain(arguments_in(found["args"])) if "args" in found else {}
    config = options.config
    table = table_for(config)
    mesh = _sizes(options.mesh)
    centered = norms_are_centered(table, targets) if table else None
    if centered is not None:
        mesh |= arguments_of_norms(said, centered)
    if table is not None and table.centered and centered is not None:
        mesh[CENTERED[0]] = centered
    if said:
        mesh = arguments_with(said, options.dtype) | mesh if options.dtype else mesh
        if config is not None and table is not None:
            mesh |= arguments_of_words_lacking(config, said)
        if all(said.get(name) == value for name, value in mesh.items()):
            return {}
        return {"args": archive(Namespace(**(said | mesh)))}
    if config is None or table is None:
        return {}
    made = arguments_for(config, options.mesh, shapes, table.centered)
    counters = counters_of(options.entries)
    made |= {name: n for name, n in counters.items() if name.endswith("_samples")}
    return {"args": archive(Namespace(**(made | mesh)))}


def _sizes(mesh: Mesh) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": mesh.tp,
        "expert_model_parallel_size": mesh.ep,
        "expert_tensor_parallel_size": mesh.etp,
        "context_parallel_size": mesh.cp,
        "pipeline_model_parallel_size": 1,
        "ckpt_format": "fsdp_dtensor",
        "use_megatron_fsdp": True,
    }
