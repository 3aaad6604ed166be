"""Open files; only as many stay open as the process can afford."""

from __future__ import annotations

import errno
import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

from intarsia.errors import StoreError

_ALL: weakref.WeakSet[Descriptors] = weakref.WeakSet()


def affordable() -> int:
    """How many files one reader or writer keeps open: a part of what the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if soft == resource.RLIM_INFINITY else max(4, min(512, soft // 4))


@dataclass
class _Held:
    """An open file; a list counts its users, as appending to one needs no lock."""

    fd: int
    last_use: int = 0
    users: list[None] = field(default_factory=list)
    closing: bool = False


class Descriptors:
    """Files by their names, opened when they are used; the longest unused one is closed for another.

    No file is closed while it is used; all are when the object goes.
    """

    def __init__(
        self,
        opening: Callable[[str], int],
        closing: Callable[[str, int], None] = lambda _, fd: os.close(fd),
        most: int | None = None,
    ) -> None:
        self._opening = opening
        self._closing = closing
        self.most = most or affordable()
        self._held: dict[str, _Held] = {}
        self._lock = threading.RLock()
        self._uses = count()
        weakref.finalize(self, _close_all, self._held)
        _ALL.add(self)

    def use(self, name: str) -> Use:
        """The descriptor of a file, which stays open inside."""
        return Use(self, name)

    def take(self, name: str) -> _Held:
        """Open a file, or find it open, and count one user more.

        Threads that find it open do not wait for each other: either this one sees that the file is
        being closed, or the one that closes it sees this user.
        """
        held = self._held.get(name)
        if held is not None:
            held.users.append(None)
            if not held.closing:
                held.last_use = next(self._uses)
                return held
            held.users.pop()
        with self._lock:
            held = self._held.get(name)
            if held is None:
                while len(self._held) >= self.most and self._close_one():
                    pass
                held = self._held[name] = _Held(self._opened(name), next(self._uses))
            held.users.append(None)
        return held

    @contextmanager
    def use_all(self, names: Iterable[str]) -> Iterator[list[int] | None]:
        """The descriptors of files, which stay open inside; None where too many would be used.

        The `filename` of an `OSError` is the name of the file that cannot be opened.
        """
        taken = list[_Held]()
        try:
            with self._lock:
                used = {name for name, held in self._held.items() if held.users}
                few = len(used.union(names)) <= self.most
                taken += map(self._named, names if few else ())
            yield [held.fd for held in taken] if few else None
        finally:
            for held in taken:
                held.users.pop()

    def _named(self, name: str) -> _Held:
        try:
            return self.take(name)
        except OSError as error:
            error.filename = name
            raise

    def close(self) -> None:
        """Close every file; the first failure is raised when all are closed."""
        failure: Exception | None = None
        with self._lock:
            while self._held:
                name, held = self._held.popitem()
                held.closing = True
                try:
                    self._closing(name, held.fd)
                except (OSError, StoreError) as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def _opened(self, name: str) -> int:
        try:
            return self._opening(name)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        for other in list(_ALL):
            other._spare()
        return self._opening(name)

    def _spare(self) -> None:
        """Close what nobody uses, for others that need a descriptor."""
        if self._lock.acquire(blocking=False):
            try:
                while self._close_one():
                    pass
            finally:
                self._lock.release()

    def _close_one(self) -> bool:
        """Close the longest unused file; whether there was one."""
        unused = [(held.last_use, name) for name, held in self._held.items() if not held.users]
        for _, name in sorted(unused):
            held = self._held[name]
            held.closing = True
            if not held.users:
                del self._held[name]
                self._closing(name, held.fd)
                return True
            held.closing = False
        return False


class Use:
    """A guard inside which a file stays open; small tensors are read by the hundred thousand."""

    __slots__ = ("_files", "_held", "_name")

    def __init__(self, files: Descriptors, name: str) -> None:
        self._files, self._name = files, name

    def __enter__(self) -> int:
        self._held = self._files.take(self._name)
        return self._held.fd

    def __exit__(self, *_: object) -> None:
        self._held.users.pop()


def _close_all(held: dict[str, _Held]) -> None:
    while held:
        with suppress(OSError):
            os.close(held.popitem()[1].fd)
