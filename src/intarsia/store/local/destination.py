"""A place to write to: whether it may be written or replaced, asked before the first byte."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path, PurePath

from intarsia.errors import UsageError
from intarsia.store.address import Address
from intarsia.store.reading.lookup import everything_in, is_link, real
from intarsia.store.system_errors import unreadable

EVERYONE = 0o077
"""The group and all others, as bits of a mode."""
_MOUNTS = Path("/proc/self/mountinfo")


def check_place(destination: Path, traces: Iterable[Path]) -> None:
    """Refuse links and mount points, and a place where another user's run left something or is at work."""
    if is_link(destination):
        raise UsageError(
            f"{destination} is a symbolic link", hint="give the folder that it points to"
        )
    _check_mounts(destination)
    for path in traces:
        found = look(path)
        if found is not None and os.geteuid() not in (0, found.st_uid):
            raise UsageError(
                f"{path} belongs to {owner_of(found)}, whose run is writing {destination} or was"
                " killed",
                hint=f"ask {owner_of(found)} to finish it or to remove it, or choose another"
                " destination",
            )


def _check_mounts(destination: Path) -> None:
    """Refuse a place that a file system is mounted on, or below: no rename can move that."""
    home = real(destination)
    for mount in _mounted():
        if mount == home:
            raise UsageError(
                f"{destination} is a mount point, which cannot be replaced by a whole checkpoint",
                hint=f"give a folder inside it, such as {destination / 'checkpoint'}",
            )
        if mount.is_relative_to(home):
            raise UsageError(
                f"{destination} holds the mount point {mount}, which cannot be replaced",
                hint="choose another destination, or unmount it",
            )


def _mounted() -> list[Path]:
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:  # no Linux, or no /proc: the rename says it, late
        return []
    escaped = (line.split(" ")[4] for line in lines if line.count(" ") > 4)
    return [Path(os.fsdecode(_unescaped(os.fsencode(text)))) for text in escaped]


def _unescaped(text: bytes) -> bytes:
    """A path of the kernel's table, in which blanks and the like are octal numbers."""
    for number in (b"040", b"011", b"012", b"134"):
        text = text.replace(b"\\" + number, bytes([int(number, 8)]))
    return text


def check_owners(destination: Path) -> None:
    """Refuse what this user may not replace or could not remove afterwards."""
    me = os.geteuid()
    if me == 0:
        return
    for path in (destination, *everything_in(destination)):
        found, home = look(path), look(path.parent)
        if found is None or home is None:
            continue
        if home.st_mode & stat.S_ISVTX and me not in (found.st_uid, home.st_uid):
            raise _not_mine(path, found, f"in {path.parent} only the owner may replace it")
        if stat.S_ISDIR(found.st_mode) and not _may_write(path):
            raise _not_mine(path, found, "you may not remove its contents")


def _not_mine(path: Path, found: os.stat_result, why: str) -> UsageError:
    return UsageError(
        f"{path} belongs to {owner_of(found)}: {why}",
        hint=f"choose another destination, or ask {owner_of(found)} to remove it",
    )


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def owner_of(found: os.stat_result) -> str:
    """The user whom something belongs to."""
    try:
        return pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        return f"user {found.st_uid}"


def readers_of(paths: Iterable[PurePath]) -> int:
    """Who beside the owner may read all of these files, as bits of a mode."""
    found = EVERYONE
    for path in paths:
        mode = mode_of(path)
        for who, read in ((0o070, 0o040), (0o007, 0o004)):
            if mode is not None and not mode & read:
                found &= ~who
    return found


def mode_of(path: PurePath) -> int | None:
    """Who may read and write a file, its owner at least; None where the store of it does not say."""
    if isinstance(path, Address):
        return None
    try:
        return 0o600 | os.stat(path).st_mode & 0o777
    except OSError as error:
        raise unreadable(path, error) from error


def look(path: PurePath) -> os.stat_result | None:
    """What is there itself, be it a link; None where nothing is."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error
