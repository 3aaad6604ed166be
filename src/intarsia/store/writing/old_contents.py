"""What a destination holds before it is replaced, and whether that has changed since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from intarsia.errors import UsageError, few
from intarsia.frozen import frozen_open
from intarsia.store.reading.lookup import (
    everything_in,
    exists,
    is_folder,
    is_link,
    itself,
    names_like,
)
from intarsia.store.system_errors import absent


@frozen_open
class OldContents:
    """What lies at a path: for each file below it, or for itself, its length, time and number."""

    files: dict[str, tuple[int, int, int]]
    folders: frozenset[str]

    @staticmethod
    def of(path: PurePath) -> OldContents:
        files, folders = {}, set()
        below = everything_in(path) if is_folder(path) and not is_link(path) else [path]
        for each in below:
            found = itself(each)
            if found is None:
                raise absent(each)
            name = str(each.relative_to(path))
            if found.kind == "folder":
                folders.add(name)
            else:
                files[name] = found.stamp.size_bytes, found.stamp.mtime_ns, found.stamp.inode
        return OldContents(files, frozenset(folders))

    def changes(self, now: OldContents) -> list[str]:
        """The names of what is not the same now."""
        both = {**self.files, **now.files}
        changed = [name for name in both if self.files.get(name) != now.files.get(name)]
        return sorted([*changed, *(f"{name}/" for name in self.folders ^ now.folders)])


Judge = Callable[[PurePath, OldContents], None]
"""What refuses to replace some of what a destination holds."""


OVERWRITE = "--overwrite (overwrite=True in Python)"
"""How a user says that a destination may be replaced."""


def refuse_existing(
    destination: PurePath, *, resume: bool = False, option: str = OVERWRITE
) -> None:
    """Raise where anything but an empty folder is at a destination that may not be replaced.

    `resume`: it was to be continued, and nothing is there to continue.  `option` replaces it.
    """
    if not exists(destination) or (is_folder(destination) and not names_like(destination)):
        return
    if resume:
        raise UsageError(
            f"{destination} exists, and there is nothing to resume",
            hint="an earlier run may have finished it: `intarsia verify SOURCE DESTINATION`"
            f" shows that; or choose another destination, or replace it with {option}",
        )
    raise UsageError(
        f"{destination} exists", hint=f"choose another destination, or replace it with {option}"
    )


TO_RESUME = "move it away, and run again with --resume"


def changed_meanwhile(
    destination: PurePath, changes: list[str], hint: str = TO_RESUME
) -> UsageError:
    """The error for a destination that others changed after it was looked at."""
    return UsageError(
        f"{destination} was changed by another process during this run: {few(changes, 4)};"
        " it was left as it is",
        hint=hint,
    )


def check_unchanged(destination: PurePath, old: OldContents | None, hint: str = TO_RESUME) -> None:
    """Raise where a destination is not what it was when it was looked at; None: nothing was there."""
    now = OldContents.of(destination) if exists(destination) else None
    if now != old:
        nothing = OldContents({}, frozenset())
        raise changed_meanwhile(destination, (old or nothing).changes(now or nothing), hint)
