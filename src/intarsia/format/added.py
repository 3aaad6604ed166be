"""Formats that do not come with Intarsia: installed with another package, or registered by a program."""

from __future__ import annotations

from functools import cache

from intarsia.entry_point import REMEDY, made_by
from intarsia.errors import UsageError
from intarsia.format.base import Format
from intarsia.format.built_in import BUILT_IN

GROUP = "intarsia.formats"
"""The entry points by which packages add formats, each its name and its class."""

_REGISTERED: dict[str, Format] = {}


def register(format: Format) -> None:
    """Add a format for this process; raise where the name is taken."""
    if format.name in BUILT_IN or format.name in added_formats():
        raise UsageError(
            f"a format named {format.name!r} exists already", hint="choose another name for yours"
        )
    _REGISTERED[format.name] = format


def unregister(name: str) -> None:
    """Take away what `register` added."""
    del _REGISTERED[name]


def added_formats() -> dict[str, Format]:
    """Every format that was added, by its name."""
    return {**_installed(), **_REGISTERED}


@cache
def _installed() -> dict[str, Format]:
    from importlib.metadata import entry_points  # it takes some 80 ms

    found: dict[str, Format] = {}
    for point in entry_points(group=GROUP):
        made = made_by(point, f"the format {point.name!r}")
        if not isinstance(made, Format) or made.name != point.name or made.name in BUILT_IN | found:
            raise UsageError(
                f"{point.value} is not a format whose name is {point.name!r}, or that name is taken",
                hint=REMEDY,
            )
        found[point.name] = made
    return found
