"""Every sentence of a diagnosis, carried out: what it predicts of B from A, by NumPy alone.

`untrue(a, b, comparison)` lists the statements that do not hold, or that nobody can carry out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.compare import Comparison, Difference
from intarsia.checking.diagnosis.names import listed

Array = NDArray[np.float32]
Arrays = Mapping[str, Array]
Claim = Callable[[str, Array, Array], bool]
"""Whether a sentence holds of one tensor, given its name and its elements in A and in B."""


def untrue(a: Arrays, b: Arrays, found: Comparison) -> list[str]:
    """The statements of a comparison that do not hold."""
    return [*_differences(a, b, found), *_diagnoses(a, b, found), *_faults(a, b, found)]


def _bits(x: Array) -> NDArray[np.uint32]:
    return np.ascontiguousarray(x).view(np.uint32)


def _differences(a: Arrays, b: Arrays, found: Comparison) -> Iterator[str]:
    """Names, counts, first elements and distances, against all tensors of both."""
    told = {d.tensor: d for d in found.different}
    for name in a:
        if name not in b:
            if name not in found.only_in_a:
                yield f"{name} is only in A, and nobody says so"
            continue
        unequal = _bits(a[name]) != _bits(b[name])
        if bool(unequal.any()) != (name in told):
            yield f"{name} differs: {unequal.any()}, told: {name in told}"
            continue
        if name not in told:
            continue
        d = told[name]
        if d.elements != unequal.sum():
            yield f"{name}: {d.elements} told, {unequal.sum()} differ"
        if d.first != tuple(int(k) for k in np.argwhere(unequal)[0]):
            yield f"{name}: first {d.first}"
        with np.errstate(all="ignore"):
            most = np.abs(a[name].astype(np.float64) - b[name])[unequal].max()
        if not (most == d.max_abs or (np.isnan(most) and np.isnan(d.max_abs))):
            yield f"{name}: max abs {d.max_abs}, found {most}"
        yield from _place(d, unequal)


def _place(d: Difference, unequal: NDArray[np.bool_]) -> Iterator[str]:
    where = d.where
    if where is None:
        return
    at = np.argwhere(unequal)
    ends = tuple(int(k) for k in at[0]), tuple(int(k) for k in at[-1])
    if (where.first, where.last, where.elements) != (*ends, len(at)):
        yield f"{d.tensor}: place {where.first} to {where.last}, found {ends}"
    for axis, span in enumerate(where.axes):
        held = np.unique(at[:, axis])
        if span.count is not None and (span.first, span.end - 1, span.count) != (
            held[0],
            held[-1],
            len(held),
        ):
            yield f"{d.tensor}: axis {axis} {span}"
    for spots in (where.a, where.b):
        if spots.spots and not spots.more and not spots.unseen:
            count = sum(s.elements for s in spots.spots)
            if count != len(at):
                yield f"{d.tensor}: the chunks have {count} of {len(at)} differences"


def _diagnoses(a: Arrays, b: Arrays, found: Comparison) -> Iterator[str]:
    for d in found.different:
        text, claim = d.diagnosis, None
        if move := re.match(
            r"(A|B) holds `([^`]+)` of (A|B)(, and (.*))?: explains ([\d,]+) of", text
        ):
            claim = _moved(move[2], move[1], move[5], a, b)
        else:
            claim = claim_of(text, a, b)
        if claim is None:
            yield f"{d.tensor}: nobody can carry out: {text}"
        elif not claim(d.tensor, a[d.tensor], b[d.tensor]):
            yield f"{d.tensor}: untrue: {text}"


def _faults(a: Arrays, b: Arrays, found: Comparison) -> Iterator[str]:
    told = {d.tensor: d for d in found.different}
    for f in found.faults:
        if f.kind.endswith("-missing"):
            continue
        wrong = sum(told[name].elements for name in dict.fromkeys(f.tensors))
        if f.elements != wrong:
            yield f"{f.kind}: {f.elements} elements told, its tensors have {wrong}: {f.text}"
        count = re.search(r"explains ([\d,]+) of ([\d,]+) differing", f.text)
        if count and int(count[2].replace(",", "")) != wrong:
            yield f"{f.kind}: {count[0]}, its tensors have {wrong}"
        count = re.search(r"in (\d+) tensors", f.text)
        if count and int(count[1]) != len(f.tensors):
            yield f"{f.kind}: {count[0]}, it has {len(f.tensors)}"
        if re.search(r"\b(tp|ep|pp) rank", f.text):
            yield f"{f.kind}: a rank that no file tells of: {f.text}"
        yield from _one_fault(f.text, f.tensors, a, b)


def _one_fault(text: str, tensors: tuple[str, ...], a: Arrays, b: Arrays) -> Iterator[str]:
    claim = _of_many(text, tensors, a, b)
    if claim is None:
        several = re.findall(r"(?:^|; )([^;]+?) \(in \d+\)", text)
        sentence = re.split(r", the same in |, and changed besides|: explains ", text)[0]
        sentence += ", changed besides" if "changed besides" in text else ""
        parts = several or [sentence]
        claims = [c for part in parts if (c := claim_of(part, a, b)) is not None]
        if len(claims) < len(parts):
            yield f"nobody can carry out: {text}"
            return
        for name in tensors:
            if "; and others" not in text and not any(c(name, a[name], b[name]) for c in claims):
                yield f"untrue of {name}: {text}"
        return
    if not claim():
        yield f"untrue: {text}"


def _of_many(
    text: str, tensors: tuple[str, ...], a: Arrays, b: Arrays
) -> Callable[[], bool] | None:
    """What is said of several tensors together."""
    if found := re.match(
        r"every matrix of (experts|layers) (.+?) (differs|is zero on one side|is NaN on one side), and",
        text,
    ):
        return lambda: _every_matrix(found[1], found[2], found[3], tensors, a, b)
    if found := re.match(
        r"(\S+) and (\S+) hold each other's values in (A|B)|gate and up swapped: ", text
    ):
        return lambda: all(_is_elsewhere(name, a, b) for name in tensors)
    if found := re.match(r"(\S+) holds the values of (\S+) in (A|B)", text):
        return lambda: all(_is_elsewhere(name, a, b) for name in tensors)
    if found := re.match(r"(layers|experts) shifted by (-?\d+) from layer (\d+) on", text):
        k, first = int(found[2]), int(found[3])
        return lambda: _shifted(tensors, k, first, a, b)
    if found := re.match(r"layers of (A|B) shifted by (-?\d+) around the end", text):
        return lambda: _shifted(tensors, int(found[2]), 0, a, b, around=True)
    if re.match(r"(layers|experts) (permuted|duplicated|hold others)", text):
        pairs = re.findall(r"(\d+) holds (\d+)", text)
        what = text.split()[0]
        side = found[1] if (found := re.search(r"in (A|B)\b", text)) else ""
        return lambda: _mapped(what, {int(t): int(s) for t, s in pairs}, tensors, a, b, side, text)
    if found := re.match(r"expert (\d+) copied over (.+?) of (A|B), in", text):
        return lambda: all(_holds(n, _expert(n, int(found[1])), found[3], a, b) for n in tensors)
    if found := re.match(
        r"experts \[(\d+):(\d+)\) in each of (\d+) blocks of (\d+) of (A|B)", text
    ):
        lo, size = int(found[1]), int(found[4])
        return lambda: all(
            _holds(n, _expert(n, lo + _number(n, "experts") % size), found[5], a, b)
            for n in tensors
        )
    if found := re.match(r"(\d+) of the (\d+) tensors that (\S+) of (A|B) holds a part of", text):
        return lambda: int(found[1]) == len(tensors)
    return None


def _number(name: str, what: str) -> int:
    found = re.search(rf"\b{what}\.(\d+)\.", name)
    assert found is not None
    return int(found[1])


def _expert(name: str, k: int) -> str:
    return re.sub(r"\bexperts\.\d+\.", f"experts.{k}.", name)


def _layer(name: str, k: int) -> str:
    return re.sub(r"\blayers\.\d+\.", f"layers.{k}.", name)


def _holds(name: str, source: str, side: str, a: Arrays, b: Arrays) -> bool:
    """Whether a tensor of one side is nearly another of the other side, or is that changed alike."""
    mine, other = (b, a) if side == "B" else (a, b)
    return source in other and _near(mine[name], other[source])


def _near(x: Array, y: Array) -> bool:
    """Whether one tensor is the other, or the other changed: then nearly all signs agree, or none."""
    if x.shape != y.shape:
        return False
    if np.mean(_bits(x) == _bits(y)) >= 0.99:
        return True
    same = np.mean(np.signbit(x) == np.signbit(y))
    return bool(same >= 0.97 or same <= 0.03)


def _is_elsewhere(name: str, a: Arrays, b: Arrays) -> bool:
    return any(
        n != name and n in other and _near(mine[name], other[n])
        for mine, other in ((b, a), (a, b))
        for n in mine
        if mine[n].shape == mine[name].shape
    )


def _shifted(
    tensors: tuple[str, ...], k: int, first: int, a: Arrays, b: Arrays, around: bool = False
) -> bool:
    stems = {_layer(name, 0) for name in tensors}
    layers = sorted(
        {_number(n, "layers") for n in a if re.search(r"layers\.\d", n) and _layer(n, 0) in stems}
    )
    for stem in stems:
        for layer in layers:
            source = (layer - k) % len(layers) if around else layer - k
            if layer < first or source not in layers:
                continue
            name, other = _layer(stem, layer), _layer(stem, source)
            if not (_holds(name, other, "B", a, b) or _holds(name, other, "A", a, b)):
                return False
    return True


def _mapped(
    what: str,
    pairs: Mapping[int, int],
    tensors: tuple[str, ...],
    a: Arrays,
    b: Arrays,
    side: str,
    text: str,
) -> bool:
    word = what
    put = _layer if what == "layers" else _expert
    sides = [side] if side else ["A", "B"]
    if "in each layer another way" in text:
        return all(_is_elsewhere(n, a, b) for n in tensors)
    for name in tensors:
        to = _number(name, word)
        if to not in pairs:
            return len(pairs) >= 16 or ", …" in text
        if not any(_holds(name, put(name, pairs[to]), s, a, b) for s in sides):
            return False
    return True


def _every_matrix(
    what: str, numbers: str, how: str, tensors: tuple[str, ...], a: Arrays, b: Arrays
) -> bool:
    held = {_number(n, what) for n in tensors}
    if listed(held) != numbers:
        return False
    put = _layer if what == "layers" else _expert
    stems = {re.split(rf"\b{what}\.\d+\.", n)[0] for n in tensors}
    for name in a:
        if (
            not re.search(rf"\b{what}\.\d+\.", name)
            or re.split(rf"\b{what}\.\d+\.", name)[0] not in stems
        ):
            continue
        inside = _number(name, what) in held
        unequal = bool((_bits(a[name]) != _bits(b[name])).any())
        if a[name].ndim > 1 and inside and not unequal:
            return False
        if not inside and unequal:
            return False
        if inside and unequal and "zero" in how and a[name].any() and b[name].any():
            return False
        if (
            inside
            and unequal
            and "NaN" in how
            and not (np.isnan(a[name]).any() or np.isnan(b[name]).any())
        ):
            return False
    return put is not None


def _moved(source: str, side: str, change: str | None, a: Arrays, b: Arrays) -> Claim:
    def holds(name: str, x: Array, y: Array) -> bool:
        mine, other = (y, a.get(source)) if side == "B" else (x, b.get(source))
        if other is None:
            return False
        if change is None:
            return mine.shape == other.shape and np.mean(_bits(mine) == _bits(other)) >= 0.98
        claim = claim_of(change, a, b)
        pair = (other, mine) if side == "B" else (mine, other)
        return claim is not None and claim(name, *pair)

    return holds


def claim_of(text: str, a: Arrays, b: Arrays) -> Claim | None:
    """What one sentence says of a tensor; None for a sentence of no known form."""
    if ", once in place" in text:
        inner = claim_of(text.replace(", once in place", ""), a, b)
        return None if inner is None else _once_in_place(inner, text, a, b)
    for form, make in FORMS:
        if found := re.match(form, text):
            return make(found)
    return None


def _once_in_place(claim: Claim, text: str, a: Arrays, b: Arrays) -> Claim:
    """A second fault: it holds against another tensor's elements, or against these in another order."""

    def holds(name: str, x: Array, y: Array) -> bool:
        if "block " in text:
            return True  # of the tensor in an order that the first sentence tells
        like = [n for n in a if n in b and a[n].shape == x.shape]
        if any(claim(name, a[n], y) or claim(name, x, b[n]) for n in like):
            return True
        back = re.sub("A is B", "B is A", text)
        if _from_anywhere(text, [*a.values()], [y]) or _from_anywhere(back, [*b.values()], [x]):
            return True
        # The other side may be the one that is put in place.
        if _from_anywhere(text, [x], [*b.values()]) or _from_anywhere(back, [y], [*a.values()]):
            return True
        u, v = np.sort(x.reshape(-1)), np.sort(y.reshape(-1))
        return claim(name, u, v) or claim(name, u, v[::-1].copy())

    return holds


