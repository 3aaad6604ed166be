"""An open checkpoint is one checkpoint until it is closed, whatever happens to its folder."""

from __future__ import annotations

import gc
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch

import intarsia
import intarsia.converting
from intarsia.errors import ChangedError, LimitError
from tests.checkpoints import (
    bits,
    llama_config,
    model,
    python,
    write_hf,
)
from tests.checkpoints import intarsia as cli

CONFIG = llama_config()
OLD, NEW = model(CONFIG, seed=1), model(CONFIG, seed=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "model", OLD, CONFIG, files=4)


def overwrite(path: Path) -> None:
    other = write_hf(path.parent / "other", NEW, CONFIG, files=4)
    intarsia.convert(other, path, to="hf", overwrite=True, max_shard_size="9kB")


def move_and_replace(path: Path) -> None:
    path.rename(path.with_name("moved"))
    write_hf(path, NEW, CONFIG, files=4)


def rewrite(path: Path) -> None:
    """In place, with the old times."""
    for file in sorted(path.glob("*.safetensors")):
        data, then = bytearray(file.read_bytes()), file.stat()
        data[-20:] = bytes(20)
        with file.open("r+b") as out:
            out.write(data)
        os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))


def replace_one(path: Path) -> None:
    write_hf(path.parent / "other", NEW, CONFIG, files=4)
    file = sorted(path.glob("*.safetensors"))[1]
    os.replace(path.parent / "other" / file.name, file)


@pytest.mark.parametrize(
    "change", [overwrite, move_and_replace, rewrite, replace_one, shutil.rmtree]
)
@pytest.mark.parametrize("begun", [False, True])
def test_no_tensor_is_read_from_another_checkpoint(path: Path, change, begun: bool) -> None:
    with intarsia.open(path) as checkpoint:
        if begun:
            assert bits(checkpoint["model.norm.weight"][:]) == bits(OLD["model.norm.weight"])
        change(path)
        right = refused = 0
        for name, want in OLD.items():
            try:
                assert bits(checkpoint[name][...]) == bits(want), name
                right += 1
            except ChangedError:
                refused += 1
        assert right + refused == len(OLD)
        assert refused or change is move_and_replace


def test_a_conversion_whose_source_changes_half_way_is_refused(path: Path, tmp_path: Path) -> None:
    job = intarsia.converting.job(path, intarsia.Options(to="dcp"))
    replace_one(path)
    with pytest.raises(ChangedError, match="changed while it was read"):
        intarsia.conversion.running.carry_out(job, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_change_while_it_is_verified_is_no_fault_of_the_checkpoint(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intarsia.checking.alone import soundness

    honest = soundness.survey

    def survey(*arguments: object) -> object:
        replace_one(path)
        return honest(*arguments)

    monkeypatch.setattr(soundness, "survey", survey)
    answer = cli("verify", path)
    assert answer.status == 2
    assert "changed while it was read" in answer.err


def test_open_checkpoints_close_their_files_when_they_go(path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        checkpoint = intarsia.open(path)
        for name in OLD:
            checkpoint[name][...]
        del checkpoint
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before


def test_many_shards_are_read_converted_and_verified_under_a_small_limit(tmp_path: Path) -> None:
    tensors = {f"t{k}": torch.full((4,), float(k)) for k in range(150)}
    src = write_hf(tmp_path / "src", tensors, files=150)
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60));"
        "from intarsia.cli.main import main; main(sys.argv[1:])"
    )
    done = python("-c", limited, "convert", src, tmp_path / "out", "--to", "hf",
                  "--max-shard-size", "20B")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 150
    for words in (["verify", src], ["verify", src, tmp_path / "out"]):
        found = python("-c", limited, *words)
        assert found.returncode == 0, found.stdout + found.stderr


def test_too_few_descriptors_are_no_fault_of_a_checkpoint(path: Path) -> None:
    intarsia.verify(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4, hard))
    try:
        with pytest.raises(LimitError, match="Too many open files"):
            intarsia.verify(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_ten_thousand_shards_work(tmp_path: Path) -> None:
    tensors = {f"t{k}": torch.full((4,), float(k)) for k in range(10_000)}
    src = write_hf(tmp_path / "src", {"all": torch.cat(list(tensors.values()))} | tensors)
    intarsia.convert(src, tmp_path / "out", to="hf", max_shard_size="20B")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 10_000
    assert intarsia.verify(src, tmp_path / "out")
