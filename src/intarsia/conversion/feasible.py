"""Whether a source can be written as asked at all: its configuration, its head, and the mesh."""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.errors import FamilyError, UsageError
from intarsia.family import Table, decoder, table_for
from intarsia.family.optional_parts import missing_tower, notes_on_layers_left_out
from intarsia.format.folder.adapters import note_on_factors, refuse_inside_peft
from intarsia.format.naming.flat_parameters import AS_SAVED, flat_parameters, refuse_flat
from intarsia.format.registry import format_named
from intarsia.format.request import Request
from intarsia.planning.manifest import Manifest


def check_feasible(src: Manifest, request: Request) -> None:
    """Raise where no conversion of this source can be what was asked for."""
    writer, table = format_named(request.to), table_for(src.config)
    if not writer.keeps_keys:
        refuse_flat(flat_parameters(src.logical), src.path, AS_SAVED)
    if src.config_doubts and not writer.keeps_arguments:
        raise FamilyError(
            f"the configuration of {src.path} is unknown: its stored arguments have"
            f" {', '.join(src.config_doubts)}, which are in doubt or which no {src.family}"
            " configuration can express",
            hint="give the model's own config.json with --config",
        )
    if table is None:
        return
    refuse_inside_peft(src)
    tower = missing_tower(table, src.logical)
    if tower is not None:
        raise FamilyError(
            f"the configuration has a {tower}, and {src.path} holds no tensor of such a tower",
            hint="restore the tower's files; if only the text model is wanted, config.json must"
            " be the text model's",
        )
    writer.check_model(src, table, request)
    if writer.sharded and not table.whole:  # Transformers' rules know of no layers and experts
        _check_mesh(table, request)


def _check_mesh(table: Table, request: Request) -> None:
    mesh, layers = request.mesh, table.number("num_hidden_layers")
    experts = decoder.experts_in(table)
    if experts and mesh.ep > experts:
        raise UsageError(
            f"the mesh has ep={mesh.ep}, the model has {experts} experts per layer",
            hint=f"choose ep of at most {experts}",
        )
    if mesh.pp > layers:
        raise UsageError(
            f"the mesh has pp={mesh.pp}, the model has {layers} layers",
            hint=f"choose pp of at most {layers}",
        )


def notes_on_request(src: Manifest, request: Request) -> Iterator[str]:
    """What is to be known of a destination that can be written, and is not all that it might be."""
    writer, table = format_named(request.to), table_for(src.config)
    ranks = request.mesh.ep if writer.sharded and writer.keeps_names else 1
    if ranks > 1 and table and not table.whole and not decoder.experts_in(table):
        yield f"a {table.family} has no experts: the {ranks} ranks along ep hold copies"
    yield from notes_on_layers_left_out(table, src.logical)
    yield from note_on_factors(src)
    yield from writer.remarks(src, request)
