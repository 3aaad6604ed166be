"""The steps that Trainer's files count: of the run, of each parameter and of the learning rate.

Trainer loads the optimizer and the scheduler together or neither, and steps them together, so that
both count alike: fewer steps than the run where both began anew or loss scaling skipped some, and never
one of them alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from intarsia.checking.fault import Fault
from intarsia.errors import IntarsiaError
from intarsia.format.folder.trainer_files import OPTIMIZER, SCHEDULE, STEPS
from intarsia.format.strict_json import parse_json
from intarsia.format.torch_file.plain import number_in
from intarsia.format.torch_file.torch_zip import read_outline
from intarsia.store.reading.folder import Folder


def step_of_run(folder: Folder) -> int | None:
    """The step that Trainer says it is at."""
    said = parse_json(folder.read(STEPS, 0, folder.size(STEPS)), STEPS, unique=False)
    step = said.get("global_step") if isinstance(said, dict) else None
    return step if type(step) is int else None


def files_of_other_steps(folder: Folder, run: int | None) -> Iterator[Fault | str]:
    """The one of the two files that is another save's, as a fault; a note where both count otherwise than the run."""
    optimizer = schedule = None
    try:
        optimizer = _steps_of_parameters(_outline(folder, OPTIMIZER))
        schedule = _steps_of_schedule(_outline(folder, SCHEDULE))
    except IntarsiaError as error:  # what cannot be read is a fault of its own
        error.raise_unless_fault()
    if run is None or optimizer is None or schedule is None or run == optimizer == schedule:
        return
    if optimizer == schedule:
        yield (
            f"{OPTIMIZER} and {SCHEDULE} count {schedule:,} steps, {STEPS} {run:,}: loss scaling skipped steps,"
            " or both were restarted, or they are another save's"
        )
    elif schedule == run or (optimizer == run and schedule < run):
        lost, count = (OPTIMIZER, optimizer) if schedule == run else (SCHEDULE, schedule)
        other = SCHEDULE if lost == OPTIMIZER else OPTIMIZER
        text = f"{lost} counts {count:,} steps, {other} and {STEPS} {run:,}: Trainer steps the two together"
        yield Fault("steps-disagree", (), lost, text, files=(lost,))


def _outline(folder: Folder, name: str) -> Any:
    return read_outline(partial(folder.read, name), folder.size(name), name)


def _steps_of_parameters(said: Any) -> int | None:
    """The steps that all parameters with a counter agree on; a parameter that was frozen for a while has fewer."""
    state = said.get("state") if isinstance(said, dict) else None
    held = state.values() if isinstance(state, dict) else ()
    steps = [number_in(x["step"]) for x in held if isinstance(x, dict) and "step" in x]
    if not all(type(n) in (int, float) for n in steps) or len({*steps}) != 1:
        return None
    (step,) = {*steps}
    return None if isinstance(step, float) and not step.is_integer() else int(step)


def _steps_of_schedule(said: Any) -> int | None:
    """The steps of a schedule that counts each: one that waits for a plateau, or is given its epoch, does not."""
    last, calls = (
        said.get(k) if isinstance(said, dict) else None for k in ("last_epoch", "_step_count")
    )
    plain = type(last) is int and type(calls) is int and calls == last + 1
    return last if plain else None
