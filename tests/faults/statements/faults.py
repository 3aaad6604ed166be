"""What is said of many tensors together, carried out on each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from intarsia.checking.diagnosis.names import as_ranges
from intarsia.checking.fault import Fault
from intarsia.checking.pair.comparison import Comparison
from intarsia.state.names import parameter_of
from tests.faults.statements.differences import Told, holds_of
from tests.faults.statements.held import Sides, beyond_rounding, differ_at, number
from tests.faults.statements.places import Stored

EXPLAINS = re.compile(r"(.*): explains ([\d,]+) of ([\d,]+) differing elements", re.DOTALL)
LAYERS = re.compile(r" \((\d+) of (\d+) layers\)")


def faults_are_untrue(
    found: Comparison, told: Mapping[str, Told], sides: Sides, left: Stored, right: Stored
) -> Iterator[str]:
    """The statements about faults that do not hold; every differing tensor has one."""
    for name in told.keys() - {n for f in found.faults for n in f.tensors}:
        yield f"{name} differs, and no fault tells of it"
    for fault in found.faults:
        for wrong in _one(fault, told, sides, left, right):
            yield f"{fault.kind}: {wrong}: {fault.text}"


def _one(
    fault: Fault, told: Mapping[str, Told], sides: Sides, left: Stored, right: Stored
) -> Iterator[str]:
    if fault.kind.endswith("-missing"):
        yield from _missing(fault, sides)
        return
    yield from _where(fault)
    wrong = sum(told[name].differing for name in fault.tensors)
    if len({*fault.tensors}) != len(fault.tensors):
        yield "names a tensor twice"
    if fault.elements != wrong:
        yield f"{fault.elements} elements told, its tensors have {wrong}"
    text = fault.text
    if counts := EXPLAINS.fullmatch(text):
        text = counts[1]
        explained = sum(told[name].explained for name in fault.tensors)
        if (number(counts[2]), number(counts[3])) != (explained, wrong):
            yield f"explains {explained} of {wrong}"
    if re.search(r"\b(tp|ep|pp|fsdp) rank", text):
        yield "a rank that no file tells of"
    many = _of_many(text, fault, sides, left, right)
    if many is not None:
        if not many():
            yield "untrue"
        return
    yield from _of_each(text, fault, told, sides, left, right)


def _where(fault: Fault) -> Iterator[str]:
    """The layers and experts of a place are those of the tensors."""
    for what, words in (("layers", "layers?"), ("experts", "experts?")):
        numbers = {int(f[1]) for n in fault.tensors if (f := re.search(rf"\b{what}\.(\d+)\.", n))}
        said = re.search(rf"; {words} ([\d, to]+)(;|$)", fault.where)
        if (said[1] if said else "") != as_ranges(numbers):
            yield f"the place says {said[1] if said else 'nothing'} of {what} {as_ranges(numbers)}"


def _missing(fault: Fault, sides: Sides) -> Iterator[str]:
    found = re.fullmatch(
        r"missing in (A|B): (?:([\d,]+) tensors?|(experts|layers) (.*))", fault.text
    )
    if not found:
        yield "nobody can carry out"
        return
    mine, other = (sides.b, sides.a) if found[1] == "B" else (sides.a, sides.b)
    if not {*fault.tensors} <= {n for n in other if n not in mine}:
        yield "other tensors are missing"
    if found[2] and number(found[2]) != len(fault.tensors):
        yield f"{len(fault.tensors)} are missing"
    if found[3]:
        lost = {_number(n, found[3]) for n in fault.tensors}
        places, held = (
            {
                (f[1], int(f[2]))
                for n in names
                if (f := re.search(rf"(.*?\b{found[3]}\.)(\d+)\.", n))
            }
            for names in (map(parameter_of, fault.tensors), map(parameter_of, mine))
        )
        if as_ranges(lost) != found[4] or places & held:
            yield "untrue"


def _of_each(
    text: str, fault: Fault, told: Mapping[str, Told], sides: Sides, left: Stored, right: Stored
) -> Iterator[str]:
    """Sentences that hold of the fault's tensors one by one."""
    if unexplained := re.fullmatch(
        r"(nothing known explains the differences|shape .*?)"
        r"((?:, the same|;) in (\d+) tensors(?: \(\d+ of \d+ layers\))?)?"
        r"(; all of it in [^;]*?)? \(([\d,]+) elements\)(?:; in (\S+): (.*))?",
        text, re.DOTALL,
    ):  # fmt: skip
        if number(unexplained[5]) != sum(told[n].differing for n in fault.tensors):
            yield "another number of elements"
        if unexplained[6] and unexplained[7]:
            plain = told[unexplained[6]].text.replace("; nothing known explains them", "")
            if unexplained[7] not in plain:
                yield f"of {unexplained[6]} it was said: {plain}"
        yield from _counts(text, fault, sides)
        yield from _files(unexplained[4] or "", fault, sides, left, right)
        return
    yield from _counts(text, fault, sides)
    files = re.search(r"; all of it in [^;]*$", text)
    yield from _files(files[0] if files else "", fault, sides, left, right)
    text = text[: files.start()] if files else text
    text = re.sub(r"; [\d,]+ of them also changed|, and also changed", "", text)
    text = re.sub(r"(, the same|;) in \d+ tensors(?: \(\d+ of \d+ layers\))?$", "", text)
    others = "; and others" in text
    several = re.findall(
        r"(?:^|; )((?:(?! \(in \d+\)).)+) \(in (\d+)\)", text.replace("; and others", "")
    )
    parts = [(part, int(count)) for part, count in several] or [(text, len(fault.tensors))]
    covered = set()
    for part, count in parts:
        held = {n for n in fault.tensors if _said_of(part, n, told, sides, left, right)}
        covered |= held
        if len(held) < count:
            yield f"holds of {len(held)} tensors, not of {count}: {part}"
    if covered != {*fault.tensors} and not others:
        yield f"says nothing that holds of {sorted({*fault.tensors} - covered)[:2]}"


