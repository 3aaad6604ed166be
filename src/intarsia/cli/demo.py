"""`intarsia demo`: a small model through every format and several meshes, verified at each step."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

from intarsia.cli import options
from intarsia.cli.output import answer, print_table
from intarsia.quantity import human
from intarsia.store.local.paths import expanded
from intarsia.store.system_errors import errors_naming

ROUTE = (
    ("dcp", "tp=2,fsdp=3"),
    ("torch_dist", "tp=2,pp=2,ep=4"),
    ("fsdp_dtensor", "ep=2,fsdp=4"),
    ("torch_dist", "tp=4,ep=2,etp=2"),
    ("dcp", "fsdp=4,replicate=2"),
    ("hf", ""),
)
"""The formats and meshes that the model passes through, one after another."""


def run(
    folder: Annotated[
        str | None, options.Option("--folder", "Keep the checkpoints in this new folder.")
    ] = None,
    seed: Annotated[int, options.Option("--seed", "Another random model.")] = 0,
) -> int:
    """Convert a small model across formats and meshes, verifying each.

    The model is a mixture of experts with random weights.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="intarsia-demo-") as scratch:
            return _route(Path(scratch), seed, kept=False)
    where = expanded(Path(folder))
    with errors_naming(where):
        where.mkdir(parents=True)
    return _route(where, seed, kept=True)


def _route(root: Path, seed: int, *, kept: bool) -> int:
    from intarsia import api, converting
    from intarsia.cli.demo_model import write_model

    source = root / "model"
    with errors_naming(source):
        write_model(source, seed)
    rows = []
    here = source
    for k, (to, mesh) in enumerate(ROUTE, 1):
        there = root / f"{k}-{to}-{mesh.replace(',', '-').replace('=', '') or 'whole'}"
        started = time.perf_counter()
        report = converting.convert(here, there, to=to, mesh=mesh, alone=True)
        seconds = time.perf_counter() - started
        same = api.verify(source, there)
        rows.append(
            {
                "step": k,
                "from": api.open(here).format,
                "to": to,
                "mesh": mesh or "-",
                "tensors": len(report.plan.targets),
                "copies": report.plan.copies,
                "bytes": report.plan.write_bytes,
                "seconds": round(seconds, 3),
                "proven": report.plan.proven,
                "equal": same.equal,
            }
        )
        here = there
    equal = all(row["equal"] for row in rows)

    def text() -> None:
        columns = ("to", "mesh", "copies", "bytes", "seconds", "proven", "equal")
        shown = [[human(int(str(r[c]))) if c == "bytes" else r[c] for c in columns] for r in rows]
        title = "A small mixture of experts, from format to format, each compared with the first"
        print_table(title, columns, shown)
        print("every element arrived" if equal else "SOMETHING WAS LOST")

    answer({"equal": equal, "steps": rows}, text, is_all=not kept)
    return 0 if equal else 1
