"""Faults that zeros show: a rank's block of a matrix, a whole tensor, a scale.

What a fresh model may hold is no fault: zero biases and moments, and whole matrices of zeros where
every layer has them so.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence

from intarsia.checking.content.meant_zeros import MeantZeros, may_be_zero
from intarsia.checking.content.same_content import Content
from intarsia.checking.content.unnamed_modules import UnnamedModules
from intarsia.checking.fault import Fault
from intarsia.checking.naming import ModelPlace, tensors_in
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.matrix_facts import MatrixFacts, Run
from intarsia.errors import few

_MEGATRON_PADS_TO = 1024
"""Megatron pads a vocabulary to a multiple of 128 for every tensor-parallel rank."""

_FEW_RANKS = 8
"""Up to so many ranks, an equal share of a vocabulary's rows is rather a rank's than padding."""

_PADS_TO = 128
"""What vocabularies are padded to a multiple of elsewhere, at most."""

_FEWEST_ROWS = 4
"""Fewer zero rows are neurons that died, unless they are all that a file holds of a rank."""

_TOKENS_IN_COLUMNS = re.compile(r"\.lora_embedding_A\b")
"""What PEFT begins with as zeros, with a column for each token: those that never came stay so."""

_STARTS_AT_ZERO = re.compile(
    r"lora_(embedding_)?(B|up)\b|lora_B|ia3_l|\.gate_(attn|mlp)$|" + _TOKENS_IN_COLUMNS.pattern
)
"""Adapters that are zero until they are trained, in some layers or in all."""

_STARTS_EMPTY = ("bias", "running_mean")
"""What a norm begins with as zeros."""


def zero_block(
    stats: ItemStats,
    matrix: MatrixFacts,
    padded: bool,
    meant: MeantZeros,
    content: Content,
) -> Iterator[Fault]:
    """Rows or columns of a matrix that are all zero, just so many as are a rank's share."""
    if not matrix.zero_rows and not matrix.zero_columns:
        return
    unit, place, stored = matrix.unit, matrix.unit.place, stats.item.stored
    if min(unit.rows, unit.columns) < 2 or not content.holds_weights(stored):
        return
    if place.is_moment and place.is_rare:
        return  # tokens that never came and experts that were never chosen have none
    by_row = not (place.is_moment and place.layer is None)  # a table under any name is looked up
    by_column = not _TOKENS_IN_COLUMNS.search(place.template)
    rare = place.is_rare and place.expert is None and "expert" not in place.template
    share = 16 if rare or place.is_moment else 64
    for word, runs, count, length, across in (
        ("rows", matrix.zero_rows, matrix.zero_row_count, unit.rows, unit.columns),
        ("columns", matrix.zero_columns, matrix.zero_column_count, unit.columns, unit.rows),
    ):
        chunks = [r for r in runs if word == "rows" and _is_a_chunk(stats, r)]
        tokens = (
            stored.layout.mapped // across if place.is_vocabulary and word == "rows" else length
        )
        reach = [(lo, length if hi == tokens else hi) for lo, hi in runs]  # into rows that pad
        whole = {*chunks, *(r for r, to in zip(runs, reach, strict=True) if is_share(*to, length))}
        for (lo, hi), (_, end) in zip(runs, reach, strict=True):
            if not (by_row if word == "rows" else by_column):
                break
            chunk = (lo, hi) in chunks and not place.is_vocabulary
            enough = hi - lo >= max(_FEWEST_ROWS, length // share) and is_share(lo, end, length)
            if not (chunk and hi - lo >= 2) and not (enough and not _is_scattered(reach, length)):
                continue
            single = count - sum(b - a for a, b in {*whole, (lo, hi)})
            if may_be_zero(hi - lo, single, length - (hi - lo), length):
                continue
            trailing = place.is_vocabulary and word == "rows" and end == length
            if trailing and is_padding(end - lo, length, padded, length - tokens):
                continue
            if word == "rows" and meant.has_rows(stored, unit, lo, hi):
                continue
            if word == "columns" and meant.has_columns(stored, unit, lo, hi):
                continue
            if content.is_sparse(stored, unit, (hi - lo) * across):
                continue
            names = tensors_in(stored, unit, *((lo, hi) if word == "rows" else ()))
            text = f"{word} [{lo}:{hi}) of {length} of `{_named(stats, place)}` are all zero"
            yield Fault("zero-block", names, f"{word} [{lo}:{hi})", text, (hi - lo) * across)
            break


def _named(stats: ItemStats, place: ModelPlace) -> str:
    at = [str(k) for k in (place.layer, place.expert) if k is not None]
    name = stats.item.stored.name
    return name if len(stats.item.units) == 1 or not at else f"{name} ({', '.join(at)})"


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
        even = lo % step == 0 and (hi % step == 0 or hi == length)
        if step >= _FEWEST_ROWS and even and hi - lo < length:
            return True
    return False


def is_padding(count: int, length: int, padded: bool, known: int = 0) -> bool:
    """Whether so many zero rows at the end of a vocabulary pad it, and are no rank's equal share.

    `known` rows are padding by the configuration; without any, its size is not known.

    >>> is_padding(28, 128, False), is_padding(32, 128, False), is_padding(32, 128, True, 28)
    (True, False, False)
    """
    share = length % count == 0 and length // count <= _FEW_RANKS
    if padded:
        return count <= _MEGATRON_PADS_TO and not (share and 0 < known < count)
    return count < _PADS_TO and not share and 2 * count < length


def _is_a_chunk(stats: ItemStats, run: Run) -> bool:
    """Whether rows are exactly those that one chunk holds."""
    first = stats.item.units[0].first_row
    for chunk in stats.zero_chunks:
        box = chunk.box
        if len(box.shape) == 2 and len(stats.item.chunks) > 1:
            lo = box.offsets[0] - first
            if run[0] <= lo and lo + box.shape[0] <= run[1]:
                return True
    return False


def zero_tensors(found: Sequence[ItemStats], content: Content) -> Iterator[Fault]:
    """Tensors that are zero where their like in other layers and experts are not.

    One that has no like may be zero from the start, unless it is a vocabulary's; the like of a
    norm that stands alone are those of its size beside it, and of modules that numbers alone name, those of one make.  A layer that stands still has no moments, nor has
    a bias that is frozen, and what is small may have nothing left where its like are pruned.
    """
    if not any(p.zero for stats in found for p in stats.matrices):
        return
    alike: dict[tuple[str, str, Hashable], list[tuple[ItemStats, MatrixFacts]]] = {}
    made = UnnamedModules(stats.item.stored for stats in found)
    moving: set[tuple[str, str, int | None]] = set()
    norms: dict[int, list[tuple[str, bool]]] = {}
    moments = {p.unit.place for s in found for p in s.matrices if p.unit.place.is_moment}
    for stats in found:
        for p in stats.matrices:
            place = p.unit.place
            matrix = min(p.unit.rows, p.unit.columns) > 1
            norm = "norm" in place.template and not place.template.endswith(_STARTS_EMPTY)
            is_judged = matrix and not place.is_rare if place.is_moment else matrix or norm
            in_layer = not place.kind and place.layer is not None
            vector = in_layer and not matrix and p.unit.columns > 1
            if _STARTS_AT_ZERO.search(place.template):
                continue
            if (is_judged or vector) and content.holds_weights(stats.item.stored):
                make = made.make_of(stats.item.stored.name)
                alike.setdefault((place.kind, place.template, make), []).append((stats, p))
                if not p.zero:
                    moving.add(_at(place))
                if norm and not matrix and not place.kind:
                    norms.setdefault(p.unit.columns, []).append((place.template, p.zero))
    for (_, template, _), group in alike.items():
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
        if template.endswith("bias") and zero[0][1].unit.rows == 1:  # begins with zeros
            if 2 * len(zero) >= len(group):
                continue  # a part of the model that was never trained
            trained = {_one(place) for place in moments if place.template == template}
            zero = [(s, p) for s, p in zero if not trained or _one(p.unit.place) in trained]
            if not zero:
                continue
        names = [name for stats, p in zero for name in tensors_in(stats.item.stored, p.unit)]
        rest = len(like)
        text = f"{few(names)} {'is' if len(names) == 1 else 'are'} all zero"
        text += f", the other {rest} of `{template}` are not" if rest else ""
        elements = sum(_size(p) for _, p in zero)
        yield Fault("zero-tensor", tuple(names), zero[0][0].item.files, text, elements)


def _size(matrix: MatrixFacts) -> int:
    return matrix.unit.rows * matrix.unit.columns


def _at(place: ModelPlace) -> tuple[str, str, int | None]:
    """The layer that state is of, and the kind that it is."""
    return place.kind, place.stack, place.layer


def _one(place: ModelPlace) -> tuple[int | None, int | None]:
    """Which of its like it is."""
    return place.layer, place.expert


def _is_needed(matrix: MatrixFacts, norms: Mapping[int, Sequence[tuple[str, bool]]]) -> bool:
    """Whether no model has this all zero: a vocabulary, or a norm whose like are all but it not.

    The norms of another part of the model, such as a tower's, may be centred on another value.
    """
    place = matrix.unit.place
    part = "".join(f"{word}." for word in place.template.split(".")[:-2])
    held = norms.get(matrix.unit.columns, ())
    like = [zero for template, zero in held if template.startswith(part)]
    alone = place.layer is None and "norm" in place.template and matrix.unit.rows == 1
    return place.is_vocabulary or (alone and sum(like) == 1 and len(like) > 1)


def zero_scalars(found: Sequence[ItemStats]) -> Iterator[Fault]:
    """Scales without an axis that are zero: nothing can be multiplied by them and remain."""
    for stats in found:
        stored = stats.item.stored
        if stored.shape == () and stats.value == 0 and "scale" in stored.name.rpartition(".")[2]:
            yield Fault("zero-scalar", (stored.name,), stats.item.files, f"`{stored.name}` is 0", 1)
