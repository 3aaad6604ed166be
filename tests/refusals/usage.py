"""Calls that cannot be carried out as asked."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import intarsia
from tests.checkpoints import llama_config, model, write_hf
from tests.refusals.case import refusal


@refusal("A format that does not exist", area="usage")
def unknown_format(tmp: Path) -> None:
    intarsia.convert(tmp / "model", tmp / "out", to="nemo")


@refusal("A path without a checkpoint", area="usage")
def no_checkpoint(tmp: Path) -> None:
    (tmp / "empty").mkdir()
    intarsia.open(tmp / "empty", llama_config())


@refusal("A number as a path", area="usage")
def number_as_path(tmp: Path) -> None:
    intarsia.open(5)  # type: ignore[arg-type]


@refusal("An empty path", area="usage")
def empty_path(tmp: Path) -> None:
    intarsia.open("")


@refusal("A URL with an empty part", area="usage")
def url_with_an_empty_part(tmp: Path) -> None:
    intarsia.open("s3://bucket/a//b")


@refusal("A save onto a checkpoint that exists", area="usage")
def save_onto_a_checkpoint(tmp: Path) -> None:
    import torch

    for _ in range(2):
        intarsia.save(tmp / "saved", torch.nn.Linear(2, 2))


@refusal("A conversion onto a folder that exists", area="usage")
def convert_onto_a_folder(tmp: Path) -> None:
    config = llama_config()
    source = write_hf(tmp / "model", model(config), config)
    (tmp / "out").mkdir()
    (tmp / "out" / "notes.txt").write_text("mine")
    intarsia.convert(source, tmp / "out", to="dcp")


@refusal("A configuration that is not there", area="usage")
def no_configuration(tmp: Path) -> None:
    config = llama_config()
    intarsia.open(write_hf(tmp / "model", model(config), config), tmp / "confg.json")


@refusal("A tensor that is read where torch is not installed", area="usage")
def no_torch(tmp: Path) -> None:
    config = llama_config()
    found = intarsia.open(write_hf(tmp / "model", model(config), config))
    with patch.dict(sys.modules, {"torch": None}):
        found["model.norm.weight"][:4]


@refusal("A list as the index of a tensor that is not read yet", area="usage")
def list_as_index(tmp: Path) -> None:
    config = llama_config()
    found = intarsia.open(write_hf(tmp / "model", model(config), config))
    found["model.embed_tokens.weight"][[0, 2]]
