"""`intarsia convert`: prove, stream, commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from intarsia.cli import options
from intarsia.cli.output import OUTPUT, answer, progress, say
from intarsia.errors import Interrupted, StoppedError
from intarsia.options import Options
from intarsia.run.stopping import stop_word


@options.spelled_out
def run(
    src: options.Path,
    dst: Annotated[str, options.Argument("The folder to write; it must not exist.")],
    asked: Options,
    resume: Annotated[
        bool, options.Option("--resume", "Continue a killed run of the same job.")
    ] = False,
    overwrite: Annotated[
        bool,
        options.Option(
            "--overwrite", "Replace the destination, if it is a checkpoint and holds nothing else."
        ),
    ] = False,
    alone: options.Alone = False,
    dry_run: Annotated[
        bool, options.Option("--dry-run", "Plan and prove, but write nothing.")
    ] = False,
) -> int:
    """Convert a checkpoint, once every element is proven to arrive.

    The destination appears only when it is whole. Under torchrun the work is split over the processes, unless one is to do it --alone.
    """
    report = None
    try:
        from intarsia import converting
        from intarsia.conversion.running import carry_out
        from intarsia.run.ranks.crew import crew, note_on_ranks

        with crew(alone=alone or dry_run) as team:
            OUTPUT.rank = team.rank
            with team.together():
                job = converting.job(src, asked)
            if dry_run:
                answer(job.plan.as_json(), lambda: say(job.plan), is_all=True)
                return 0 if job.plan.proven else 1
            with progress("converting") as advance:
                report = carry_out(
                    job, dst, overwrite=overwrite, resume=resume, progress=advance, team=team
                )
        report = replace(report, remarks=(*report.remarks, *note_on_ranks(alone=alone)))
        answer(report.as_json(), lambda: say(report))
        return 0
    except KeyboardInterrupt as stop:
        if report is not None or (isinstance(stop, Interrupted) and stop.committed):
            raise StoppedError(f"{stop_word()}; {dst} is complete and in its place") from stop
        kept = "; ".join(getattr(stop, "__notes__", ()))
        raise StoppedError(f"{stop_word()}; nothing was committed", hint=kept or None) from stop
