"""What ranks tell each other before a save: bytes and CPU time of a rank, against the number of ranks.

The exchange is simulated in one process: every rank's boxes of a model under FSDP are made as a save
makes them, packed, and put together.  Beside it the way of telling every rank every box.

    python benchmarks/save_exchange.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from intarsia.dtypes import BY_NAME
from intarsia.format.registry import live_format
from intarsia.live.saving.exchange import Statement, heard
from intarsia.live.saving.parts import HeldBox, HeldPart
from intarsia.live.saving.plan import SavePlan
from intarsia.live.saving.replicas import dtype_and_shape, holders_of, ranks_of
from intarsia.mesh import Mesh, Rule

RANKS = (8, 64, 512, 4096)
LAYERS, HIDDEN = 16, 4096
BF16 = BY_NAME["BF16"]


def parts_of(rank: int, ranks: int) -> list[tuple[HeldPart, tuple[int, ...]]]:
    """What one rank of a model under FSDP holds, seven tensors a layer."""
    mesh, everyone = Mesh(fsdp=ranks), tuple(range(ranks))
    wide, square = (4 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN)
    found = []
    for layer in range(LAYERS):
        for k, shape in enumerate((wide, wide, square, square, square, square, (HIDDEN,))):
            box = mesh.box(shape, Rule(), rank)
            if box is not None and box.size:
                part = HeldPart(f"model.layers.{layer}.weight{k}", BF16, shape, box, everyone, None)  # type: ignore[arg-type]
                found.append((part, everyone))
    return found


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.process_time()
    return work(), time.process_time() - started


def every_box_to_all(parts: Sequence[Any]) -> tuple[int, float]:
    """The bytes that each rank receives where all hear all, and what it then computes."""
    said = [
        pickle.dumps([HeldBox(p.name, p.dtype, p.shape, p.box, proof) for p, proof in held])
        for held in parts
    ]

    def work() -> None:
        holders = holders_of([pickle.loads(each) for each in said])
        rows = [(name, *dtype_and_shape(x.boxes), ranks_of(x.boxes)) for name, x in holders.items()]
        live_format().lay_out(rows, {}, len(parts))

    return max(map(len, said)) * len(said), timed(work)[1]


def through_the_first(parts: Sequence[Any]) -> dict[str, Any]:
    """Bytes and time of an ordinary rank, and of the first, which plans for all."""
    statements, making = timed(lambda: [Statement.of(held, {}, {}, None) for held in parts])
    digests, hashing = timed(lambda: [each.digest for each in statements])
    one, saying = timed(lambda: pickle.dumps(statements[-1].said(digests, len(parts) - 1)))
    said = [pickle.dumps(each.said(digests, k)) for k, each in enumerate(statements)]
    plan, planning = timed(
        lambda: SavePlan.of(heard([pickle.loads(each) for each in said], digests))
    )
    tasks, packing = timed(lambda: [pickle.dumps(task) for task in plan.tasks])
    outline = pickle.dumps(plan.outline)
    _, hearing = timed(lambda: (pickle.loads(tasks[-1]), pickle.loads(outline)))
    share = (making + hashing) / len(parts)
    return {
        "rank_bytes": len(pickle.dumps(digests)) + len(one) + len(outline) + len(tasks[-1]),
        "rank_seconds": share + saying + hearing,
        "first_rank_bytes": max(map(len, said)) * len(said) + max(map(len, tasks)) * len(tasks),
        "first_rank_seconds": share + planning + packing,
    }


def curve(ranks: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One row for each number of ranks; times are CPU seconds."""
    for count in ranks:
        parts = [parts_of(rank, count) for rank in range(count)]
        nbytes, seconds = every_box_to_all(parts)
        yield {
            "benchmark": "save_exchange",
            "ranks": count,
            "boxes": sum(map(len, parts)),
            "all_to_all_bytes": nbytes,
            "all_to_all_seconds": seconds,
            **through_the_first(parts),
        }


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """The curve over ranks."""
    return list(curve(RANKS[:3] if quick else RANKS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{'':>18}{'every box to all':>24}{'a rank':>24}{'the first rank':>24}")
    found = []
    for row in curve(RANKS[:3] if options.quick else RANKS):
        found.append(row)
        kinds = ("all_to_all", "rank", "first_rank")
        cells = [f"{row[k + '_bytes'] / 1e6:.2f} MB {row[k + '_seconds']:.3f} s" for k in kinds]
        print(
            f"{row['ranks']:>6}{row['boxes']:>12,}" + "".join(f"{c:>24}" for c in cells), flush=True
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
