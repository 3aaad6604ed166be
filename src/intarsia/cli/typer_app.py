"""The commands as Typer offers them: help, shell completion, and what is wrong with a call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from io import StringIO
from json import dumps
from typing import Annotated, Any, get_args

import typer

from intarsia import __version__
from intarsia.cli.call import NAMES, Command, carried_out, command, parameters
from intarsia.cli.options import Argument
from intarsia.cli.output import OUTPUT, complain, print_error, to_stdout
from intarsia.errors import UsageError

_WrongCall: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
"""Typer's error of a wrong call, such as one with a wrong parameter."""

_COMPLETING = "_INTARSIA_COMPLETE"
"""What a shell sets that asks for completions."""


def _version(asked: bool) -> None:
    if asked:
        with to_stdout(is_all=True):
            print(dumps({"version": __version__}) if OUTPUT.json else f"intarsia {__version__}")
        raise typer.Exit


def options(
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that every command takes, before its name or after it."""


def app(names: Sequence[str] = NAMES) -> typer.Typer:
    """The command line with these commands: to build one takes a fraction of what all of them take."""
    found = typer.Typer(
        name="intarsia",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Move LLM weights between meshes, frameworks and file formats, and prove that every"
        " element arrived.",
        epilog="Exit status: 0 done or equal, 1 a check found a difference, a fault or an unprovable plan, "
        "2 wrong usage or unreadable input. INTARSIA_DEBUG=1 shows tracebacks.",
    )
    found.callback()(options)
    for name in names:
        found.command(name)(_for_typer(command(name)))
    return found


def _for_typer(run: Command) -> Callable[..., int]:
    """A command whose parameters are annotated as Typer reads them."""

    def offered(**found: Any) -> int:
        return carried_out(run, found)

    offered.__doc__ = run.__doc__
    offered.__signature__ = Signature([_annotated(each) for each in parameters(run)])  # type: ignore[attr-defined]
    return offered


def _annotated(parameter: Parameter) -> Parameter:
    kind, said = get_args(parameter.annotation)
    if isinstance(said, Argument):
        info = typer.Argument(help=said.help)
    else:
        completed = (lambda: list(said.words)) if said.words else None
        info = typer.Option(said.flag, help=said.help, min=said.least, autocompletion=completed)
    return parameter.replace(annotation=Annotated[kind, info])


def status_of(words: list[str], names: Sequence[str] = NAMES) -> int:
    """Run the command that `words` call, one of `names`: its exit status."""
    status = None
    try:
        with to_stdout(is_all=True):
            status = app(names)(words, prog_name="intarsia", standalone_mode=False)
    except SystemExit as end:  # Typer's
        if _COMPLETING in os.environ:  # fish goes by the status: 1 where it is to complete files
            return int(end.code or 0)
        return 0  # the reader of a help page has seen enough
    except _WrongCall as error:
        return _called_wrongly(error)
    if status == 130:  # an interrupt, which Typer does not report
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0


def _called_wrongly(error: typer.BadParameter) -> int:
    """Say that a command was not called as it can be, as Typer says it and as JSON."""
    where = error.ctx.command_path if error.ctx else "intarsia"
    if OUTPUT.json:
        print_error(UsageError(error.format_message(), hint=f"{where} --help shows its usage"))
    said = StringIO()
    error.show(said)
    complain(said.getvalue().rstrip())
    return error.exit_code
