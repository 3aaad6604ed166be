"""A shell completes commands, options and the words that an option may have; files where there are none."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.checkpoints import environment, python

COMPLETED = {
    "intarsia ver": {"verify"},
    "intarsia convert --over": {"--overwrite"},
    "intarsia convert a b --to ": {"hf", "dcp", "torch_dist", "fsdp_dtensor"},
    "intarsia plan a --optimizer d": {"drop"},
    "intarsia inspect ": {"FILES"},
    "intarsia inspect F": {"FILES"},
}

ASKING = {
    "bash": """
        COMP_WORDS=({words}) COMP_CWORD=$(({count} - 1))
        _intarsia_completion intarsia
        printf '%s\\n' "${{COMPREPLY[@]:-FILES}}"  # -o default: the shell's own
        complete -p intarsia | grep -q -- '-o default'
    """,
    "zsh": """
        words=({words}) CURRENT={count}
        _arguments() {{ print -r -- $1 }}  # '*: :(("word":"its meaning" "another" ...))'
        _files() {{ print FILES }}
        _intarsia_completion
    """,
    "fish": "complete -C {line}",
}
"""How each shell is asked in a script: fish as it is, of the others what they call for a TAB."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `FILES`, and a command `intarsia` that is `python -m intarsia`."""
    command = tmp_path / "bin" / "intarsia"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m intarsia "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "FILES").touch()
    return tmp_path / "here"


@cache
def script_for(shell: str) -> str:
    return python("-m", "intarsia", check=True, _INTARSIA_COMPLETE=f"source_{shell}").stdout


@pytest.mark.parametrize("shell", ASKING)
@pytest.mark.parametrize("line", COMPLETED)
def test_a_line_is_completed(shell: str, line: str, folder: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} is installed")
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    asked = ASKING[shell].format(words=quoted, count=len(words), line=shlex.quote(line))
    before = "compdef() {}\n" if shell == "zsh" else ""
    done = subprocess.run(
        [shell, "-c", f"{before}{script_for(shell)}\n{asked}"],
        cwd=folder, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    words = re.findall(r'(?:\(| )"([^"]+)"', done.stdout) if "((" in done.stdout else []
    found = set(words) or {said.split("\t")[0] for said in done.stdout.split("\n") if said.strip()}
    assert found == COMPLETED[line], done.stderr


@pytest.mark.parametrize(("line", "status"), [("intarsia ver", 0), ("intarsia inspect ", 1)])
def test_fish_is_told_by_the_status_whether_to_complete_files(line: str, status: int) -> None:
    asked = {"_INTARSIA_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    done = python("-m", "intarsia", **asked, _TYPER_COMPLETE_ARGS=line)
    assert done.returncode == status


@pytest.mark.parametrize("called", ["intarsia", "/some/bin/intarsia", "-m"])
def test_the_script_for_a_shell_is_that_of_the_command(called: str) -> None:
    assert "_INTARSIA_COMPLETE" not in environment()
    # Otherwise Typer takes the shell that it runs in, whichever that is.
    detected = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code = f"import sys; sys.argv[0] = {called!r}; from intarsia.cli.main import main; main(['--show-completion', 'bash'])"
    said = python("-c", code, **detected).stdout
    assert "_INTARSIA_COMPLETE=complete_bash" in said
    assert said.rstrip().endswith("complete -o default -F _intarsia_completion intarsia")
