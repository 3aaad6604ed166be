"""The files in which Trainer and accelerate keep the state of a run: which count, and which go together."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.format.folder.inventory import TRAINING, is_training
from intarsia.planning.inventory import InventoryItem, Role

STEPS = "trainer_state.json"
_ARGUMENTS = "training_args.bin"
SCHEDULE = "scheduler.pt"
OPTIMIZER = "optimizer.pt"


def is_run_state(name: str) -> bool:
    """Whether a run goes on otherwise with another file of this name; arguments are given again."""
    return name != _ARGUMENTS and any(kind.pattern.fullmatch(name) for kind in TRAINING)


def lost_half(inventory: Sequence[InventoryItem], holds_state: bool) -> str:
    """What Trainer's folder lacks of the state that only goes on as a whole; "" where it lacks nothing.

    Where it finds one of the two files and not the other, Trainer reads neither and says nothing.
    `holds_state` says that optimizer state is among the tensors.
    """
    held = {item.name for item in inventory if is_training(item)}
    if STEPS not in held or any(item.name.startswith("global_step") for item in inventory):
        return ""
    optimizers = [item.name for item in inventory if item.role is Role.OPTIMIZER]
    if SCHEDULE in held and not optimizers and not holds_state:
        return f"{SCHEDULE} and {STEPS} are there, and no optimizer state"
    if SCHEDULE not in held and optimizers:
        return f"{optimizers[0]} and {STEPS} are there, and no {SCHEDULE}"
    return ""
