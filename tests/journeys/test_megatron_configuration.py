"""What is said about a model on its way through Megatron: configuration, arguments, counters, ties."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import intarsia
from intarsia.errors import CoverageError, FamilyError, FormatError, UsageError
from intarsia.family import table_for
from intarsia.format.megatron.configuration.config_to_arguments import arguments_of_config
from tests.checkpoints import llama_config, model, write_hf
from tests.family.configs import CASES

torch.serialization.add_safe_globals([Namespace])


def source(at: Path, **changes: Any) -> Path:
    config = llama_config(**changes)
    return write_hf(at, model(config), config, 1)


def weights(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A model of a family whose names on the hub are the logical ones."""
    table = table_for(config)
    assert table is not None
    return {n: torch.randn(shape).bfloat16() for n, shape in table.logical.items()}


def common(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("iter_*/common.pt")
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


def edit_arguments(folder: Path, **changes: Any) -> Path:
    """Store other arguments, as a run with other settings would have."""
    (file,) = folder.glob("iter_*/common.pt")
    state = common(folder)
    vars(state["args"]).update(changes)
    torch.save(state, file)
    return folder


def trained(at: Path, **changes: Any) -> Path:
    """A `torch_dist` checkpoint whose run has gone on for a while."""
    intarsia.convert(source(at / "hf"), at / "td", to="torch_dist", mesh="tp=2")
    state = {"iteration": 10, "num_floating_point_operations_so_far": 5}
    (file,) = (at / "td").glob("iter_*/common.pt")
    torch.save(common(at / "td") | state, file)
    return edit_arguments(at / "td", consumed_train_samples=320, own_flag="kept", **changes)


def test_the_configuration_that_was_used_is_written(tmp_path: Path) -> None:
    src = source(tmp_path / "hf")
    used = llama_config(transformers_version="9", rope_theta=10000.0)
    intarsia.convert(src, tmp_path / "out", to="hf", config=used)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == used
    intarsia.convert(src, tmp_path / "same", to="dcp")
    assert (tmp_path / "same" / "config.json").read_bytes() == (src / "config.json").read_bytes()


@pytest.mark.parametrize("to", ["hf", "dcp", "torch_dist", "fsdp_dtensor"])
def test_two_configurations_that_contradict(to: str, tmp_path: Path) -> None:
    src = source(tmp_path / "hf")
    given = llama_config(num_attention_heads=8, num_key_value_heads=4, head_dim=3, rope_theta=77)
    with pytest.raises(FamilyError) as caught:
        intarsia.convert(src, tmp_path / "out", to=to, config=given)
    for part in ("num_attention_heads is 8, stored 4", "rope_theta is 77, stored 10000.0"):
        assert part in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("middle", ["torch_dist", "fsdp_dtensor"])
def test_a_configuration_that_contradicts_the_stored_arguments(middle: str, tmp_path: Path) -> None:
    intarsia.convert(source(tmp_path / "hf"), tmp_path / "td", to=middle)
    (tmp_path / "td" / "config.json").unlink()
    given = llama_config(num_attention_heads=8, num_key_value_heads=4, head_dim=3)
    with pytest.raises(FamilyError, match=r"num_attention_heads is 4, .* gives 8"):
        intarsia.convert(tmp_path / "td", tmp_path / "out", to="hf", config=given)
    with pytest.raises(FamilyError, match="vocab_size is 47"):
        intarsia.convert(
            tmp_path / "td", tmp_path / "out", to="hf", config=llama_config(vocab_size=40)
        )


def test_arguments_and_counters_are_carried_everywhere(tmp_path: Path) -> None:
    src = trained(tmp_path)
    intarsia.convert(src, tmp_path / "other", to="torch_dist", mesh="tp=4")
    intarsia.convert(src, tmp_path / "hub", to="hf")
    intarsia.convert(tmp_path / "hub", tmp_path / "back", to="torch_dist")
    intarsia.convert(src, tmp_path / "fsdp", to="fsdp_dtensor")
    intarsia.convert(tmp_path / "fsdp", tmp_path / "again", to="torch_dist")
    for name, tp in (("other", 4), ("back", 1), ("again", 1)):
        state = common(tmp_path / name)
        args = state["args"]
        assert (args.consumed_train_samples, args.own_flag) == (320, "kept"), name
        assert (state["iteration"], args.tensor_model_parallel_size) == (10, tp), name
        assert state["num_floating_point_operations_so_far"] == 5
        assert (args.ckpt_format, args.use_megatron_fsdp) == ("torch_dist", False)


def test_weights_alone_keep_the_models_arguments_and_start_anew(tmp_path: Path) -> None:
    src = trained(tmp_path)
    report = intarsia.convert(src, tmp_path / "out", to="torch_dist", optimizer="drop")
    state = common(tmp_path / "out")
    assert state["args"].own_flag == "kept"
    assert not hasattr(state["args"], "consumed_train_samples")
    assert state["iteration"] == 1
    assert any("consumed samples" in note for note in report.plan.notes)


def test_what_megatrons_arguments_cannot_say_is_reported(tmp_path: Path) -> None:
    src = source(tmp_path / "hf", hidden_act="gelu_pytorch_tanh")
    plan = intarsia.plan(src, to="torch_dist")
    (note,) = [n for n in plan.notes if "cannot express" in n]
    assert "hidden_act=gelu_pytorch_tanh" in note
    report = intarsia.convert(src, tmp_path / "td", to="torch_dist")
    assert common(tmp_path / "td")["args"].swiglu is False
    assert note in report.notes
    assert report.complete
    assert report.as_json()["complete"]


@pytest.mark.parametrize("to", ["hf", "dcp", "torch_dist", "fsdp_dtensor"])
def test_prediction_layers_that_are_not_stored_are_reported(to: str, tmp_path: Path) -> None:
    config = CASES["deepseek_v3"] | {"num_nextn_predict_layers": 1}
    held = weights(config | {"num_nextn_predict_layers": 0})
    src = write_hf(tmp_path / "hf", held, config, 1)
    (note,) = [n for n in intarsia.plan(src, to=to).notes if "nothing of it is stored" in n]
    assert note in intarsia.verify(src).notes
    assert f"model.layers.{config['num_hidden_layers']};" in note
    whole = write_hf(tmp_path / "whole", weights(config), config, 1)
    assert not [n for n in intarsia.plan(whole, to=to).notes if "nothing of it is stored" in n]


def test_a_configuration_that_has_no_word_on_prediction_layers_does_not_describe_them(
    tmp_path: Path,
) -> None:
    config = CASES["qwen3_next"]
    held = {n: x for n, x in weights(config).items() if not n.startswith("mtp.")}
    src = write_hf(tmp_path / "hf", held, config, 1)
    note = "a qwen3_next may have mtp; nothing of it is stored, which is allowed"
    assert note in intarsia.plan(src, to="dcp").notes
    assert note in intarsia.verify(src).notes


@pytest.mark.parametrize("to", ["torch_dist", "fsdp_dtensor"])
def test_what_the_hub_repeats_in_prediction_layers_is_left_out_if_it_is_equal(
    to: str, tmp_path: Path
) -> None:
    config = CASES["deepseek_v3"] | {"num_nextn_predict_layers": 1}
    held, at = weights(config), f"model.layers.{config['num_hidden_layers']}"
    held[f"{at}.embed_tokens.weight"] = held["model.embed_tokens.weight"].clone()
    held[f"{at}.shared_head.head.weight"] = held["lm_head.weight"].clone()
    src = write_hf(tmp_path / "hf", held, config, 1)
    intarsia.convert(src, tmp_path / "out", to=to)
    intarsia.convert(tmp_path / "out", tmp_path / "back", to="hf")
    assert intarsia.verify(src, tmp_path / "back")
    held[f"{at}.embed_tokens.weight"][2, 1] += 1
    other = write_hf(tmp_path / "other", held, config, 1)
    with pytest.raises(CoverageError, match=f"{at}.embed_tokens.weight` is tied"):
        intarsia.convert(other, tmp_path / "none", to=to)


@pytest.mark.parametrize(
    ("biases", "alone"),
    [
        ({}, None),
        ({"attention_bias": True, "mlp_bias": True}, None),
        ({"attention_bias": True}, "attention"),
        ({"mlp_bias": True}, "the MLP"),
    ],
)
def test_biases_that_a_model_of_megatron_would_lose_are_reported(
    biases: dict[str, bool], alone: str | None, tmp_path: Path
) -> None:
    config = llama_config(**biases)
    src = write_hf(tmp_path / "hf", weights(config), config, 1)
    found = [n for n in intarsia.plan(src, to="torch_dist").notes if "cannot express biases" in n]
    assert len(found) == (alone is not None)
    assert all(f"biases of {alone} alone" in note for note in found)


def test_biases_that_a_model_of_megatron_would_ask_for_are_reported(tmp_path: Path) -> None:
    biases = {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}
    config = CASES["seed_oss"] | biases
    src = write_hf(tmp_path / "hf", weights(config), config, 1)
    notes = intarsia.plan(src, to="torch_dist").notes
    assert any("without those of queries, keys and values" in note for note in notes)


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 77.0},
    "linear": {"rope_type": "linear", "rope_theta": 77.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 77.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 77.0, "factor": 4.0, "original_max_position_embeddings": 16},
}  # fmt: skip
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 4, "intermediate_size": 24, "vocab_size": 32, "max_position_embeddings": 64}  # fmt: skip


