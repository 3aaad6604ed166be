"""Quantised weights among the tensors of a family: one rule for all parts, and what they stand for."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family import Known, Param
from intarsia.format.folder.side_files import read_config
from intarsia.mesh import Rule
from intarsia.quantised import Quantised
from intarsia.quantised.cutting import rules_of
from intarsia.quantised.shapes import fits
from intarsia.store.reading.lookup import is_file

MODELOPT = "hf_quant_config.json"


def modelopt_of(root: PurePath) -> Mapping[str, Any] | None:
    """What NVIDIA's ModelOpt says about its weights, in a file of its own."""
    return read_config(root / MODELOPT) if is_file(root / MODELOPT) else None


def part_rules(quantised: Quantised, known: Known | None = None) -> dict[str, Rule]:
    """The rule of each part of a quantised weight, which all its parts share."""
    found: dict[str, Rule] = {}
    cuts: dict[tuple[Hashable, int | None], list[Rule]] = {}
    for w in quantised.weights:
        rule = known.rule(w.of) if known else None
        if rule is None:
            rule = Rule(tp=0) if len(w.main.shape) > 1 and w.form != "unknown" else Rule()
        key = w.template, rule.tp
        if key not in cuts:
            by_name = rules_of(w, Rule(tp=rule.tp))
            cuts[key] = [by_name[part.name] for part in w.parts]
        for part, cut in zip(w.parts, cuts[key], strict=True):
            found[part.name] = Rule(cut.tp, rule.ep, rule.expert, rule.layer, cut.grid)
    return found


def stood_for(quantised: Quantised, known: Mapping[str, Param]) -> Iterator[str]:
    """The logical tensors that packed weights stand for, so that nobody misses them."""
    for w in quantised.weights:
        if w.packed and w.of in known:
            yield from known[w.of].layout.tensors


def misfits(
    quantised: Quantised, known: Mapping[str, Param], family: str, where: str
) -> Iterator[tuple[FamilyError, str]]:
    """Packed weights that cannot be those of the family, and the name of each."""
    for w in quantised.weights:
        row = known.get(w.of) if w.packed else None
        if row is not None and not fits(w, row.layout.shape):
            error = FamilyError(
                f"`{w.main.name}` has shape {list(w.main.shape)} ({w.label}), config.json of"
                f" {family} gives the weight {list(row.layout.shape)} - at {where}",
                hint="the configuration is another model's, or the tensor is damaged",
                kind="shape-wrong",
                tensors=(w.main.name,),
            )
            yield error, w.main.name
