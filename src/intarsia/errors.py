"""What can go wrong, as one family of exceptions.

Every message says what, where, expected and found; `hint` says what to do next.
`exit_status` is what the command line returns: 1 where a check found a fault, 2 where
the input or the call cannot be used.  `kind` is what `verify` calls the fault in its report,
`path` the file or folder that it is about and `tensors` the names of tensors, where they are known;
`is_fault` says whether the error is about the checkpoint, and not about the moment or this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import PurePath


def few(names: Sequence[str], most: int = 3) -> str:
    """The first of several names, and how many more there are.

    >>> few(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def few_lines(texts: Sequence[str], most: int = 8) -> str:
    """The first of several texts, each on a line of its own below a message, and how many more there are.

    >>> few_lines(["a", "b", "c"], 1)
    '\\n  a\\n  … and 2 more'
    """
    more = [f"… and {len(texts) - most} more"] if len(texts) > most else []
    return "".join(f"\n  {text}" for text in (*texts[:most], *more))


def visible(text: str) -> str:
    r"""The same text with characters that show nothing, or turn the line around, written out.

    >>> visible("a\u202eb\n")
    'a\\u202eb\\n'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def check_flags(**given: object) -> None:
    """Raise where what is to be true or false is anything else: Python takes text for true, even "no"."""
    for name, value in given.items():
        # NumPy's are equal to these; an array of them has no single answer.
        if getattr(value, "shape", ()) != () or value not in (True, False):
            raise UsageError(
                f"`{name}` is {value!r} of type {type(value).__name__}", hint="give True or False"
            )


class IntarsiaError(Exception):
    """The parent of every error that Intarsia raises on purpose.

    `what` is the first line of its message, but for the place, `at`.
    """

    exit_status = 2
    kind = "unreadable"
    is_fault = True

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        kind: str | None = None,
        path: PurePath | None = None,
        tensors: tuple[str, ...] = (),
        at: object = "",
    ) -> None:
        self.what, newline, more = message.partition("\n")
        super().__init__(f"{self.what} - at {at}{newline}{more}" if at else message)
        self.hint = hint
        self.kind = kind or self.kind
        self.path = path
        self.tensors = tensors

    def raise_unless_fault(self) -> None:
        """Raise this error where it says nothing about the checkpoint: no report may call it a fault."""
        if not self.is_fault:
            raise self

    @property
    def message(self) -> str:
        """What is wrong, without what to do next."""
        return Exception.__str__(self)

    @property
    def brief(self) -> str:
        """The first line of the message."""
        return self.message.partition("\n")[0]

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


def add_hint(error: BaseException, text: str) -> None:
    """Say more of what to do next after an error, whoever raised it."""
    if isinstance(error, IntarsiaError):
        error.hint = f"{error.hint}; {text}" if error.hint else text
    else:
        error.add_note(text)


class UsageError(IntarsiaError):
    """The call cannot be carried out as asked (an unknown format, a destination that exists)."""


class UnknownTensorError(UsageError, KeyError):
    """A checkpoint has no tensor of this name: also a `KeyError`, as every mapping raises."""


class OutsideError(UsageError, IndexError):
    """An index lies outside its axis: also an `IndexError`, which ends a loop over rows."""


class MissingTorchError(UsageError, ImportError):  # type: ignore[misc]  # both have a `path`
    """The call needs torch, which is an extra and not installed."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(
            f"{what} needs torch, which is not installed",
            hint=f"pip install 'intarsia[torch]'{hint and '; '}{hint}",
        )


@contextmanager
def needing_torch(what: str, hint: str = "") -> Iterator[None]:
    """A block that imports torch, for `what`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise MissingTorchError(what, hint) from error


class SectionError(UsageError):
    """Several sections of a checkpoint may be the model, or none is called as was asked."""


class FormatError(IntarsiaError):
    """A file is not what its format demands (truncated, lying, missing, of an unknown kind)."""

    kind = "malformed"


class UnsafeError(FormatError):
    """A file asks for code to run; nothing of it was run."""

    kind = "unsafe"


class UnsupportedError(FormatError):
    """A file uses something that is not known here; whether it is sound cannot be said."""

    is_fault = False


class ChangedError(FormatError):
    """A file was changed or replaced while it was read; what was read before does not go with it."""

    is_fault = False


class LayoutError(IntarsiaError):
    """An operation on a layout that no array would allow."""


class FamilyError(IntarsiaError):
    """A checkpoint and its model configuration contradict each other, or the family is unknown."""

    kind = "config-contradicts"


class ForeignNamesError(FamilyError):
    """A checkpoint has none of the names that the family of its configuration has."""

    kind = "names-foreign"


class CoverageError(IntarsiaError):
    """A plan that cannot prove that every element arrives exactly once."""

    exit_status = 1


class PrecisionError(IntarsiaError):
    """A number does not fit the element type that it is to have, or two stored precisions contradict."""

    exit_status = 1


class StoreError(IntarsiaError):
    """The file system refused (full disk, missing rights, an input/output error).

    `lost` says that what was written there before may be lost, whatever the file system shows of it.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        kind: str | None = None,
        path: PurePath | None = None,
        at: object = "",
        lost: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, kind=kind, path=path, at=at)
        self.lost = lost


class LimitError(StoreError):
    """This process ran into a limit of the system (open files, memory); the checkpoint may be sound."""

    is_fault = False


class UnansweredError(StoreError):
    """A store gave no answer (a broken connection, a stale handle); the checkpoint may be sound."""

    is_fault = False


class Interrupted(KeyboardInterrupt):
    """An interrupt of a run; `committed` says whether the destination is in its place nevertheless."""

    def __init__(self, committed: bool, *words: object) -> None:
        super().__init__(*words)
        self.committed = committed


class StoppedError(IntarsiaError):
    """A signal stopped the run, Ctrl-C or another; the exit status is 128 and its number."""

    exit_status = 130