def logits(folder: Path) -> torch.Tensor:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        found: torch.Tensor = loaded(torch.arange(24)[None] % 32).logits
    return found


def saved(at: Path, config: Any) -> Path:
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(at)
    return at


@pytest.mark.parametrize("rope", ROPES)
def test_a_configuration_made_from_arguments_computes_the_same(rope: str, tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**TINY, rope_parameters=ROPES[rope])
    src = saved(tmp_path / "hf", config)
    intarsia.convert(src, tmp_path / "td", to="torch_dist", mesh="tp=2")
    (tmp_path / "td" / "config.json").unlink()
    intarsia.convert(tmp_path / "td", tmp_path / "back", to="hf")
    assert torch.equal(logits(tmp_path / "back"), logits(src))


def test_a_window_and_a_router_survive_too(tmp_path: Path) -> None:
    windowed = transformers.MistralConfig(**TINY, sliding_window=5)
    sparse = transformers.Qwen3MoeConfig(
        **TINY, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=False
    )
    for name, config in (("windowed", windowed), ("sparse", sparse)):
        src = saved(tmp_path / name, config)
        intarsia.convert(src, tmp_path / f"{name}-td", to="torch_dist")
        (tmp_path / f"{name}-td" / "config.json").unlink()
        intarsia.convert(tmp_path / f"{name}-td", tmp_path / f"{name}-back", to="hf")
        assert torch.equal(logits(tmp_path / f"{name}-back"), logits(src))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rotary_interleaved": True}, "rotary_interleaved=True"),
        ({"swiglu": False}, "activation='gelu'"),
        ({"no_rope_freq": 2}, "no_rope_layers"),
        ({"window_size": (7, 0), "window_attn_skip_freq": 2}, "window="),
        ({"qk_l2_norm": True}, "qk_l2_norm=True"),
        ({"rotary_percent": 0.5}, "rotary_percent=0.5"),
        (
            {"use_rope_scaling": True, "rope_scaling_factor": 32.0},
            r"rope_scaling=\('llama3', 32.0\)",
        ),
        ({"rotary_seq_len_interpolation_factor": 4}, r"rope_scaling=\('linear', 4\)"),
    ],
)
@pytest.mark.one_in(4)
def test_arguments_that_no_configuration_says_need_one(
    change: Any, said: str, tmp_path: Path
) -> None:
    src = edit_arguments(trained(tmp_path), **change)
    (src / "config.json").unlink()
    with pytest.raises(FamilyError, match=said):
        intarsia.convert(src, tmp_path / "out", to="hf")
    intarsia.convert(src, tmp_path / "mesh", to="torch_dist", mesh="pp=3")
    args = vars(common(tmp_path / "mesh")["args"])
    assert {name: args[name] for name in change} == change
    assert not (tmp_path / "mesh" / "config.json").exists()
    assert intarsia.verify(src, tmp_path / "mesh")