def _said_of(
    part: str, name: str, told: Mapping[str, Told], sides: Sides, left: Stored, right: Stored
) -> bool:
    """Whether a sentence is what was said of a tensor, which was carried out, or holds of it."""
    plain = part.replace(", once in place", "")
    said = told[name].text
    return plain in said or holds_of(plain, name, sides, left, right)


def _counts(text: str, fault: Fault, sides: Sides) -> Iterator[str]:
    count = re.search(r"(?:, the same|;) in (\d+) tensors", text)
    if count and int(count[1]) != len(fault.tensors):
        yield f"has {len(fault.tensors)} tensors"
    layers = LAYERS.search(text)
    if layers:
        stems = {_put(n, "layers", 0) for n in fault.tensors}
        mine = {_number(n, "layers") for n in fault.tensors if ".layers." in n}
        every = {
            _number(n, "layers")
            for n in sides.a
            if ".layers." in n and _put(n, "layers", 0) in stems
        }
        if (int(layers[1]), int(layers[2])) != (len(mine), len(every)):
            yield f"{len(mine)} of {len(every)} layers"


def _files(said: str, fault: Fault, sides: Sides, left: Stored, right: Stored) -> Iterator[str]:
    if not said:
        return
    files = {*said.removeprefix("; all of it in ").split(", ")}
    for name in fault.tensors:
        x, y = sides.a[name], sides.b[name]
        differ = differ_at(x, y)
        inside = [side.within(name, files, x.shape) for side in (left, right)]
        if not any(mask.any() and not (differ & ~mask).any() for mask in inside):
            yield f"{name} differs elsewhere"


