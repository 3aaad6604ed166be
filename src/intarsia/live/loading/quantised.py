"""Loading quantised weights: into a model that is quantised alike, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from intarsia.errors import UsageError
from intarsia.family import Param, table_for
from intarsia.format.naming.wrappers import bare
from intarsia.live.model.holding import dtype_of
from intarsia.live.model.names import LiveRows
from intarsia.planning.manifest import Manifest, Stored
from intarsia.quantised import QuantisedWeight
from intarsia.quantised.refusing import how_to_dequantise, refuse_faults


def check_quantised(tensors: Mapping[str, Any], found: LiveRows, manifest: Manifest) -> LiveRows:
    """The rows of a model, cut as its quantised weights are; raise where it would take one without its scales."""
    refuse_faults(manifest.quantised, manifest.path)
    if not manifest.quantised:
        return found
    table = table_for(manifest.config)
    known = table.known if table else {}
    asked: dict[str, list[str]] = {}
    for name, row in found.rows.items():
        for logical in row.layout.tensors:
            asked.setdefault(logical, []).append(name)
    rows = dict(found.rows)
    for w in manifest.quantised.weights:
        stored = {part.name: manifest.stored[part.name] for part in w.parts}
        plain = known[w.of].layout.tensors if w.of in known else (w.of,)
        wanted = {x for s in stored.values() for x in s.layout.tensors or (s.name,)} | set(plain)
        takers = {name for logical in wanted for name in asked.get(logical, ())}
        takers |= {name for name in found.missing if _is_of(bare(name), w)}
        if takers:
            rows |= _parts(w, stored, takers, tensors, found.rows, manifest.path)
    return replace(found, rows=rows)


def _is_of(name: str, w: QuantisedWeight) -> bool:
    """Whether a live name without a source is the weight's, or one of its parts'."""
    return any(name == n or name.endswith("." + n) for n in (w.of, *(p.name for p in w.parts)))


def _parts(
    w: QuantisedWeight,
    stored: Mapping[str, Stored],
    takers: set[str],
    tensors: Mapping[str, Any],
    rows: Mapping[str, Param],
    path: str,
) -> dict[str, Param]:
    """The rows of the live tensors that take each part of a weight, as it is."""
    hint = f"load into a model that is quantised in the same way, or {how_to_dequantise(w.scheme)}"
    found: dict[str, Param] = {}
    for part in w.parts:
        s = stored[part.name]
        name = next((n for n in takers if n in rows and _takes(rows[n], s, w)), None)
        if name is None:
            first = min(takers)
            raise UsageError(
                f"`{w.main.name}` is quantised ({w.label}) and the model has no `{part.name}`:"
                f" `{first}` would hold numbers without their scale",
                at=path,
                hint=hint,
            )
        held = dtype_of(tensors[name], name)
        if held != part.dtype:
            raise UsageError(
                f"`{part.name}` is {part.dtype}, a part of a quantised weight ({w.label}), and"
                f" `{name}` of the model is {held}",
                at=path,
                hint=hint,
            )
        found[name] = Param(s.name, s.layout, s.rule, s.value)
    return found


def _takes(row: Param, stored: Stored, w: QuantisedWeight) -> bool:
    """Whether a live tensor's row has the elements of a part in their order."""
    return row.layout == stored.layout or (w.packed and row.name == stored.name)
