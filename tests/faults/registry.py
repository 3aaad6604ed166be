"""What a fault of the corpus is, and the two ways in which most are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.sound import FORMATS, Edit, Sound

Make = Callable[[Sound, str, Path], Path]
Hurt = Callable[[Path], None]
SHARDED = FORMATS[1:]
QUERY = "model.layers.1.self_attn.q_proj.weight"
OUT = "model.layers.1.self_attn.o_proj.weight"


@dataclass(frozen=True)
class Fault:
    """A way to go wrong: `make(sound, format, folder)` writes a checkpoint that has it.

    `kind` is what `verify` must call it.  `needs_digest`: the bytes alone do not tell;
    `needs_reference`: only another checkpoint does.
    """

    name: str
    formats: tuple[str, ...]
    make: Make
    kind: str
    needs_reference: bool = False
    needs_digest: bool = False


@dataclass(frozen=True)
class Part:
    """The faults of one subject, registered one by one."""

    faults: list[Fault]

    def numbers(
        self, name: str, kind: str, formats: tuple[str, ...] = FORMATS, **config: Any
    ) -> Callable[[Edit], Edit]:
        """A fault of the numbers alone: the files around them are as they should be."""

        def register(edit: Edit) -> Edit:
            def make(sound: Sound, format: str, folder: Path) -> Path:
                return sound.edited(format, folder, edit, **config)

            self.faults.append(Fault(name, formats, make, kind))
            return edit

        return register

    def files(
        self, name: str, kind: str, formats: tuple[str, ...] = FORMATS, needs_digest: bool = False
    ) -> Callable[[Hurt], Hurt]:
        """A fault of files: a copy of the sound checkpoint is damaged in place."""

        def register(hurt: Hurt) -> Hurt:
            def make(sound: Sound, format: str, folder: Path) -> Path:
                hurt(sound.copy(format, folder, digests=needs_digest))
                return folder

            self.faults.append(Fault(name, formats, make, kind, needs_digest=needs_digest))
            return hurt

        return register
