"""What live checkpoints hold beside tensors: the plain values of a dict, and the extra state of modules.

Both are entries like `extra`, under the names that they have in the dict or in the module.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from intarsia.checkpoint import Checkpoint
from intarsia.errors import UsageError
from intarsia.format.optimizer_state.optimizer_names import may_be_optimizers
from intarsia.live.entries import EXTRA, OF_RANK, pack, spread, unpack
from intarsia.live.model.contents import ModelContents
from intarsia.planning.manifest import Manifest

AS_TENSOR = "the checkpoint has a tensor of this name, and the dict another kind of value"


def packed_with(contents: ModelContents, given: Mapping[str, bytes]) -> dict[str, bytes]:
    """`extra` as it was given, with the values and the extra state of what is saved; raise where names meet.

    The values of a dict have the names that `dcp.save` gives them, but for those that would pass for an optimizer's.
    """
    found = dict(given)
    for name, value in (*contents.values.items(), *contents.extra_state.items()):
        if EXTRA + name in found:
            raise UsageError(
                f"`{name}` is in `extra` and also in the model's state", hint="rename one of them"
            )
        if name in contents.tensors or name.startswith((EXTRA, OF_RANK)):
            raise UsageError(
                f"the value `{name}` of the dict has the name of a tensor, or of what `extra` holds",
                hint="rename its key",
            )
        found[EXTRA + name if may_be_optimizers(name) else name] = pack(value, name)
    return found


@dataclass(frozen=True)
class Values:
    """Where the values and the extra state that were asked for are stored; and which are not."""

    entries: Mapping[str, str]
    tensors: Mapping[str, str]
    lost: Mapping[str, str]

    @staticmethod
    def of(contents: ModelContents, manifest: Manifest, size: int) -> Values:
        """Look for everything that is no tensor, for `size` ranks."""
        entries, tensors, lost = dict[str, str](), dict[str, str](), dict[str, str]()
        listed, own = spread(manifest.entries, size)
        label = next((x.name for x in manifest.inventory if x.kind == "section"), "")
        for name in (*contents.leaves, *contents.extra_state):
            inner = name.removeprefix(f"{label.strip('.')}.")
            ways = (EXTRA + name, name, f"{EXTRA}{label}.{name}", f"{label}.{name}", inner)
            entry = next((way for way in ways if way in manifest.entries), None)
            if entry is not None or name in own:
                entries[name] = entry or name
            elif name in listed:
                lost[name] = "each rank saved its own value, and the number of ranks was different"
            elif name in manifest.logical and name in contents.extra_state:
                tensors[name] = name
            elif not _is_empty(contents.extra_state.get(name, name)):
                lost[name] = AS_TENSOR if {*ways} & manifest.logical.keys() else "it has no source"
        return Values(entries, tensors, lost)

    def put(
        self,
        contents: ModelContents,
        manifest: Manifest,
        entries: Mapping[str, bytes],
        extra: dict[str, Any],
    ) -> None:
        """Put everything in its place; what was a module's goes out of `extra`."""
        found = {
            name: extra[name] if name in extra else unpack(entries[entry], f"`{name}`")
            for name, entry in self.entries.items()
        }
        if self.tensors:
            with Checkpoint(manifest) as checkpoint:
                found |= {name: checkpoint[at][...] for name, at in self.tensors.items()}
        for name, (held, key) in contents.leaves.items():
            if name in found and isinstance(held, MutableMapping):
                held[key] = found[name]
        contents.set_extra_state(found)
        for name in contents.extra_state:
            for taken in (name, self.entries.get(name, name)):
                extra.pop(taken, None)


def _is_empty(value: Any) -> bool:
    """Whether a module has no extra state to speak of, though it could."""
    return value is None or (hasattr(value, "numel") and not value.numel())
