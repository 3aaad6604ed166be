"""Scales that lie beside the codes of another weight.

Tools take for scale what makes the largest number of a block the largest code.  So a block with a far
outlier has a large scale and small codes: the ranks of scales go with those of one over the codes'
deviations, and those of another weight's scales do not.  Whole rows and columns of a weight that are
larger than others make scales larger, and codes no smaller: each is compared within its row and column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.content.scales.code_blocks import (
    BlockCut,
    Floats,
    are_in_order,
    judged,
    read_blocks,
    scale_of,
)
from intarsia.checking.fault import Fault, with_more
from intarsia.checkpoint import Checkpoint
from intarsia.errors import IntarsiaError, few
from intarsia.frozen import frozen
from intarsia.planning.manifest import Manifest
from intarsia.quantised import QuantisedWeight
from intarsia.run.sharing import share_out

Ranks = NDArray[np.float32]

_BLOCKS = 256
"""Blocks of a weight that are compared, about so many."""

_FITS = 0.25
"""From this correlation on a weight's scales may be its own: rows of unlike sizes blur it."""

_BETTER, _BY_CHANCE = 0.5, 6.0
"""How much better another weight's scales fit: of `n` blocks that have nothing in common, the correlation is one
over the root of `n` times a normal number.  Of a few dozen blocks nothing fits so well."""

_FEWEST = 4
"""Blocks of a row or a column that are compared with each other; fewer say little of it."""

_MOST = 4096
"""Where more weights than these do not fit their scales, it is the scheme that makes them so."""


def owner_faults(manifest: Manifest, known: Collection[str], workers: int) -> Iterator[Fault]:
    """Scales that fit the codes of another weight, like ones as one; those in `known` are reported elsewhere."""
    found: list[tuple[str, str]] = []
    with Checkpoint(manifest) as checkpoint:
        for cut, weights in judged(manifest.quantised, known):
            unfitting = share_out([*weights], workers, partial(_unfitting, checkpoint, cut))
            found += _exchanged([*chain(*unfitting)])
    if found:
        names = tuple(dict.fromkeys(name for name, _ in found))
        text = with_more(found[0][1], found)
        yield Fault("scale-exchanged", names, few(manifest.files_of(names)), text)


@frozen
class _Unfitting:
    """A matrix of a weight whose scales do not go with its codes: the ranks of both, and their correlation."""

    codes_name: str
    scales_name: str
    of: str
    scales: Ranks
    codes: Ranks
    own: float
    independent: int


def _unfitting(checkpoint: Checkpoint, cut: BlockCut, w: QuantisedWeight) -> list[_Unfitting]:
    samples = [cut.evenly(_BLOCKS, cut.matrices[m : m + 1]) for m in cut.matrices]
    # What cannot be read is a fault of its own.
    try:
        found = (read_blocks(checkpoint, w, cut, rows) for rows in samples)
        each = [*found] if are_in_order(checkpoint, w) else []
    except IntarsiaError as error:
        error.raise_unless_fault()
        return []
    unfitting = []
    for rows, blocks in zip(samples, each, strict=False):
        columns, at = rows[0].columns, f"[{rows[0].matrix}]" if len(samples) > 1 else ""
        scales, codes = _ranks(blocks.scales, columns), -_ranks(blocks.spread, columns)
        if (own := float(scales @ codes)) < _FITS:
            grid = len(codes) // columns, columns
            independent = prod(n - 1 if n >= _FEWEST else n for n in grid)
            names = f"{w.main.name}{at}", f"{scale_of(w).name}{at}", scale_of(w).name
            unfitting.append(_Unfitting(*names, scales, codes, own, independent))
    return unfitting


def _ranks(sizes: Floats, columns: int) -> Ranks:
    """The ranks of blocks by size, each against its row and column; the product of two is their correlation."""
    table = np.log(np.maximum(np.abs(sizes), np.finfo(np.float32).tiny)).reshape(-1, columns)
    for axis in (0, 1):
        n = table.shape[axis]
        if n >= _FEWEST:
            middle = np.sort(table, axis).take([(n - 1) // 2, n // 2], axis)
            table = table - middle.mean(axis, keepdims=True)
    flat = table.reshape(-1)
    held = np.sort(flat)
    ranks = np.searchsorted(held, flat) + np.searchsorted(held, flat, "right")  # equal ones at one
    ranks = ranks - ranks.mean()
    length = np.linalg.norm(ranks)
    return np.asarray(ranks / length if length else ranks, np.float32)


def _exchanged(unfitting: Sequence[_Unfitting]) -> Iterator[tuple[str, str]]:
    """The scales of a weight whose codes fit another's scales, where its scales fit another's codes.

    Scales that fit their own codes are nobody else's, so that only weights are asked whose scales do not.
    """
    if not 1 < len(unfitting) <= _MOST:
        return
    scales, codes = (np.stack([getattr(x, k) for x in unfitting]) for k in ("scales", "codes"))
    better = max(_BETTER, _BY_CHANCE / sqrt(unfitting[0].independent))
    own = np.array([x.own for x in unfitting])
    for k, x in enumerate(unfitting):
        fits, fitted = scales @ codes[k], codes @ scales[k]
        best, owner = int(fits.argmax()), int(fitted.argmax())
        if min(fits[best], fitted[owner]) < max(own[k], 0) + better:
            continue
        text = (
            f"the codes of `{x.codes_name}` go with the scales of `{unfitting[best].scales_name}`"
            f" (correlation {fits[best]:.2f}) and not with their own (`{x.scales_name}`, {x.own:.2f}),"
            f" which go with those of `{unfitting[owner].codes_name}`"
        )
        yield x.of, text
