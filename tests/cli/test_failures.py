"""A failure is one clear message, a status, and no traceback unless one is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.checkpoints import intarsia, llama_config, model, python, write_hf

CONFIG = llama_config()


@pytest.fixture(scope="module")
def src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("cli") / "hf", model(CONFIG), CONFIG)


def usage(src: Path, out: Path) -> list[list[object]]:
    return [
        ["inspect", src.parent / "absent"],
        ["inspect", src / "config.json"],
        ["inspect"],
        ["nonsense"],
        ["--nonsense"],
        ["inspect", src, "--nonsense"],
        ["plan", src],
        ["plan", src, "--to", "gguf"],
        ["plan", src, "--to", "dcp", "--mesh", "tp=x"],
        ["plan", src, "--to", "dcp", "--mesh", "dp=2"],
        ["plan", src, "--to", "dcp", "--dialect", "klingon"],
        ["plan", src, "--to", "dcp", "--memory", "lots"],
        ["plan", src, "--to", "dcp", "--workers", "0"],
        ["plan", src, "--to", "dcp", "--workers", "many"],
        ["plan", src, "--to", "dcp", "--config", src / "absent.json"],
        ["convert", src, out],
        ["convert", src, src, "--to", "dcp"],
        ["convert", src, out, "--to", "hf", "--max-shard-size", "0"],
        ["convert", src, out, "--to", "hf", "--optimizer", "maybe"],
        ["verify", src, src.parent / "absent"],
        ["diff", src, src.parent / "absent"],
        ["explain", src, "no.such.tensor"],
    ]


@pytest.mark.parametrize("k", range(22))
def test_wrong_usage_and_unreadable_input_give_status_two(
    src: Path, tmp_path: Path, k: int
) -> None:
    words = usage(src, tmp_path / "out")[k]
    answer = intarsia(*words)
    assert answer.status == 2, words
    assert answer.out == ""
    assert answer.err.strip()
    assert "Traceback" not in answer.err
    assert "INTARSIA_DEBUG" not in answer.err, "this error was not foreseen"
    assert list(tmp_path.iterdir()) == []


def test_an_unprovable_plan_gives_status_one(tmp_path: Path) -> None:
    tensors = model(CONFIG)
    del tensors["model.norm.weight"]
    src = write_hf(tmp_path / "hf", tensors, CONFIG)
    answer = intarsia("plan", src, "--to", "dcp")
    assert answer.status == 1
    assert "NOT PROVEN" in answer.out
    assert intarsia("plan", src, "--to", "dcp", "--json").json["proven"] is False
    dry = intarsia("convert", src, tmp_path / "out", "--to", "dcp", "--dry-run")
    assert dry.status == 1
    done = intarsia("convert", src, tmp_path / "out", "--to", "dcp")
    assert done.status == 1
    assert done.err.startswith("intarsia: not proven: 20 of 20 elements of `model.norm.weight`")
    assert "hint:" in done.err


@pytest.mark.parametrize("k", range(22))
def test_wrong_usage_is_one_json_document_too(src: Path, tmp_path: Path, k: int) -> None:
    words = usage(src, tmp_path / "out")[k]
    answer = intarsia("--json", *words)
    assert answer.status == 2
    assert answer.json.keys() == {"error", "message", "hint"}
    assert answer.json["error"] in ("UsageError", "FormatError")
    if answer.err.startswith("Usage:"):
        assert answer.json["hint"].endswith("--help shows its usage")
    assert answer.err == intarsia(*words).err


def test_no_command_at_all_shows_the_help_and_is_json_too() -> None:
    answer = intarsia("--json")
    assert answer.status == 2
    assert "Usage:" in answer.err
    assert answer.json["error"] == "UsageError"


def test_a_connection_that_breaks_is_no_reader_who_has_seen_enough(
    src, tmp_path, monkeypatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("intarsia.conversion.running._move", broken)
    answer = intarsia("convert", src, tmp_path / "out", "--to", "dcp")
    assert answer.status == 2
    assert "a connection broke" in answer.err


def test_an_error_goes_to_json_too(tmp_path: Path) -> None:
    answer = intarsia("inspect", tmp_path / "absent", "--json")
    assert answer.status == 2
    assert answer.json["error"] == "FormatError"
    assert "does not exist" in answer.json["message"]
    assert "does not exist" in answer.err


def test_paths_that_lead_nowhere_and_places_that_are_taken_are_told_as_such(
    src: Path, tmp_path: Path
) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "is a link that leads to nothing" in intarsia("inspect", tmp_path / "a").err
    (tmp_path / "file").write_text("x")
    for words in (
        ("convert", src, tmp_path / "file" / "out", "--to", "dcp"),
        ("demo", "--folder", tmp_path / "file" / "out"),
        ("demo", "--folder", tmp_path),
    ):
        answer = intarsia(*words)
        assert answer.status == 2
        assert "is there already, or a part of the path is no folder" in answer.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "file"]


def test_the_name_of_a_model_on_the_hub_is_no_path_and_is_told_how_it_becomes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    step = "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"
    assert step in intarsia("inspect", "Qwen/Qwen3-0.6B").err
    for path in ("runs/Qwen3-0.6B", "absent", tmp_path / "Qwen/Qwen3-0.6B", "../a/b"):
        assert "hint" not in intarsia("inspect", path).err


def test_what_to_do_next_stands_apart_in_json(tmp_path: Path) -> None:
    document = intarsia("inspect", tmp_path, "--json").json
    assert document["hint"]
    assert document["hint"] not in document["message"]


def test_a_traceback_is_shown_where_it_is_asked_for(tmp_path: Path, monkeypatch) -> None:
    plain = intarsia("inspect", tmp_path / "absent")
    assert plain.err == f"intarsia: {tmp_path / 'absent'} does not exist\n"
    monkeypatch.setenv("INTARSIA_DEBUG", "1")
    loud = intarsia("inspect", tmp_path / "absent")
    assert loud.status == 2
    assert "Traceback (most recent call last)" in loud.err
    assert loud.err.endswith(plain.err)


def test_a_bug_of_ours_is_one_message_too(src: Path, monkeypatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("intarsia.opened.inspection.read_manifest", broken)
    answer = intarsia("inspect", src)
    assert answer.status == 2
    assert answer.err == (
        "intarsia: ZeroDivisionError: division by zero\n  hint: INTARSIA_DEBUG=1 shows where\n"
    )
    monkeypatch.setenv("INTARSIA_DEBUG", "1")
    assert "in broken" in intarsia("inspect", src).err


def test_an_interrupt_has_its_own_status(src: Path, tmp_path: Path, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("intarsia.conversion.running._move", interrupted)
    answer = intarsia("convert", src, tmp_path / "out", "--to", "dcp")
    assert answer.status == 130
    assert "nothing was committed" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_a_class_is_made_is_no_other_error(src: Path, monkeypatch) -> None:
    class Field:
        def __set_name__(self, *_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(
        "intarsia.opened.inspection.read_manifest",
        lambda *_, **__: type("Made", (), {"x": Field()}),
    )
    answer = intarsia("inspect", src)
    assert (answer.status, answer.err) == (130, "intarsia: interrupted\n")


def test_the_command_gives_its_status_to_the_shell(src: Path, tmp_path: Path) -> None:
    changed = model(CONFIG)
    changed["model.norm.weight"] = torch.zeros(20, dtype=torch.bfloat16)
    other = write_hf(tmp_path / "changed", changed, CONFIG)
    assert python("-m", "intarsia", "verify", src, src).returncode == 0
    assert python("-m", "intarsia", "verify", src, other).returncode == 1
    broken = python("-m", "intarsia", "verify", src, tmp_path / "absent")
    assert broken.returncode == 2
    assert broken.stdout == ""
    assert broken.stderr == f"intarsia: {tmp_path / 'absent'} does not exist\n"


def test_a_folder_that_may_not_be_written_is_named(src: Path, tmp_path: Path) -> None:
    """A file in the place of the parent folder stands for missing rights, which root has."""
    (tmp_path / "file").write_text("in the way")
    answer = intarsia("convert", src, tmp_path / "file" / "out", "--to", "dcp")
    assert answer.status == 2
    assert str(tmp_path / "file") in answer.err
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        answer = intarsia("convert", src, locked / "out", "--to", "dcp")
        assert answer.status == 2
        assert "choose a destination that you may write to" in answer.err
