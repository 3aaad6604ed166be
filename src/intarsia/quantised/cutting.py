"""Where a mesh may cut a quantised weight: between blocks, its scales with it, or nowhere."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from intarsia.mesh import Grid, Rule, Shape
from intarsia.quantised.shapes import FP8, packing
from intarsia.quantised.weight import PartRole, QuantisedWeight, WeightPart


def rules_of(w: QuantisedWeight, rule: Rule) -> dict[str, Rule]:
    """The rule of each part of a weight; `rule` is the one of the weight where it is not quantised."""
    rule = _turned(w, rule)
    per = {part.name: elements_per(w, part) for part in w.others}
    known = {name: steps for name, steps in per.items() if steps is not None}
    split = w.form == "mxfp4" or (w.form in ("scaled", "packed") and packing(w))
    if split and len(known) == len(per):
        shape = w.main.shape
        step = [1] * len(shape)
        if w.form == "mxfp4":
            step[3:] = [0] * len(step[3:])  # the bytes of one block
        for steps in known.values():
            for axis, n in enumerate(steps):
                step[axis] = lcm(step[axis], n or 1)
        together = tuple(step)
        ones = (1,) * len(shape)
        return {
            part.name: replace(rule, grid=Grid(shape, together, known.get(part.name, ones)))
            for part in w.parts
        }
    nowhere = (0,) * len(w.main.shape)
    return {
        part.name: replace(rule, grid=Grid(w.main.shape, nowhere, (0,) * len(part.shape)))
        for part in w.parts
    }


def _turned(w: QuantisedWeight, rule: Rule) -> Rule:
    """The rule for the axes of the stored weight: mxfp4 keeps rows of outputs, the plain one columns."""
    if w.form == "mxfp4":
        return replace(rule, tp={None: None, 1: 2, 2: 1}.get(rule.tp, rule.tp))
    return rule if len(w.main.shape) > (rule.tp or 0) else replace(rule, tp=None)


def elements_per(w: QuantisedWeight, part: WeightPart) -> Shape | None:
    """The elements of the stored weight on each axis that one element of a part is for.

    0 where it is for all of the axis; None where that is not known.
    """
    main, scheme = w.main.shape, w.scheme
    if part.role is PartRole.ACTIVATION:
        return (0,) * len(part.shape)
    if part.role is PartRole.WHOLE_SCALE:
        return _leading(part.shape, main)
    if part.word == "_shape":
        return (0,)
    if w.form == "mxfp4":
        return (1, 1, 1) if part.role is PartRole.SCALE else None
    if part.role is not PartRole.SCALE or len(part.shape) not in (0, 1, len(main), len(main) - 1):
        return None
    if len(part.shape) < len(main):
        square = scheme is None and len(main) > 1 and main[-1] == main[-2]
        return None if square and max(part.shape, default=1) > 1 else _leading(part.shape, main)
    block = scheme.block if scheme and not w.packed else None
    found = []
    for axis, (n, blocks) in enumerate(zip(main, part.shape, strict=True)):
        declared = block[axis - len(main) + 2] if block and axis >= len(main) - 2 else 0
        if declared:
            found.append(declared)
        elif blocks == n:
            found.append(1)
        elif blocks == 1:
            found.append(0)
        elif axis == len(main) - 1 and (group := _group(w)) and blocks == -(-n // group):
            found.append(group)
        else:
            return None
    return tuple(found)


def _leading(shape: Shape, main: Shape) -> Shape | None:
    """The steps of a part that has one element for each of the first axes, or one for all."""
    if not all(n in (1, m) for n, m in zip(shape, main, strict=False)) or len(shape) > len(main):
        return None
    return tuple(1 if n == m and n > 1 else 0 for n, m in zip(shape, main, strict=False))


def _group(w: QuantisedWeight) -> int:
    """The stored elements of a row that share a scale; 0 where nothing says, or where they share words."""
    scheme, per = w.scheme, packing(w)
    if scheme is None or not per:
        return 0
    group = scheme.group
    if w.packed and scheme.method in FP8:
        group = 32
    elif scheme.format.startswith("nvfp4"):
        group = group or 16
    return group // per if group % per == 0 else 0
