"""The optimizer and the schedule in Trainer's folder count alike: one of another save is found, and no run of Trainer's is."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from shutil import copy, copytree
from typing import Any
from zipfile import ZIP_DEFLATED

import pytest
import torch
from torch.optim import SGD, AdamW, lr_scheduler
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import intarsia
from tests.checking.alone.test_packed_objects import packed

CONFIG = LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=32)  # fmt: skip


def trained(root: Path, optimizers: Any = (None, None), model: Any = None, **said: Any) -> Path:
    """Two saves of Trainer's, after two and after four steps."""
    args = TrainingArguments(
        f"{root}", max_steps=4, save_steps=2, per_device_train_batch_size=1, report_to=[],
        use_cpu=True, disable_tqdm=True, **said,
    )  # fmt: skip
    row = {"input_ids": torch.arange(8), "labels": torch.arange(8)}
    model = model or LlamaForCausalLM(CONFIG)
    Trainer(model, args, train_dataset=[row] * 16, optimizers=optimizers).train()
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"), gradient_accumulation_steps=2)


def mixed(run: Path, to: Path, *older: str) -> Path:
    """The second save with files of the first."""
    copytree(run / "checkpoint-4", to)
    for name in older:
        copy(run / "checkpoint-2" / name, to / name)
    return to


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("optimizer.pt", "optimizer.pt counts 2 steps, scheduler.pt and trainer_state.json 4: Trainer steps the two together"),
        ("scheduler.pt", "scheduler.pt counts 2 steps, optimizer.pt and trainer_state.json 4: Trainer steps the two together"),
        ("trainer_state.json", "trainer_state.json is of step 2, its folder of step 4"),
    ],
)  # fmt: skip
def test_a_file_of_another_save_is_one_fault(
    run: Path, tmp_path: Path, file: str, text: str
) -> None:
    assert not intarsia.verify(run / "checkpoint-4").faults
    (fault,) = intarsia.verify(mixed(run, tmp_path / "checkpoint-4", file)).faults
    assert (fault.kind, fault.where, fault.text) == ("steps-disagree", file, text)


def test_a_file_that_was_packed_again_counts_as_it_did(run: Path, tmp_path: Path) -> None:
    src = mixed(run, tmp_path / "checkpoint-4")
    file = src / "optimizer.pt"
    file.write_bytes(packed(file.read_bytes(), ZIP_DEFLATED))
    assert torch.load(file)["state"]
    assert not intarsia.verify(src).faults
    copy(run / "checkpoint-2" / file.name, file)
    file.write_bytes(packed(file.read_bytes(), ZIP_DEFLATED))
    (fault,) = intarsia.verify(src).faults
    assert (fault.kind, fault.where) == ("steps-disagree", file.name)


def test_a_file_that_torch_does_not_open_is_a_fault(run: Path, tmp_path: Path) -> None:
    """A member that does not begin as one, though its content is as it was."""
    root = mixed(run, tmp_path / "checkpoint-4")
    whole = (root / "optimizer.pt").read_bytes()
    at = whole.index(b"PK\3\4", 4)
    (root / "optimizer.pt").write_bytes(whole[:at] + b"pk" + whole[at + 2 :])
    with pytest.raises(RuntimeError):
        torch.load(root / "optimizer.pt")
    (fault,) = intarsia.verify(root).faults
    assert (fault.kind, fault.where) == ("entry-damaged", "optimizer.pt")
    assert "does not begin as a member of an archive" in fault.text


def test_both_behind_the_run_is_a_note_as_skipped_steps_leave_them_so(
    run: Path, tmp_path: Path
) -> None:
    report = intarsia.verify(mixed(run, tmp_path / "a", "optimizer.pt", "scheduler.pt"))
    assert report
    said = "optimizer.pt and scheduler.pt count 2 steps, trainer_state.json 4: loss scaling skipped steps"
    assert [note for note in report.notes if note.startswith(said)]


@pytest.mark.parametrize("step", [torch.tensor(float("inf")), float("nan"), [1], {"a": 1}])
def test_steps_that_are_no_numbers_say_nothing(run: Path, tmp_path: Path, step: Any) -> None:
    root = mixed(run, tmp_path / "a")
    state = torch.load(root / "optimizer.pt")
    for held in state["state"].values():
        held["step"] = step
    torch.save(state, root / "optimizer.pt")
    assert not [note for note in intarsia.verify(root).notes if "count" in note]


def test_a_file_that_is_nested_without_an_end_is_a_fault(run: Path, tmp_path: Path) -> None:
    root = mixed(run, tmp_path / "a")
    (root / "trainer_state.json").write_text("[" * 200_000)
    assert "trainer_state.json is damaged: it is no JSON" in str(intarsia.verify(root))
    assert not intarsia.verify(run / "checkpoint-4", root)


def test_parameters_that_were_frozen_for_a_while_say_nothing(run: Path, tmp_path: Path) -> None:
    root = mixed(run, tmp_path / "a")
    state = torch.load(root / "optimizer.pt")
    for step, held in zip((1.0, 3.0) * 20, state["state"].values(), strict=False):
        held["step"] = torch.tensor(step)
    torch.save(state, root / "optimizer.pt")
    assert not intarsia.verify(root).faults


@pytest.mark.parametrize("kind", ["given its epoch", "by processes", "sequence", "none counted", "plateau"])  # fmt: skip
def test_schedules_that_count_otherwise_and_optimizers_that_count_nothing_are_sound(
    tmp_path: Path, kind: str
) -> None:
    model = LlamaForCausalLM(CONFIG)
    optimizer = (SGD if kind == "none counted" else AdamW)(model.parameters(), 0.01)
    steady = partial(lr_scheduler.ConstantLR, optimizer)
    schedule: Any = {
        "given its epoch": lambda: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
        "sequence": lambda: lr_scheduler.SequentialLR(optimizer, [steady(), steady()], [2]),
        "plateau": lambda: lr_scheduler.ReduceLROnPlateau(optimizer),
    }.get(kind, steady)()
    for k in range(4):
        model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
        optimizer.step()
        for _ in range(2 if kind == "by processes" else 1):  # as accelerate's own schedules
            schedule.step(*{"plateau": [1.0], "given its epoch": [k // 2]}.get(kind, []))
    root = tmp_path / "checkpoint-4"
    model.save_pretrained(root)
    torch.save(optimizer.state_dict(), root / "optimizer.pt")
    torch.save(schedule.state_dict(), root / "scheduler.pt")
    (root / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    report = intarsia.verify(root)
    assert report, f"{report}"
    assert not [note for note in report.notes if "count" in note]
