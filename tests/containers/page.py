"""The page of containers: what works in which, and what is refused, from doing it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.containers.cells import CELLS, WORKS, Cells, all_cells
from tests.containers.containers import CONTAINERS, Container
from tests.distributed.ranks import on_ranks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "containers.md"
HEAD = """# Containers

What `intarsia.load` and `intarsia.save` do with a model in each container, found by doing it on gloo processes:
[`tests/containers/`](../../tests/containers/) has the code, and `python -m tests.containers` writes this page again.

- **load**: a checkpoint of the plain model fills every parameter, bit by bit.
- **save**: the checkpoint holds every parameter, bit by bit, under the names of the plain model.
- **optimizer**: a training that was saved with AdamW after two steps goes on in a new model of the same kind, with the very losses of the one that never stopped.
- **resume elsewhere**: it goes on in the container named, and a training from there goes on in this one, both within 1e-5. For Megatron: what was saved
  with tensor parallel 2 is loaded on 1, and is the same model. For TransformerEngine: **load** is from 1 x 4 (FSDP2 x tensor parallel), and the loss is
  that of one process within 1e-5.

Megatron's and TransformerEngine's modules are their own, on processors: a stand-in answers for CUDA and for the compiled kernels.
FSDP1 is wrapped with `use_orig_params=True`; without it the parameters of one unit need state of the same kinds and step.

"""


def rows(containers: tuple[Container, ...], ranks: int) -> dict[str, Cells]:
    """The cells of containers on so many ranks; all ranks must find the same."""
    some = tuple(each for each in containers if each.ranks == ranks)
    if not some:
        return {}
    with tempfile.TemporaryDirectory(prefix="containers-") as folder:
        answers = on_ranks(ranks, all_cells, some, Path(folder), seconds=500)
    assert all(answer == answers[0] for answer in answers)
    found: dict[str, Cells] = answers[0]
    return found


def foreign_rows() -> dict[str, Cells]:
    """The cells of Megatron's and TransformerEngine's models."""
    from tests.containers.foreign import engine_cells, megatron_cells

    with tempfile.TemporaryDirectory(prefix="containers-") as folder:
        return megatron_cells(Path(folder)) | engine_cells(Path(folder))


def line(title: str, cells: Cells, elsewhere: str) -> str:
    """A row of the table; a refusal is told below it."""
    told = ["works" if cells[name] == WORKS else "refused" for name in CELLS]
    if told[-1] == WORKS:
        told[-1] = f"works: {elsewhere}"
    return f"| {title} | {' | '.join(told)} |\n"


def refusals(title: str, cells: Cells) -> str:
    """The texts of a container's refusals."""
    found = ((name, cells[name]) for name in CELLS if cells[name] != WORKS)
    return "".join(f"\n### {title}: {name}\n\n```\n{text}\n```\n" for name, text in found)


def page() -> str:
    """The whole page."""
    other = {each.title: each.elsewhere for each in CONTAINERS}
    found = rows(CONTAINERS, 2) | rows(CONTAINERS, 4)
    found = {each.title: found[each.title] for each in CONTAINERS} | foreign_rows()
    other |= dict.fromkeys(("Megatron-core", "Megatron-FSDP"), "tensor parallel 1")
    other["TransformerEngine, 2 x 2"] = "1 x 4"
    head = f"| container | {' | '.join(CELLS)} |\n|---|{'---|' * len(CELLS)}\n"
    table = "".join(line(title, cells, other[title]) for title, cells in found.items())
    texts = "".join(refusals(title, cells) for title, cells in found.items())
    return f"{HEAD}{head}{table}\n## Refusals\n{texts}"
