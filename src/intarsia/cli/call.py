"""What a command is called with, read from plain words without Typer, whose import takes longer than a small job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, get_args

from intarsia.cli.options import Argument
from intarsia.errors import StoreError

NAMES = ("inspect", "plan", "convert", "verify", "digest", "diff", "explain", "demo")
Command = Callable[..., int | None]


def command(name: str) -> Command:
    """The command of this name; it returns the exit status where that may be another than 0."""
    found: Command = import_module(f"intarsia.cli.{name}").run
    return found


def parameters(run: Command) -> list[Parameter]:
    """The parameters of a command, each annotated with its type and an `Argument` or an `Option`."""
    return list(signature(run, eval_str=True).parameters.values())


def call_arguments(run: Command, words: Sequence[str]) -> dict[str, Any] | None:
    """What a command is to be called with; None where Typer is to look: at a call for help, or a wrong one."""
    switches: dict[str, tuple[str, bool]] = {}
    options: dict[str, tuple[str, Any]] = {}
    places: list[str] = []
    found: dict[str, Any] = {}
    for each in parameters(run):
        kind, said = get_args(each.annotation)
        found[each.name] = each.default
        if isinstance(said, Argument):
            places.append(each.name)
        elif kind is bool:
            on, *off = said.flag.split("/")
            switches |= {on: (each.name, True)} | dict.fromkeys(off, (each.name, False))
        else:
            options[said.flag] = each.name, kind
    left = iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        if not word.startswith("-") and places:
            found[places.pop(0)] = word
        elif word in switches:
            name, found[name] = switches[word]
        elif flag in options:
            name, kind = options[flag]
            value = value if equals else next(left, "-")
            number = kind not in (str, str | None)
            if value.startswith("-") or (number and not (value.isdecimal() and len(value) < 19)):
                return None
            found[name] = int(value) if number else value
        else:
            return None
    return None if Parameter.empty in found.values() else found


def carried_out(run: Command, found: dict[str, Any]) -> int:
    """The status of a command; where the system fails, that is no failure to print: `answer` sees to those."""
    try:
        return run(**found) or 0
    except BrokenPipeError as error:
        raise StoreError(f"a connection broke: {error}") from error
    except OSError as error:
        hint = "INTARSIA_DEBUG=1 shows where"
        raise StoreError(f"{type(error).__name__}: {error}", hint=hint) from error