@pytest.mark.parametrize("middle", ["torch_dist", "fsdp_dtensor"])
@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("granite", {"residual_multiplier": 0.5}),
        ("granite", {"embedding_multiplier": 12.0}),
    ],
)
def test_what_config_json_alone_says_is_missed_without_it(
    family: str, change: Any, middle: str, tmp_path: Path
) -> None:
    config = CASES[family] | change
    src = write_hf(tmp_path / "hf", weights(config), config, 1)
    intarsia.convert(src, tmp_path / "mid", to=middle)
    intarsia.convert(tmp_path / "mid", tmp_path / "other", to=middle)
    for folder in (tmp_path / "mid", tmp_path / "other"):
        (folder / "config.json").unlink()
        with pytest.raises(FamilyError, match=rf"only_in_config_json=.*{next(iter(change))}"):
            intarsia.convert(folder, tmp_path / "back", to="hf")
    with pytest.raises(FamilyError, match=r"only_in_config_json is .*, other fields"):
        intarsia.convert(folder, tmp_path / "back", to="hf", config=CASES[family])
    intarsia.convert(folder, tmp_path / "back", to="hf", config=config)
    assert intarsia.verify(src, tmp_path / "back")


@pytest.mark.parametrize("middle", ["torch_dist", "fsdp_dtensor"])
@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 77.0}}),
        ("llama", {"is_causal": False, "hidden_act": "gelu"}),
        ("deepseek_v3", {"norm_topk_prob": False, "rms_norm_eps": 1e-5}),
        ("qwen3_moe", {"norm_topk_prob": True, "num_experts_per_tok": 1}),
    ],
)
def test_what_config_json_alone_says_is_found_again_where_the_family_is_known(
    family: str, change: Any, middle: str, tmp_path: Path
) -> None:
    config = CASES[family] | change
    src = write_hf(tmp_path / "hf", weights(config), config, 1)
    intarsia.convert(src, tmp_path / "mid", to=middle)
    (tmp_path / "mid" / "config.json").unlink()
    intarsia.convert(tmp_path / "mid", tmp_path / "back", to="hf")
    made = json.loads((tmp_path / "back" / "config.json").read_text())
    assert arguments_of_config(made).unsaid == arguments_of_config(config).unsaid
    assert {name: made[name] for name in change} == change
    assert intarsia.verify(src, tmp_path / "back")


