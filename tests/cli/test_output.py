"""What is printed: a stranger's names are shown, and never obeyed."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from attacks.names import STEERING, tensors_that_steer_the_terminal
from intarsia.cli.output import printable, table
from tests.checkpoints import intarsia


@pytest.mark.parametrize(
    "text", ["", "model.norm.weight", "a b", "two\nlines", "grün", "重み", "½ … −1 → 2"]
)
def test_what_only_shows_itself_is_left_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        ("a\rb\tc", r"a\rb\tc"),
        ("\x7f\x00", r"\x7f\x00"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u061c\u2028", r"\u061c\u2028"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("ü\x1b", r"ü\x1b"),
    ],
)
def test_what_steers_a_terminal_is_spelled_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_of_all_characters_only_those_that_show_are_printed() -> None:
    everything = printable("".join(map(chr, range(0x110000))))
    kinds = {unicodedata.category(c) for c in everything if c not in "\n "}
    assert not kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
    everything.encode()


def test_a_table_shows_hostile_names_in_one_row_each(capsys: pytest.CaptureFixture[str]) -> None:
    table("", ["name"], [[name] for name in STEERING])
    out = capsys.readouterr().out
    assert len(out.splitlines()) == len(STEERING) + 4
    assert all(c == "\n" or c.isprintable() for c in out)
    assert r"\x1b[2J" in out
    assert "[bold red]markup[/]" in out


def test_digests_are_one_line_each_whatever_the_tensors_are_called(tmp_path: Path) -> None:
    tensors_that_steer_the_terminal(tmp_path / "src", tmp_path / "canary")
    lines = intarsia("digest", tmp_path / "src").out.splitlines()
    assert len(lines) == len(STEERING) + 1
    assert all(line.isprintable() for line in lines)
