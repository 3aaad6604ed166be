"""`intarsia digest`: what the tensors of a checkpoint amount to, whatever its format."""

from __future__ import annotations

from typing import Annotated

from intarsia.cli import options
from intarsia.cli.output import OUTPUT, answer, complain, progress
from intarsia.errors import visible


def run(
    path: options.Path,
    secure: Annotated[
        bool,
        options.Option("--secure", "SHA-256 of each tensor: slower, but safe against tampering."),
    ] = False,
    config: options.Config = None,
    section: options.Section = None,
    memory: options.Memory = None,
    workers: options.Workers = None,
    alone: options.Alone = False,
) -> None:
    """Print a digest of each tensor, and the root over all of them.

    They are equal for every format, mesh and file split of the same weights; notes say where the
    root of equal weights may differ. Under torchrun the work is split over the processes, unless
    one is to do it --alone.
    """
    from intarsia import api
    from intarsia.run.budget import Budget
    from intarsia.run.ranks.crew import crew

    with crew(alone=alone) as team:
        OUTPUT.rank = team.rank
        with progress("digesting") as advance:
            budget = Budget.of(memory, workers)
            found = api.digest_with(
                team, path, config, budget, advance, secure=secure, section=section
            )

    def text() -> None:
        for name, digest in sorted(found.tensors.items()):
            print(f"{digest}  {visible(name)}")
        for name, digest in sorted(found.objects.items()):
            print(f"{digest}  object {visible(name)}")
        for note in found.notes:
            complain(f"note: {visible(note)}")
        print(found)

    answer(found.as_json(), text, is_all=True)
