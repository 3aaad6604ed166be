"""`intarsia plan`: a conversion's proof and cost, with nothing moved."""

from __future__ import annotations

from intarsia.cli import options
from intarsia.cli.output import answer, say
from intarsia.options import Options


@options.spelled_out
def run(src: options.Path, asked: Options) -> int:
    """Prove a conversion before a byte moves, and state its cost.

    The cost is what it would read, write and hold in memory.
    """
    from intarsia import converting

    found = converting.job(src, asked).plan
    answer(found.as_json(), lambda: say(found), is_all=True)
    return 0 if found.proven else 1