def test_the_epsilon_of_latents_is_told_where_it_is_another_model(tmp_path: Path) -> None:
    """Of the hub's model that it has one of its own; of Megatron's run that the hub computes with another."""
    config = CASES["deepseek_v3"] | {"rms_norm_eps": 1e-5}
    src = write_hf(tmp_path / "hf", weights(config), config, 1)
    told = intarsia.convert(src, tmp_path / "hub", to="torch_dist").notes
    assert any("cannot express the epsilon of the norms of latents" in note for note in told)
    again = intarsia.convert(tmp_path / "hub", tmp_path / "back", to="hf").notes
    assert not any("the run computes the norms" in note for note in again)
    run = edit_arguments(tmp_path / "hub", only_in_config_json=None)
    for to in ("torch_dist", "hf"):
        told = intarsia.convert(run, tmp_path / f"as {to}", to=to).notes
        assert any("the run computes the norms inside latent attention" in note for note in told)
        assert not any("cannot express" in note for note in told)


def test_a_slope_that_megatrons_activation_does_not_have() -> None:
    config = CASES["gpt_oss"] | {"swiglu_alpha": 1.5}
    assert arguments_of_config(config).unsaid == {"swiglu_alpha": 1.5}
    assert not arguments_of_config(CASES["gpt_oss"]).unsaid


