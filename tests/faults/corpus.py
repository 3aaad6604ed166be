"""The corpus: faulty checkpoints that one look at them alone gives away, made from a sound one."""

from __future__ import annotations

from pathlib import Path

from tests.faults import broken_files, lost_parts, wrong_numbers
from tests.faults.registry import Fault
from tests.faults.sound import Sound

SEED = 2026
FAULTS: list[Fault] = [*wrong_numbers.FAULTS, *lost_parts.FAULTS, *broken_files.FAULTS]


def sound_checkpoint(root: Path) -> Sound:
    """The checkpoint that every fault is made from."""
    return Sound.make(root, SEED)


__all__ = ["FAULTS", "Fault", "Sound", "sound_checkpoint"]
