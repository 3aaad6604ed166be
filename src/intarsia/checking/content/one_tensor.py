"""Faults that the content of one tensor shows: no number, no value, no plausible value.

What a fresh model may hold is no fault: zero biases and moments, norms of ones, whole matrices
of zeros where every layer has them so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from intarsia.checking.content.chance import may_be_zero
from intarsia.checking.content.pruned import Pruned
from intarsia.checking.content.same_content import Content
from intarsia.checking.content.zero_parts import ZeroParts
from intarsia.checking.fault import Fault
from intarsia.checking.naming import ModelPlace, tensors_in
from intarsia.checking.survey.item_stats import ItemStats, Odd
from intarsia.checking.survey.matrix_facts import MatrixFacts, Run
from intarsia.errors import few
from intarsia.format.base import Format
from intarsia.state.names import MASTER

_MEGATRON_PADS_TO = 1024
"""Megatron pads a vocabulary to a multiple of 128 for every tensor-parallel rank."""

_FEW_RANKS = 8
"""Up to so many ranks, an equal share of a vocabulary's rows is rather a rank's than padding."""

_PADS_TO = 128
"""What vocabularies are padded to a multiple of elsewhere, at most."""

_MANTISSA = {"F16": 0x3FF, "BF16": 0x7F}
_FEWEST_BITS = 5
"""Bits of their mantissas that numbers of another type use; signs and powers of two use none."""

_FEWEST_ROWS = 4
"""Fewer zero rows are neurons that died, unless they are all that a file holds of a rank."""

_STARTS_AT_ZERO = re.compile(r"lora_(embedding_)?(B|up)\b|lora_B|ia3_l|\.gate_(attn|mlp)$")
"""Adapters that are zero until they are trained, in some layers or in all."""

_LEAST_WEIGHT, _MOST_WEIGHT = 0.2, 1e-8
"""Every number of a matrix above the first, or below the second: no weights are like that."""


def content_faults(found: Sequence[ItemStats], format: Format, content: Content) -> Iterator[Fault]:
    """The faults of every tensor."""
    pruned, parts = Pruned(found), ZeroParts(found)
    for stats in found:
        yield from stats.faults
        if stats.faults:
            continue  # what a damaged chunk holds says nothing
        if not format.has_gaps(stats.item.stored.name):
            yield from not_finite(stats)
            yield from negative_variance(stats)
        yield from dtype_implausible(stats)
        yield from value_implausible(stats)
        for matrix in stats.matrices:
            yield from zero_block(stats, matrix, format.pads_vocabulary, (pruned, parts), content)
    yield from zero_tensors(found, content)
    yield from zero_scalars(found)


def not_finite(stats: ItemStats) -> Iterator[Fault]:
    """NaN or infinity; a mask may hold them."""
    name = stats.item.stored.name
    if stats.not_finite.count and "mask" not in name.rpartition(".")[2]:
        yield _odd("not-finite", stats, stats.not_finite, "NaN or infinite")


def negative_variance(stats: ItemStats) -> Iterator[Fault]:
    """A second moment below zero."""
    if stats.negative.count:
        yield _odd("negative-variance", stats, stats.negative, "negative")


def _odd(kind: str, stats: ItemStats, odd: Odd, what: str) -> Fault:
    stored = stats.item.stored
    text = (
        f"{odd.count:,} of {stored.layout.size:,} elements of `{stored.name}` are {what},"
        f" in {_files(stats)}"
    )
    return Fault(kind, odd.tensors(stored), f"{list(odd.first)} first", text, odd.count)


def dtype_implausible(stats: ItemStats) -> Iterator[Fault]:
    """Bits of bf16 read as fp16 lie between 0.25 and 4, those of fp16 read as bf16 below 1e-8."""
    stored = stats.item.stored
    if not any(p.telling for p in stats.matrices) or stats.item.kinds != {""}:
        return
    if "scale" in stored.name.rpartition(".")[2]:
        return
    if (
        stored.layout.size < 64
        or stored.dtype.name not in ("F16", "BF16")
        or stats.not_finite.count
    ):
        return
    if (stats.used_bits & _MANTISSA[stored.dtype.name]).bit_count() < _FEWEST_BITS:
        return
    least, most = stats.magnitude(stats.least), stats.magnitude(stats.most)
    fp16 = stored.dtype.name == "F16" and least > _LEAST_WEIGHT
    bf16 = stored.dtype.name == "BF16" and 0 < most < _MOST_WEIGHT
    if fp16 or bf16:
        other = "BF16" if fp16 else "F16"
        text = (
            f"`{stored.name}` is declared as {stored.dtype}, and all its magnitudes are in"
            f" [{least:.2g}, {most:.2g}]: the bits are those of {other}"
        )
        names = stored.layout.tensors or (stored.name,)
        yield Fault("dtype-implausible", names, _files(stats), text, stored.layout.size)


def value_implausible(stats: ItemStats) -> Iterator[Fault]:
    """Numbers that no training gives a weight, and that memory which was never written holds."""
    stored = stats.item.stored
    leaf = stored.name.rpartition(".")[2]
    if "mask" in leaf or "scale" in leaf or stats.item.kinds - {"", MASTER}:
        return
    if stats.absurd.count:
        most = stats.magnitude(stats.most)
        yield _odd("value-implausible", stats, stats.absurd, f"beyond 1e8, up to {most:.2g}")


def zero_block(
    stats: ItemStats,
    matrix: MatrixFacts,
    padded: bool,
    meant: tuple[Pruned, ZeroParts],
    content: Content,
) -> Iterator[Fault]:
    """Rows or columns of a matrix that are all zero, just so many as are a rank's share."""
    unit, place = matrix.unit, matrix.unit.place
    if min(unit.rows, unit.columns) < 2 or not stats.item.stored.dtype.floating:
        return
    if place.is_moment and place.is_rare:
        return  # tokens that never came and experts that were never chosen have none
    rare = place.is_rare and place.expert is None and "expert" not in place.template
    share = 16 if rare or place.is_moment else 64
    for word, runs, count, length, across in (
        ("rows", matrix.zero_rows, matrix.zero_row_count, unit.rows, unit.columns),
        ("columns", matrix.zero_columns, matrix.zero_column_count, unit.columns, unit.rows),
    ):
        chunks = [r for r in runs if word == "rows" and _is_a_chunk(stats, r)]
        whole = {*chunks, *(r for r in runs if is_share(*r, length))}
        for lo, hi in runs:
            chunk = (lo, hi) in chunks and not place.is_vocabulary
            enough = hi - lo >= max(_FEWEST_ROWS, length // share) and is_share(lo, hi, length)
            if not (chunk and hi - lo >= 2) and not (enough and not _is_scattered(runs, length)):
                continue
            single = count - sum(end - start for start, end in {*whole, (lo, hi)})
            if may_be_zero(hi - lo, single, length - (hi - lo), length):
                continue
            trailing = place.is_vocabulary and word == "rows" and hi == length
            if trailing and is_padding(hi - lo, length, padded):
                continue
            stored = stats.item.stored
            if word == "rows" and any(x.has_rows(stored, unit, lo, hi) for x in meant):
                continue
            if word == "columns" and meant[0].has_columns(stored, unit, lo, hi):
                continue
            if content.is_sparse(stored, unit, (hi - lo) * across):
                continue
            names = tensors_in(stored, unit, *((lo, hi) if word == "rows" else ()))
            text = f"{word} [{lo}:{hi}) of {length} of `{_named(stats, place)}` are all zero"
            yield Fault("zero-block", names, f"{word} [{lo}:{hi})", text, (hi - lo) * across)
            break


def _is_scattered(runs: Sequence[Run], length: int) -> bool:
    """Whether zero rows lie here and there, as where single weights were pruned."""
    longest = max(hi - lo for lo, hi in runs)
    others = [hi - lo for lo, hi in runs if not is_share(lo, hi, length)]
    return 4 * max(others, default=0) > longest


def is_share(lo: int, hi: int, length: int) -> bool:
    """Whether `[lo, hi)` are the shares of one or more ranks of an even cut.

    >>> is_share(16, 32, 48), is_share(16, 48, 48), is_share(15, 32, 48)
    (True, True, False)
    """
    for parts in range(2, min(64, length) + 1):
        step = -(-length // parts)
        if (
            step >= _FEWEST_ROWS
            and lo % step == 0
            and (hi % step == 0 or hi == length)
            and hi - lo < length
        ):
            return True
    return False


def is_padding(count: int, length: int, padded: bool) -> bool:
    """Whether so many zero rows at the end of a vocabulary pad it, and are no rank's equal share.

    >>> is_padding(28, 128, False), is_padding(32, 128, False)
    (True, False)
    """
    if padded:
        return count <= _MEGATRON_PADS_TO
    share = length % count == 0 and length // count <= _FEW_RANKS
    return count < _PADS_TO and not share and 2 * count < length


def _is_a_chunk(stats: ItemStats, run: Run) -> bool:
    """Whether rows are exactly those that one chunk holds."""
    first = stats.item.units[0].first_row
    for chunk, (_, zero) in stats.marks.items():
        box = chunk.box
        if zero and len(box.shape) == 2 and len(stats.item.chunks) > 1:
            lo = box.offsets[0] - first
            if run[0] <= lo and lo + box.shape[0] <= run[1]:
                return True
    return False


def zero_tensors(found: Sequence[ItemStats], content: Content) -> Iterator[Fault]:
    """Tensors that are zero where their like in other layers and experts are not.

    One that has no like may be zero from the start, unless it is a vocabulary's; the like of a
    norm that stands alone are those of its size.  A layer that stands still has no moments, and
    what is small may have nothing left where its like are pruned.
    """
    alike: dict[tuple[str, str], list[tuple[ItemStats, MatrixFacts]]] = {}
    moving: set[tuple[str, str, int | None]] = set()
    norms: dict[int, list[bool]] = {}
    for stats in found:
        for p in stats.matrices:
            place = p.unit.place
            matrix = min(p.unit.rows, p.unit.columns) > 1
            norm = "norm" in place.template and not place.template.endswith("bias")
            is_judged = matrix and not place.is_rare if place.is_moment else matrix or norm
            vector = (
                not matrix and not place.kind and p.unit.columns > 1 and place.layer is not None
            )
            if _STARTS_AT_ZERO.search(place.template):
                continue
            if stats.item.stored.dtype.floating and (is_judged or vector):
                alike.setdefault((place.kind, place.template), []).append((stats, p))
                if not p.zero:
                    moving.add(_at(place))
                if norm and not matrix and not place.kind:
                    norms.setdefault(p.unit.columns, []).append(p.zero)
    for (_, template), group in alike.items():
        zero = [
            (stats, p)
            for stats, p in group
            if p.zero and (not p.unit.place.is_moment or _at(p.unit.place) in moving)
        ]
        if not zero or (len(zero) == len(group) and not _is_needed(zero[0][1], norms)):
            continue
        like = [(stats.item.stored, p) for stats, p in group if not p.zero]
        zero = [(stats, p) for stats, p in zero if not content.is_sparse_like(_size(p), like)]
        if not zero:
            continue
        starts_at_zero = template.endswith(".bias") and zero[0][1].unit.rows == 1
        if starts_at_zero and 2 * len(zero) >= len(group):
            continue  # a part of the model that was never trained
        names = [name for stats, p in zero for name in tensors_in(stats.item.stored, p.unit)]
        rest = len(like)
        text = f"{few(names)} {'is' if len(names) == 1 else 'are'} all zero"
        text += f", the other {rest} of `{template}` are not" if rest else ""
        elements = sum(_size(p) for _, p in zero)
        yield Fault("zero-tensor", tuple(names), _files(zero[0][0]), text, elements)


def _size(matrix: MatrixFacts) -> int:
    return matrix.unit.rows * matrix.unit.columns


def _at(place: ModelPlace) -> tuple[str, str, int | None]:
    """The layer that state is of, and the kind that it is."""
    return place.kind, place.stack, place.layer


def _is_needed(matrix: MatrixFacts, norms: Mapping[int, Sequence[bool]]) -> bool:
    """Whether no model has this all zero: a vocabulary, or a norm whose like are all but it not."""
    place, like = matrix.unit.place, norms.get(matrix.unit.columns, ())
    alone = place.layer is None and "norm" in place.template and matrix.unit.rows == 1
    return place.is_vocabulary or (alone and sum(like) == 1 and len(like) > 1)


def zero_scalars(found: Sequence[ItemStats]) -> Iterator[Fault]:
    """Scales without an axis that are zero: nothing can be multiplied by them and remain."""
    for stats in found:
        stored = stats.item.stored
        if stored.shape == () and stats.value == 0 and "scale" in stored.name.rpartition(".")[2]:
            yield Fault("zero-scalar", (stored.name,), _files(stats), f"`{stored.name}` is 0", 1)


def notes_of(found: Sequence[ItemStats], faults: Iterable[Fault]) -> Iterator[str]:
    """What is worth saying, and no fault says."""
    lost = {name for fault in faults if fault.kind == "zero-block" for name in fault.tensors}
    unsealed = sum(stats.unsealed for stats in found)
    if unsealed:
        yield f"{unsealed:,} chunks were saved without a CRC-32, so their bytes cannot be checked"
    for stats in found:
        for p in stats.matrices:
            lo, hi = next((r for r in p.zero_rows if r[1] == p.unit.rows), (0, 0))
            if not p.unit.place.is_vocabulary or p.unit.place.kind:
                continue
            name = stats.item.stored.name
            if hi > lo and lost.isdisjoint(tensors_in(stats.item.stored, p.unit)):
                yield f"`{name}` ends with {hi - lo:,} zero rows, as padding does"
            elif hi == lo and p.alike_at_end > 1:
                yield f"`{name}` ends with {p.alike_at_end:,} equal rows, as tokens never trained do"


def _named(stats: ItemStats, place: ModelPlace) -> str:
    at = [str(k) for k in (place.layer, place.expert) if k is not None]
    name = stats.item.stored.name
    return name if len(stats.item.units) == 1 or not at else f"{name} ({', '.join(at)})"


def _files(stats: ItemStats) -> str:
    return few(sorted({chunk.file for chunk in stats.item.chunks}))
