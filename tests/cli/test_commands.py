"""Every command: its text, its JSON, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import intarsia as library
from intarsia.cli.call import NAMES, command
from tests.checkpoints import (
    assert_same,
    intarsia,
    llama_config,
    model,
    read_dcp,
    shapes,
    write_dcp,
    write_hf,
)

CONFIG = llama_config()
GATE = "model.layers.1.mlp.gate_proj.weight"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, the same on a mesh, and one with a changed element."""
    root = tmp_path_factory.mktemp("cli")
    write_hf(root / "hf", model(CONFIG), CONFIG, files=2)
    library.convert(root / "hf", root / "dcp", to="dcp", mesh="tp=2,fsdp=3")
    changed = model(CONFIG)
    changed[GATE][4, 5] += 1
    write_hf(root / "changed", changed, CONFIG)
    return root


def test_help_names_every_command_and_each_has_its_own() -> None:
    answer = intarsia("--help")
    assert answer.status == 0
    for name in NAMES:
        assert name in answer.out
        own = intarsia(name, "--help")
        assert own.status == 0
        assert "Usage:" in own.out
        assert len(own.out.splitlines()) > 5
    assert intarsia("convert", "-h").out == intarsia("convert", "--help").out
    assert intarsia().status == 2
    assert "Usage:" in intarsia().out + intarsia().err


def test_the_list_of_commands_has_one_whole_line_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = intarsia("--help").out.splitlines()
    assert max(map(len, lines)) <= 80
    for name in NAMES:
        said = (command(name).__doc__ or "").splitlines()[0]
        assert f"  {name:<7}  {said}" in lines


def test_help_of_convert_explains_each_of_its_options() -> None:
    text = intarsia("convert", "--help").out
    for option in ("to", "mesh", "dtype", "memory", "workers", "max-shard-size", "optimizer",
                   "config", "overwrite", "dry-run", "dialect"):  # fmt: skip
        assert f"--{option}" in text


def test_the_version_is_the_packages() -> None:
    answer = intarsia("--version")
    assert answer.status == 0
    assert answer.out == f"intarsia {library.__version__}\n"
    assert json.loads(intarsia("--version", "--json").out) == {"version": library.__version__}


def test_inspect_says_what_a_checkpoint_is(root: Path) -> None:
    answer = intarsia("inspect", root / "dcp")
    assert answer.status == 0
    assert "dcp" in answer.out
    assert "llama" in answer.out
    assert answer.err == ""
    document = intarsia("inspect", root / "dcp", "--json").json
    wanted = {
        "format",
        "family",
        "tensors",
        "parameters",
        "bytes",
        "dtypes",
        "complete",
        "problems",
    }
    assert wanted <= document.keys()
    count = sum(x.numel() for x in model(CONFIG).values())
    assert document["format"] == "dcp"
    assert document["family"] == "llama"
    assert document["tensors"] == len(shapes(CONFIG))
    assert document["parameters"] == count
    assert document["bytes"] == 2 * count
    assert document["dtypes"] == {"BF16": len(shapes(CONFIG))}
    assert document["complete"] is True
    assert document["problems"] == []


def test_inspect_lists_tensors(root: Path) -> None:
    assert GATE in intarsia("inspect", root / "hf", "--tensors").out
    listed = intarsia("inspect", root / "dcp", "--tensors", "--json").json["tensor_list"]
    (row,) = [r for r in listed if r["name"] == GATE]
    assert row["shape"] == [33, 20]
    assert row["dtype"] == "BF16"
    assert row["chunks"] == 6


def test_plan_prints_the_proof(root: Path) -> None:
    answer = intarsia("plan", root / "hf", "--to", "dcp", "--mesh", "tp=2,fsdp=3")
    assert answer.status == 0
    assert "every element arrives exactly once" in answer.out
    document = intarsia("plan", root / "hf", "--to", "dcp", "--mesh", "tp=2", "--json").json
    wanted = {"proven", "tensors", "copies", "read_bytes", "write_bytes", "peak_memory_bytes",
              "read_amplification", "problems"}  # fmt: skip
    assert wanted <= document.keys()
    assert document["proven"] is True
    assert document["peak_memory_bytes"] > 0


def test_convert_reports_what_it_did(root: Path, tmp_path: Path) -> None:
    answer = intarsia("convert", root / "hf", tmp_path / "a", "--to", "dcp")
    assert answer.status == 0
    assert f"done     {tmp_path / 'a'}" in answer.out
    document = intarsia("convert", root / "hf", tmp_path / "b", "--to", "dcp", "--json").json
    assert {"proven", "read_bytes", "write_bytes", "seconds", "peak_rss_bytes"} <= document.keys()
    assert_same(read_dcp(tmp_path / "b"), model(CONFIG))


def test_verify_says_equal_or_which_elements_differ(root: Path) -> None:
    answer = intarsia("verify", root / "hf", root / "dcp")
    assert answer.status == 0
    assert answer.out.startswith(f"equal: {len(shapes(CONFIG))} tensors")
    answer = intarsia("verify", root / "dcp", root / "changed")
    assert answer.status == 1
    assert GATE in answer.out
    assert "[4, 5]" in answer.out
    answer = intarsia("verify", root / "dcp", root / "changed", "--json")
    assert answer.status == 1
    assert answer.json["equal"] is False
    (difference,) = answer.json["different"]
    assert difference["tensor"] == GATE
    assert difference["first"] == [4, 5]
    assert {"elements", "max_abs", "diagnosis"} <= difference.keys()


