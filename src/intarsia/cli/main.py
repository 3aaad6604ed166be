"""The command `intarsia`: it hands each call to its file, and turns errors into exit statuses."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

# One thread for NumPy's linear algebra, which no command needs: starting more costs time on wide machines.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from intarsia.cli.output import OUTPUT, complain, open_streams, print_error, to_stdout
from intarsia.collector import seldom
from intarsia.errors import IntarsiaError, LimitError, StoppedError
from intarsia.run.stopping import end_with, stop_status, stop_word, stopping, was_stopped


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its status."""
    with stopping(), seldom():
        try:
            status = _status_of(_read(arguments))
        except KeyboardInterrupt:
            status = _failed(StoppedError(stop_word()), stop_status())
        if arguments is None:
            end_with(status)
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
        return _run(words)
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
        # Python 3.11 changes an interrupt that comes while it makes a class.
        if was_stopped() or isinstance(error.__cause__, KeyboardInterrupt):
            return _failed(StoppedError(stop_word()), stop_status())
        failure = IntarsiaError(
            f"{type(error).__name__}: {error}", hint="INTARSIA_DEBUG=1 shows where"
        )
        return _failed(failure, 2, error)


def _run(words: list[str]) -> int:
    """Run the command that is called, by Typer unless its words are plain: its exit status."""
    from intarsia.cli.call import NAMES, call_arguments, carried_out, command

    called = [name for name in words[:1] if name in NAMES]
    for name in called:
        if (found := call_arguments(command(name), words[1:])) is not None:
            return carried_out(command(name), found)
    from intarsia.cli import typer_app

    return typer_app.status_of(words, called or NAMES)


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
        print_error(error)
    complain(f"intarsia: {_short(str(error))}")
    return status