def _of_many(
    text: str, fault: Fault, sides: Sides, left: Stored, right: Stored
) -> Callable[[], bool] | None:
    """What is said of several tensors together."""
    tensors = fault.tensors
    changed = ", and their numbers changed" in text
    text = text.replace(", and their numbers changed", "")
    if found := re.fullmatch(
        r"every matrix of (expert|layer)s? (.+?)(?: in layers? (.+?))? (differs|is zero on one side|is NaN on one side),"
        r" and of the other \1s(?: there)? none", text
    ):  # fmt: skip
        what = f"{found[1]}s"
        return lambda: _every_matrix(what, found[2], found[3], found[4], tensors, sides)
    if found := re.fullmatch(
        r"(gate and up) swapped|(\S+) and (\S+) hold each other's values in (A|B)", text
    ):
        if found[1] and fault.kind == "gate-up-swapped" and not _is_swap(tensors, sides):
            return None  # rows of both, told of each tensor
        return lambda: _is_swap(tensors, sides)
    if found := re.fullmatch(r"(\S+) holds the values of (\S+) in (A|B)", text):
        return lambda: all(
            _has_role(n, found[1]) and _from_role(n, found[2], found[3], changed, sides)
            for n in tensors
        )
    if found := re.fullmatch(r"experts hold those of other layers in (A|B): (.*)", text):
        return lambda: _across(found[2], found[1], tensors, changed, sides)
    if found := re.fullmatch(
        r"layers shifted by (-?\d+) from layer (\d+) on: layer (\d+) of (A|B) is layer (\d+) of the other", text
    ):  # fmt: skip
        k, first = int(found[1]), int(found[2])
        if (int(found[3]), int(found[5])) != (first, first - k):
            return lambda: False
        return lambda: _shifted(tensors, k, first, found[4], changed, sides)
    if found := re.fullmatch(r"layers of (A|B) shifted by (-?\d+) around the end", text):
        return lambda: _shifted(tensors, int(found[2]), None, found[1], changed, sides)
    if found := re.fullmatch(
        r"(layers|experts) (permuted|duplicated|hold others) in (A|B)(?: in (\d+) layers?)?"
        r"(: |, in each layer another way; in the first: )(.*)", text
    ):  # fmt: skip
        return lambda: _mapped(found, tensors, changed, sides)
    if found := re.fullmatch(r"expert (\d+) copied over (.+?) of (A|B), in (\d+) layers?", text):
        return lambda: (
            as_ranges(_number(n, "experts") for n in tensors) == found[2]
            and len({_number(n, "layers") for n in tensors}) == int(found[4])
            and all(
                _holds(n, _put(n, "experts", int(found[1])), found[3], changed, sides)
                for n in tensors
            )
        )
    if found := re.fullmatch(
        r"experts \[(\d+):(\d+)\) in each of (\d+) blocks of (\d+) of (A|B), in (\d+) layers?", text
    ):  # fmt: skip
        lo, size = int(found[1]), int(found[4])
        return lambda: (
            len({_number(n, "layers") for n in tensors}) == int(found[6])
            and all(
                _holds(
                    n,
                    _put(n, "experts", lo + _number(n, "experts") % size),
                    found[5],
                    changed,
                    sides,
                )
                for n in tensors
            )
        )
    if found := re.fullmatch(
        r"(\d+) of the (\d+) tensors that (\S+) of (A|B) holds a part of (are zero|differ) there where they differ,"
        r" and nowhere else \(([\d,]+) elements\)", text
    ):  # fmt: skip
        return lambda: _one_file(found, tensors, sides, right if found[4] == "B" else left)
    return None


def _number(name: str, what: str) -> int:
    found = re.search(rf"\b{what}\.(\d+)\.", name)
    return int(found[1]) if found else -1


def _put(name: str, what: str, k: int) -> str:
    return re.sub(rf"\b{what}\.\d+\.", f"{what}.{k}.", name, count=1)


def _holds(name: str, source: str, side: str, changed: bool, sides: Sides) -> bool:
    """Whether a tensor of one side is another of the other side, bit by bit but for a hundredth.

    Where the numbers are said to have changed, the change itself is told, and carried out, of each
    tensor; here their signs, or all but their signs, agree.
    """
    mine, other = (sides.b, sides.a) if side == "B" else (sides.a, sides.b)
    if source not in other or other[source].shape != mine[name].shape:
        return False
    x, y = other[source], mine[name]
    if np.mean(~beyond_rounding(x, y)) >= 0.98:
        return True
    same = float(np.mean(np.signbit(x.numbers) == np.signbit(y.numbers)))
    return changed and (same >= 0.95 or same <= 0.05)


def _is_swap(tensors: tuple[str, ...], sides: Sides) -> bool:
    """Whether each of the tensors holds one of the others, which holds it."""
    return all(
        any(
            n != m and _holds(n, m, "B", True, sides) and _holds(m, n, "B", True, sides)
            for m in tensors
        )
        for n in tensors
    )


def _has_role(name: str, role: str) -> bool:
    """Whether a role is a word of a name, or all of it but for its numbers."""
    return role in name.split(".") or role == re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _from_role(name: str, role: str, side: str, changed: bool, sides: Sides) -> bool:
    other = sides.a if side == "B" else sides.b
    names = [n for n in other if _has_role(n, role) and n != name]
    return any(_holds(name, n, side, changed, sides) for n in names)


