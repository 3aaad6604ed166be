"""The configuration that a Megatron checkpoint is read by: given, stored, or made of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family import Table, table_for
from intarsia.format.complaint import Complain, going_on
from intarsia.format.dcp.metadata import Metadata
from intarsia.format.folder.stored_config import choose_config
from intarsia.format.megatron.common import whole_argument
from intarsia.format.megatron.configuration.argument_facts import said_of_norms
from intarsia.format.megatron.configuration.arguments_to_config import config_from_arguments
from intarsia.format.megatron.configuration.contradictions import check_arguments
from intarsia.format.megatron.frame import home_of
from intarsia.frozen import frozen_open


@frozen_open
class SettledConfig:
    """A configuration, whether it was made of arguments, and the arguments that it then cannot say."""

    config: Mapping[str, Any] | None
    made: bool
    unsaid: tuple[str, ...]
    notes: tuple[str, ...]
    centered: bool | None = None

    @property
    def table(self) -> Table | None:
        """The family's table, its norms centred as the arguments say."""
        return table_for(self.config, zero_centered=self.centered)


def settle_config(
    given: Mapping[str, Any] | None,
    args: Mapping[str, Any],
    metadata: Metadata,
    root: PurePath,
    complain: Complain,
) -> SettledConfig:
    """The given or stored configuration, compared with the arguments; without one, that of the arguments."""
    config, said = given, said_of_norms(args)
    centered = next(iter(said.values()), None)
    notes: tuple[str, ...] = () if len({*said.values()}) < 2 else (_both_names(said),)
    with going_on(complain, "config.json"):
        config = choose_config(given, home_of(root))
    if config is None:
        made = config_from_arguments(args, metadata)
        is_made = made.config is not None
        with going_on(complain):
            _check_layers(args, made.config or {}, root)
        return SettledConfig(made.config, is_made, made.unsaid, (*notes, *made.notes), centered)
    if table_for(config) is not None:
        with going_on(complain):
            shapes = {name: t.shape for name, t in metadata.tensors.items()}
            notes += tuple(check_arguments(args, config, shapes, str(root)))
    return SettledConfig(config, False, (), notes, centered)


def _both_names(said: Mapping[str, bool]) -> str:
    """A note on arguments that say of norms by one name what they deny by the other."""
    (first, one), (other, two) = said.items()
    return (
        f"the stored arguments have {first}={one} and {other}={two}: the first is taken, which"
        " Megatron-LM uses alone from 0.16 on"
    )


def _check_layers(args: Mapping[str, Any], made: Mapping[str, Any], root: PurePath) -> None:
    """Raise where not as many layers are stored as the run had: every other setting may be a default."""
    said, stored = whole_argument(args, "num_layers"), made.get("num_hidden_layers")
    if said is not None and stored is not None and said != stored:
        raise FamilyError(
            f"the stored arguments have num_layers={said}, and {stored} layers are stored",
            at=root,
            hint="layers are lost, or the arguments are another model's: take both from one save",
            kind="config-contradicts",
        )
