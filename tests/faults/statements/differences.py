"""What is said of one differing tensor: its numbers, its place, and the sentence that explains it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from intarsia.checking.pair.comparison import Difference
from tests.faults.statements.held import (
    NAMES,
    Held,
    Mask,
    Sides,
    beyond_rounding,
    differ_at,
    number,
    other_side,
)
from tests.faults.statements.orders import predictions
from tests.faults.statements.places import Stored, block_holds, place_holds, where_is_untrue
from tests.faults.statements.values import value_claim

EXPLAINS = re.compile(r"(.*?): explains ([\d,]+) of ([\d,]+) differing elements(.*)", re.DOTALL)
TURNED = "A from B: "


@dataclass
class Told:
    """What was said of a tensor: how many differing elements it explains, and what does not hold."""

    text: str
    explained: int = 0
    differing: int = 0
    wrong: list[str] = field(default_factory=list)


def difference_is_untrue(d: Difference, sides: Sides, left: Stored, right: Stored) -> Told:
    """Everything that is said of one tensor, carried out."""
    out = Told(d.diagnosis)
    x, y = sides.a[d.tensor], sides.b[d.tensor]
    if x.shape != y.shape:
        out.explained, out.differing = _reshaped(d, x, y, out.wrong)
        return out
    differ = differ_at(x, y)
    count = int(differ.sum())
    out.explained = out.differing = count
    if d.elements != count:
        out.wrong.append(f"{d.elements} elements told, {count} differ")
    first = tuple(int(k) for k in np.argwhere(differ)[0]) if count else ()
    if d.first != first:
        out.wrong.append(f"first {d.first}, found {first}")
    _distance(d, x, y, differ, out.wrong)
    if d.where is not None:
        out.wrong += where_is_untrue(d.tensor, d.where, x, y, left, right)
        if str(d.where) in d.diagnosis and not d.diagnosis.endswith(f"; {d.where}"):
            out.wrong.append("the place is told in the midst")
    text = d.diagnosis
    if d.where is not None:
        text = text.removesuffix(f"; {d.where}")
    if x.dtype != y.dtype:
        text = _types(text, x, y, differ, sides.damaged, out.wrong)
    if text:
        out.explained, out.differing = _sentence(text, d.tensor, sides, out.wrong)
        _in_files(text, d.tensor, sides, left, right, out.wrong)
    return out


def _distance(d: Difference, x: Held, y: Held, differ: Mask, wrong: list[str]) -> None:
    if not differ.any():
        return
    if not x.dtype.is_floating_point and not y.dtype.is_floating_point:
        pairs = zip(
            x.tensor[torch_mask(differ)].tolist(),
            y.tensor[torch_mask(differ)].tolist(),
            strict=True,
        )
        most: float = max(abs(int(u) - int(v)) for u, v in pairs)
    else:
        with np.errstate(all="ignore"):
            most = float(np.abs(x.numbers - y.numbers)[differ].max())
    if not (most == d.max_abs or (np.isnan(most) and np.isnan(d.max_abs))):
        wrong.append(f"max abs {d.max_abs}, found {most}")


def torch_mask(mask: Mask) -> object:
    import torch

    return torch.from_numpy(np.ascontiguousarray(mask))


def _types(text: str, x: Held, y: Held, differ: Mask, damaged: str, wrong: list[str]) -> str:
    """What is said of unlike element types; what is left of the sentence."""
    head = f"{NAMES[x.dtype]} in A, {NAMES[y.dtype]} in B; "
    if not text.startswith(head):
        wrong.append(f"the types are {head}")
        return ""
    said, _, rest = text.removeprefix(head).partition("; ")
    rounded = not beyond_rounding(x, y).any()
    truth = (
        "the numbers are equal" if not differ.any()
        else "the numbers are equal except for rounding" if rounded and x.bits.itemsize == y.bits.itemsize
        else "the narrower is the wider one rounded" if rounded
        else "the bits are the same: one side names the wrong type" if np.array_equal(x.bits, y.bits)
        else "the numbers differ beyond rounding"
    )  # fmt: skip
    named = truth.replace("one side", damaged) if damaged else truth
    if said not in (truth, named):
        wrong.append(f"untrue: {said}")
    return rest


def _reshaped(d: Difference, x: Held, y: Held, wrong: list[str]) -> tuple[int, int]:
    head = f"shape {list(x.shape)} in A, {list(y.shape)} in B"
    said = d.diagnosis.removeprefix(head).removeprefix("; ")
    most = max(x.bits.size, y.bits.size)
    if not d.diagnosis.startswith(head):
        wrong.append(f"the shapes are {head}")
    held = None
    if said == "B is A transposed":
        held = not beyond_rounding(x.moved(x.bits.swapaxes(-1, -2)), y).any()
    elif said == "the same elements in the same order":
        held = not beyond_rounding(x.moved(x.bits.reshape(y.shape)), y).any()
    elif found := re.fullmatch(r"the first ([\d,]+) rows are equal, (A|B) has ([\d,]+) more", said):
        n, more = number(found[1]), number(found[3])
        longer, shorter = (x, y) if found[2] == "A" else (y, x)
        held = len(shorter.bits) == n and len(longer.bits) == n + more
        held = held and not beyond_rounding(x.moved(x.bits[:n]), y.moved(y.bits[:n])).any()
    elif found := re.fullmatch(r"(A|B) is rows \[([\d,]+):([\d,]+)\) of (A|B)", said):
        longer, shorter = (x, y) if found[4] == "A" else (y, x)
        rows = longer.bits[number(found[2]) : number(found[3])]
        held = np.array_equal(rows, shorter.bits)
    elif found := re.fullmatch(
        r"(A|B) has ([\d,]+) rows more, (.*); the others are those of (?:A|B) in their order", said
    ):
        longer, shorter = (x, y) if found[1] == "A" else (y, x)
        if "more" not in found[3]:
            cut = [
                range(number(a), number(b))
                for a, b in re.findall(r"\[([\d,]+):([\d,]+)\)", found[3])
            ]
            between = [k for each in cut for k in each]
            held = len(between) == number(found[2])
            held = held and np.array_equal(np.delete(longer.bits, between, 0), shorter.bits)
    elif said == "":
        return 0, most
    if held is None:
        wrong.append(f"nobody can carry out: {said}")
    elif not held:
        wrong.append(f"untrue: {said}")
    return most, most


def holds_of(text: str, name: str, sides: Sides, left: Stored, right: Stored) -> bool:
    """Whether a sentence without numbers of its own holds of one tensor."""
    if text.startswith(TURNED):
        return holds_of(other_side(text.removeprefix(TURNED)), name, sides.flipped, right, left)
    x, y = sides.a[name], sides.b[name]
    if x.shape != y.shape:
        return False
    open_ = beyond_rounding(x, y)
    n = int(differ_at(x, y).sum())
    plain = text.removesuffix(" in part").removesuffix("; the rest is unexplained")
    for _, held in _steps(plain, name, sides) or ():
        score = int((open_ & held).sum()), int((~open_ & ~held).sum())
        if _enough(text, "", *score, int(open_.sum())):
            return True
    wrong: list[str] = []
    _in_files(text, name, sides, left, right, wrong)
    return not wrong and bool(_place_or_block(f"{text} ({n:,} elements)", x, y))


def _sentence(text: str, name: str, sides: Sides, wrong: list[str]) -> tuple[int, int]:
    """A sentence carried out: how many differing elements it explains, and of how many."""
    if text.startswith(TURNED):
        return _sentence(other_side(text.removeprefix(TURNED)), name, sides.flipped, wrong)
    x, y = sides.a[name], sides.b[name]
    found = EXPLAINS.fullmatch(text)
    if not found:
        n = int(differ_at(x, y).sum())
        said = _place_or_block(text, x, y)
        if said is None:
            wrong.append(f"nobody can carry out: {text}")
        elif not said:
            wrong.append(f"untrue: {text}")
        unexplained = re.match(r"[\d,]+ of [\d,]+ elements differ", text)
        return 0 if unexplained else n, n
    said, explained, differing, rest = found[1], number(found[2]), number(found[3]), found[4]
    moved = _steps(
        said.removesuffix(" in part").removesuffix("; the rest is unexplained"), name, sides
    )
    if moved is None:
        wrong.append(f"nobody can carry out: {text}")
        return explained, differing
    open_ = beyond_rounding(x, y)
    scores = [(int((open_ & held).sum()), int((~open_ & ~held).sum())) for _, held in moved]
    best, denied = max(scores, default=(0, 0), key=lambda s: s[0] - s[1])
    if differing != open_.sum():
        wrong.append(f"{differing} of them told, {open_.sum()} differ: {text}")
    if explained > best or (_is_exact(said) and explained != best):
        wrong.append(f"untrue: explains {best}, not {explained}: {text}")
    elif not _enough(said, rest, best, denied, differing):
        wrong.append(f"untrue: explains {best} of {differing} and denies {denied}: {text}")
    if rest:
        _and_besides(text, rest, name, x, y, [m for m, _ in moved], wrong)
        explained = differing if not wrong else explained
        after = re.search(r"\(([\d,]+) elements\)$", rest)
        explained = min(number(found[2]) + number(after[1]), differing) if after else explained
    return explained, differing


def _enough(said: str, rest: str, explained: int, denied: int, differing: int) -> bool:
    if rest:
        return explained >= 0.3 * differing
    if said.endswith("; the rest is unexplained"):
        return explained - denied >= max(8, differing // 2)
    if said.endswith(" in part"):
        return explained >= max(8, 0.99 * differing)
    return explained >= 0.99 * differing and denied <= (0 if differing < 8 else 0.01 * differing)


def _is_exact(said: str) -> bool:
    """Whether what a sentence explains is one number: no tolerance, no list that is cut short."""
    return not re.search(
        r" times | plus | minus |…|in another order|are in each other's place|every element of",
        said,
    )


def _steps(said: str, name: str, sides: Sides) -> list[tuple[Held | None, Mask]] | None:
    """Where a sentence holds, for each of its readings: a value, a place, or a value upon a place."""
    x, y = sides.a[name], sides.b[name]
    if move := re.fullmatch(r"(A|B) holds `([^`]+)` of (A|B)(?:, and (.*))?", said):
        if move[1] == "A":
            turned = other_side(said)
            return _steps(turned, name, sides.flipped)
        other = sides.a.get(move[2])
        if other is None or other.shape != y.shape:
            return []
        claim = value_claim(move[4]) if move[4] else lambda u, v: ~beyond_rounding(u, v)
        return None if claim is None else [(other, claim(other, y))]
    if (claim := value_claim(said)) is not None:
        return [(None, claim(x, y))]
    places = predictions(said, name, sides)
    if places is not None:
        held = [x.moved(bits) for bits in places]
        return [(m, ~beyond_rounding(m, y)) for m in held if m.shape == y.shape]
    for cut in [m.start() for m in re.finditer(", and ", said)][::-1]:
        first, second = said[:cut], said[cut + 6 :]
        places, claim = predictions(first, name, sides), value_claim(second)
        if places is not None and claim is not None:
            held = [x.moved(bits) for bits in places]
            return [(m, claim(m, y)) for m in held if m.shape == y.shape]
    return None


def _and_besides(
    text: str, rest: str, name: str, x: Held, y: Held, moved: list[Held | None], wrong: list[str]
) -> None:
    """A block that is wrong once the elements are in place."""
    said = rest.removeprefix("; and ")
    held = [_place_or_block(said, m, y) for m in moved if m is not None]
    if None in held or said == rest:
        wrong.append(f"nobody can carry out: {text}")
    elif not any(held):
        wrong.append(f"untrue: {text}")


def _place_or_block(text: str, x: Held, y: Held) -> bool | None:
    """A sentence that says where, and with what content, but no reason."""
    differ = differ_at(x, y)
    if found := re.fullmatch(r"([\d,]+) of ([\d,]+) elements differ, (.*?); (.*)", text):
        if (number(found[1]), number(found[2])) != (int(differ.sum()), differ.size):
            return False
        why = r"nothing known explains them|not searched, because \d+ tensors of this name stayed unexplained"
        return place_holds(found[3], differ) if re.fullmatch(why, found[4]) else None
    found = re.fullmatch(r"(.*) \(([\d,]+) elements\)", text, re.DOTALL)
    if not found:
        return None
    if number(found[2]) != differ.sum():
        return False
    said = found[1]
    if (held := block_holds(said, x, y)) is not None:
        return held
    if rows := re.fullmatch(
        r"only rows ([\d,]+) to ([\d,]+) differ, the last of the vocabulary", said
    ):
        lo, hi = number(rows[1]), number(rows[2])
        return bool(not differ[:lo].any() and hi == len(differ) - 1 and differ[lo].any())
    if lost := re.fullmatch(r"(A|B) is (zero|NaN)(?:: | where it differs, )(.*)", said):
        mine = (y if lost[1] == "B" else x).numbers[differ]
        content = bool((mine == 0).all() if lost[2] == "zero" else np.isnan(mine).all())
        place = place_holds(lost[3], differ)
        return None if place is None else content and place
    if re.fullmatch(r"whole (4 KiB page|512-byte sector)s of .*", said):
        return True  # the bytes are compared with the file's by its whereabouts
    if re.fullmatch(r"the part in .* (differs, the rest is equal|of (A|B) is .*)", said):
        return True  # compared with the files' parts of the tensor
    return None


def _in_files(
    text: str, name: str, sides: Sides, left: Stored, right: Stored, wrong: list[str]
) -> None:
    """What is said of the part of a tensor in some files, or of pages of them."""
    found = re.match(
        r"(?:the part in|whole (?:4 KiB page|512-byte sector)s of) (\S+(?:, \S+)*?) (of (A|B) is .*|differs, .*|of (A|B) .*|differ.*)",
        text,
    )
    if not found:
        return
    files, x, y = {*found[1].split(", ")}, sides.a[name], sides.b[name]
    differ = differ_at(x, y)
    held = False
    for side in (left, right):
        inside = side.within(name, files, x.shape)
        held |= bool(inside.any() and not (differ & ~inside).any())
    if not held:
        wrong.append(f"differs outside of the files: {text}")
    if lost := re.search(r"of (A|B) (?:is|are) (zero|NaN)", text):
        mine = (y if lost[1] == "B" else x).numbers[differ]
        mine = mine[1:] if "but for bytes" in text else mine
        if not (mine == 0).all() if lost[2] == "zero" else not np.isnan(mine).all():
            wrong.append(f"untrue: {text}")
    if lost := re.search(r"of (A|B) is a copy of another part", text):
        side, mine = (right, y) if lost[1] == "B" else (left, x)
        inside = side.within(name, files, x.shape)
        part = mine.bits[inside]
        rest = mine.bits[~inside]
        if not np.isin(part, rest).all():
            wrong.append(f"untrue: {text}")
