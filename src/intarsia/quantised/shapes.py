"""The shapes that the parts of a quantised weight must have."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from intarsia.mesh import Shape
from intarsia.quantised.scheme import Scheme
from intarsia.quantised.weight import PartRole, QuantisedWeight, ScaleFault, WeightPart

GEMM = ("", "gemm", "gptq", "gptq_v2")
"""Layouts of AWQ and GPTQ that are checked; others pack in orders of their own."""


FP8 = ("fp8", "mxfp8")
_PACKED = ("pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized")


def misshaped(w: QuantisedWeight) -> Iterator[ScaleFault]:
    """The parts of a weight whose shape is none that its scheme allows."""
    for part in w.others:
        allowed = _allowed(w, part)
        if allowed is not None and (not allowed or part.shape in allowed):
            continue
        text = f"`{part.name}` has shape {list(part.shape)}"
        of = f"`{w.main.name}` {list(w.main.shape)}"
        if allowed is None:
            text += f", which cuts {of} into no blocks"
        else:
            shapes = [str(list(shape)) for shape in dict.fromkeys(allowed)]
            want = " or ".join(shapes)
            if len(shapes) > 5:
                want = f"{shapes[0]} (or {shapes[-1]} at least)"
            text += f"; {w.label} of {of} needs {want}"
        yield ScaleFault("scale-misshaped", (part.name, w.main.name), text)


def fits_shape(w: QuantisedWeight, shape: Shape) -> bool:
    """Whether a packed weight can stand for a weight of this shape."""
    stored, word = w.main.shape, w.main.dtype.itemsize * 8
    if w.form == "mxfp4":
        return len(stored) == 4 and shape == (stored[0], stored[2] * stored[3] * 2, stored[1])
    per = packing(w)
    if per and len(stored) == len(shape) and (w.form == "packed" or len(shape) == 2):
        return stored == (*shape[:-1], -(-shape[-1] // per))
    if w.form == "qweight" and len(stored) == len(shape) == 2:
        n_out, n_in = shape
        return stored[1] == n_out or stored[0] in (n_in, n_out) or word < 32
    return True


def packing(w: QuantisedWeight) -> int:
    """How many numbers of a row one stored element holds; 0 where that is not known.

    Numbers of 3, 5 or 6 bits lie across words, so that no element holds a whole number of them.
    """
    kind, scheme = w.main.dtype.name, w.scheme
    if not w.packed:
        return 1
    if scheme is None or w.form not in ("packed", "scaled"):
        return 0
    halves = scheme.format in ("nvfp4", "nvfp4-pack-quantized", "mxfp4-pack-quantized")
    if (kind in ("U8", "F4") and halves) or (kind in ("I8", "F4") and scheme.method in FP8):
        return 2
    whole = scheme.format == "pack-quantized" and scheme.bits and 32 % scheme.bits == 0
    return 32 // scheme.bits if kind == "I32" and whole else 0


def count_numbers(w: QuantisedWeight) -> int | None:
    """How many numbers a weight stands for, by headers alone; None where they do not say.

    A last word that is not full counts as full.
    """
    size, bits = prod(w.main.shape), w.scheme.bits if w.scheme else 0
    if per := packing(w):
        return size * per
    if w.form in ("qdata", "quanto") and w.main.dtype.name.startswith(("I8", "F8")):
        return size
    if w.form in ("nf4", "mxfp4"):
        return size * w.main.dtype.itemsize * 2
    words = {part.word: part.shape for part in w.others}
    if w.form == "qweight" and "g_idx" in words and "scales" in words:
        return prod(words["g_idx"]) * words["scales"][-1]
    if w.form in ("qweight", "packed") and bits:
        return size * w.main.dtype.itemsize * 8 // bits
    return None


def _allowed(w: QuantisedWeight, part: WeightPart) -> list[Shape] | None:
    """The shapes that a part may have: empty where any will do, None where this one cannot be."""
    main, scheme = w.main.shape, w.scheme
    if part.role is PartRole.WHOLE_SCALE or (
        part.role is PartRole.ACTIVATION and scheme is not None
    ):
        lead = main[:-2]
        ones = [(), (1,), (1, 1)] if not lead else [lead, (*lead, 1), (*lead, 1, 1), (1,), ()]
        return ones if part.role is PartRole.WHOLE_SCALE else []
    if part.word == "SCB" and len(main) == 2:
        return [main[:1], (main[0], 1)]  # bitsandbytes has one scale for each row
    if w.form == "mxfp4":
        return [main[:3]] if part.role is PartRole.SCALE and len(main) == 4 else []
    if w.form == "qweight" and scheme and scheme.format in GEMM and len(main) == 2:
        return _qweight(w, part, scheme)
    if w.form == "packed" and len(main) >= 2 and scheme and scheme.format in _PACKED:
        return _of_packed(w, part)
    if w.form == "scaled" and part.role is PartRole.SCALE and len(main) >= 2:
        return _of_scaled(w, part)
    return []


def _qweight(w: QuantisedWeight, part: WeightPart, scheme: Scheme) -> list[Shape]:
    """AWQ packs columns of outputs, GPTQ rows of inputs, whose last word need not be full."""
    (rows, columns), word = w.main.shape, w.main.dtype.itemsize * 8
    if not scheme.bits or word % scheme.bits or scheme.method not in ("awq", "gptq"):
        return []
    per, group = word // scheme.bits, scheme.group
    if scheme.method == "awq":
        inputs, n_out, packed_out = range(rows, rows + 1), columns * per, columns
    else:
        inputs = range((rows - 1) * per + 1, rows * per + 1)
        n_out, packed_out = columns, -(-columns // per)
    groups = sorted({-(-n // group) for n in inputs} if group else {1})
    shapes: dict[str, list[Shape]] = {
        "scales": [(n, n_out) for n in groups],
        "qzeros": [(n, packed_out) for n in groups],
        "g_idx": [(n,) for n in reversed(inputs)],
    }
    return shapes.get(part.word, [])


def _of_packed(w: QuantisedWeight, part: WeightPart) -> list[Shape]:
    main, per, scheme = w.main.shape, packing(w), w.scheme
    if part.word == "_shape":
        return [(len(main),)]
    if part.role not in (PartRole.SCALE, PartRole.ZERO) or scheme is None or not per:
        return []
    widths = range((main[-1] - 1) * per + 1, main[-1] * per + 1)
    if part.role is PartRole.ZERO and (
        part.dtype.name != "I32" or scheme.per not in ("group", "channel")
    ):
        return []
    if part.role is PartRole.ZERO:
        main = (*main[:-2], -(-main[-2] // per), main[-1])  # packed from row to row
    if scheme.format == "nvfp4-pack-quantized":
        return [(*main[:-1], main[-1] * 2 // (scheme.group or 16))]
    if scheme.per == "group" and scheme.group:
        return [(*main[:-1], n) for n in sorted({-(-c // scheme.group) for c in widths})]
    if scheme.per == "channel":
        return [(*main[:-1], 1)]
    return [(1,), ()] if scheme.per == "tensor" else []


def _of_scaled(w: QuantisedWeight, part: WeightPart) -> list[Shape] | None:
    scheme = w.scheme
    *lead_, rows, columns = w.main.shape
    lead = tuple(lead_)
    per_tensor = [(), (1,), lead, (*lead, 1), (*lead, 1, 1)]
    per_channel = [(*lead, rows), (*lead, rows, 1), *([(*lead, 1, columns)] if lead else [])]
    if w.packed and w.main.dtype.name in ("I8", "U8", "F4"):
        if scheme and scheme.method == "modelopt" and scheme.format == "nvfp4":
            group = scheme.group or 16
            return [(*lead, rows, columns * 2 // group), *(
                [(*lead, rows * 2 // group, columns), (*lead, columns, rows * 2 // group)] if lead else []
            )]  # fmt: skip
        if scheme and scheme.method in FP8:
            return [(*lead, rows, columns * 2 // 32)]
        return []
    if scheme and scheme.method in ("fp8", "mxfp8", "fbgemm-fp8", "compressed-tensors"):
        if scheme.block is not None:
            b0, b1 = scheme.block
            return [(*lead, -(-rows // b0), -(-columns // b1))]
        if scheme.per == "channel":
            return per_channel
        if scheme.per == "tensor":
            return per_tensor
        if scheme.per == "group" and scheme.group:
            return [(*lead, rows, -(-columns // scheme.group))]
        if scheme.per == "tensor or channel":
            return [*per_tensor, *per_channel]
    if len(part.shape) == len(w.main.shape):
        return [] if all(map(_is_grid, part.shape, w.main.shape)) else None
    cut = [n for n in part.shape if n > 1]
    fits_in = len(cut) <= len(w.main.shape) and max(cut, default=1) <= max(w.main.shape)
    return [] if fits_in else None


def _is_grid(blocks: int, n: int) -> bool:
    """Whether some size of blocks cuts `n` elements into so many.

    >>> _is_grid(3, 300), _is_grid(7, 8)
    (True, False)
    """
    return 0 < blocks <= n and -(-n // -(-n // blocks)) == blocks
