"""What two checkpoints are equal in: every tensor that is stored, and those that are tied to one.

A configuration that ties the output layer to the embedding says that the model has both, though
one is stored.  `verify` and `digest` go by the same names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from intarsia.checking.naming import place_of
from intarsia.errors import FamilyError
from intarsia.family import Config, table_for
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


def ties_for_sure(manifest: Manifest) -> Mapping[str, str]:
    """The tensors that the model itself ties: where no table says it, the installed Transformers has to.

    `tie_word_embeddings` alone does not: some models have a head of their own whatever it says.
    """
    tied = tied_in(manifest)
    if table_for(manifest.config) is not None or not all(n in manifest.logical for n in tied):
        return tied
    from intarsia.family.from_transformers.skeleton import Skeleton

    try:
        known = Skeleton.of(manifest.config or {}).tied if tied else {}
    except FamilyError:
        return {}
    return {name: twin for name, twin in tied.items() if known.get(name) == twin}


def tied_and_absent(manifest: Manifest) -> dict[str, Logical]:
    """The tied tensors that are not stored, each with the stored one that it is.

    Those of a layer that was left out whole are not the model's.
    """
    logical, ties = manifest.logical, tied_in(manifest)
    tied: dict[str, str] = {}
    for name in ties:
        twin = ties[name]
        while twin in ties and twin not in logical:
            twin = ties[twin]  # a head of further tokens, tied to one that is tied itself
        if name not in logical and twin in logical:
            tied[name] = twin
    if not tied:
        return {}
    stacks = {p.layer_of_stack for p in map(place_of, logical)}
    found = {}
    for name, twin in tied.items():
        place = place_of(name)
        if place.layer is None or place.layer_of_stack in stacks:
            found[name] = logical[twin]
    return found


def tied_by_transformers(
    manifest: Manifest, absent: Collection[str], config: Config | None
) -> dict[str, Logical]:
    """Of tensors that a model without a table does not store, those that the installed Transformers ties to a stored one."""
    if not absent or not config or table_for(config) is not None:
        return {}
    from intarsia.family.from_transformers.rules import table_of_hub_names
    from intarsia.family.from_transformers.skeleton import Skeleton

    try:
        model = Skeleton.of(config)
        tied, hub = model.tied, table_of_hub_names(config, model.shapes)
    except FamilyError:
        return {}
    found = {}
    for name in absent:
        first = tied.get(name, name)
        others = (first, *(twin for twin, to in tied.items() if to == first))
        spelled = [n for other in others for n in (other, hub.get(other, other))]
        held = [manifest.logical[n] for n in spelled if n in manifest.logical]
        if held:
            found[name] = held[0]
    return found
