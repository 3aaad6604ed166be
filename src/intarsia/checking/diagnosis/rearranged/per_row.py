"""What has one number for each row of a matrix, as its bias, in the order that the matrix's rows are in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.diagnosis.hypotheses.compound import also_changed
from intarsia.checking.diagnosis.hypotheses.values import changed_after
from intarsia.checking.diagnosis.hypothesis import Hypothesis, Shuffle
from intarsia.checking.pair.pairs import Pair
from intarsia.layout import Layout, Loop, Piece


def ordered_as_matrices(
    open_: Iterable[Evidence], found: Mapping[Pair, Finding]
) -> Iterator[tuple[Pair, Finding]]:
    """The tensors that are in the order of the matrix beside them; alone they may tell less, or something else."""
    matrices: dict[str, list[tuple[Pair, Finding]]] = {}
    for pair, matrix in found.items():
        if matrix.order is not None and len(pair.a.shape) > 1:
            matrices.setdefault(_module(pair.a.name), []).append((pair, matrix))
    for e in open_:
        rows, own = e.shape[:1], found[e.pair]
        for pair, matrix in matrices.get(_module(e.name), ()):
            if rows != pair.a.shape[:1] or e.whole.size != rows[0] or pair == e.pair:
                continue
            if (matrix.kind, matrix.key) == (own.kind, own.key) or matrix.order is None:
                continue
            side, held = (e, pair.a) if matrix.side == "B" else (e.flipped, pair.b)
            order = _of_rows(matrix.order, side, held.name, held.size // rows[0])
            if order is not None and (alike := _alike(side, matrix, order)) is not None:
                yield e.pair, replace(alike, tensor=e.name, side=matrix.side)
                break


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _alike(e: Evidence, matrix: Finding, order: Layout | Shuffle) -> Finding | None:
    """The matrix's finding as this tensor's, where it explains all of that, and what the matrix suffered besides."""
    h = Hypothesis(matrix.kind, matrix.fault, order, matrix.key)
    score, second = e.on_all(h), None
    if not score.exact:
        changed = changed_after(e, h) if matrix.second and isinstance(order, Layout) else None
        if changed is None or matrix.second is None:
            return None
        score, value = changed
        second = also_changed(e.name, value, score)
        if second.text != matrix.second.text:
            return None
    return Finding(
        e.name, h.kind, f"{h.text}: {score}", h.text, h.key, score.explained, score.differing,
        all_over=score.exact, moved=True, second=second, order=order,
    )  # fmt: skip


def _of_rows(
    order: Layout | Shuffle, e: Evidence, matrix: str, width: int
) -> Layout | Shuffle | None:
    """An order of a matrix's elements as one of its rows; None where it does not move rows as wholes."""
    if isinstance(order, Shuffle):
        return order if order.axis == 0 else None
    leaf, own = matrix.rpartition(".")[2], e.name.rpartition(".")[2]
    first = order.reshape(-1, width).narrow(1, 0, 1).reshape(-1)
    pieces = []
    for p in first.pieces:
        steps = [p.to, *[loop.to for loop in p.loops]]
        name = p.tensor.removesuffix(leaf) + own
        held = e.a.manifest.logical.get(name)
        if any(step % width for step in steps) or held is None or held.dtype != e.pair.a.dtype:
            return None
        loops = tuple([Loop(loop.n, loop.at, loop.to // width) for loop in p.loops])
        pieces.append(Piece(name, p.at, p.to // width, loops))
    return Layout(e.shape, tuple(pieces)) if first.size == e.whole.size else None