def test_verify_tells_of_layers_alike_once_and_of_the_faults_last(
    root: Path, tmp_path: Path
) -> None:
    swapped = model(CONFIG)
    gates = [name for name in swapped if "gate_proj" in name]
    for gate in gates:
        up = gate.replace("gate", "up")
        swapped[gate], swapped[up] = swapped[up], swapped[gate]
    other = write_hf(tmp_path / "other", swapped, CONFIG)
    lines = intarsia("verify", root / "hf", other).out.splitlines()
    assert len(gates) > 1
    assert lines[0].startswith(f"different: {2 * len(gates)} of ")
    assert sum(line.startswith("model") for line in lines) == 2
    assert f"--json lists all {2 * len(gates)}" in lines
    assert lines[-3].startswith("gate-up-swapped: ")
    assert lines[-1].startswith("next: ")


def test_verify_names_tensors_of_one_side(root: Path, tmp_path: Path) -> None:
    other = write_hf(tmp_path / "other", {"extra": torch.ones(2)})
    answer = intarsia("verify", root / "hf", other)
    assert answer.status == 1
    assert "only in B: extra" in answer.out
    assert "only in A: … and " in answer.out


def test_diff_puts_what_moved_most_first(root: Path) -> None:
    answer = intarsia("diff", root / "hf", root / "changed")
    assert answer.status == 0
    assert answer.out.index(GATE) < answer.out.index("model.norm.weight")
    assert "more" in intarsia("diff", root / "hf", root / "changed", "--most", "2").out
    assert intarsia("diff", root / "hf", root / "changed", "--most", "-1").status == 2
    document = intarsia("diff", root / "hf", root / "changed", "--json").json
    assert document["tensors"][0]["tensor"] == GATE
    assert {"max_abs", "rms", "relative", "cosine"} <= document["tensors"][0].keys()
    assert [row["max_abs"] for row in document["tensors"][1:]] == [0] * (len(shapes(CONFIG)) - 1)


def test_explain_shows_files_bytes_and_ranks(root: Path) -> None:
    answer = intarsia("explain", root / "dcp", GATE, "--mesh", "tp=2")
    assert answer.status == 0
    assert "__0_0.distcp" in answer.out
    assert "tp=1" in answer.out
    document = intarsia("explain", root / "dcp", GATE, "--mesh", "tp=2", "--json").json
    assert sum(piece["elements"] for piece in document["pieces"]) == 33 * 20
    assert [row["box"] for row in document["ranks"]] == ["[0:17, 0:20]", "[17:33, 0:20]"]
    for piece in document["pieces"]:
        assert (root / "dcp" / piece["file"]).stat().st_size >= piece["end_bytes"]


def test_explain_suggests_a_name_that_is_near(root: Path) -> None:
    answer = intarsia("explain", root / "hf", "model.layers.1.mlp.gate.weight")
    assert answer.status == 2
    assert f"did you mean {GATE}" in answer.err


def test_demo_proves_and_verifies_each_step(tmp_path: Path) -> None:
    answer = intarsia("demo", "--folder", tmp_path / "demo", "--json")
    assert answer.status == 0, answer.err
    assert answer.json["equal"] is True
    assert len(answer.json["steps"]) >= 4
    assert all(step["proven"] and step["equal"] for step in answer.json["steps"])
    assert (tmp_path / "demo" / "model" / "config.json").exists()
    again = intarsia("demo", "--folder", tmp_path / "demo")
    assert again.status == 2


def every_command(root: Path, out: Path) -> list[list[object]]:
    return [
        ["inspect", root / "hf"],
        ["plan", root / "hf", "--to", "dcp"],
        ["convert", root / "hf", out, "--to", "dcp"],
        ["verify", root / "hf", root / "changed"],
        ["digest", root / "hf"],
        ["diff", root / "hf", root / "changed"],
        ["explain", root / "hf", GATE],
        ["demo"],
    ]


@pytest.mark.parametrize("k", range(len(NAMES)), ids=NAMES)
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.one_in(2)
def test_json_is_one_document_before_or_after_the_command(
    root: Path, tmp_path: Path, k: int, where: str
) -> None:
    words = every_command(root, tmp_path / "out")[k]
    answer = intarsia("--json", *words) if where == "before" else intarsia(*words, "--json")
    assert isinstance(json.loads(answer.out), dict)
    assert answer.err == ""


@pytest.mark.parametrize("k", range(len(NAMES)), ids=NAMES)
def test_quiet_prints_nothing_and_keeps_the_status(root: Path, tmp_path: Path, k: int) -> None:
    words = every_command(root, tmp_path / "out")[k]
    answer = intarsia(*words, "--quiet")
    assert answer.out == ""
    assert answer.err == ""
    assert answer.status == (1 if words[0] == "verify" else 0)


def test_a_name_after_two_dashes_is_no_option(root: Path) -> None:
    answer = intarsia("explain", root / "hf", "--", "--json")
    assert answer.status == 2
    assert "'--json' is not in" in answer.err
    assert answer.out == ""


def test_a_configuration_can_be_given(tmp_path: Path) -> None:
    src = write_dcp(tmp_path / "dcp", {f"model.{k}": x for k, x in model(CONFIG).items()})
    (tmp_path / "c.json").write_text(json.dumps(CONFIG))
    assert intarsia("inspect", src, "--json").json["family"] is None
    document = intarsia("inspect", src, "--config", tmp_path / "c.json", "--json").json
    assert document["family"] == "llama"
    assert document["complete"] is True
