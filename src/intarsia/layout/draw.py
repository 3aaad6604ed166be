"""Text pictures of layouts, for error messages, docs and `explain`.

A picture is bounded: however many pieces a layout has, it is a few lines of a stated width.

    ┌ 8 x 4 ──────────────────────┐
    │ rows 0:2, 4:6  q_proj[:, :] │
    │ rows 2, 6      k_proj[:, :] │
    │ rows 3, 7      v_proj[:, :] │
    └─────────────────────────────┘

The left column is NumPy's index into the buffer and the right column the index into the tensor;
a flat range that is no box reads `elements [lo:hi)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, pairwise, product
from math import prod

from intarsia.layout.cover import once, ranges, tally
from intarsia.layout.layout import Layout
from intarsia.layout.piece import Loop, Piece, align, run

Shapes = Mapping[str, Sequence[int]]
BLOCKS = 4
"""How many blocks of one strided index are written out."""


def draw(
    layout: Layout,
    shapes: Shapes | None = None,
    *,
    names: Mapping[str, str] | None = None,
    width: int = 72,
    lines: int = 12,
) -> str:
    """A boxed picture of `layout`: one line per piece, at most `lines` of them.

    `shapes` gives the shapes of the logical tensors; without one, a tensor's elements are shown
    as flat ranges.  `names` gives other names to show, for tensors that have long ones.
    """
    entries = [(p.at, _place(p, layout.shape), _source(p, shapes, names)) for p in layout.pieces]
    entries += _padding(layout)
    entries.sort()
    shown = entries if len(entries) <= lines else entries[: lines - 1]
    left = min(max([len(place) for _, place, _ in shown], default=0), width // 2)
    body = [f"{_fit(place, left):<{left}}  {source}".rstrip() for _, place, source in shown]
    if len(shown) < len(entries):
        body.append(f"… {len(entries) - len(shown):,} more")
    if not entries:
        body = ["empty"]
    title = _fit(" x ".join([f"{n:,}" for n in layout.shape]) or "scalar", width - 4)
    inner = min(width - 4, max(len(title) + 2, *[len(line) for line in body]))
    box = [f"┌ {title} {'─' * (inner - len(title))}┐"]
    for line in body:
        if len(line) > inner:
            line = line[: left + 2] + _fit(line[left + 2 :], inner - left - 2)
        box.append(f"│ {line:<{inner}} │")
    box.append(f"└{'─' * (inner + 2)}┘")
    return "\n".join(box)


def describe_piece(piece: Piece, shape: Sequence[int] | None = None) -> str:
    """The elements of its tensor that `piece` holds, in words; `shape` is the tensor's.

    >>> w = Layout.of("q_proj.weight", (256, 64))
    >>> describe_piece(w.narrow(0, 128, 256).pieces[0], (256, 64))
    'rows [128:256) of q_proj.weight'
    """
    p = piece.flip()
    axes = None if shape is None else _axes(p, shape)
    if axes is None or shape is None:
        return f"{_elements(p)} of {p.tensor}"
    partial = [a for a, text in enumerate(axes) if text != ":"]
    if not partial:
        return f"all of {p.tensor}"
    if len(partial) == 1 and (partial[0] == 0 or len(shape) == 2):
        noun = "elements" if len(shape) == 1 else "columns" if partial[0] else "rows"
        return f"{noun} {_half_open(axes[partial[0]])} of {p.tensor}"
    return f"{_bracket(axes)} of {p.tensor}"


def _place(p: Piece, shape: Sequence[int]) -> str:
    """Where in a buffer of `shape` the piece lies."""
    axes = _axes(p, shape)
    if axes is None:
        return _elements(p)
    if not axes or any(text != ":" for text in axes[1:]):
        return _bracket(axes)
    if axes[0] == ":":
        return f"[0:{shape[0]})"
    text = _half_open(axes[0])
    return text if text.startswith("[") else f"rows {text}"


def _source(p: Piece, shapes: Shapes | None, names: Mapping[str, str] | None) -> str:
    """Which elements of its tensor the piece holds, and in which order."""
    name = names.get(p.tensor, p.tensor) if names else p.tensor
    shape = shapes.get(p.tensor) if shapes else None
    axes = None if shape is None else _axes(p.flip(), shape)
    text = f"{name} {_elements(p.flip())}" if axes is None else f"{name}{_bracket(axes)}"
    moving = [loop for loop in p.canonical().loops if loop.to]
    if any(a.to < b.to for a, b in pairwise(moving)):
        text += " transposed" if len(moving) == 2 else " permuted"
    repeats = prod([loop.n for loop in p.loops if not loop.to])
    return text if repeats == 1 else f"{text} x{repeats}"


def _padding(layout: Layout) -> list[tuple[int, str, str]]:
    """The places that no piece fills: each range, or their number where there are many ranges."""
    free = layout.size - tally(layout.pieces)[0]
    if not free:
        return []
    unfilled = ranges(layout.size, lambda lo, hi: hi - lo - once(layout.pieces, lo, hi))
    gaps = list(islice(unfilled, BLOCKS))
    if len(gaps) == BLOCKS:
        return [(layout.size, f"{free:,} places", "padding")]
    found = [run("", lo, 0, hi - lo) for lo, hi in gaps]
    return [(p.at, _place(p, layout.shape), "padding") for p in found]


def _axes(p: Piece, shape: Sequence[int]) -> list[str] | None:
    """The `at` indices of `p` as one index per axis of `shape`; None where they are no box."""
    strides = [prod(shape[a + 1 :]) for a in range(len(shape))]
    pieces = [p]
    for s in strides:
        pieces = [q for p in pieces for q in align(p, s)] if s > 1 else pieces
    if len(pieces) > 1:
        return None
    (p,) = pieces
    out = []
    for n, s in zip(shape, strides, strict=True):
        along = [loop for loop in p.loops if s <= loop.at < s * n and loop.n > 1]
        steps = [Loop(loop.n, loop.at // s, 0) for loop in along]
        out.append(_blocks(Piece("", p.at // s % n, 0, tuple(steps)).canonical(), n))
    return out


def _blocks(p: Piece, n: int | None = None) -> str:
    """The `at` indices of `p`, along an axis of `n`: `:`, `3`, `0:4`, or `0:2, 4:6, …, 28:30`."""
    loops = sorted([loop for loop in p.loops if loop.at], key=lambda loop: -loop.at)
    inner = loops.pop().n if loops and loops[-1].at == 1 else 1
    if not loops and inner == n:
        return ":"
    last = p.at + sum([(loop.n - 1) * loop.at for loop in loops])
    starts = product(*[range(0, loop.n * loop.at, loop.at) for loop in loops])
    first = [p.at + sum(x) for x in islice(starts, BLOCKS)]
    texts = [f"{x}:{x + inner}" if inner > 1 else f"{x}" for x in (*first, last)]
    count = prod([loop.n for loop in loops])
    return ", ".join(texts[:count] if count <= BLOCKS else [*texts[:3], "…", texts[-1]])


def _elements(p: Piece) -> str:
    steps = tuple([Loop(loop.n, loop.at, 0) for loop in p.loops if loop.at])
    text = _blocks(Piece("", p.at, 0, steps).canonical())
    return f"elements {_half_open(text)}" if p.span else f"element {text}"


def _half_open(text: str) -> str:
    """`0:4` as `[0:4)` and `3` as `[3:4)`; a list of blocks stays as it is."""
    if "," in text:
        return text
    return f"[{text})" if ":" in text else f"[{text}:{int(text) + 1})"


def _bracket(axes: Sequence[str]) -> str:
    """One index per axis as NumPy writes it."""
    return "[" + ", ".join([f"{{{text}}}" if "," in text else text for text in axes]) + "]"


def _fit(text: str, width: int) -> str:
    """`text`, its beginning cut where it is too long: the end of a name says more."""
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]