def test_a_run_that_has_not_begun_is_equal_to_what_is_written_of_it(tmp_path: Path) -> None:
    src = trained(tmp_path)
    (file,) = src.glob("iter_*/common.pt")
    state = common(src) | {"iteration": 0}
    del state["num_floating_point_operations_so_far"]
    torch.save(state, file)
    intarsia.convert(src, tmp_path / "out", to="torch_dist")
    assert intarsia.verify(src, tmp_path / "out")
    assert intarsia.verify(tmp_path / "out", src)
    torch.save(state | {"iteration": 2}, file)
    assert not intarsia.verify(src, tmp_path / "out")


def test_norms_over_all_heads_are_no_familys_that_arguments_tell(tmp_path: Path) -> None:
    config = CASES["olmoe"]
    src = write_hf(tmp_path / "hf", weights(config), config, 1)
    intarsia.convert(src, tmp_path / "td", to="torch_dist")
    (tmp_path / "td" / "config.json").unlink()
    with pytest.raises(FamilyError, match="no model configuration"):
        intarsia.convert(tmp_path / "td", tmp_path / "back", to="hf")


@pytest.mark.parametrize("family", ["olmoe", "qwen3_moe", "qwen3_next", "gemma3_text"])
def test_norms_over_all_heads_are_said_to_need_a_model_that_megatron_core_does_not_build(
    family: str, tmp_path: Path
) -> None:
    config = CASES[family] | {"tie_word_embeddings": False}
    src = write_hf(tmp_path / "hf", weights(config), config, 1)
    for to in ("torch_dist", "fsdp_dtensor"):
        notes = intarsia.convert(src, tmp_path / to, to=to).notes
        found = [note for note in notes if "span all heads" in note]
        assert len(found) == (family == "olmoe")
        told = any("give it" in note and "--qk-layernorm" in note for note in notes)
        assert told == (family != "olmoe")


@pytest.mark.parametrize("to", ["hf", "dcp", "fsdp_dtensor"])
@pytest.mark.parametrize("middle", ["torch_dist", "fsdp_dtensor"])
def test_a_model_is_equal_to_what_comes_back_from_megatron(
    middle: str, to: str, tmp_path: Path
) -> None:
    src = source(tmp_path / "hf")
    intarsia.convert(src, tmp_path / "mid", to=middle)
    intarsia.convert(tmp_path / "mid", tmp_path / "back", to=to)
    assert intarsia.open(tmp_path / "back").format == to
    for a, b in ((src, tmp_path / "back"), (tmp_path / "back", src)):
        found = intarsia.verify(a, b)
        assert found, [str(each) for each in found.beside]
        assert any(each.verdict == "not compared" for each in found.beside)


def test_a_tied_head_that_differs_is_not_dropped(tmp_path: Path) -> None:
    config = llama_config(tie_word_embeddings=True)
    tensors = model(config)
    head = tensors["model.embed_tokens.weight"].clone()
    src = write_hf(tmp_path / "equal", tensors | {"lm_head.weight": head}, config, 1)
    intarsia.convert(src, tmp_path / "td", to="torch_dist")
    head[3, 2] += 1
    src = write_hf(tmp_path / "unlike", tensors | {"lm_head.weight": head}, config, 1)
    for to in ("torch_dist", "fsdp_dtensor"):
        with pytest.raises(CoverageError, match=r"lm_head.* they differ") as caught:
            intarsia.convert(src, tmp_path / "out", to=to)
        assert "tie_word_embeddings" in str(caught.value)
    assert "tied-differ" in {fault.kind for fault in intarsia.verify(src).faults}
    assert not (tmp_path / "out").exists()


def deepseek(at: Path, **more: torch.Tensor) -> Path:
    config = CASES["deepseek_v3"] | {"num_nextn_predict_layers": 1}
    from intarsia.family import table_for

    table = table_for(config)
    assert table is not None
    held = {n: torch.randn(s) for n, s in table.logical.items() if n not in table.tied}
    save = {**held, **more}
    return write_hf(at, {n: t for n, t in save.items() if t is not None}, config, 1)


