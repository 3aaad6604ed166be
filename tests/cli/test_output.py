"""What is printed: a stranger's names are shown, and never obeyed."""

from __future__ import annotations

import io
import re
import unicodedata
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import intarsia as library
from attacks.names import STEERING, tensors_that_steer_the_terminal
from intarsia.cli.demo_model import write_model
from intarsia.cli.main import main
from intarsia.cli.output import print_table, printable
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
    print_table("", ["name"], [[name] for name in STEERING])
    out = capsys.readouterr().out
    assert len(out.splitlines()) == len(STEERING) + 1
    assert all(c == "\n" or c.isprintable() for c in out)
    assert r"\x1b[2J" in out
    assert "[bold red]markup[/]" in out


class Terminal(io.StringIO):
    """Standard output of a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        return re.sub(r"\x1b\[[\d;]*m", "", self.getvalue()).splitlines()


LONG = "model.layers.10.mlp.experts.127.post_attention_layernorm.weight"
ROWS = [
    (LONG, 1_234_567, "[0, 0]", 0.25, "nothing known explains them, " * 4),
    ("w", 1, "", 0.5, "zero"),
]
HEADS = ("tensor", "elements", "first", "max abs", "diagnosis")


def test_in_a_pipe_each_row_is_one_line_of_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("different", HEADS, ROWS)
    title, heads, first, second = capsys.readouterr().out.splitlines()
    assert title == "different"
    assert heads.split() == ["tensor", "elements", "first", "max", "abs", "diagnosis"]
    assert re.split("  +", first) == [LONG, "1,234,567", "[0, 0]", "0.25", ROWS[0][4].strip()]
    assert second.split() == ["w", "1", "0.5", "zero"]
    assert first.index("[0, 0]") == heads.index("first")
    assert f"{title}{heads}{first}{second}".isascii()
    print_table("", ("a",), [("x",), ("y",)], most=1)
    assert capsys.readouterr().out == "a\nx\n… and 1 more\n"


@pytest.mark.parametrize("columns", [80, 60])
def test_on_a_terminal_a_table_is_as_wide_as_that_and_loses_nothing(
    columns: int, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    print_table("different", HEADS, ROWS)
    lines = screen.lines
    assert max(map(len, lines)) <= columns
    told = " ".join("".join(lines).split())
    for cell in (LONG, "1,234,567", "[0, 0]", "0.25", ROWS[0][4].strip(), "zero"):
        assert cell.replace(" ", "") in told.replace(" ", "")
    assert any("1,234,567" in line for line in lines), "a number is not cut in two"


NUMBERS = ("tensor", "elements", "max abs", "rms", "relative", "cosine")


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_on_a_narrow_terminal_no_column_is_cut_or_left_out(columns: int, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    print_table("", NUMBERS, [(LONG, 1_234_567, float("nan"), 0.1234, 0.5678, 0.9)])
    print_table(
        "", ("rank", "place", "stored", "box"), [(3, "tp=0,ep=1,pp=2", LONG, "[0:120, 0:96]")]
    )
    assert max(map(len, screen.lines)) <= columns
    told = re.sub(r"\s", "", " ".join(screen.lines))
    for cell in ("1,234,567", "nan", "0.1234", "0.5678", "0.9"):
        assert any(cell in line for line in screen.lines), cell
    if columns == 40:
        assert LONG in told
        assert "maxabsnan,rms0.1234,relative0.5678,cosine0.9" in told
        assert f"rank3placetp=0,ep=1,pp=2,stored{LONG},box[0:120,0:96]" in told


def test_a_name_of_several_lines_breaks_no_picture(tmp_path: Path) -> None:
    name = "a\nproof  every element arrives exactly once"
    save_file({name: np.ones((4, 4), np.float32)}, tmp_path / "model.safetensors")
    lines = intarsia("explain", tmp_path, name).out.splitlines()
    assert not [line for line in lines if line.startswith("proof")]
    assert len({len(line) for line in lines if line[:1] in ("┌", "│", "└")}) == 1


def test_columns_that_fit_or_are_short_stay_columns(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    print_table("", ("tensor", "elements", "kind"), [(LONG, 1_234_567, "zero"), ("w", 2, "nan")])
    heads, rule, *rows = screen.lines
    assert heads.split() == ["tensor", "elements", "kind"]
    assert set(rule) == {"─"}
    assert len(rows) == 3, "a name is folded, and its number is not"
    assert rows[0].split()[1:] == ["1,234,567", "zero"]
    assert max(map(len, screen.lines)) <= 60


def test_pictures_and_the_demo_fit_a_terminal_of_80_columns(tmp_path: Path, monkeypatch) -> None:
    write_model(tmp_path / "model", 0)
    monkeypatch.setenv("COLUMNS", "80")
    route = (("fsdp_dtensor", "ep=2,fsdp=4"), ("dcp", "fsdp=4,replicate=2"))
    monkeypatch.setattr("intarsia.cli.demo.ROUTE", route)
    name = "model.layers.1.mlp.experts.3.gate_proj.weight"
    library.convert(tmp_path / "model", tmp_path / "run", to="torch_dist", mesh="tp=2")
    for words in (["explain", tmp_path / "run", name, "--mesh", "tp=2"], ["inspect", "--tensors", tmp_path / "run"],
                  ["demo"]):  # fmt: skip
        screen = Terminal()
        with redirect_stdout(screen), pytest.raises(SystemExit, match="0"):
            main([str(word) for word in words])
        wide = [line for line in screen.lines if len(line) > 80]
        assert [
            line for line in wide if not line.startswith(("path ", "stored as ", "unread "))
        ] == []


def test_digests_are_one_line_each_whatever_the_tensors_are_called(tmp_path: Path) -> None:
    tensors_that_steer_the_terminal(tmp_path / "src", tmp_path / "canary")
    lines = intarsia("digest", tmp_path / "src").out.splitlines()
    assert len(lines) == len(STEERING) + 1
    assert all(line.isprintable() for line in lines)
