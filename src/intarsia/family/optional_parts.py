"""Parts of a model that come whole or not at all: prediction layers, and the towers of a wrapper."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from intarsia.family.table import Table
from intarsia.state.names import is_state

_QWENS = "mtp"
_TOWERS = ("vision_config", "audio_config")
_LAYER = re.compile(r"^.*?layers\.\d+\.")


def optional_layers(table: Table) -> dict[str, list[str]]:
    """The tensors of each layer that a checkpoint may leave out; tied ones stand on their own."""
    found: dict[str, list[str]] = {}
    for name in table.logical:
        if name in table.optional and name not in table.tied and name != table.head:
            layer = _LAYER.match(name)
            at = _QWENS if name.startswith("mtp.") else layer[0] if layer else name
            found.setdefault(at, []).append(name)
    return found


def notes_on_layers_left_out(table: Table | None, held: Collection[str]) -> Iterator[str]:
    """A note for each layer that is left out whole, as it may be."""
    if table is None:
        return
    for layer, names in optional_layers(table).items():
        if not any(name in held for name in names):
            # Qwen's configurations have no word on theirs.
            who = f"a {table.family} may have" if layer == _QWENS else "the configuration describes"
            yield f"{who} {layer.rstrip('.')}; nothing of it is stored, which is allowed"


def must_be_there(table: Table, held: Collection[str]) -> list[str]:
    """The tensors that are not among those held and should be: also the rest of a layer that is begun."""
    lost = [name for name in table.logical if name not in held and name not in table.optional]
    for names in optional_layers(table).values():
        absent = [name for name in names if name not in held]
        lost += absent if len(absent) < len(names) else []
    return lost


def missing_tower(table: Table, held: Collection[str]) -> str | None:
    """The section of a configuration that describes a tower, where no tensor of any is held."""
    if table.whole:
        return None
    towers = [name for name in _TOWERS if isinstance(table.config.get(name), Mapping)]
    text = (f"{table.hf}layers.", f"{table.module}layers.", "mtp.")
    others = (n for n in held if n not in table.logical and not is_state(n))
    beside = (n for n in others if not n.startswith(text))
    return towers[0] if towers and next(beside, None) is None else None