def _from_anywhere(text: str, side: list[Array], other: list[Array]) -> bool:
    """Whether the elements of the smaller side, one being changed as the sentence says, are the other's."""
    pool = np.unique(np.concatenate([x.reshape(-1) for x in side])).astype(np.float64)
    if found := re.match(r"B is A times (-?[\d.e+-]+)", text):
        pool = np.sort(pool * float(found[1]))
    elif found := re.match(r"B is A (plus|minus) ([\d.e+-]+)", text):
        pool = pool + float(found[2]) * (1 if found[1] == "plus" else -1)
    elif text.startswith("signs flipped"):
        pool = -pool[::-1]
    elif found := re.match(r"B is A rounded to (\w+)", text):
        pool = np.unique(_round(pool.astype(np.float32), found[1])).astype(np.float64)
    else:
        return False
    flat = np.unique(np.concatenate([y.reshape(-1) for y in other])).astype(np.float64)
    few, many = (flat, pool) if len(other) == 1 else (pool, flat)
    at = np.clip(np.searchsorted(many, few), 1, len(many) - 1)
    gap = np.minimum(np.abs(many[at] - few), np.abs(many[at - 1] - few))
    return bool(np.mean(gap <= 1e-6 * (1 + np.abs(few))) >= 0.99)


def _factors(found: re.Match[str]) -> Claim:
    """A factor for every row, column or block, between two numbers."""
    ends = re.search(r"(\S+) to ([\d.e+-]*\d)", found.string)
    size = re.search(r"block of (\d+) x (\d+)", found.string)
    assert ends is not None
    lo, hi = float(ends[1]), float(ends[2])

    def holds(name: str, x: Array, y: Array) -> bool:
        one, other = (y, x) if found["flip"] else (x, y)
        rows, columns = {"row": (1, x.shape[1]), "column": (x.shape[0], 1)}.get(
            found["what"], (0, 0)
        )
        if size:
            rows, columns = int(size[1]), int(size[2])
        with np.errstate(all="ignore"):
            ratio = other.astype(np.float64) / one
            inside = (ratio >= lo * 0.99) & (ratio <= hi * 1.01)
            flat = True
            for r in range(0, x.shape[0], rows):
                for c in range(0, x.shape[1], columns):
                    part = ratio[r : r + rows, c : c + columns]
                    flat &= bool(
                        np.mean(np.abs(part - np.nanmedian(part)) <= 0.02 * np.abs(part)) >= 0.9
                    )
        return bool(np.mean(inside) >= 0.98) and flat

    return holds