def test_the_copies_that_prediction_layers_repeat_are_compared(tmp_path: Path) -> None:
    copy = "model.layers.3.embed_tokens.weight"
    src = deepseek(tmp_path / "hf")
    table = load_file(src / "model.safetensors")["model.embed_tokens.weight"]
    src = deepseek(tmp_path / "unlike", **{copy: table + 1})
    with pytest.raises(CoverageError, match=r"embed_tokens.* they differ"):
        intarsia.convert(src, tmp_path / "out", to="torch_dist")


@pytest.mark.parametrize("to", ["dcp", "torch_dist"])
def test_a_prediction_layer_that_is_half_there(to: str, tmp_path: Path) -> None:
    src = deepseek(tmp_path / "hf")
    tensors = load_file(src / "model.safetensors")
    del tensors["model.layers.3.eh_proj.weight"]
    save_file(tensors, src / "model.safetensors", {"format": "pt"})
    assert "tensor-missing" in {fault.kind for fault in intarsia.verify(src).faults}
    with pytest.raises(CoverageError, match="eh_proj"):
        intarsia.convert(src, tmp_path / "out", to=to)


def test_a_wrapper_without_its_tower(tmp_path: Path) -> None:
    from intarsia.family import table_for

    config = CASES["gemma3"]
    table = table_for(config)
    assert table is not None
    text = {n: torch.randn(s) for n, s in table.logical.items() if n not in table.tied}
    src = write_hf(tmp_path / "hf", text, config, 1)
    assert [fault.kind for fault in intarsia.verify(src).faults] == ["tower-missing"]
    with pytest.raises(FamilyError, match="vision_config"):
        intarsia.convert(src, tmp_path / "out", to="dcp")
    whole = write_hf(
        tmp_path / "whole", text | {"vision_tower.x.weight": torch.randn(3, 2)}, config, 1
    )
    intarsia.convert(whole, tmp_path / "out", to="dcp")


def test_a_megatron_checkpoint_without_its_common_state(tmp_path: Path) -> None:
    from tests.format.megatron.torch_dist.test_torch_dist import by_hand, stored_llama

    _, stored = stored_llama(tmp_path)
    folder = by_hand(tmp_path / "hand", stored)
    (folder / "common.pt").unlink()
    assert [fault.kind for fault in intarsia.verify(folder).faults] == ["common-missing"]
    with pytest.raises(FormatError, match=r"lacks common\.pt"):
        intarsia.convert(folder, tmp_path / "out", to="hf")


def test_a_common_file_that_is_lost_while_the_same_state_is_among_the_tensors(
    tmp_path: Path,
) -> None:
    src = source(tmp_path / "hf")
    for name in ("whole", "lost"):
        intarsia.convert(src, tmp_path / name, to="torch_dist")
    (file,) = (tmp_path / "lost").glob("iter_*/common.pt")
    file.unlink()
    for found in (
        intarsia.verify(tmp_path / "lost").faults,
        intarsia.verify(tmp_path / "whole", tmp_path / "lost").damaged,
        intarsia.verify(tmp_path / "lost", tmp_path / "whole").damaged,
    ):
        (fault,) = found
        assert fault.kind == "common-missing"
        assert "common.pt is lost" in fault.text
    intarsia.convert(tmp_path / "lost", tmp_path / "again", to="torch_dist")
    assert intarsia.verify(tmp_path / "again", tmp_path / "whole")


def test_layers_that_the_run_had_and_the_checkpoint_has_not(tmp_path: Path) -> None:
    """Without a configuration the stored layers would be taken for all that there are."""
    src = edit_arguments(trained(tmp_path), num_layers=64)
    (src / "config.json").unlink()
    assert "config-contradicts" in {fault.kind for fault in intarsia.verify(src).faults}
    for to in ("hf", "torch_dist"):
        with pytest.raises(FamilyError, match="num_layers=64, and 3 layers are stored"):
            intarsia.convert(src, tmp_path / "out", to=to)


