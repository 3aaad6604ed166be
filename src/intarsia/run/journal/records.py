"""The records of a journal as lines of text, and what a line must say to be believed.

A line that has its checksum was written by a run; whether by one of ours is another matter, so
each number is compared with the job before anything is made of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.planning.window import is_stretch
from intarsia.run.losses import Effect
from intarsia.run.sums.checksum import crc32
from intarsia.run.sums.hashing import Sum
from intarsia.run.windows.written import Written
from intarsia.store.reading.folder import read_file
from intarsia.store.reading.lookup import is_file


def to_line(value: Any) -> bytes:
    """One record, its checksum first."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32(text), text)


def read_lines(path: PurePath) -> Iterator[dict[str, Any]]:
    """The records of a file up to the first that is torn or damaged."""
    if not is_file(path):
        return
    for line in read_file(path).split(b"\n")[:-1]:
        if len(line) < 9 or line[:9] != b"%08x " % crc32(line[9:]):
            return
        try:
            value = json.loads(line[9:])
        except (ValueError, RecursionError):
            return
        if type(value) is not dict:
            return
        yield value


def line_of(written: Written, index: Mapping[str, int]) -> dict[str, Any]:
    """What is noted of a step; `index` gives the numbers of the job's targets."""
    return {
        "windows": [
            [index[target.name], box.offsets, box.shape, crcs]
            for (target, box), crcs in zip(written.windows, written.crcs, strict=True)
        ],
        "losses": [[index[name], effect, n] for (name, effect), n in written.losses.items()],
        "sums": [
            [index[target], name, x.pages, x.crc, x.count_bytes]
            for (target, name), x in written.sums.items()
        ],
    }


def written_in(line: Mapping[str, Any], targets: Sequence[Target]) -> Written | None:
    """The step that a line records; None where it is none that this job could have."""
    try:
        windows = tuple(_window(row, targets) for row in line["windows"])
        crcs = tuple(tuple(map(_count, row[3])) for row in line["windows"])
        losses = Counter(
            {
                (targets[_count(t)].name, Effect(effect)): _count(n)
                for t, effect, n in line["losses"]
            }
        )
        sums = {
            (targets[_count(t)].name, _text(name)): Sum(*map(_count, x))
            for t, name, *x in line["sums"]
        }
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
    return Written(windows, crcs, losses, sums)


def _window(row: Any, targets: Sequence[Target]) -> tuple[Target, Box]:
    number, offsets, shape, _ = row
    target = targets[_count(number)]
    box = Box(tuple(map(_count, offsets)), tuple(map(_count, shape)))
    for at, n, whole in zip(box.offsets, box.shape, target.shape, strict=True):
        if at + n > whole:
            raise ValueError(f"{box} is not within {target.shape}")
    if not is_stretch(box, Box.whole(target.shape)):
        raise ValueError(f"{box} is no window of {target.shape}")
    return target, box


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{value!r} is no count")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is no name")
    return value