def _shifted(
    tensors: tuple[str, ...], k: int, first: int | None, side: str, changed: bool, sides: Sides
) -> bool:
    """Every layer from the first on, of every name, holds the layer `k` before it."""
    stems = {_put(name, "layers", 0) for name in tensors}
    layers = {
        _number(n, "layers") for n in sides.a if _put(n, "layers", 0) in stems and ".layers." in n
    }
    expected = set()
    for stem in stems:
        for layer in layers:
            source = (layer - k) % len(layers) if first is None else layer - k
            if (first is not None and layer < first) or source not in layers:
                continue
            name = _put(stem, "layers", layer)
            expected.add(name)
            if not _holds(name, _put(stem, "layers", source), side, changed, sides):
                return False
    return expected == {*tensors}


def _across(told: str, side: str, tensors: tuple[str, ...], changed: bool, sides: Sides) -> bool:
    """Experts hold those of other layers, as far as the list goes."""
    ways = {
        (int(e), int(k)): (int(f), int(j))
        for e, k, f, j in re.findall(r"(\d+) of layer (\d+) holds (\d+) of layer (\d+)", told)
    }
    for name in tensors:
        source = ways.get((_number(name, "experts"), _number(name, "layers")))
        if source is None and not told.endswith("…"):
            return False
        if source and not _holds(
            name, _put(_put(name, "experts", source[0]), "layers", source[1]), side, changed, sides
        ):
            return False
    return True


def _mapped(found: re.Match[str], tensors: tuple[str, ...], changed: bool, sides: Sides) -> bool:
    what, how, side = found[1], found[2], found[3]
    pairs = {int(to): int(source) for to, source in re.findall(r"(\d+) holds (\d+)", found[6])}
    layers = sorted({_number(n, "layers") for n in tensors})
    if found[4] and int(found[4]) != len(layers):
        return False
    apart = "another way" in found[5]
    for name in tensors:
        to = _number(name, what)
        source = pairs.get(to)
        if apart and _number(name, "layers") != layers[0]:
            numbers = range(1 + max(_number(n, what) for n in sides.a))
            if not any(
                k != to and _holds(name, _put(name, what, k), side, changed, sides) for k in numbers
            ):
                return False
        elif source is None:
            if "…" not in found[6]:
                return False
        elif not _holds(name, _put(name, what, source), side, changed, sides):
            return False
    if how == "permuted":
        return len({*pairs.values()}) == len(pairs) and (apart or {*pairs} == {*pairs.values()})
    return True


def _every_matrix(
    what: str, numbers: str, layers: str | None, how: str, tensors: tuple[str, ...], sides: Sides
) -> bool:
    held = {_number(n, what) for n in tensors}
    if as_ranges(held) != numbers:
        return False
    if layers and as_ranges(_number(n, "layers") for n in tensors) != layers:
        return False
    said = str if layers else lambda stem: _put(stem, "layers", 0)  # of every layer, or of some
    stems = {said(re.split(rf"\b{what}\.\d+\.", n)[0]) for n in tensors}
    for name in sides.a:
        at = re.split(rf"\b{what}\.\d+\.", name)
        if len(at) < 2 or said(at[0]) not in stems or name not in sides.b:
            continue
        x, y = sides.a[name], sides.b[name]
        inside, differs = _number(name, what) in held, bool(differ_at(x, y).any())
        if not inside and differs:
            return False
        if len(x.shape) < 2 or not inside:
            continue
        zero = not x.numbers.any() or not y.numbers.any()
        nan = np.isnan(x.numbers).all() or np.isnan(y.numbers).all()
        if not differs or ("zero" in how and not zero) or ("NaN" in how and not nan):
            return False
    return True


def _one_file(found: re.Match[str], tensors: tuple[str, ...], sides: Sides, side: Stored) -> bool:
    file = found[3]
    touched = [n for n, files in side.files.items() if file in files]
    if (int(found[1]), int(found[2])) != (len(tensors), len(touched)):
        return False
    total = 0
    for name in tensors:
        x, y = sides.a[name], sides.b[name]
        differ = differ_at(x, y)
        total += int(differ.sum())
        if (differ & ~side.within(name, {file}, x.shape)).any():
            return False
        zero = [(z.numbers[differ] == 0).all() for z in (x, y)]
        if found[5] == "are zero" and not any(zero):
            return False
    return total == number(found[6])
