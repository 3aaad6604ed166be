"""accelerate's `save_state`: its folder is one checkpoint, under FSDP as without."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path, PurePosixPath

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

import intarsia
from intarsia.errors import FormatError
from tests.checkpoints import assert_same, files_of
from tests.distributed.ranks import on_ranks_with
from tests.journeys.accelerate_training import fsdp2, optimizer_of, step
from tests.journeys.models import tiny


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """What two ranks of FSDP2 saved after three steps, and the losses of the next two."""
    folder = tmp_path_factory.mktemp("accelerate") / "state"
    first, second = on_ranks_with(fsdp2.__module__, 2, fsdp2, folder)
    assert first == second
    return folder, first


def test_model_and_optimizer_of_one_folder_go_on_in_one_process(
    sharded: tuple[Path, list[float]],
) -> None:
    folder, losses = sharded
    model = tiny()
    optimizer = optimizer_of(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    intarsia.load(folder, into=model, optimizer=optimizer)
    assert optimizer.param_groups[0]["lr"] == 1e-2
    found = [step(model, optimizer, lambda loss: loss.backward()) for _ in range(2)]
    torch.testing.assert_close(found, losses, rtol=1e-5, atol=0)


def test_the_folder_becomes_a_model_with_its_optimizer_beside_it(
    sharded: tuple[Path, list[float]], tmp_path: Path
) -> None:
    folder, _ = sharded
    tiny().config.save_pretrained(tmp_path / "config")
    report = intarsia.convert(folder, tmp_path / "hf", to="hf", config=tmp_path / "config")
    model = tiny()
    intarsia.load(folder, into=model)
    assert_same(load_file(tmp_path / "hf" / "model.safetensors"), dict(model.state_dict()))
    state = load_file(tmp_path / "hf" / "optimizer" / "model.safetensors")
    assert "optimizer.exp_avg.model.norm.weight" in state
    items = {item.name: item for item in report.plan.src.inventory if item.kind == "file"}
    assert items.keys() == files_of(folder).keys()
    assert items["optimizer_0/.metadata"].role == "optimizer"
    for name in ("scheduler.bin", "random_states_0.pkl", "random_states_1.pkl"):
        assert (items[name].role, items[name].fate) == ("training state", "left out")


def test_an_optimizer_that_was_not_finished_is_refused(
    sharded: tuple[Path, list[float]], tmp_path: Path
) -> None:
    shutil.copytree(sharded[0], tmp_path / "state")
    (tmp_path / "state" / "optimizer_0" / ".metadata").unlink()
    with pytest.raises(FormatError, match=r"optimizer_0 has no \.metadata"):
        intarsia.open(tmp_path / "state")
    assert intarsia.open(tmp_path / "state" / "pytorch_model_fsdp_0")


def test_two_models_of_one_folder_are_refused_with_both_names(
    sharded: tuple[Path, list[float]], tmp_path: Path
) -> None:
    shutil.copytree(sharded[0], tmp_path / "state")
    shutil.copytree(
        tmp_path / "state/pytorch_model_fsdp_0", tmp_path / "state/pytorch_model_fsdp_1"
    )
    with pytest.raises(FormatError, match="2 models: pytorch_model_fsdp_0, pytorch_model_fsdp_1"):
        intarsia.open(tmp_path / "state")


def test_a_second_optimizer_of_the_same_parameters_is_refused(
    sharded: tuple[Path, list[float]], tmp_path: Path
) -> None:
    shutil.copytree(sharded[0], tmp_path / "state")
    shutil.copytree(tmp_path / "state" / "optimizer_0", tmp_path / "state" / "optimizer_1")
    with pytest.raises(FormatError, match=r"is in two parts of .*optimizer_1 among them"):
        intarsia.open(tmp_path / "state")


def test_an_optimizer_of_another_save_is_told(
    sharded: tuple[Path, list[float]], tmp_path: Path
) -> None:
    folder, _ = sharded
    shutil.copytree(folder, tmp_path / "checkpoint_7")
    assert not any("different" in note for note in intarsia.verify(tmp_path / "checkpoint_7").notes)
    part = tmp_path / "checkpoint_7" / "optimizer_0"
    metadata = pickle.loads((part / ".metadata").read_bytes())
    for other in ("runs/checkpoint_6/optimizer_0", PurePosixPath("/runs/checkpoint_6/optimizer_0")):
        metadata.storage_meta.checkpoint_id = other
        (part / ".metadata").write_bytes(pickle.dumps(metadata))
        (note,) = (n for n in intarsia.verify(tmp_path / "checkpoint_7").notes if "different" in n)
        assert "pytorch_model_fsdp_0 into state, optimizer_0 into checkpoint_6" in note
    intarsia.convert(part, tmp_path / "copy", to="dcp", section=".")
    shutil.rmtree(part)
    (tmp_path / "copy").rename(part)
    assert not any("different" in note for note in intarsia.verify(tmp_path / "checkpoint_7").notes)


def test_a_project_folder_means_its_newest_whole_checkpoint(
    sharded: tuple[Path, list[float]], tmp_path: Path
) -> None:
    for k in (9, 10, 11):
        shutil.copytree(sharded[0], tmp_path / "checkpoints" / f"checkpoint_{k}")
    (tmp_path / "checkpoints" / "checkpoint_11" / "optimizer_0" / ".metadata").unlink()
    found = intarsia.open(tmp_path / "checkpoints").manifest
    assert found.path == str(tmp_path / "checkpoints" / "checkpoint_10")
    assert any(
        "incomplete: checkpoint_11 (" in note and "optimizer_0 has no" in note
        for note in found.notes
    )


def plain_training(
    accelerator: Accelerator, resume: Path | None = None, save: Path | None = None
) -> list[float]:
    model, optimizer = accelerator.prepare(model := tiny(), optimizer_of(model))
    if resume is not None:
        accelerator.load_state(str(resume))
    losses = [step(model, optimizer, accelerator.backward) for _ in range(2)]
    if save is not None:
        accelerator.save_state(str(save))
        losses = [step(model, optimizer, accelerator.backward) for _ in range(2)]
    return losses


def test_state_without_sharding_goes_on_from_the_copy(tmp_path: Path) -> None:
    losses = plain_training(Accelerator(cpu=True), save=tmp_path / "state")
    report = intarsia.convert(tmp_path / "state", tmp_path / "copy", to="hf")
    assert "optimizer.bin" in {
        item.name for item in report.plan.src.inventory if item.fate == "copied"
    }
    assert plain_training(Accelerator(cpu=True), resume=tmp_path / "copy") == losses
