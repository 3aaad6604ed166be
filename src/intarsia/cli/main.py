"""The command `intarsia`: it hands each call to its file, and turns errors into exit statuses."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from io import StringIO
from typing import Annotated, Any, NoReturn

import typer

# One thread for NumPy's linear algebra, which no command needs: starting more costs time on wide machines.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from intarsia import __version__
from intarsia.cli.output import OUTPUT, complain, open_streams, to_stdout
from intarsia.collector import seldom
from intarsia.errors import IntarsiaError, LimitError, StoppedError, StoreError, UsageError
from intarsia.run.stopping import stop_status, stop_word, stopping

_WrongCall: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
"""Typer's error of a wrong call, of which that of a wrong parameter is one."""

NAMES = ("inspect", "plan", "convert", "verify", "digest", "diff", "explain", "demo")


def _working(run: Callable[..., None]) -> Callable[..., None]:
    """A command in which a broken pipe is a failure: `answer` sees to that of its reader."""

    @wraps(run)
    def command(**words: Any) -> None:
        try:
            run(**words)
        except BrokenPipeError as error:
            raise StoreError(f"a connection broke: {error}") from error

    return command


def _version(asked: bool) -> None:
    if asked:
        print(f"intarsia {__version__}")
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
        found.command(name)(_working(import_module(f"intarsia.cli.{name}").run))
    return found


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its status."""
    with stopping(), seldom():
        try:
            status = _status_of(_read(arguments))
        except KeyboardInterrupt:
            status = _failed(StoppedError(stop_word()), stop_status())
        with to_stdout():
            pass
    # The process ends, and has no need to look for what could be freed before; triton would report it.
    if arguments is None and "triton" not in sys.modules:
        gc.freeze()
    raise SystemExit(status)


def _read(arguments: list[str] | None) -> list[str]:
    """The words of a call, without the options that every command takes, which are noted."""
    open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    OUTPUT.rank = 0
    OUTPUT.json = "--json" in words[:end]
    OUTPUT.quiet = any(word in ("--quiet", "-q") for word in words[:end])
    return [w for w in words[:end] if w not in ("--json", "--quiet", "-q")] + words[end:]


def _status_of(words: list[str]) -> int:
    """Run one command: its exit status, and on stderr why it failed."""
    try:
        asked = words[:1] if words and words[0] in NAMES else NAMES
        status = app(asked)(words, standalone_mode=False)
    except SystemExit:  # Typer's, where the reader of a help page has seen enough
        return 0
    except _WrongCall as error:
        return _called_wrongly(error)
    except StoppedError as error:
        return _failed(error, stop_status())
    except IntarsiaError as error:
        return _failed(error, error.exit_status)
    except MemoryError as error:
        failure: IntarsiaError = LimitError(
            "not enough memory", hint="free some memory, or lower --memory"
        )
        return _failed(failure, 2, error)
    except Exception as error:
        failure = IntarsiaError(
            f"{type(error).__name__}: {error}", hint="INTARSIA_DEBUG=1 shows where"
        )
        return _failed(failure, 2, error)
    if status == 130:  # an interrupt, of which Typer says nothing
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0


def _called_wrongly(error: typer.BadParameter) -> int:
    """Say that a command was not called as it can be, as Typer says it and as JSON."""
    where = error.ctx.command_path if error.ctx else "intarsia"
    if OUTPUT.json:
        failure = UsageError(error.format_message(), hint=f"{where} --help shows its usage")
        _print_error(failure)
    said = StringIO()
    error.show(said)
    complain(said.getvalue().rstrip())
    return error.exit_code


_MOST = 4000


def _short(message: str) -> str:
    """A message that a name of a checkpoint cannot make longer than a page."""
    cut = len(message) - _MOST
    return f"{message[: _MOST // 2]} … {message[-_MOST // 2 :]}" if cut > 0 else message


def _failed(error: IntarsiaError, status: int, cause: BaseException | None = None) -> int:
    if os.environ.get("INTARSIA_DEBUG") == "1":
        import traceback

        traceback.print_exception(cause or error)
    if OUTPUT.json and OUTPUT.prints:
        _print_error(error)
    complain(f"intarsia: {_short(str(error))}")
    return status


def _print_error(error: IntarsiaError) -> None:
    with to_stdout():
        document = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
        print(json.dumps(document))
