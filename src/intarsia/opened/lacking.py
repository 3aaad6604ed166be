"""What headers show that tensors lack: elements that no chunk holds, and what quantised weights need."""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.planning.manifest import Manifest
from intarsia.planning.proof import prover_of
from intarsia.planning.whole_tensor import not_whole


def lacking(manifest: Manifest) -> Iterator[str]:
    """What is wrong with the chunks of stored tensors, and with the parts of quantised weights."""
    links = prover_of(manifest).links
    sound = {id(stored) for stored in links.in_columns.values()}
    for stored in not_whole(manifest.stored):
        if id(stored) not in sound and (gap := links.stored_fault(stored)) is not None:
            yield gap.text
    yield from (fault.text for fault in manifest.quantised.faults)