@pytest.mark.parametrize("kind", ["LlamaModel", "LlamaForSequenceClassification"])
def test_models_without_a_head_over_the_vocabulary(kind: str, tmp_path: Path) -> None:
    made = getattr(transformers, kind)(transformers.LlamaConfig(**TINY, pad_token_id=0))
    made.save_pretrained(tmp_path / "hf")
    assert not intarsia.verify(tmp_path / "hf").faults
    intarsia.convert(tmp_path / "hf", tmp_path / "dcp", to="dcp", mesh="tp=2,fsdp=2")
    intarsia.convert(tmp_path / "dcp", tmp_path / "back", to="hf")
    again = getattr(transformers, kind).from_pretrained(tmp_path / "back")
    for name, tensor in made.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    with pytest.raises(FamilyError, match=r"has no `lm_head\.weight`"):
        intarsia.convert(tmp_path / "hf", tmp_path / "td", to="torch_dist")


@pytest.mark.parametrize("kind", ["Model", "ForSequenceClassification", "ForTokenClassification"])
def test_a_head_is_not_made_for_a_class_that_has_none(kind: str, tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**TINY | {"tie_word_embeddings": True}, pad_token_id=0)
    getattr(transformers, f"Llama{kind}")(config).save_pretrained(tmp_path / "hf")
    intarsia.convert(tmp_path / "hf", tmp_path / "module", to="hf", dialect="hf-module")
    stored = {*intarsia.open(tmp_path / "hf")}
    assert {*intarsia.open(tmp_path / "module")} == stored
    assert "lm_head.weight" not in stored
    held = load_file(tmp_path / "hf" / "model.safetensors")
    table = next(x for name, x in held.items() if name.endswith("embed_tokens.weight"))
    save_file(held | {"lm_head.weight": table.clone()}, tmp_path / "hf" / "model.safetensors")
    intarsia.convert(tmp_path / "hf", tmp_path / "whole", to="hf", dialect="hf-module")
    assert {*intarsia.open(tmp_path / "whole")} == {*stored, "lm_head.weight"}


def test_meshes_that_cannot_be(tmp_path: Path) -> None:
    sparse = {"model_type": "mixtral", "num_local_experts": 3}
    from intarsia.family import table_for

    config = CASES["mixtral"] | sparse
    table = table_for(config)
    assert table is not None
    src = write_hf(
        tmp_path / "moe", {n: torch.randn(s) for n, s in table.logical.items()}, config, 1
    )
    for to in ("dcp", "torch_dist", "fsdp_dtensor"):
        with pytest.raises(UsageError, match="ep=64, the model has 3 experts"):
            intarsia.plan(src, to=to, mesh="ep=64")
    dense = source(tmp_path / "hf")
    for to in ("torch_dist", "fsdp_dtensor"):
        with pytest.raises(UsageError, match="has no experts"):
            intarsia.plan(dense, to=to, mesh="ep=64")
    assert any("hold copies" in note for note in intarsia.plan(dense, to="dcp", mesh="ep=2").notes)
    with pytest.raises(UsageError, match="pp=4, the model has 3 layers"):
        intarsia.plan(dense, to="dcp", mesh="pp=4")


def test_the_counters_of_megatron_bridge_are_carried(tmp_path: Path) -> None:
    """Bridge keeps them in a file of their own, and no arguments."""
    intarsia.convert(source(tmp_path / "hf"), tmp_path / "td", to="torch_dist")
    (file,) = (tmp_path / "td").glob("iter_*/common.pt")
    torch.save({"checkpoint_version": 3.0}, file)
    counters = {"step": torch.tensor(12), "consumed_train_samples": torch.tensor(96)}
    torch.save(counters, file.parent / "train_state.pt")
    intarsia.convert(tmp_path / "td", tmp_path / "hub", to="hf")
    for name in ("td", "hub"):
        intarsia.convert(tmp_path / name, tmp_path / f"{name}-td", to="torch_dist")
        state = common(tmp_path / f"{name}-td")
        assert (state["iteration"], state["args"].consumed_train_samples) == (12, 96)
