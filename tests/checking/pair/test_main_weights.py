"""A right conversion to `fsdp_dtensor` is equal, and a wrong one is not, whichever side comes first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import intarsia
from tests.checkpoints import llama_config, model, write_hf
from tests.live.megatron_fsdp_cases import FIXTURES, hf_with_optimizer, to_fsdp

CONFIG = llama_config(num_hidden_layers=1)
NAME = "model.norm.weight"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return hf_with_optimizer(tmp_path / "hf", model(CONFIG), CONFIG)


def test_main_weights_are_held_against_main_weights(source: Path, tmp_path: Path) -> None:
    to_fsdp(source, tmp_path / "fsdp")
    for a, b in ((source, tmp_path / "fsdp"), (tmp_path / "fsdp", source)):
        found = intarsia.verify(a, b)
        assert found, found.different
        # Every weight, its main weight, two moments and a step.
        assert found.compared == 5 * len(model(CONFIG))


@pytest.mark.parametrize("which", ["weight", "master"])
def test_either_that_differs_is_found(which: str, source: Path, tmp_path: Path) -> None:
    to_fsdp(source, tmp_path / "fsdp")
    file = source / ("model" if which == "weight" else "optimizer/model")
    file = file.with_suffix(".safetensors")
    held = load_file(file)
    held[NAME if which == "weight" else f"optimizer.master.{NAME}"][5] += 1
    save_file(held, file, {"format": "pt"})
    for a, b in ((source, tmp_path / "fsdp"), (tmp_path / "fsdp", source)):
        (found,) = intarsia.verify(a, b).different
        assert found.tensor == (NAME if which == "weight" else f"optimizer.master.{NAME}")
        assert (found.elements, found.first) == (1, (5,))


def test_a_weight_that_is_no_number_is_far_from_its_main_weight(
    source: Path, tmp_path: Path
) -> None:
    to_fsdp(source, tmp_path / "fsdp")
    held = load_file(source / "model.safetensors")
    held[NAME][5] = torch.nan
    save_file(held, source / "model.safetensors", {"format": "pt"})
    for a, b in ((source, tmp_path / "fsdp"), (tmp_path / "fsdp", source)):
        (found,) = intarsia.verify(a, b).different
        assert (found.elements, found.gap) == (1, "nan")


def test_weights_without_state_are_held_against_main_weights(source: Path, tmp_path: Path) -> None:
    to_fsdp(source, tmp_path / "fsdp", optimizer="drop")
    found = intarsia.verify(source, tmp_path / "fsdp")
    assert not found.different
    assert not found.only_in_b
    assert not any(name.startswith("optimizer.master.") for name in found.only_in_a)
    assert not found, "moments and steps were dropped"


def test_weights_that_are_their_own_main_weights_have_no_partner_to_miss(tmp_path: Path) -> None:
    source = hf_with_optimizer(tmp_path / "hf", model(CONFIG, torch.float32), CONFIG)
    file = source / "optimizer" / "model.safetensors"
    save_file({n: x for n, x in load_file(file).items() if ".master." not in n}, file)
    to_fsdp(source, tmp_path / "fsdp")
    assert intarsia.verify(source, tmp_path / "fsdp")
    assert intarsia.verify(tmp_path / "fsdp", source)
    weights, in_place = intarsia.digest(source), intarsia.digest(tmp_path / "fsdp")
    assert (weights.root, weights.weights_again) == (in_place.root, frozenset())
    assert len(in_place.weights_again) == len(model(CONFIG))
    assert stored_root(tmp_path / "fsdp") == in_place.root_of_all != in_place.root


def stored_root(path: Path) -> str:
    """The root in the file of digests, which is over every line of it."""
    (file,) = path.rglob("intarsia-digests.json")
    return str(json.loads(file.read_text())["root"])


def test_a_main_weight_that_is_not_its_weight_belongs_to_the_root(tmp_path: Path) -> None:
    source = hf_with_optimizer(tmp_path / "a", model(CONFIG, torch.float32), CONFIG)
    file = source / "optimizer" / "model.safetensors"
    weights = {f"optimizer.master.{n}": x for n, x in model(CONFIG, torch.float32).items()}
    held = load_file(file) | weights
    save_file(held, file)
    same = intarsia.digest(source)
    held[f"optimizer.master.{NAME}"][5] += 1
    save_file(held, file)
    other = intarsia.digest(source)
    assert same.weights_again - other.weights_again == {f"optimizer.master.{NAME}"}
    assert same.root != other.root


def test_a_checkpoint_that_lost_some_main_weights_has_a_root_of_its_own(tmp_path: Path) -> None:
    source = hf_with_optimizer(tmp_path / "a", model(CONFIG, torch.float32), CONFIG)
    file = source / "optimizer" / "model.safetensors"
    rest = {n: x for n, x in load_file(file).items() if ".master." not in n}
    weights = {f"optimizer.master.{n}": x for n, x in model(CONFIG, torch.float32).items()}
    roots = []
    for kept in ({}, weights, {n: x for n, x in weights.items() if NAME not in n}):
        save_file(rest | kept, file)
        roots.append(intarsia.digest(source).root)
    assert roots[0] == roots[1] != roots[2]


def test_wider_weights_without_main_weights_are_another_type(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    to_fsdp(source, tmp_path / "fsdp", dtype="fp32")
    found = intarsia.verify(source, tmp_path / "fsdp")
    assert {d.kind for d in found.different} == {"dtype-changed"}
    assert all(d.elements == 0 for d in found.different)


@pytest.mark.parametrize("case", ["td_dense_tp2", "td_gdn_tp2"])
@pytest.mark.one_in(2)
def test_megatrons_checkpoint_equals_what_it_becomes(case: str, tmp_path: Path) -> None:
    config = FIXTURES / case / "hf_truth" / "config.json"
    to_fsdp(FIXTURES / case, tmp_path / "fsdp", config=config)
    found = intarsia.verify(FIXTURES / case, tmp_path / "fsdp", config=config)
    assert found, [d.as_json() for d in found.different[:3]]


def test_equal_means_equal_digests_unless_weights_are_main_weights_rounded(
    source: Path, tmp_path: Path
) -> None:
    to_fsdp(source, tmp_path / "fsdp")
    found = intarsia.verify(source, tmp_path / "fsdp")
    assert found
    assert found.rounded == found.as_json()["rounded"] == len(model(CONFIG))
    assert "their digests differ" in found.how
    rounded, in_place = intarsia.digest(source), intarsia.digest(tmp_path / "fsdp")
    assert rounded.root != in_place.root
    assert not rounded.notes
    assert ["`optimizer.master.*` are the same" in note for note in in_place.notes] == [True]
    main = {n: x for n, x in in_place.tensors.items() if ".master." in n}
    assert main == {n: x for n, x in rounded.tensors.items() if ".master." in n}
    for to, mesh in (("dcp", "fsdp=2"), ("hf", "")):
        made = tmp_path / f"made-{to}"
        intarsia.convert(source, made, to=to, mesh=mesh)
        found = intarsia.verify(source, made)
        assert found
        assert (found.rounded, found.how) == (0, "bit by bit")
        assert intarsia.digest(source).root == intarsia.digest(made).root
