"""What is said, and the exit status, follow what happened to the data, whoever listens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import intarsia
from intarsia.conversion import resuming
from tests.checkpoints import environment, llama_config, model, python, write_hf
from tests.checkpoints import intarsia as cli

CONFIG = llama_config()


@pytest.fixture(scope="module")
def src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("streams") / "hf", model(CONFIG), CONFIG)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("streams") / "hf", model(CONFIG, seed=3), CONFIG)


def shell(line: str, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; intarsia() {{ {sys.executable} -m intarsia \"$@\"; }}; {line}", "x",
         *map(str, words)],
        capture_output=True, text=True, env=environment(), timeout=60, cwd=cwd,
    )  # fmt: skip


@pytest.mark.parametrize(
    "end", [">&-", "> /dev/full", "--json > /dev/full", "2>&-", "2> /dev/full", "<&- >&- 2>&-"]
)
@pytest.mark.one_in(3)
def test_a_conversion_whose_answer_nobody_can_read_is_done(
    src: Path, tmp_path: Path, end: str
) -> None:
    done = shell(f'intarsia convert "$1" "$2" --to dcp {end}', src, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if end.endswith("full") and not end.startswith("2"):
        assert "not all of the answer was printed: No space left" in done.stderr
    if end == ">&-":
        assert "stdout is closed" in done.stderr
    assert intarsia.verify(src, tmp_path / "out")


@pytest.mark.parametrize("end", ["| head -c 1 >&2", "> /dev/full", ">&-"])
@pytest.mark.one_in(4)
def test_a_difference_stays_a_difference_and_what_is_done_done(src, other, end: str) -> None:
    assert shell(f'intarsia verify "$1" {end}', src).returncode == 0
    assert shell(f'intarsia verify "$1" "$2" --json {end}', src, other).returncode == 1


def test_characters_that_a_terminal_lacks_are_spelled_out(src: Path, tmp_path: Path) -> None:
    (tmp_path / "modèle").symlink_to(src)
    line = 'PYTHONIOENCODING=ascii intarsia explain "$1" lm_head.weight'
    done = shell(line, tmp_path / "modèle")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2502 [0:" in done.stdout
    done = shell('PYTHONIOENCODING=ascii intarsia inspect "$1"', tmp_path / "modèle")
    assert "mod\\xe8le" in done.stdout
    done = shell('PYTHONIOENCODING=ascii intarsia verify "$1"', tmp_path / "où")
    assert (done.returncode, "o\\xf9 does not exist" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("end", "why"),
    [("> /dev/full", "No space left on device"), (">&-", "stdout is closed"),
     ("--json > /dev/full", "No space left on device"), ("--json >&-", "stdout is closed")],
)  # fmt: skip
@pytest.mark.parametrize(
    "words",
    ["--version", "--help", "digest --help", 'digest "$1"', 'inspect "$1"', 'plan "$1" --to dcp',
     'convert "$1" o --to dcp --dry-run', 'explain "$1" lm_head.weight', 'diff "$1" "$1"',
     'digest "$1" --workers=+1', "demo"],
)  # fmt: skip
@pytest.mark.one_in(15)
def test_an_answer_that_is_all_of_a_command_and_cannot_be_printed_is_a_failure(
    src: Path, words: str, end: str, why: str
) -> None:
    done = shell(f"intarsia {words} {end}", src)
    assert done.returncode == 2
    assert done.stderr == f"intarsia: not all of the answer was printed: {why}\n"


def test_checkpoints_that_a_demonstration_keeps_are_more_than_its_answer(tmp_path: Path) -> None:
    assert shell('intarsia demo --folder "$1" > /dev/full', tmp_path / "kept").returncode == 0


@pytest.mark.parametrize(
    "words",
    ["--help", "convert --help", "--version", 'digest "$1"', 'inspect "$1" --tensors --json'],
)
@pytest.mark.one_in(3)
def test_a_reader_who_has_seen_enough_is_no_fault(src: Path, words: str) -> None:
    done = shell(f"(sleep 0.3; intarsia {words}) | true", src)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_failure_is_one_though_stderr_is_full(src: Path) -> None:
    assert shell('intarsia inspect "$1/absent" 2> /dev/full', src).returncode == 2


def test_a_configuration_from_a_pipe_is_refused_and_not_awaited(src: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for config in (f"--config {tmp_path / 'pipe'}", '--config <(cat "$1/config.json")'):
        done = shell(f'timeout 20 bash -c "exit 0"; intarsia plan "$1" --to dcp {config}', src)
        assert done.returncode == 2
        assert "is not a regular file" in done.stderr


def test_a_working_folder_that_is_gone_is_said(src: Path, tmp_path: Path) -> None:
    line = 'mkdir gone; cd gone; rmdir ../gone; intarsia convert "$1" out --to dcp'
    done = shell(line, src, cwd=tmp_path)
    assert done.returncode == 2
    assert "the working folder no longer exists, so out cannot be resolved" in done.stderr
    assert "hint: " in done.stderr
    line = 'mkdir gone; cd gone; rmdir ../gone; intarsia convert "$1" "$2" --to dcp'
    assert shell(line, src, tmp_path / "out", cwd=tmp_path).returncode == 0


def test_a_tilde_is_the_home_folder(
    src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(src)
    assert cli("convert", src, "~/out", "--to", "dcp").status == 0
    assert (tmp_path / "out" / ".metadata").exists()
    assert cli("verify", src, "~/out").status == 0
    assert (
        cli("verify", "~/out", "--config", "~/out/config.json", "--html", "~/page.html").status == 0
    )
    assert (tmp_path / "page.html").exists()
    assert intarsia.open("~/out").format == "dcp"
    assert cli("plan", "~/out", "--to", "hf", "--config", "~/out/config.json").status == 0
    assert not (src / "~").exists()


@pytest.mark.parametrize("to", ["hf", "dcp", "torch_dist"])
def test_the_working_folder_by_its_dots_is_the_same_checkpoint(
    src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    intarsia.convert(src, tmp_path / "run" / "out", to=to)
    folder = next((tmp_path / "run" / "out").glob("iter_*"), tmp_path / "run" / "out")
    (folder / "below").mkdir()
    monkeypatch.chdir(folder)
    for words in (("inspect",), ("verify",), ("plan", "--to", "hf")):
        wanted, found = (cli(*words, path, "--json").json for path in (folder, "."))
        assert found == wanted, words
    monkeypatch.chdir("below")
    assert cli("inspect", "..", "--json").json == cli("inspect", folder, "--json").json


def test_an_interrupt_of_a_command_that_commits_nothing_says_no_more(src, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("intarsia.api.verify", interrupted)
    answer = cli("verify", src)
    assert answer.status == 130
    assert answer.err == "intarsia: interrupted\n"


def test_too_little_memory_is_said(src: Path, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("intarsia.api.verify", full)
    answer = cli("verify", src)
    assert answer.status == 2
    assert answer.err.startswith("intarsia: not enough memory\n  hint: ")


@pytest.fixture(autouse=True)
def signals_of_a_fresh_process() -> Iterator[None]:
    """A save in the background that another test began leaves a handler of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGTERM, "terminated"), (signal.SIGHUP, "hung up")]
)
def test_a_signal_that_ends_a_command_is_said_and_is_its_status(
    src: Path, tmp_path: Path, monkeypatch, number: signal.Signals, word: str
) -> None:
    def stopped(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(10)

    out = tmp_path / "out"
    monkeypatch.setattr("intarsia.api.verify", stopped)
    # A shell that runs the tests in the background has them ignore an interrupt.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert cli("verify", src) == (128 + number, "", f"intarsia: {word}\n")
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.setattr("intarsia.conversion.running._attest", stopped)
    answer = cli("convert", src, out, "--to", "dcp")
    assert answer.status == 128 + number
    assert answer.err.startswith(f"intarsia: {word}; nothing was committed\n  hint: ")
    assert "run again with --resume" in answer.err
    assert not out.exists()
    monkeypatch.undo()
    assert "resumed" in cli("convert", src, out, "--to", "dcp", "--resume").out
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_before_the_first_byte_says_that_nothing_was_committed(
    src: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "intarsia.conversion.running", _Stopping("stopping"))
    answer = cli("convert", src, tmp_path / "out", "--to", "dcp")
    assert answer == (143, "", "intarsia: terminated; nothing was committed\n")


class _Stopping(types.ModuleType):
    """A module in whose import a signal comes."""

    def __getattr__(self, name: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")]
)
def test_a_signal_that_turns_into_another_error_is_a_signal_all_the_same(
    src: Path, monkeypatch, number: signal.Signals, word: str
) -> None:
    """NumPy says of an import that is interrupted that it is installed badly."""

    def stopped(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        except KeyboardInterrupt:
            pass
        raise ImportError("this is unlikely to be an issue of NumPy's")

    monkeypatch.setattr("intarsia.api.verify", stopped)
    # A shell that runs the tests in the background has them ignore an interrupt.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert cli("verify", src) == (128 + number, "", f"intarsia: {word}\n")
    finally:
        signal.signal(signal.SIGINT, before)


def test_two_signals_at_one_moment_end_a_command_once(src: Path, monkeypatch) -> None:
    both = {signal.SIGTERM, signal.SIGHUP}

    def stopped(*_: object, **__: object) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, both)
        try:  # where there are other threads, one of them takes the first at once
            for number in both:
                os.kill(os.getpid(), number)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
        time.sleep(10)

    unraisable: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    monkeypatch.setattr("intarsia.api.verify", stopped)
    assert cli("verify", src).status in (129, 143)
    assert unraisable == []
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_signal_that_comes_when_all_is_done_does_not_hide_that(
    src: Path, tmp_path: Path, monkeypatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    out = tmp_path / "out"
    monkeypatch.setattr("intarsia.cli.convert.answer", stopped)
    answer = cli("convert", src, out, "--to", "dcp")
    assert answer == (143, "", f"intarsia: terminated; {out} is complete and in its place\n")


def test_a_second_interrupt_while_all_is_put_in_order_names_what_is_left(
    src: Path, tmp_path: Path, monkeypatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("intarsia.conversion.running._attest", stopped)
    monkeypatch.setattr("intarsia.conversion.running.keep_what_is_proven", stopped)
    answer = cli("convert", src, tmp_path / "out", "--to", "dcp")
    assert answer.status == 130
    left = tmp_path / ".out.intarsia-partial"
    assert f"nothing was committed\n  hint: {left} is left: run again with --resume" in answer.err
    monkeypatch.undo()
    assert "resumed" in cli("convert", src, tmp_path / "out", "--to", "dcp", "--resume").out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "late",
    [
        "threading._register_atexit(send)",
        "atexit.register(send)",
        "import sys; sys.last_value = Last()",
    ],
)
@pytest.mark.one_in(3)
def test_a_signal_when_all_is_said_leaves_the_status_of_the_work(
    src: Path, number: signal.Signals, late: str
) -> None:
    code = (
        "import atexit, os, threading\n"
        f"def send(*_, kill=os.kill, me=os.getpid()): kill(me, {number:d})\n"
        "class Last: __del__ = send\n"
        f"{late}\n"
        "from intarsia.cli.main import main\n"
        "main()"
    )
    done = python("-c", code, "verify", src)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_a_second_signal_waits_until_all_is_in_order(
    src: Path, tmp_path: Path, monkeypatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    honest = resuming.keep_what_is_proven

    def again(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        honest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("intarsia.conversion.running._attest", stopped)
    monkeypatch.setattr("intarsia.conversion.running.keep_what_is_proven", again)
    answer = cli("convert", src, tmp_path / "out", "--to", "dcp")
    assert answer.status == 143
    assert "run again with --resume" in answer.err
