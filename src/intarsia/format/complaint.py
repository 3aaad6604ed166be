"""What a reader does about an error in one file: it stops, or keeps it and goes on with the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from intarsia.errors import IntarsiaError, StoreError
from intarsia.frozen import frozen


@frozen
class Complaint:
    """An error that need not end the reading of a checkpoint.

    `files` are those that it is about, `names` the tensors that cannot be read because of it, by their
    names on disk or their logical ones, as far as they are known.
    """

    error: IntarsiaError
    files: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.error.raise_unless_fault()


Complain = Callable[[Complaint], None]


def refuse(complaint: Complaint) -> None:
    """Stop: what a reader does unless it should look for every fault."""
    raise complaint.error


@contextmanager
def going_on(complain: Complain, *files: str) -> Iterator[None]:
    """Hand an error that is raised inside to `complain`; where that keeps it, the rest goes on."""
    try:
        yield
    except IntarsiaError as error:
        found = (error.path.name,) if error.path is not None else ()
        complain(Complaint(error, files or found))


@contextmanager
def reported_elsewhere() -> Iterator[None]:
    """Go on after an error in what is read inside, which is read again; a disk may fail only once, so that is raised."""
    try:
        yield
    except StoreError:
        raise
    except IntarsiaError:
        pass
