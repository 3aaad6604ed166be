"""`intarsia digest`: what the tensors of a checkpoint amount to, whatever its format."""

from __future__ import annotations

from typing import Annotated

import typer

from intarsia.cli import options
from intarsia.cli.output import answer, progress
from intarsia.report.safe import visible

NAME = "digest"


def run(
    path: options.Path,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="SHA-256 of each tensor: slower, and safe against forgery."),
    ] = False,
    config: options.Config = None,
    memory: options.Memory = None,
    workers: options.Workers = None,
) -> None:
    """Print a digest of each logical tensor and the root over all of them.

    They are equal for every format, mesh and file split of the same weights. Under torchrun the
    work is split over the processes.
    """
    from intarsia import api

    with progress("digesting") as advance:
        found = api.digest(
            path, secure=secure, config=config, memory=memory, workers=workers, progress=advance
        )

    def text() -> None:
        for name, digest in sorted(found.tensors.items()):
            print(f"{digest}  {visible(name)}")
        print(f"{found.root}  root of {len(found.tensors):,} tensors")

    answer(found.as_json(), text)
