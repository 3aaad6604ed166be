"""What two checkpoints are equal in: every tensor that is stored, and those that are tied to one.

A configuration that ties the output layer to the embedding says that the model has both, though
one is stored.  `verify` and `digest` go by the same names.
"""

from __future__ import annotations

from collections.abc import Mapping

from intarsia.checking.naming import place_of
from intarsia.family import table_for
from intarsia.planning.manifest import Logical, Manifest


def tied_in(manifest: Manifest) -> Mapping[str, str]:
    """The tensors that the configuration ties, each with the one that it is tied to."""
    table = table_for(manifest.config)
    if table is not None:
        return table.tied
    if not (manifest.config or {}).get("tie_word_embeddings"):
        return {}
    heads = [name for name in manifest.logical if name.endswith("lm_head.weight")]
    tables = [name for name in manifest.logical if name.endswith("embed_tokens.weight")]
    return {heads[0]: tables[0]} if len(heads) == len(tables) == 1 else {}


def twins_of(manifest: Manifest) -> dict[str, Logical]:
    """The tied tensors that are not stored, each with the stored one that it is.

    Those of a layer that was left out whole are not the model's.
    """
    stacks = {(p.template.partition("*")[0], p.layer) for p in map(place_of, manifest.logical)}
    found = {}
    for name, twin in tied_in(manifest).items():
        place = place_of(name)
        there = place.layer is None or (place.template.partition("*")[0], place.layer) in stacks
        if there and name not in manifest.logical and twin in manifest.logical:
            found[name] = manifest.logical[twin]
    return found
