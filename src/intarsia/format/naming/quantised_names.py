"""Quantised weights among the tensors of a family: one rule for all parts, and what they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import PurePath
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family import Param, RowsOfDialects
from intarsia.format.folder.side_files import read_config
from intarsia.frozen import frozen_open
from intarsia.mesh import Rule
from intarsia.quantised import AlikeWeights, QuantisedWeights
from intarsia.quantised.cutting import rules_of
from intarsia.quantised.shapes import fits_shape
from intarsia.store.reading.lookup import is_file

MODELOPT = "hf_quant_config.json"


def modelopt_of(root: PurePath) -> Mapping[str, Any] | None:
    """What NVIDIA's ModelOpt says about its weights, in a file of its own."""
    return read_config(root / MODELOPT) if is_file(root / MODELOPT) else None


@frozen_open
class PartRules:
    """The rule of each part of a quantised weight, which all its parts share; made for one kind of weight when asked."""

    quantised: QuantisedWeights
    known: RowsOfDialects | None

    def get(self, name: str) -> Rule | None:
        """The rule of a part; None for what is none."""
        kind = self.quantised.kind_of_part.get(name)
        if kind is None:
            return None
        if kind not in self._made:
            self._made[kind] = dict(self._of(self.quantised.alike[kind]))
        return self._made[kind][name]

    @cached_property
    def _made(self) -> dict[int, dict[str, Rule]]:
        return {}

    def _of(self, kind: AlikeWeights) -> Iterator[tuple[str, Rule]]:
        w, cuts = kind.first, dict[int | None, list[Rule]]()
        uncut = Rule(tp=0) if len(w.main.shape) > 1 and w.form != "unknown" else Rule()
        for of, names in kind.names:
            rule = self.known.rule(of) if self.known else None
            rule = uncut if rule is None else rule
            if rule.tp not in cuts:
                by_name = rules_of(w, Rule(tp=rule.tp))
                cuts[rule.tp] = [by_name[part.name] for part in w.parts]
            for name, cut in zip(names, cuts[rule.tp], strict=True):
                yield name, Rule(cut.tp, rule.ep, rule.expert, rule.layer, cut.grid)


def stood_for(quantised: QuantisedWeights, known: Mapping[str, Param]) -> Iterator[str]:
    """The logical tensors that packed weights stand for, so that nobody misses them."""
    for kind in quantised.alike:
        if kind.first.packed:
            for of in [of for of, _ in kind.names if of in known]:
                yield from known[of].layout.tensors


def packed_misfits(
    quantised: QuantisedWeights, known: Mapping[str, Param], family: str, where: str
) -> Iterator[tuple[FamilyError, str]]:
    """Packed weights that cannot be those of the family, and the name of each."""
    if not any(kind.first.packed for kind in quantised.alike):
        return
    for w in quantised.weights:
        row = known.get(w.of) if w.packed else None
        if row is not None and not fits_shape(w, row.layout.shape):
            error = FamilyError(
                f"`{w.main.name}` has shape {list(w.main.shape)} ({w.label}), config.json of"
                f" {family} gives the weight {list(row.layout.shape)}",
                at=where,
                hint="the configuration is another model's, or the tensor is damaged",
                kind="shape-wrong",
                tensors=(w.main.name,),
            )
            yield error, w.main.name
