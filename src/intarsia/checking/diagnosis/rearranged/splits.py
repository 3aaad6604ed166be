"""Tensors cut out of a fused one some rows too early or too late."""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypotheses.groups import Group
from intarsia.checking.diagnosis.hypothesis import Hypothesis
from intarsia.checking.diagnosis.rearranged.keys import KEY_ELEMENTS, MOST_ROWS, followers, row_keys
from intarsia.checking.diagnosis.rearranged.order import along, compose, rows
from intarsia.layout import Layout, concat
from intarsia.mesh import Box


def split_hypotheses(e: Evidence, group: Group, mine: Layout) -> Iterator[Hypothesis]:
    """The parts of a group fused as in A, and cut in the wrong place in B."""
    own = [k for k, part in enumerate(group.parts) if part.tensors == (e.name,)]
    total = sum(group.sizes)
    if len(own) != 1 or e.pair.a.dtype != e.pair.b.dtype or not e.shape or total > MOST_ROWS:
        return
    start, n = sum(group.sizes[: own[0]]), e.shape[0]
    front = group.fused.reshape(total, -1)
    width = min(KEY_ELEMENTS, front.shape[1])
    left = e.read(front, Box((0, 0), (total, width))).reshape(total, -1)
    count = followers(left)
    known = {key: j for j, key in enumerate(row_keys(left, count))}
    if 2 * len(known) < total:
        return
    here = Layout.of(e.pair.b.name, (n, e.whole.size // n))
    gaps = set()
    for row in {n // 4, n // 2, 3 * n // 4}:
        if row + count < n:
            key = e.read(here, Box((row, 0), (1 + count, width)), e.b).tobytes()
            gaps |= {known[key] - start - row} if key in known else set()
    for gap in sorted(gaps, key=abs):
        if gap and abs(gap) < min(group.sizes):
            at = gap % total
            turned = concat([rows(total).narrow(0, at, total), rows(total).narrow(0, 0, at)])
            how_far = (
                f"{abs(gap)} row{'s' if abs(gap) > 1 else ''} too {'late' if gap > 0 else 'early'}"
            )
            text = f"{group.name} are cut out of the fused tensor {how_far} in {e.right}"
            layout = compose(mine, along(group.fused, 0, turned))
            yield Hypothesis("split-misplaced", text, layout, ("split", gap))
