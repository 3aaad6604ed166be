"""Models without a table under two spellings: the hub's, and the module's, which fuses and cuts as Transformers does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers

import intarsia
from intarsia.checking.pair.hub_names import _under_hub_names
from intarsia.family.from_transformers.skeleton import Skeleton
from tests.checkpoints import llama_config, model, read_hf, write_hf
from tests.versions import since

SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 32, "max_position_embeddings": 32,
}  # fmt: skip


def jamba() -> Any:
    config = transformers.JambaConfig(
        **SIZES, num_experts=4, expert_layer_period=2, attn_layer_period=2, attn_layer_offset=1,
        mamba_d_state=4, mamba_dt_rank=4, use_mamba_kernels=False,
    )  # fmt: skip
    return transformers.JambaForCausalLM(config)


def phimoe() -> Any:
    config = transformers.PhimoeConfig(**SIZES, num_local_experts=4, num_labels=3)
    return transformers.PhimoeForSequenceClassification(config)


def tied() -> Any:
    text = SIZES | {"model_type": "granite", "tie_word_embeddings": True}
    encoder = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "dim_head": 8, "input_dim": 8}
    projector = {"model_type": "blip_2_qformer", "num_hidden_layers": 1, "hidden_size": 16}
    config = transformers.GraniteSpeechConfig(
        text_config=text,
        encoder_config=encoder | {"output_dim": 16, "max_pos_emb": 8, "context_size": 4},
        projector_config=projector
        | {"num_attention_heads": 2, "intermediate_size": 24, "encoder_hidden_size": 16},
        tie_word_embeddings=True,
    )
    return transformers.GraniteSpeechForConditionalGeneration(config)


def llava() -> Any:
    """Its embedding has another name on the hub, and its head is tied to it."""
    vision = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 24}
    config = transformers.LlavaConfig(
        text_config=SIZES | {"model_type": "llama", "tie_word_embeddings": True},
        vision_config=vision
        | {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
        tie_word_embeddings=True,
    )
    return transformers.LlavaForConditionalGeneration(config)


EXPERT = "model.layers.1.feed_forward.experts.{}.{}_proj.weight"


def written(model: Any, folder: Path) -> tuple[Path, Path]:
    """A model as `save_pretrained` writes it, and its state dict with a state of each parameter."""
    torch.manual_seed(1)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn_like(param))
    model.save_pretrained(folder / "hub")
    config = json.loads((folder / "hub" / "config.json").read_text())
    own = {name: x.detach().clone() for name, x in model.state_dict().items()}
    return folder / "hub", write_hf(folder / "module", own, config)


@pytest.mark.parametrize("make", [jamba, phimoe, tied, llava])
@pytest.mark.one_in(4)
def test_the_modules_own_tensors_are_those_of_the_hub(tmp_path: Path, make: Any) -> None:
    model = make()
    hub, module = written(model, tmp_path)
    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "dcp")
    for other in (module, tmp_path / "dcp"):
        for a, b in ((hub, other), (other, hub)):
            found = intarsia.verify(a, b)
            assert found.equal, found.faults
            assert any("other names than on the hub" in note for note in found.notes)
            changes = intarsia.diff(a, b)
            assert (changes.only_in_a, changes.only_in_b) == ((), ())
            assert all(change.max_abs == 0 for change in changes)


def test_a_head_that_comes_before_the_embedding_it_is_tied_to_has_no_name_of_its_own(
    tmp_path: Path,
) -> None:
    hub, module = written(llava(), tmp_path)
    config = json.loads((hub / "config.json").read_text())
    held = {n: x for n, x in read_hf(module).items() if n != "lm_head.weight"}
    manifest = intarsia.open(write_hf(tmp_path / "tied", held, config)).manifest
    model = Skeleton.of(config)
    turned = replace(model, shapes=dict(reversed(model.shapes.items())))
    found = [_under_hub_names(each, manifest, [*manifest.logical]) for each in (model, turned)]
    assert {*found[0].logical} == {*found[1].logical} == {*read_hf(hub)}


def test_quantised_tensors_keep_their_names_and_the_others_are_those_of_the_hub(
    tmp_path: Path,
) -> None:
    hub, module = written(jamba(), tmp_path)
    config, held = json.loads((hub / "config.json").read_text()), read_hf(module)
    fused = "model.layers.1.feed_forward.experts.gate_up_proj"
    parts = {
        fused: torch.zeros(held[fused].numel() // 2, 1, dtype=torch.uint8),
        f"{fused}.absmax": torch.ones(held[fused].numel() // 64),
        f"{fused}.quant_map": torch.ones(16),
        f"{fused}.quant_state.bitsandbytes__nf4": torch.zeros(40, dtype=torch.uint8),
    }
    said = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    four_bits = write_hf(tmp_path / "nf4", held | parts, config | {"quantization_config": said})
    found = intarsia.verify(hub, four_bits)
    assert {n.split(".")[-2] for n in found.only_in_a} == {"gate_proj", "up_proj"}
    assert ({*found.only_in_b}, found.different) == ({*parts}, ())


def test_names_that_a_table_knows_are_not_looked_up_in_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = llama_config()
    tensors, lost = model(config), ("model.norm.weight", "lm_head.weight")
    a, b = (
        write_hf(tmp_path / name, {n: x for n, x in tensors.items() if n != name}, config)
        for name in lost
    )
    monkeypatch.setattr(Skeleton, "of", None)
    found = intarsia.verify(a, b)
    assert (found.only_in_a, found.only_in_b) == ((lost[1],), (lost[0],))


def test_a_fault_among_fused_experts_is_named_by_the_names_of_the_hub(tmp_path: Path) -> None:
    hub, module = written(jamba(), tmp_path)
    config = json.loads((hub / "config.json").read_text())
    held = read_hf(module)
    fused = "model.layers.1.feed_forward.experts.gate_up_proj"
    held[fused] = held[fused].index_select(0, torch.tensor([1, 0, 2, 3]))
    swapped = write_hf(tmp_path / "swapped", held, config)
    for a, b in ((hub, swapped), (swapped, hub)):
        found = intarsia.verify(a, b)
        assert {d.tensor for d in found.different} == {
            EXPERT.format(expert, role) for expert in (0, 1) for role in ("gate", "up")
        }
        assert [fault.kind for fault in found.faults] == ["experts-permuted"]


def test_an_expert_that_the_hub_lacks_is_missing_and_the_others_are_equal(tmp_path: Path) -> None:
    hub, module = written(jamba(), tmp_path)
    config = json.loads((hub / "config.json").read_text())
    held = {n: x for n, x in read_hf(hub).items() if ".experts.2." not in n}
    lacking = write_hf(tmp_path / "lacking", held, config)
    found = intarsia.verify(lacking, module)
    assert {*found.only_in_b} == {EXPERT.format(2, role) for role in ("down", "gate", "up")}
    assert not found.only_in_a
    assert not found.different


def test_a_part_that_the_module_lacks_leaves_the_rest_as_it_is(tmp_path: Path) -> None:
    hub, module = written(jamba(), tmp_path)
    config = json.loads((hub / "config.json").read_text())
    held = read_hf(module)
    del held["model.layers.1.feed_forward.experts.gate_up_proj"]
    found = intarsia.verify(hub, write_hf(tmp_path / "lacking", held, config))
    assert {n.split(".")[-2] for n in found.only_in_a} == {"gate_proj", "up_proj"}
    assert (found.only_in_b, found.different) == ((), ())


def test_state_follows_its_parameter_through_fusions(tmp_path: Path) -> None:
    model = jamba()
    hub, module = written(model, tmp_path)
    config = json.loads((hub / "config.json").read_text())
    sides = []
    for folder, name in ((hub, "a"), (module, "b")):
        held = read_hf(folder)
        state = {f"optimizer.exp_avg.{n}": 2 * x for n, x in held.items()}
        sides.append(write_hf(tmp_path / name, held | state, config))
    assert intarsia.verify(*sides).equal


def test_counters_follow_a_parameter_that_has_another_name(tmp_path: Path) -> None:
    hub, module = written(phimoe(), tmp_path)
    config = json.loads((hub / "config.json").read_text())
    sides = []
    for folder, name in ((hub, "a"), (module, "b")):
        held = read_hf(folder)
        steps = {f"optimizer.step.{n}": torch.tensor(3.0) for n in held if ".experts." not in n}
        sides.append(write_hf(tmp_path / name, held | steps, config))
    assert {*read_hf(sides[0])} - {*read_hf(hub)} != {*read_hf(sides[1])} - {*read_hf(module)}
    assert intarsia.verify(*sides).equal


def test_a_tensor_of_the_hub_beside_the_fused_one_that_has_it_too_is_not_equal(
    tmp_path: Path,
) -> None:
    hub, module = written(jamba(), tmp_path)
    config = json.loads((hub / "config.json").read_text())
    twice = {EXPERT.format(0, "gate"): read_hf(hub)[EXPERT.format(0, "gate")] + 1}
    both = write_hf(tmp_path / "both", read_hf(module) | twice, config)
    for a, b in ((hub, both), (both, hub)):
        found = intarsia.verify(a, b)
        assert not found.equal
        assert "model.layers.1.feed_forward.experts.gate_up_proj" in (
            *found.only_in_a,
            *found.only_in_b,
        )


def dinov2() -> Any:
    config = transformers.Dinov2Config(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4,
        use_swiglu_ffn=True, num_labels=3,
    )  # fmt: skip
    return transformers.Dinov2ForImageClassification(config)


@since("transformers", "5.22")
@pytest.mark.parametrize("change", ["none", "lost", "type"])
def test_parts_of_a_tensor_of_the_hub_are_it_where_all_are_there_in_one_type(
    tmp_path: Path, change: str
) -> None:
    """Transformers cuts `weights_in` of the hub in two."""
    hub, module = written(dinov2(), tmp_path)
    config, held = json.loads((hub / "config.json").read_text()), read_hf(module)
    fused = next(n for n in read_hf(hub) if n.endswith("weights_in.weight"))
    parts = [n for n in held if n.endswith(("gate_proj.weight", "up_proj.weight"))]
    assert len(parts) == 2
    if change == "lost":
        del held[parts[0]]
    elif change == "type":
        held[parts[0]] = held[parts[0]].double()
    other = write_hf(tmp_path / "other", held, config)
    for turned in (False, True):
        found = intarsia.verify(*((other, hub) if turned else (hub, other)))
        only = (found.only_in_b, found.only_in_a) if turned else (found.only_in_a, found.only_in_b)
        assert found.equal == (change == "none")
        if change != "none":
            assert only == ((fused,), tuple(n for n in parts if n in held))
            assert not found.different
