"""A folder of several checkpoints means the newest whole one, or it is refused with the candidates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.errors import FormatError
from tests.checkpoints import (
    assert_same,
    bits,
    llama_config,
    model,
    read_hf,
    write_dcp,
    write_hf,
)
from tests.checkpoints import intarsia as cli

CONFIG = llama_config()


def step(run: Path, number: int, name: str = "step-{}") -> Path:
    """A checkpoint as torchtitan saves it: its model at the top, the rest under its own keys."""
    weights = {name: tensor + number for name, tensor in model(CONFIG).items()}
    state = weights | {"train_state": {"step": torch.tensor(number)}}
    return write_dcp(run / name.format(number), state)


def taken(run: Path) -> tuple[str, str]:
    """The checkpoint that a folder means, and what is said of it."""
    found = intarsia.open(run).manifest
    return Path(found.path).name, " ".join(note for note in found.notes if str(run) in note)


def test_the_highest_number_is_the_newest_whatever_its_length(tmp_path: Path) -> None:
    for number in (9, 100, 1000):
        step(tmp_path, number)
    (tmp_path / "logs").mkdir()
    name, note = taken(tmp_path)
    assert name == "step-1000"
    assert "step-1000 is read, the newest complete one" in note
    inventory = intarsia.open(tmp_path).manifest.inventory
    others = {item.name for item in inventory if item.name.startswith("../")}
    assert others == {"../step-9", "../step-100", "../logs"}


@pytest.mark.parametrize("what", ["metadata", "data", "short", "empty"])
def test_one_that_is_not_whole_is_passed_over_by_name(tmp_path: Path, what: str) -> None:
    step(tmp_path, 10)
    last = step(tmp_path, 20)
    data = next(last.glob("*.distcp"))
    if what == "metadata":
        (last / ".metadata").unlink()
    elif what == "data":
        data.unlink()
    elif what == "short":
        data.write_bytes(data.read_bytes()[:100])
    else:
        for path in last.iterdir():
            path.unlink()
    name, note = taken(tmp_path)
    assert name == "step-10"
    assert "newer, but incomplete: step-20 (" in note


def test_what_is_converted_is_the_one_that_is_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for number in (1, 2):
        write_hf(run / f"checkpoint-{number}", model(CONFIG, seed=number), CONFIG)
    answer = cli("convert", run, tmp_path / "out", "--to", "hf", "--json")
    assert any("checkpoint-2 is read" in note for note in answer.json["notes"])
    assert answer.json["src"] == str(run / "checkpoint-2")
    assert_same(read_hf(tmp_path / "out"), model(CONFIG, seed=2))


def test_two_series_are_refused_with_their_names(tmp_path: Path) -> None:
    step(tmp_path, 3)
    step(tmp_path, 4, "ema-{}")
    with pytest.raises(FormatError, match="nothing says which one to read: ema-4, step-3"):
        intarsia.open(tmp_path)


@pytest.mark.parametrize("name", ["fold_{}", "seed-{}", "rank{}", "expert_{}"])
def test_a_number_that_counts_no_time_chooses_nothing(tmp_path: Path, name: str) -> None:
    for number in (1, 2):
        step(tmp_path, number, name)
    names = ", ".join(name.format(number) for number in (1, 2))
    with pytest.raises(FormatError, match=f"nothing says which one to read: {names}"):
        intarsia.open(tmp_path)


def test_a_folder_without_a_number_is_listed_and_named_as_well(tmp_path: Path) -> None:
    step(tmp_path / "two", 2, "model{}")
    with pytest.raises(FormatError, match="there is 1 below it: model2"):
        intarsia.open(tmp_path / "two")
    step(tmp_path / "two", 1, "model")
    with pytest.raises(
        FormatError, match="2 checkpoints, and nothing says which one to read: model, model2"
    ):
        intarsia.open(tmp_path / "two")
    step(tmp_path / "run", 3)
    step(tmp_path / "run", 9, "final")
    (tmp_path / "run" / "logs").mkdir()
    name, note = taken(tmp_path / "run")
    assert name == "step-3"
    assert note.endswith("; without a number, and not read: final")


def test_two_that_are_compared_are_named_where_one_was_chosen(tmp_path: Path) -> None:
    alone = step(tmp_path, 3, "alone")
    step(tmp_path / "run", 3)
    for a, b, side in ((alone, tmp_path / "run", "B"), (tmp_path / "run", alone, "A")):
        for found in (intarsia.verify(a, b), intarsia.diff(a, b)):
            (note,) = [note for note in found.notes if "is the folder of a run" in note]
            assert note.startswith(f"{side}: ")
            assert "step-3 is read" in note
    assert "step-3 is read" in cli("diff", alone, tmp_path / "run").out


def test_a_final_model_in_a_pickle_is_listed_beside_the_checkpoints(tmp_path: Path) -> None:
    step(tmp_path, 2, "checkpoint-{}")
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(FormatError, match=r"which one to read: pytorch_model\.bin, checkpoint-2"):
        intarsia.open(tmp_path)


def test_checkpoints_below_a_folder_that_is_none_are_listed(tmp_path: Path) -> None:
    step(tmp_path, 3, "final")
    step(tmp_path, 4, "best")
    with pytest.raises(FormatError, match="there are 2 below it: best, final"):
        intarsia.open(tmp_path)
    step(tmp_path / "outputs" / "checkpoint", 5)
    with pytest.raises(
        FormatError, match=r"there is 1 below it: checkpoint\n.*for example .*outputs/checkpoint"
    ):
        intarsia.open(tmp_path / "outputs")


def test_our_own_tracker_decides(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 2)
    for number in (5, 6):
        intarsia.save(tmp_path / f"step-{number}", net)
    (tmp_path / "latest").write_text("step-5\n")
    name, note = taken(tmp_path)
    assert name == "step-5"
    assert "step-5 is read, which latest names" in note
    assert cli("verify", tmp_path).status == 0
    assert cli("explain", tmp_path, "weight").status == 0
    assert cli("digest", tmp_path).status == 0
    assert cli("diff", tmp_path, tmp_path / "step-6").status == 0
    assert intarsia.load(tmp_path, into=net).path == str(tmp_path / "step-5")
    (tmp_path / "latest").write_text("step-7\n")
    with pytest.raises(FormatError, match="names 'step-7', which is not in"):
        intarsia.open(tmp_path)


def test_a_checkpoint_whose_tracker_names_another_is_refused(tmp_path: Path) -> None:
    write_hf(tmp_path / "run", {"a": torch.ones(2)})
    step(tmp_path / "run", 5)
    (tmp_path / "run" / "latest").write_text("step-5")
    with pytest.raises(
        FormatError, match="is a checkpoint, but its file latest names another: step-5"
    ):
        intarsia.open(tmp_path / "run")


def test_megatrons_tracker_decides_and_newer_iterations_are_named(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    intarsia.convert(src, tmp_path / "run", to="torch_dist")
    (only,) = (tmp_path / "run").glob("iter_*")
    (tmp_path / "run" / "iter_0000009").mkdir()
    name, note = taken(tmp_path / "run")
    assert name == only.name
    assert "iter_0000009 is newer and not named there" in note


@pytest.mark.parametrize("what", ["absent", "unfinished"])
def test_an_iteration_that_the_tracker_names_in_vain_is_not_replaced_by_another(
    tmp_path: Path, what: str
) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    intarsia.convert(src, tmp_path / "run", to="torch_dist")
    (only,) = (tmp_path / "run").glob("iter_*")
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("9")
    if what == "unfinished":
        (tmp_path / "run" / "iter_0000009").mkdir()
    lack = "is absent" if what == "absent" else r"has no \.metadata"
    with pytest.raises(FormatError, match=rf"iter_0000009, which {lack}; present: {only.name}"):
        intarsia.open(tmp_path / "run")


def cache(root: Path, **snapshots: int) -> Path:
    """A model of the hub's cache, with a snapshot of each name."""
    home = root / "models--maker--model"
    for revision, seed in snapshots.items():
        src = write_hf(root / f"plain-{revision}", model(CONFIG, seed=seed), CONFIG)
        folder = home / "snapshots" / revision
        (home / "blobs").mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True)
        for path in src.iterdir():
            blob = home / "blobs" / f"{revision}-{path.name}"
            blob.write_bytes(path.read_bytes())
            (folder / path.name).symlink_to(f"../../blobs/{blob.name}")
    return home


def test_a_model_of_the_hubs_cache_is_the_snapshot_that_main_names(tmp_path: Path) -> None:
    home = cache(tmp_path, aaa=1, bbb=2)
    with pytest.raises(FormatError, match=r"2 snapshots, and refs/main names none: aaa, bbb"):
        intarsia.open(home)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("aaa")
    for path in (home, home / "snapshots"):
        found = intarsia.open(path)
        assert Path(found.manifest.path).name == "aaa"
        norm = "model.norm.weight"
        assert bits(found[norm][:]) == bits(model(CONFIG, seed=1)[norm])
    (home / "refs" / "main").write_text("ccc")
    with pytest.raises(FormatError, match=r"names 'ccc', which is none of them: aaa, bbb"):
        intarsia.open(home)


def test_the_only_snapshot_needs_no_name(tmp_path: Path) -> None:
    home = cache(tmp_path, abc=1)
    found = intarsia.open(home).manifest
    assert any("snapshots/abc is read, it is the only one" in note for note in found.notes)
    intarsia.convert(home, tmp_path / "out", to="dcp")
