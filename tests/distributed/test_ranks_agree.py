"""Ranks share one source, one destination and all options, or nothing is begun; nobody waits in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import intarsia
from tests.checkpoints import ROOT, llama_config, model, python, write_hf
from tests.checkpoints import intarsia as cli

CONFIG = llama_config()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, str]], str]:
    """The folder of a job of two ranks, how each case ended for each, and what it said on stderr."""
    root = tmp_path_factory.mktemp("agree")
    write_hf(root / "hf", model(CONFIG), CONFIG)
    done = python(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
        ROOT / "tests" / "distributed" / "disagreeing.py", root, INTARSIA_WAIT_SECONDS="2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return root, [json.loads((root / f"{rank}.json").read_text()) for rank in (0, 1)], done.stderr


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("relative_source", "source file model.safetensors: "),
        ("local_copy", "source file model.safetensors: "),
        ("relative_destination", "destination: "),
        ("other_mesh", "--mesh: 1 rank on rank 0, tp=2 on rank 1"),
        ("other_memory", "--memory, --workers: "),
        ("other_config", "model configuration: "),
        ("other_digests", "source file model.safetensors: "),
    ],
)
@pytest.mark.one_in(8)
def test_ranks_that_differ_stop_before_a_byte_moves(ended, case: str, told: str) -> None:
    root, ranks, _ = ended
    for rank in ranks:
        assert (
            "rank 1 was called with something else than rank 0, so nothing was started"
            in rank[case]
        )
        assert told in rank[case]
        assert "hint: give every rank the same options" in rank[case]
    assert not list(root.glob(f"*{case.split('_')[1]}*"))
    assert not list(root.glob(".*intarsia*"))


def test_a_rank_that_is_left_alone_says_whom_it_awaits_and_gives_up(ended) -> None:
    _, ranks, err = ended
    assert ranks[0]["first_only"].startswith("rank 0 of 2 waited for rank 1, without an answer")
    assert "--alone" in ranks[0]["first_only"]
    assert "rank 0 of 2 waits for rank 1, for at most 2 s" in err


def test_one_rank_may_work_alone_and_no_group_is_left_behind(ended) -> None:
    root, ranks, _ = ended
    for rank in ranks:
        for case in ("first_alone", "all_together", "several_machines", "own_group"):
            assert rank[case] == "done"
    for name in ("together", "several", "own"):
        assert intarsia.verify(root / "hf", root / name)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_variables_without_torchrun_make_nobody_wait_or_fall_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": "4", "MASTER_ADDR": "localhost",
                        "MASTER_PORT": "29999", "LOCAL_RANK": rank}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    answer = cli("convert", src, tmp_path / "out", "--to", "dcp")
    assert answer.status == 0
    assert f"RANK={rank} and WORLD_SIZE=4 are set, but not by torchrun" in answer.out
    assert cli("verify", src, tmp_path / "out").out
    assert cli("inspect", src, "--json").json["tensors"] == len(model(CONFIG))
    assert cli("digest", src, "--json").json["root"]


def test_alone_awaits_nobody_whatever_torchrun_has_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
                        "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "none"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    answer = cli("convert", src, tmp_path / "out", "--to", "dcp", "--alone")
    assert answer.status == 0
    assert "done" in answer.out
    assert "torchrun" not in answer.out
    monkeypatch.setenv("INTARSIA_WAIT_SECONDS", "1")
    answer = cli("convert", src, tmp_path / "again", "--to", "dcp")
    assert answer.status == 2
    assert "waited for the store at localhost:1, without an answer" in answer.err
    assert "--alone" in answer.err
