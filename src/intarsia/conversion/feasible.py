"""Whether a source can be written as asked at all: its configuration, its head, and the mesh."""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.conversion.targets import Wish
from intarsia.errors import FamilyError, UsageError
from intarsia.family import Table, decoder, table_for
from intarsia.family.parts import missing_tower
from intarsia.format.megatron.arguments import arguments_of_config
from intarsia.planning.manifest import Manifest

MEGATRON = ("torch_dist", "fsdp_dtensor")
_COUNTED = ("common_state/shard_0_1", "iteration", "train_state.pt")


def check_feasible(src: Manifest, wish: Wish) -> None:
    """Raise where no conversion of this source can be what was asked for."""
    table = table_for(src.config)
    if wish.to not in MEGATRON and src.config_unsaid:
        raise FamilyError(
            f"the configuration of {src.path} is not known: its stored arguments have"
            f" {', '.join(src.config_unsaid)}, which are in doubt or which no {src.family} can say",
            hint="give the model's own config.json with --config",
        )
    if table is None:
        return
    tower = missing_tower(table, src.logical)
    if tower is not None:
        raise FamilyError(
            f"the configuration has a {tower}, and {src.path} holds no tensor of such a tower",
            hint="restore the tower's files; if the text model alone is meant, config.json has to be that model's",
        )
    if wish.to in MEGATRON:
        _check_head(src, table, wish)
    if wish.to != "hf" and not table.whole:  # Transformers' rules know of no layers and experts
        _check_mesh(table, wish)


def _count_experts(table: Table) -> int:
    sparse = any(".experts." in name for name in table.logical)
    return decoder.count_experts(table) if sparse else 0


def _check_head(src: Manifest, table: Table, wish: Wish) -> None:
    """Megatron's models have a head; a bare model of Transformers has none."""
    if table.headless and table.head not in src.logical:
        kinds = src.config.get("architectures") if src.config else None
        raise FamilyError(
            f"{src.path} has no `{table.head}` ({', '.join(kinds or ())}), and {wish.to} holds models"
            " with a head",
            hint="convert to hf or dcp, which carry a model without one",
        )


def _check_mesh(table: Table, wish: Wish) -> None:
    mesh, layers = wish.mesh, table.number("num_hidden_layers")
    experts = _count_experts(table)
    if not experts and max(mesh.ep, mesh.etp) > 1 and wish.to in MEGATRON:
        raise UsageError(
            f"the mesh is {mesh}, and a {table.family} without experts has nothing for ep and etp to"
            " cut: Megatron runs no such mesh",
            hint="leave ep and etp out",
        )
    if experts and mesh.ep > experts:
        raise UsageError(
            f"the mesh has ep={mesh.ep}, the model {experts} experts a layer",
            hint=f"choose ep of at most {experts}",
        )
    if mesh.pp > layers:
        raise UsageError(
            f"the mesh has pp={mesh.pp}, the model {layers} layers",
            hint=f"choose pp of at most {layers}",
        )


def notes_on_request(src: Manifest, wish: Wish) -> Iterator[str]:
    """What is to be known of a destination that can be written, and is not all that it might be."""
    table = table_for(src.config)
    ranks = wish.mesh.ep if wish.to == "dcp" else 1
    if ranks > 1 and table and not table.whole and not _count_experts(table):
        yield f"a {table.family} has no experts: the {ranks} ranks along ep hold copies"
    yield from _notes_on_arguments(src, wish)


def _notes_on_arguments(src: Manifest, wish: Wish) -> Iterator[str]:
    """What Megatron's arguments and counters cannot say of a source that is written in its formats."""
    if wish.to not in MEGATRON or src.config is None or table_for(src.config) is None:
        return
    unsaid = arguments_of_config(src.config).unsaid
    if unsaid:
        listed = ", ".join(f"{name}={value}" for name, value in unsaid.items())
        yield (
            f"Megatron's arguments cannot say {listed}: config.json keeps it, and Megatron's model"
            " has to be built with it"
        )
    if src.config_unsaid:
        yield (
            "no config.json is written: the stored arguments leave the model's own configuration in"
            " doubt; --config gives it"
        )
    if wish.optimizer == "drop" or not any(name in src.entries for name in _COUNTED):
        yield (
            "no iteration and no consumed samples are known: the checkpoint starts at iteration 1,"
            " and a run that goes on from it reads its data from the start"
        )
