"""Plain words call a command as Typer would call it."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.cli.call import NAMES, call_arguments, command, parameters
from intarsia.cli.typer_app import app

APPS = {name: app([name]) for name in NAMES}
VALUES = ("a", "b c", "", "0", "12", "٣", "1_0", " 7", "-1", "-", "--", "tp=2,fsdp=3", "x=", "--help", "-h", "é", "²", "0x1", "1" * 5000)  # fmt: skip


def by_typer(name: str, words: list[str]) -> dict[str, Any] | None:
    """What Typer calls a command with; None where it does not call it."""
    called: list[dict[str, Any]] = []
    with patch("intarsia.cli.typer_app.carried_out", lambda run, found: called.append(found)):
        try:
            APPS[name]([name, *words], standalone_mode=False)
        except (Exception, SystemExit):
            return None
    return called[0] if called else None


def words_of(name: str) -> st.SearchStrategy[list[str]]:
    """Calls of a command, most of them with as many words as it takes."""
    said = [p.annotation.__metadata__[0] for p in parameters(command(name))]
    flags = [flag for each in said if hasattr(each, "flag") for flag in each.flag.split("/")]
    value = st.sampled_from(VALUES)
    flag = st.sampled_from([*flags, "--no", "--unknown"])
    pair = st.tuples(flag, value)
    one = st.one_of(
        value.map(lambda v: [v]), flag.map(lambda f: [f]), pair.map(list), pair.map(lambda p: ["=".join(p)])
    )  # fmt: skip
    places = st.just([["a"] for each in said if not hasattr(each, "flag")])
    every = st.tuples(places, st.lists(one, max_size=5)).map(lambda x: [*x[0], *x[1]])
    mixed = every.flatmap(st.permutations)
    return mixed.map(lambda groups: [word for group in groups for word in group])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(4)
def test_every_call_that_is_understood_is_typers(name: str) -> None:
    understood = 0

    @settings(max_examples=150, deadline=None)
    @given(words_of(name))
    def compare(words: list[str]) -> None:
        nonlocal understood
        found = call_arguments(command(name), words)
        understood += found is not None
        assert found is None or found == by_typer(name, words)

    compare()
    assert understood > 5


def test_ordinary_calls_are_understood() -> None:
    asked = call_arguments(command("convert"), ["a", "b", "--to", "dcp", "--mesh=tp=2,fsdp=3", "--workers", "2", "--no-digests"])  # fmt: skip
    assert asked is not None
    assert (asked["src"], asked["dst"], asked["to"], asked["mesh"]) == ("a", "b", "dcp", "tp=2,fsdp=3")  # fmt: skip
    assert (asked["workers"], asked["digests"], asked["resume"]) == (2, False, False)


@pytest.mark.parametrize(
    "words", [["--help"], ["a", "--workers", "x"], ["a", "b", "c"], [], ["a", "--workers"], ["--", "a"]], ids=str
)  # fmt: skip
def test_help_and_mistakes_are_left_to_typer(words: list[str]) -> None:
    assert call_arguments(command("verify"), words) is None
