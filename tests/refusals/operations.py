"""Destinations, sources and ranks that a run does not begin with."""

from __future__ import annotations

import os
from pathlib import Path

import intarsia
from intarsia.run.ranks.crew import Crew, agree
from intarsia.store.reading.lookup import given
from tests.checkpoints import llama_config, model, write_hf
from tests.refusals.case import refusal

CONFIG = llama_config()


def _hf(path: Path, seed: int = 0) -> Path:
    return write_hf(path, model(CONFIG, seed=seed), CONFIG)


@refusal("A destination that holds more than the checkpoint to replace", area="operations")
def more_than_a_checkpoint(tmp: Path) -> None:
    out = _hf(tmp / "out")
    (out / "notes.txt").write_text("mine")
    intarsia.convert(_hf(tmp / "model", 1), out, to="dcp", overwrite=True)


@refusal("A destination to replace that is no checkpoint", area="operations")
def no_checkpoint_to_replace(tmp: Path) -> None:
    (tmp / "home" / "thesis").mkdir(parents=True)
    intarsia.convert(_hf(tmp / "model"), tmp / "home", to="dcp", overwrite=True)


@refusal("A destination that holds the source, through links", area="operations")
def destination_holds_source(tmp: Path) -> None:
    real = _hf(tmp / "real")
    (tmp / "view").mkdir()
    (tmp / "view" / "model.safetensors").symlink_to(real / "model.safetensors")
    intarsia.convert(tmp / "view", real, to="dcp", overwrite=True, config=CONFIG)


@refusal("A checkpoint whose place another takes while it is read", area="operations")
def replaced_while_read(tmp: Path) -> None:
    model_, other, aside = _hf(tmp / "model"), _hf(tmp / "other", 1), tmp / "aside"

    def replace_it(done: int, total: int) -> None:
        if not aside.exists():
            model_.rename(aside)
            other.rename(model_)

    intarsia.verify(model_, _hf(tmp / "copy", 2), progress=replace_it)


@refusal("A file that is removed after its checkpoint was opened", area="operations")
def removed_after_opening(tmp: Path) -> None:
    path = _hf(tmp / "model")
    with intarsia.open(path) as opened:
        (path / "model.safetensors").unlink()
        opened["model.embed_tokens.weight"][:]


@refusal("A mount point as a destination", area="operations")
def mount_point(tmp: Path) -> None:
    intarsia.convert(_hf(tmp / "model"), "/proc", to="dcp")


@refusal("A configuration that is a pipe", area="operations")
def config_from_a_pipe(tmp: Path) -> None:
    os.mkfifo(tmp / "pipe")
    intarsia.open(_hf(tmp / "model"), tmp / "pipe")


@refusal("A relative path in a working folder that was removed", area="operations")
def no_working_folder(tmp: Path) -> None:
    here = Path.cwd()
    (tmp / "gone").mkdir()
    os.chdir(tmp / "gone")
    try:
        (tmp / "gone").rmdir()
        given("out")
    finally:
        os.chdir(here)


@refusal("An open checkpoint whose file was removed", area="operations")
def file_removed(tmp: Path) -> None:
    checkpoint = intarsia.open(_hf(tmp / "model"))
    (tmp / "model" / "model.safetensors").unlink()
    checkpoint["model.norm.weight"][:]


class _TwoRanks(Crew):
    """Ranks of which the second was asked for something else."""

    def _meet(self, shared, failure) -> None:
        shared.values = [shared.value, shared.value | {"--mesh": "tp=4"}]


@refusal("Ranks that were asked for different things", area="operations")
def ranks_that_differ(tmp: Path) -> None:
    agree(_TwoRanks(0, 2), {"--to": "dcp", "--mesh": "tp=2"})
