"""A shell completes commands, options and the words that an option may have."""

from __future__ import annotations

import pytest

from tests.checkpoints import environment, python

COMPLETED = {
    "intarsia ver": {"verify"},
    "intarsia convert --over": {"--overwrite"},
    "intarsia convert a b --to ": {"hf", "dcp", "torch_dist", "fsdp_dtensor"},
    "intarsia plan a --optimizer d": {"drop"},
}


@pytest.mark.parametrize("line", COMPLETED)
def test_a_line_is_completed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = line.split(" ")
    monkeypatch.setenv("_INTARSIA_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    code = "import sys; sys.argv[0] = 'intarsia'; from intarsia.cli.main import main; main([])"
    done = python("-c", code)
    assert set(done.stdout.split()) == COMPLETED[line], done.stderr


def test_the_script_for_a_shell_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "_INTARSIA_COMPLETE" not in environment()
    # Otherwise Typer takes the shell that it runs in, whichever that is.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    code = "import sys; sys.argv[0] = 'intarsia'; from intarsia.cli.main import main; main(['--show-completion', 'bash'])"
    assert "_INTARSIA_COMPLETE=complete_bash" in python("-c", code).stdout