def _unequal(x: Array, y: Array) -> NDArray[np.bool_]:
    return np.asarray(_bits(x) != _bits(y))


def _block(found: re.Match[str]) -> Claim:
    """`block 1 of 2 on axis 0 [and block …] [of B] is zero where it differs | differs, … | is a copy …`."""
    cuts = [tuple(map(int, c)) for c in re.findall(r"block (\d+) of (\d+) on axis (\d+)", found[0])]
    text = found.string

    def holds(name: str, x: Array, y: Array) -> bool:
        unequal = _unequal(x, y)
        inside = np.ones(x.shape, bool)
        for rank, parts, axis in cuts:
            step = -(-x.shape[axis] // parts)
            index = np.arange(x.shape[axis])
            mark = (index >= rank * step) & (index < (rank + 1) * step)
            inside &= mark.reshape([-1 if k == axis else 1 for k in range(x.ndim)])
        if (unequal & ~inside).any() or unequal.sum() < 0.7 * inside.sum():
            return False
        return _content(text, x, y, unequal) and _copy(text, cuts, x, y)

    return holds


def _copy(text: str, cuts: list[tuple[int, ...]], x: Array, y: Array) -> bool:
    found = re.search(r"of (A|B) is a copy of block (\d+)", text)
    if not found:
        return True
    mine = y if found[1] == "B" else x
    for rank, parts, axis in cuts:
        step = -(-x.shape[axis] // parts)
        blocks = [
            np.take(mine, np.arange(r * step, min((r + 1) * step, x.shape[axis])), axis)
            for r in (rank, int(found[2]))
        ]
        if blocks[0].shape == blocks[1].shape and np.array_equal(
            _bits(blocks[0]), _bits(blocks[1])
        ):
            return True
    return False


def _content(text: str, x: Array, y: Array, unequal: NDArray[np.bool_]) -> bool:
    found = re.search(r"of (A|B) is (zero|NaN) where it differs", text)
    if not found:
        return True
    mine = (y if found[1] == "B" else x)[unequal]
    return bool((mine == 0).all() if found[2] == "zero" else np.isnan(mine).all())


def _flat(found: re.Match[str]) -> Claim:
    text = found.string

    def holds(name: str, x: Array, y: Array) -> bool:
        unequal = _unequal(x, y).reshape(-1)
        at = np.flatnonzero(unequal)
        if block := re.match(r"flat block (\d+) of (\d+)", text):
            step = -(-x.size // int(block[2]))
            lo, hi = int(block[1]) * step, (int(block[1]) + 1) * step
        else:
            ends = re.match(r"the flat range of elements ([\d,]+) to ([\d,]+)", text)
            assert ends is not None
            lo, hi = int(ends[1].replace(",", "")), int(ends[2].replace(",", "")) + 1
        inside = at[0] >= lo and at[-1] < hi
        return bool(inside) and _content(text, x.reshape(-1), y.reshape(-1), unequal)

    return holds


def _value(
    predict: Callable[[Array, Array], NDArray[np.bool_]],
) -> Callable[[re.Match[str]], Claim]:
    """A change of value that explains as many differing elements as the sentence counts, or nearly all."""

    def make(found: re.Match[str]) -> Claim:
        def holds(name: str, x: Array, y: Array) -> bool:
            unequal = _unequal(x, y)
            return bool(np.mean(np.asarray(predict(x, y))[unequal]) >= 0.99)

        return holds

    return make


def _with_number(
    predict: Callable[[float, Array, Array], NDArray[np.bool_]],
) -> Callable[[re.Match[str]], Claim]:
    def make(found: re.Match[str]) -> Claim:
        number = float(found["n"])

        def holds(name: str, x: Array, y: Array) -> bool:
            unequal = _unequal(x, y)
            with np.errstate(all="ignore"):
                if found.groupdict().get("flip"):
                    x, y = y, x
                return bool(
                    np.mean(predict(number, x.astype(np.float64), y.astype(np.float64))[unequal])
                    >= 0.99
                )

        return holds

    return make


def _round(x: Array, kind: str) -> Array:
    import torch

    types = {
        "BF16": torch.bfloat16,
        "F16": torch.float16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
    }
    return torch.from_numpy(np.ascontiguousarray(x)).to(types[kind]).float().numpy()


def _rounded(found: re.Match[str]) -> Claim:
    flip, kind = found[1] == "A is B", found[2]

    def holds(name: str, x: Array, y: Array) -> bool:
        fine, rough = (y, x) if flip else (x, y)
        with np.errstate(all="ignore"):
            return bool(np.mean((_round(fine, kind) == rough)[_unequal(x, y)]) >= 0.99)

    return holds


def _same_values(found: re.Match[str]) -> Claim:
    """A rearrangement: it explains so many of the differing elements, so B holds A's values."""

    def holds(name: str, x: Array, y: Array) -> bool:
        counts = re.search(r"explains ([\d,]+) of ([\d,]+)", found.string)
        wrong = int(_unequal(x, y).sum())
        return not (counts and int(counts[2].replace(",", "")) != wrong)

    return holds


def _is_changed(text: str) -> bool:
    """Whether a sentence says that the numbers changed too: then the order is told by their signs."""
    return "changed besides" in text or re.search(r", and (A|B) is|, and signs", text) is not None


def _order(
    predict: Callable[[re.Match[str], Array], Array | None],
) -> Callable[[re.Match[str]], Claim]:
    """A rearrangement of one tensor that is written out: A in that order is B where they differ."""

    def make(found: re.Match[str]) -> Claim:
        def holds(name: str, x: Array, y: Array) -> bool:
            for one, other in ((x, y), (y, x)):
                moved = predict(found, one)
                if moved is None:
                    return True  # too long to be written out
                unequal = _unequal(x, y)
                if _is_changed(found.string) and moved.shape == other.shape and _near(moved, other):
                    return True
                if (
                    moved.shape == other.shape
                    and np.mean((_bits(moved) == _bits(other))[unequal]) >= 0.49
                ):
                    return True
            return False

        return holds

    return make


def _listed_order(found: re.Match[str], x: Array) -> Array | None:
    if "…" in found["order"]:
        return None
    order = [int(k) for k in found["order"].split(",")]
    axis = {"rows": 0, "columns": 1}.get(found["noun"] or "rows", 0)
    if "axis" in (found["noun"] or ""):
        axis = int(found["noun"].rsplit(" ", 1)[1])
    if size := found.groupdict().get("size"):
        step, n = int(size), x.shape[axis]
        rows = np.concatenate([np.arange(k * step, min((k + 1) * step, n)) for k in order])
    else:
        rows = np.array(order)
    return np.take(x, rows, axis) if rows.max() < x.shape[axis] and rows.min() >= 0 else None


def _shift_rows(found: re.Match[str], x: Array) -> Array | None:
    axis = {"rows": 0, "columns": 1}.get(found["noun"], 0)
    if "axis" in found["noun"]:
        axis = int(found["noun"].rsplit(" ", 1)[1])
    return np.roll(x, int(found["n"]), axis)


def _shift_flat(found: re.Match[str], x: Array) -> Array | None:
    return np.roll(x.reshape(-1), int(found["n"])).reshape(x.shape)


def _duplicate_block(found: re.Match[str], x: Array) -> Array | None:
    axis = int(found["axis"])
    if found.groupdict().get("every"):
        parts, source = int(found["parts"]), int(found["every"])
        step = -(-x.shape[axis] // parts)
        rows = np.arange(x.shape[axis]) % step + source * step
        return np.take(x, rows, axis)
    step = int(found["size"])
    rows = np.arange(x.shape[axis])
    for r, s in re.findall(r"(\d+) holds (\d+)", found.string):
        lo = int(r) * step
        n = min(step, x.shape[axis] - lo)
        rows[lo : lo + n] = np.arange(n) + int(s) * step
    return np.take(x, rows, axis)


def _unexplained(found: re.Match[str]) -> Claim:
    def holds(name: str, x: Array, y: Array) -> bool:
        counts = re.match(r"([\d,]+) of ([\d,]+) elements differ", found.string)
        return counts is None or int(counts[1].replace(",", "")) == int(_unequal(x, y).sum())

    return holds


def _padding(found: re.Match[str]) -> Claim:
    first = int(found[1].replace(",", ""))
    return lambda name, x, y: not _unequal(x, y)[:first].any()


NOUN = r"(?P<noun>rows|columns|indices of axis \d+)"
FORMS: list[tuple[str, Callable[[re.Match[str]], Claim]]] = [
    (r"the rest is unexplained", lambda found: lambda name, x, y: True),
    (r"block \d+ of \d+ on axis \d+( and block \d+ of \d+ on axis \d+)* (of|differs)", _block),
    (r"(flat block|the flat range of elements) ", _flat),
    (r"the part in \S+", _unexplained),
    (r"B is all zeros", _value(lambda x, y: y == 0)),
    (r"A is all zeros", _value(lambda x, y: x == 0)),
    (r"B is zero(:| where A is not)", _value(lambda x, y: y == 0)),
    (r"A is zero(:| where B is not)", _value(lambda x, y: x == 0)),
    (r"B is NaN(:| where)", _value(lambda x, y: np.isnan(y))),
    (r"A is NaN(:| where)", _value(lambda x, y: np.isnan(x))),
    (r"(B is A|A is B) rounded to (\w+)", _rounded),
    (r"signs flipped", _value(lambda x, y: y == -x)),
    (
        r"one bit of an element flipped",
        _value(
            lambda x, y: np.vectorize(lambda v: bin(int(v)).count("1"))(_bits(x) ^ _bits(y)) == 1
        ),
    ),
    (
        r"every element of (?P<side>B) is (?P<n>\S+?)(:|$)",
        _with_number(lambda n, x, y: np.abs(y - n) <= 1e-4 * abs(n)),
    ),
    (
        r"every element of (?P<side>A) is (?P<n>\S+?)(:|$)",
        _with_number(lambda n, x, y: np.abs(x - n) <= 1e-4 * abs(n)),
    ),
    (r"(?P<flip>A is B)?(B is A)? times a factor for every (?P<what>row|column|block)", _factors),
    (
        r"B is A times (?P<n>-?[\d.e+-]+)",
        _with_number(lambda n, x, y: np.abs(y - n * x) <= 1e-3 * np.abs(y)),
    ),
    (
        r"(?P<flip>A is B) times (?P<n>-?[\d.e+-]+)",
        _with_number(lambda n, x, y: np.abs(y - n * x) <= 1e-3 * np.abs(y)),
    ),
    (
        r"B is A plus (?P<n>[\d.e+-]+)",
        _with_number(lambda n, x, y: np.abs(y - x - n) <= 1e-3 * (np.abs(x) + np.abs(y) + n)),
    ),
    (
        r"B is A minus (?P<n>[\d.e+-]+)",
        _with_number(lambda n, x, y: np.abs(x - y - n) <= 1e-3 * (np.abs(x) + np.abs(y) + n)),
    ),
    (
        r"(heads permuted|shards in the wrong order): \d+ blocks of (?P<size>\d+) "
        + NOUN
        + r" come in the order \[(?P<order>[^\]]*)\]",
        _order(_listed_order),
    ),
    (NOUN + r" in another order: \[(?P<order>[^\]]*)\] of A", _order(_listed_order)),
    (
        NOUN + r" in reverse order",
        _order(lambda f, x: np.flip(x, {"rows": 0, "columns": 1}.get(f["noun"], 0))),
    ),
    (NOUN + r" shifted by (?P<n>-?\d+)", _order(_shift_rows)),
    (r"content shifted by (?P<n>-?\d+) element", _order(_shift_flat)),
    (
        r"every one of (?P<parts>\d+) blocks on axis (?P<axis>\d+) holds block (?P<every>\d+)",
        _order(_duplicate_block),
    ),
    (r"of \d+ blocks of (?P<size>\d+) on axis (?P<axis>\d+), block", _order(_duplicate_block)),
    (r"transposed, then read", _order(lambda f, x: x.T.reshape(x.shape))),
    (r"transposed", _order(lambda f, x: x.T)),
    (r"read with the shape of [AB]'s transpose", _order(lambda f, x: x.reshape(x.shape[::-1]).T)),
    (r"\d+ blocks of \d+ \S+ strided", _same_values),
    (
        r"(gate and up|query, key and value|rotary halves|rows of|components|\w+(, \w+)+ interleaved)",
        _same_values,
    ),
    (r"experts come in the order", _same_values),
    (r"only rows ([\d,]+) to ([\d,]+) differ, which pad the vocabulary", _padding),
    (r"whole (4 KiB pages|512-byte sectors) of", _unexplained),
    (r"([\d,]+ of [\d,]+ elements differ|nothing known explains)", _unexplained),
]
"""Every form that a sentence may have, and how it is carried out."""
