"""The parts that values need which are to be written: made from the source's numbers before a plan is proven.

A part (the scales of a weight) is small beside its tensor, and is held in memory from then on.  It is a
tensor of the source like any other, so that the proof covers it, and its own target is an ordinary copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from intarsia.errors import CoverageError, LimitError, UnsupportedError
from intarsia.format.registry import folder_of, format_named
from intarsia.format.request import Wanted
from intarsia.frozen import frozen_open
from intarsia.layout import Layout
from intarsia.layout.blocks import grid_of, one_per_block
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored, Target
from intarsia.planning.proof import prover_of
from intarsia.quantised import Quantised
from intarsia.quantity import human
from intarsia.run.budget import Budget
from intarsia.run.gather import gather
from intarsia.run.source import MADE, Source
from intarsia.value import Window
from intarsia.value.bits import bits_dtype
from intarsia.value.measured import Measured

Choose = Callable[[Target], Measured | None]
"""How a target is to be stored, if not as it is."""


@frozen_open
class MadeParts:
    """The targets whose values have parts, by their names, the layout of each part, and what all are in memory."""

    values: Mapping[str, Measured]
    layouts: Mapping[str, Layout]
    nbytes: int

    def seen_in(self, written: Manifest) -> Manifest:
        """What was written, as one reads it who knows the values."""
        stored, logical = dict(written.stored), dict(written.logical)
        parts = {}
        for name, layout in self.layouts.items():
            del logical[name]
            parts[name] = replace(stored.pop(name), layout=layout)
        for name, value in self.values.items():
            stored[name] = replace(stored[name], value=value)
            logical[name] = replace(logical[name], dtype=stored[name].number_type)
        others = (w for w in written.quantised.weights if w.main.name not in self.values)
        return replace(
            written,
            stored=stored,
            logical=logical,
            parts={**written.parts, **parts},
            quantised=Quantised.of(others, written.quantised.faults, written.quantised.notes),
        )


def make_parts(
    src: Manifest, wanted: Wanted, choose: Choose, budget: Budget
) -> tuple[Manifest, Wanted, MadeParts]:
    """The source with the parts that its chosen targets need, and the targets of all of them."""
    stored, logical, parts = dict(src.stored), dict(src.logical), dict(src.parts)
    targets: list[Target] = []
    values: dict[str, Measured] = {}
    made = bytearray()
    with folder_of(src) as folder:
        source = Source(src, format_named(src.format), folder)
        for target in wanted.targets:
            value = choose(target)
            if value is None:
                targets.append(target)
                continue
            _check_whole(target, src)
            values[target.name] = value
            targets.append(replace(target, dtype=value.stored_type, value=value))
            for part, dtype in value.part_types.items():
                if part in stored or part in parts or any(part == t.name for t in targets):
                    raise UnsupportedError(
                        f"the part `{part}` of `{target.name}` has the name of another tensor"
                    )
                block = value.block(part, target.shape)
                shape = grid_of(target.shape, block)
                data = _made(source, target, value, part, block, budget)
                chunk = Chunk(Box.whole(shape), MADE, len(made), len(data))
                made += data
                plain = Stored(part, dtype, Layout.of(part, shape), (chunk,), key=part)
                stored[part], logical[part] = plain, Logical(part, shape, dtype)
                parts[part] = replace(plain, layout=one_per_block(target.name, target.shape, block))
                targets.append(Target(part, dtype, plain.layout, (Box.whole(shape),)))
    _check_room(len(made), budget)
    files = {**src.in_memory_files, MADE: bytes(made)}
    src = replace(src, stored=stored, logical=logical, parts=parts, in_memory_files=files)
    layouts = {part: parts[part].layout for value in values.values() for part in value.parts}
    return src, replace(wanted, targets=tuple(targets)), MadeParts(values, layouts, len(made))


def _check_whole(target: Target, src: Manifest) -> None:
    x = src.logical.get(target.name)
    if x is None or target.layout != Layout.of(x.name, x.shape) or not target.value.is_plain:
        raise UnsupportedError(
            f"`{target.name}` is not one whole tensor of plain numbers, so no parts can be made for it",
            hint="write it unfused (--dialect hf)",
        )
    if not x.shape:
        raise UnsupportedError(
            f"`{target.name}` is a single number, so no parts can be made for it"
        )


def _made(
    source: Source,
    target: Target,
    value: Measured,
    part: str,
    block: tuple[int, ...],
    budget: Budget,
) -> bytes:
    """The bytes of a part, from as many whole blocks at a time as a window holds."""
    proven = prover_of(source.manifest).tensor(target.name)
    dtype, shape = proven.target.dtype, target.shape
    bits = bits_dtype(value.part_types[part])
    found = np.zeros(grid_of(shape, block), bits)
    row_bytes = block[0] * prod(shape[1:]) * dtype.itemsize
    _check_room(row_bytes, budget)
    step = block[0] * max(1, budget.window_bytes // max(1, row_bytes))
    for lo in range(0, shape[0], step):
        box = Box((lo, *(0 for _ in shape[1:])), (min(step, shape[0] - lo), *shape[1:]))
        buffer = np.empty(box.size * dtype.itemsize, np.uint8)
        gather(source.folder, source.fill_box(proven, box, buffer))
        numbers = Window(buffer.view(bits_dtype(dtype)).reshape(box.shape), dtype)
        some = value.measure(part, numbers)
        if some.dtype != bits or some.shape != grid_of(box.shape, block):
            raise CoverageError(
                f"{value} made {list(some.shape)} elements of `{part}`,"
                f" {list(grid_of(box.shape, block))} are needed for {box} of `{target.name}`"
            )
        found[lo // block[0] : lo // block[0] + len(some)] = some
    return found.tobytes()


def _check_room(held_bytes: int, budget: Budget) -> None:
    if held_bytes > budget.memory_bytes // 4:
        raise LimitError(
            f"{human(held_bytes)} would be held to make the parts of values, of"
            f" {human(budget.memory_bytes)} that may be used",
            hint="raise --memory to four times as much",
        )
