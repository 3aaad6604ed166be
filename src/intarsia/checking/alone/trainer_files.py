"""Files in which a trainer keeps its state beside a model: damaged, of another step, or without their other half.

Trainer loads the optimizer and the scheduler together or neither, and steps them together, so that
both count alike: fewer steps than the run where both began anew or loss scaling skipped some, and never
one of them alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from intarsia.checking.alone.entries import wrong_member
from intarsia.checking.fault import Fault
from intarsia.errors import FormatError, IntarsiaError
from intarsia.format.folder.inventory import is_training
from intarsia.format.folder.trainer_files import OPTIMIZER, SCHEDULE, STEPS, lost_half
from intarsia.format.strict_json import parse_json
from intarsia.format.torch_file.plain import number_in
from intarsia.format.torch_file.torch_zip import read_outline
from intarsia.planning.manifest import Manifest
from intarsia.run.budget import Budget
from intarsia.state.names import state_among
from intarsia.store.address import named
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import is_folder

_FOLDER = re.compile(r"checkpoint-(\d+)")


def trainer_file_faults(manifest: Manifest, budget: Budget) -> tuple[list[Fault], list[str]]:
    """What is wrong with the files of a trainer in the folder of a checkpoint, and what is worth a note."""
    found: list[Fault | str] = []
    root = named(manifest.path)
    held = [item.name for item in manifest.inventory if is_training(item)]
    if held and is_folder(root):
        with Folder(root) as folder:
            found += _damaged(folder, held, budget.window_bytes)
            run = _step_of_run(folder) if not found and STEPS in held else None
            found += _another_step(run, root.name)
            if not found and {OPTIMIZER, SCHEDULE} <= {*held}:
                found += _of_other_steps(folder, run)
        if lost := lost_half(manifest.inventory, bool(state_among(manifest.logical))):
            text = f"{lost}: Trainer would go on from that step with new, empty moments"
            found.append(Fault("state-missing", (), root.name, text))
    return [x for x in found if isinstance(x, Fault)], [x for x in found if isinstance(x, str)]


def _damaged(folder: Folder, held: Iterable[str], window_bytes: int) -> Iterator[Fault]:
    for name in held:
        if wrong := _wrong(folder, name, window_bytes):
            text = f"{name} is damaged: {wrong}"
            yield Fault("entry-damaged", (), name, text, files=(name,))


def _another_step(step: int | None, called: str) -> Iterator[Fault]:
    """A step of the run that is not the one that its folder is named by."""
    number = _FOLDER.fullmatch(called)
    if number and step is not None and step != int(number[1]):
        text = f"{STEPS} is of step {step:,}, its folder of step {int(number[1]):,}"
        yield Fault("steps-disagree", (), STEPS, text, files=(STEPS,))


def _wrong(folder: Folder, name: str, window_bytes: int) -> str:
    """What shows a file to be none that a trainer wrote; nothing of a pickle is run."""
    size = folder.size(name)
    if not size:
        return "it is empty"
    if name.endswith(".json"):
        try:
            parse_json(folder.read(name, 0, size), name, unique=False)
        except FormatError:
            return "it is no JSON"
        return ""
    head = folder.read(name, 0, min(size, 2))
    if head != b"PK":
        return "" if head.startswith(b"\x80") else "it begins neither as an archive nor as a pickle"
    try:
        return wrong_member(partial(folder.read, name), size, name, window_bytes)
    except FormatError as error:
        return error.what


def _step_of_run(folder: Folder) -> int | None:
    """The step that Trainer says it is at."""
    said = parse_json(folder.read(STEPS, 0, folder.size(STEPS)), STEPS, unique=False)
    step = said.get("global_step") if isinstance(said, dict) else None
    return step if type(step) is int else None


def _of_other_steps(folder: Folder, run: int | None) -> Iterator[Fault | str]:
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
