"""Why the root of another checkpoint may differ though `verify` finds the two equal."""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.checking.digests.digest import Digests
from intarsia.family import table_for
from intarsia.format.registry import format_named
from intarsia.planning.inventory import unread_sections
from intarsia.planning.manifest import Manifest
from intarsia.state.names import is_state


def notes_on(manifest: Manifest, found: Digests) -> Iterator[str]:
    """What to know before its root is compared with that of another checkpoint."""
    yield from unread_sections(manifest.inventory)
    table = table_for(manifest.config)
    known = table.logical if table else {}
    as_stored = [name for name in manifest.logical if name not in known and not is_state(name)]
    if as_stored:
        why = "no table has" if manifest.config else "without --config no table has"
        yield (
            f"{len(as_stored):,} tensors have names that {why}, such as `{as_stored[0]}`: where the same model is stored"
            " under other names (a module's for the hub's) or with tensors that it ties, its root is another; `intarsia verify A B` knows both"
        )
    if found.weights_again and format_named(manifest.format).main_weights_in_place:
        yield (
            f"{manifest.format} keeps the fp32 main weights as the weights: where rounded weights are kept beside them,"
            " the root is another; the digests of `optimizer.master.*` are the same, and `intarsia verify A B` rounds"
        )
