"""A checkpoint whose place another takes while it is read: what is found then is of neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath

from intarsia.errors import ChangedError, FormatError, IntarsiaError, UnansweredError
from intarsia.frozen import frozen_open
from intarsia.store.address import named
from intarsia.store.reading.lookup import is_folder, names_like, number_of, stamp_of
from intarsia.store.stamp import Stamp, changed, removed


@frozen_open
class Stamps:
    """The stamps of the files of a checkpoint, as they were when it was opened."""

    files: Mapping[str, Stamp]

    @staticmethod
    def of(paths: Iterable[str | PurePath], seen: Mapping[str, Stamp] | None = None) -> Stamps:
        """Stamps of files; of those in `seen`, as they were then."""
        seen = seen or {}
        return Stamps({str(path): seen.get(str(path)) or stamp_of(named(path)) for path in paths})

    def check(self) -> None:
        """Raise where a file is no longer what it was."""
        for path, then in self.files.items():
            try:
                now = stamp_of(named(path))
            except FormatError as error:
                if error.kind != "file-missing":
                    raise
                raise removed(named(path)) from error
            if now != then:
                raise changed(path, then, now)


@contextmanager
def unreplaced(*paths: PurePath) -> Iterator[Callable[[], None]]:
    """Gives a check that raises where a path, or a folder in it, is another one than it was at first.

    No error that is raised inside is reported for a checkpoint that was replaced meanwhile.
    """
    held = [each for path in paths for each in (path, *_folders_in(path))]
    before = {path: number_of(path) for path in held}

    def check() -> None:
        for path, number in before.items():
            if number is not None and number_of(path) != number:
                raise ChangedError(
                    f"{path} was replaced or removed while it was read",
                    hint="another checkpoint may have taken its place: run again",
                    path=path,
                )

    try:
        yield check
    except IntarsiaError as error:
        if error.is_fault or isinstance(error, UnansweredError):
            check()
        raise


def _folders_in(path: PurePath) -> list[PurePath]:
    """The folders that a run's checkpoints may be; hidden ones come and go."""
    below = names_like(path) if is_folder(path) else []
    return [each for each in below if not each.name.startswith(".") and is_folder(each)]
