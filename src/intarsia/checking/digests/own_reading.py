"""Digests that were taken of a checkpoint as it is read by itself, for a reader with another section or configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from intarsia.checking.digests.digest import Attested
from intarsia.checking.pair.ties import tied_and_absent
from intarsia.format.complaint import reported_elsewhere
from intarsia.format.registry import read_manifest
from intarsia.frozen import frozen_open
from intarsia.layout import renaming
from intarsia.planning.manifest import Manifest


@frozen_open
class Expected:
    """Stored digests, by the names that a reader has for the same elements.

    Where it divides a stored tensor in another way than whoever took them, that tensor's are `apart`, by the
    names of the checkpoint as it is read by itself (`own`), and the reader's names are `divided`.
    """

    tensors: Mapping[str, str] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)
    own: Manifest | None = None
    apart: Mapping[str, str] = field(default_factory=dict)
    divided: frozenset[str] = frozenset()


def expected_of(manifest: Manifest, found: Attested | None) -> Expected:
    """The digests that were stored, under the names of a manifest."""
    if found is None:
        return Expected()
    tensors, objects = found.digests.tensors, found.digests.objects
    plain = Expected(tensors, objects)
    names = manifest.logical.keys()
    if found.section == manifest.section and names == tensors.keys() - tied_and_absent(manifest):
        return plain
    own = None
    with reported_elsewhere():
        own = read_manifest(manifest.path, complain=lambda _: None, section=found.section)
    if own is None or (found.section == manifest.section and own.logical.keys() == names):
        return plain
    here = {s.on_disk: s.layout for s in manifest.stored.values()}
    # What this reader does not read is not asked about; what nothing holds any more stays, to be missed.
    to = dict[str, str | None].fromkeys(own.logical)
    apart, divided = set[str](), set[str]()
    for stored in own.stored.values():
        if (now := here.get(stored.on_disk)) is None:
            continue
        same = renaming(stored.layout, now)
        # A tensor of this reader may be a part of the other's, or the other way round.
        if same and all(own.logical[n].shape == manifest.logical[m].shape for n, m in same.items()):
            to |= same
        else:
            apart |= {*stored.layout.tensors}
            divided |= {*now.tensors}
    # Groups in memory are spelled with the names of a reading.
    lying = {
        e.place: n for n, e in manifest.entries.items() if e.file not in manifest.in_memory_files
    }
    entries = {name: lying.get(e.place) for name, e in own.entries.items()}
    return Expected(
        _moved(tensors, to),
        _moved(objects, entries),
        own,
        {name: digest for name, digest in tensors.items() if name in apart},
        frozenset(divided),
    )


def _moved(taken: Mapping[str, str], to: Mapping[str, str | None]) -> dict[str, str]:
    return {new: x for name, x in taken.items() if (new := to.get(name, name)) is not None}
