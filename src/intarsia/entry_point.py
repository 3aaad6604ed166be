"""What installed packages add to Intarsia by their entry points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from intarsia.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

REMEDY = "fix or uninstall the package that provides it"


def made_by(point: EntryPoint, what: str) -> Any:
    """An object of the class that an entry point names; raise where the package cannot give it."""
    try:
        return point.load()()
    except Exception as error:
        raise UsageError(
            f"{what} cannot be loaded from {point.value}: {error!r}", hint=REMEDY
        ) from error
