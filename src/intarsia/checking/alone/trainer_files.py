"""Files in which a trainer keeps its state beside a model: damaged, of another step, or without their other half."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial

from intarsia.checking.alone.entries import wrong_member
from intarsia.checking.alone.trainer_steps import files_of_other_steps, step_of_run
from intarsia.checking.fault import Fault
from intarsia.errors import FormatError
from intarsia.format.folder.inventory import is_training
from intarsia.format.folder.trainer_files import OPTIMIZER, SCHEDULE, STEPS, lost_half
from intarsia.format.strict_json import parse_json
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
            run = step_of_run(folder) if not found and STEPS in held else None
            found += _another_step(run, root.name)
            if not found and {OPTIMIZER, SCHEDULE} <= {*held}:
                found += files_of_other_steps(folder, run)
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
