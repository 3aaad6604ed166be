"""Transformers' Trainer: a checkpoint is converted, and training goes on as if nothing had happened."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from transformers import Trainer, TrainingArguments

import intarsia
from intarsia.errors import FormatError
from tests.checkpoints import files_of
from tests.checkpoints import intarsia as cli
from tests.journeys.models import tiny

STATE = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin")


class Sequences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, k: int) -> dict[str, torch.Tensor]:
        words = (torch.arange(12) * (k + 3)) % 64
        return {"input_ids": words, "labels": words}


def train(output: Path, steps: int = 6, resume: Path | None = None, **options: Any) -> list[float]:
    """The losses of a run, from its beginning or from a checkpoint on; `options` are Trainer's."""
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        save_steps=2,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=7,
        **options,
    )
    trainer = Trainer(model=tiny(), args=arguments, train_dataset=Sequences())
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A finished run with the checkpoints of steps 2, 4 and 6, and its losses."""
    output = tmp_path_factory.mktemp("trainer") / "run"
    return output, train(output)


def fates(report: intarsia.Report) -> dict[str, str]:
    return {item.name: str(item.fate) for item in report.plan.src.inventory}


def test_a_run_goes_on_from_the_copy_as_it_went_on_from_the_original(
    run: tuple[Path, list[float]], tmp_path: Path
) -> None:
    output, losses = run
    src, copy = output / "checkpoint-2", tmp_path / "checkpoint-2"
    report = intarsia.convert(src, copy, to="hf", max_shard_size="10KB")
    before, after = files_of(src), files_of(copy)
    assert {name: after[name] for name in STATE} == {name: before[name] for name in STATE}
    assert {fates(report)[name] for name in STATE} == {"copied"}
    assert train(tmp_path / "resumed", resume=copy) == losses
    (copy / "optimizer.pt").unlink()
    assert train(tmp_path / "without", resume=copy) != losses


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"to": "hf", "optimizer": "drop"}, "dropped as asked"),
        ({"to": "hf", "dtype": "bf16"}, "it numbers the parameters of the source"),
        ({"to": "dcp"}, "it is valid only for the files of the source"),
    ],
)
def test_state_that_cannot_go_on_is_left_out_as_a_whole(
    run: tuple[Path, list[float]], tmp_path: Path, options: dict[str, str], why: str
) -> None:
    report = intarsia.convert(run[0] / "checkpoint-4", tmp_path / "out", **options)
    assert not [name for name in STATE if (tmp_path / "out" / name).exists()]
    assert {fates(report)[name] for name in STATE} == {"left out"}
    assert any(why in note and "trainer_state.json" in note for note in report.plan.notes)


def test_every_file_of_the_folder_is_in_the_report(
    run: tuple[Path, list[float]], tmp_path: Path
) -> None:
    src = tmp_path / "src"
    shutil.copytree(run[0] / "checkpoint-4", src)
    (src / "extra.pt").write_bytes(b"x")
    (src / ".hidden").write_text("x")
    (src / "notes").mkdir()
    shown = cli("plan", src, "--to", "dcp", "--json").json
    items = {item["name"]: item for item in shown["inventory"] if item["kind"] != "section"}
    assert items.keys() == {path.name for path in src.iterdir()}
    assert items["model.safetensors"]["fate"] == "read"
    assert items["config.json"]["fate"] == "copied"
    for name in (*STATE, "extra.pt", ".hidden", "notes"):
        assert items[name]["fate"] == "left out", name
        assert items[name]["why"], name
    text = cli("plan", src, "--to", "dcp").out
    assert "extra.pt" in text
    assert "extra.pt" in cli("inspect", src).out


@pytest.mark.parametrize(
    ("lost", "beside"), [("optimizer.pt", "scheduler.pt"), ("scheduler.pt", "optimizer.pt")]
)
def test_half_of_the_state_is_a_fault_as_trainer_takes_none_then(
    run: tuple[Path, list[float]], tmp_path: Path, lost: str, beside: str
) -> None:
    output, losses = run
    folder = tmp_path / "checkpoint-4"
    shutil.copytree(output / "checkpoint-4", folder)
    (folder / lost).unlink()
    assert train(tmp_path / "on", resume=folder) != losses, "Trainer goes on, and says nothing"
    (fault,) = intarsia.verify(folder).faults
    assert fault.kind == "state-missing"
    assert fault.text.startswith(f"{beside} and trainer_state.json are there, and no ")
    report = intarsia.convert(folder, tmp_path / "out", to="hf")
    assert not {*STATE} & {path.name for path in (tmp_path / "out").iterdir()}
    assert "training state is left out" in "".join(report.notes)
    compared = intarsia.verify(output / "checkpoint-4", folder)
    assert [x.name for x in compared.beside if x.counts] == [lost]
    assert not compared


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"])  # fmt: skip
def test_files_of_a_trainer_are_checked_and_compared(
    run: tuple[Path, list[float]], tmp_path: Path, name: str
) -> None:
    whole, folder = run[0] / "checkpoint-4", tmp_path / "checkpoint-4"
    shutil.copytree(whole, folder)
    assert intarsia.verify(folder)
    assert intarsia.verify(whole, folder)
    data = (folder / name).read_bytes()
    for damaged in (data[: len(data) // 2], b"", b"?" + data[1:]):
        (folder / name).write_bytes(damaged)
        (fault,) = intarsia.verify(folder).faults
        assert (fault.kind, fault.files) == ("entry-damaged", (name,))
        assert [x.name for x in intarsia.verify(whole, folder).beside if x.counts] == [name]
    if name != "trainer_state.json":
        with ZipFile(whole / name) as archive:
            at = data.index(archive.read(archive.namelist()[0])) + 5
        (folder / name).write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert "has CRC-32" in intarsia.verify(folder).faults[0].text


def test_the_state_of_another_step_is_told_by_its_folder_and_by_the_other_side(
    run: tuple[Path, list[float]], tmp_path: Path
) -> None:
    whole, folder = run[0] / "checkpoint-4", tmp_path / "checkpoint-4"
    shutil.copytree(whole, folder)
    state = folder / "trainer_state.json"
    state.write_text(state.read_text().replace('"log_history": [', '"log_history": [ '))
    assert intarsia.verify(whole, folder), "what a run logged is not where it is"
    shutil.copy(run[0] / "checkpoint-2" / state.name, state)
    (fault,) = intarsia.verify(folder).faults
    assert fault.text == "trainer_state.json is of step 2, its folder of step 4"
    assert not intarsia.verify(whole, folder)
    for file in STATE:
        (folder / file).unlink()
    assert intarsia.verify(whole, folder), "weights alone have nothing to hold against a run"


@pytest.mark.parametrize("command", ["open", "plan", "verify", "load", "inspect"])
def test_the_folder_of_a_run_means_its_newest_whole_checkpoint(
    run: tuple[Path, list[float]], tmp_path: Path, command: str
) -> None:
    output = tmp_path / "run"
    shutil.copytree(run[0], output)
    (output / "checkpoint-6" / "trainer_state.json").unlink()
    if command == "open":
        path, notes = (found := intarsia.open(output).manifest).path, found.notes
    elif command == "plan":
        path, notes = (found := intarsia.plan(output, to="dcp")).src.path, found.notes
    elif command == "verify":
        path, notes = (found := intarsia.verify(output)).a, found.notes
    elif command == "load":
        path, notes = (found := intarsia.load(output, into=tiny())).path, found.notes
    else:
        shown = cli("inspect", output, "--json").json
        path, notes = shown["path"], shown["notes"]
    assert path == str(output / "checkpoint-4")
    (note,) = (note for note in notes if "folder of a run" in note)
    assert "checkpoint-4 is read" in note
    assert "incomplete: checkpoint-6 (no trainer_state.json" in note


def test_a_final_model_beside_its_checkpoints_is_taken_and_they_are_named(
    run: tuple[Path, list[float]], tmp_path: Path
) -> None:
    output = tmp_path / "run"
    shutil.copytree(run[0], output)
    tiny().save_pretrained(output)
    found = intarsia.open(output).manifest
    assert found.path == str(output)
    (note,) = (note for note in found.notes if "itself holds a model" in note)
    assert "checkpoint-2, checkpoint-4, checkpoint-6" in note
    others = {i.name: i.why for i in found.inventory if i.name.startswith("checkpoint-")}
    assert set(others.values()) == {"another checkpoint; give its folder to take it"}


def test_a_run_without_a_whole_checkpoint_is_refused_with_all_of_them(
    run: tuple[Path, list[float]], tmp_path: Path
) -> None:
    output = tmp_path / "run"
    shutil.copytree(run[0], output)
    for path in output.iterdir():
        weights = path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(
        FormatError, match=r"none is complete: checkpoint-6 .*checkpoint-4 .*ckpoint-2"
    ):
        intarsia.open(output)
