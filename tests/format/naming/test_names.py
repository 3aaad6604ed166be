"""Names on disk become logical names: prefixes come off, optimizer state is spelled one way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.errors import FamilyError
from intarsia.format.registry import read_manifest
from tests.checkpoints import (
    assert_same,
    llama_config,
    model,
    qwen3_config,
    read_dcp,
    read_hf,
    shapes,
    write_dcp,
    write_hf,
)

CONFIG = llama_config()
KNOWN = dict.fromkeys(shapes(CONFIG))


@pytest.mark.parametrize("prefix", ["model.", "module.", "model._orig_mod."])
def test_a_prefix_of_wrappers_is_stripped(tmp_path: Path, prefix: str) -> None:
    src = write_dcp(tmp_path / "dcp", {prefix + name: x for name, x in model(CONFIG).items()})
    opened = intarsia.open(src, config=CONFIG)
    assert opened.family == "llama"
    assert sorted(opened) == sorted(KNOWN)
    intarsia.convert(src, tmp_path / "hf", to="hf", config=CONFIG)
    assert_same(read_hf(tmp_path / "hf"), model(CONFIG))
    assert intarsia.verify(src, tmp_path / "hf", config=CONFIG)


@pytest.mark.parametrize("section", [None, "state.model"])
def test_tensors_beside_the_model_are_named_with_the_way_to_leave_them_out(
    section: str | None, tmp_path: Path
) -> None:
    held = {f"state.model.{name}": x for name, x in model(CONFIG).items()}
    src = write_dcp(tmp_path / "dcp", held | {"log_alpha": torch.ones(3)})
    found = read_manifest(src, CONFIG, section=section)
    (note,) = (x for x in found.notes if x.startswith("section state.model is read as the model"))
    assert ("with log_alpha beside it; --section state.model leaves" in note) == (section is None)
    assert ("log_alpha" in found.logical) == (section is None)


def test_without_a_configuration_names_stay_as_they_are(tmp_path: Path) -> None:
    tensors = {"module." + name: x for name, x in model(CONFIG).items()}
    src = write_hf(tmp_path / "hf", tensors)
    manifest = read_manifest(src)
    assert manifest.family is None
    assert "no model configuration" in manifest.notes[0]
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="tp=2")
    assert_same(read_dcp(tmp_path / "dcp"), tensors)


def test_an_unknown_family_is_carried_name_by_name(tmp_path: Path) -> None:
    tensors = {"transformer.wte.weight": torch.randn(7, 3), "h.0.bias": torch.randn(5)}
    src = write_hf(tmp_path / "hf", tensors, {"model_type": "no_such_model"})
    manifest = read_manifest(src)
    assert manifest.family is None
    assert "'no_such_model' has no table" in manifest.notes[0]
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="tp=2,fsdp=2")
    assert_same(read_dcp(tmp_path / "dcp"), tensors)


def test_two_tensors_of_one_logical_name_are_refused(tmp_path: Path) -> None:
    tensors = {"module." + name: x for name, x in model(CONFIG).items()}
    src = write_hf(tmp_path / "hf", tensors | {"model.norm.weight": torch.zeros(20)}, CONFIG)
    with pytest.raises(FamilyError, match=r"are both `model.norm.weight`"):
        intarsia.open(src)


def test_tied_embeddings_may_be_stored_once_or_twice(tmp_path: Path) -> None:
    config = qwen3_config(tie_word_embeddings=True)
    once = model(config)
    twice = once | {"lm_head.weight": once["model.embed_tokens.weight"].clone()}
    a = write_hf(tmp_path / "once", once, config)
    b = write_hf(tmp_path / "twice", twice, config)
    for left, right in ((a, b), (b, a)):
        found = intarsia.verify(left, right)
        assert found.equal
        assert any("tied" in note for note in found.notes)
    intarsia.convert(a, tmp_path / "dcp", to="dcp", mesh="tp=2,fsdp=2")
    assert_same(read_dcp(tmp_path / "dcp"), once)
    twice["lm_head.weight"][3, 4] += 1
    c = write_hf(tmp_path / "untied", twice, config)
    assert not intarsia.verify(a, c)
    assert not intarsia.verify(c, a)


def test_optimizer_state_of_a_known_parameter_is_cut_as_the_parameter(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    state = {
        "model": model(CONFIG),
        "optim": {"state": {name: {"exp_avg": torch.randn(20, 24), "step": torch.tensor(3.0)}}},
    }
    src = write_dcp(tmp_path / "dcp", state)
    manifest = read_manifest(src, CONFIG)
    moment = manifest.stored[f"optimizer.exp_avg.{name}"]
    assert moment.rule == manifest.stored[name].rule
    assert moment.rule.tp == 1
    assert f"optimizer.step.{name}" in manifest.logical


@pytest.mark.parametrize("root", ["optim", "optimizer"])
@pytest.mark.parametrize("config", [CONFIG, None], ids=["known", "unknown"])
def test_optimizer_state_keeps_its_name_through_every_format(
    tmp_path: Path, root: str, config
) -> None:
    name = "model.norm.weight"
    state = {f"{root}.state.{name}.{kind}": torch.randn(20) for kind in ("exp_avg", "exp_avg_sq")}
    src = write_dcp(tmp_path / "a", model(CONFIG) | state)
    intarsia.convert(src, tmp_path / "b", to="dcp", mesh="tp=2", config=config)
    intarsia.convert(tmp_path / "b", tmp_path / "c", to="hf", config=config)
    intarsia.convert(tmp_path / "c", tmp_path / "d", to="dcp", mesh="fsdp=2", config=config)
    wanted = {key.replace(root + ".", "optimizer.", 1): x for key, x in state.items()}
    assert_same(read_dcp(tmp_path / "b"), model(CONFIG) | wanted)
    assert_same(read_hf(tmp_path / "c"), model(CONFIG))
    assert_same(read_dcp(tmp_path / "d"), model(CONFIG) | wanted)
    assert intarsia.verify(src, tmp_path / "d", config=config)


@pytest.mark.parametrize("root", ["optim", "optimizer"])
@pytest.mark.parametrize("rest", ["param_groups.w.lr", "scale", "state.w"])
def test_tensors_of_the_optimizer_that_are_no_state_keep_their_names(
    tmp_path: Path, root: str, rest: str
) -> None:
    src = write_dcp(tmp_path / "a", model(CONFIG) | {f"{root}.{rest}": torch.tensor(0.5)})
    intarsia.convert(src, tmp_path / "b", to="hf", config=CONFIG)
    intarsia.convert(tmp_path / "b", tmp_path / "c", to="dcp")
    assert_same(read_hf(tmp_path / "b"), model(CONFIG))
    wanted = model(CONFIG) | {f"optimizer.{rest}": torch.tensor(0.5)}
    assert_same(read_dcp(tmp_path / "c"), wanted)
