"""One checkpoint alone: sound ones pass, and what is said of faulty ones is exact."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import intarsia
from intarsia.checking.content.masters import compare_master
from intarsia.checking.kinds import KINDS
from intarsia.checkpoint import Checkpoint
from intarsia.errors import FormatError
from intarsia.format.registry import read_manifest
from intarsia.run.budget import Budget
from tests.checking.tabled import tabled
from tests.checkpoints import intarsia as command
from tests.checkpoints import llama_config, model, normal_tensor, write_dcp, write_hf
from tests.family.configs import CASES
from tests.fixtures import FIXTURES

ALL = FIXTURES
REAL = [
    *sorted(ALL.glob("hf/*")),
    *sorted(ALL.glob("bridge/*/hf_truth")),
    *sorted(ALL.glob("bridge/*/torch_dist*")),
    *sorted(p for p in ALL.glob("megatron/*") if p.is_dir()),
]
CONFIG = llama_config()


@pytest.mark.parametrize("path", REAL, ids=lambda p: str(p.relative_to(ALL)))
@pytest.mark.one_in(3)
def test_what_real_frameworks_wrote_is_sound(path: Path) -> None:
    report = intarsia.verify(path)
    assert report.sound, report
    assert report
    assert report.compared > 10
    truth = next(
        (c for c in (path / "hf_truth", path.parent / "hf_truth") if (c / "config.json").is_file()),
        None,
    )
    if truth is not None and not (path / "config.json").exists():
        known = intarsia.verify(path, config=truth / "config.json")
        assert known.sound, known
        assert known.family is not None


def test_a_batch_norm_begins_with_means_of_zero(tmp_path: Path) -> None:
    tensors = {"stem.conv.weight": normal_tensor((8, 3, 3, 3), torch.float32)}
    tensors |= {f"stem.batch_norm.{word}": torch.ones(8) for word in ("weight", "running_var")}
    tensors |= {f"stem.batch_norm.{word}": torch.zeros(8) for word in ("bias", "running_mean")}
    assert intarsia.verify(write_hf(tmp_path / "fresh", tensors))
    tensors["stem.batch_norm.weight"] = torch.zeros(8)
    assert not intarsia.verify(write_hf(tmp_path / "lost", tensors))


@pytest.mark.parametrize(
    "name", ["qwen3_next", "gemma3_text", "deepseek_v3", "qwen2_vl", "gpt_oss"]
)
def test_a_model_that_was_never_trained_is_sound(name: str, tmp_path: Path) -> None:
    """Zero biases, norms of ones or zeros, and equal vectors in every layer are no faults."""
    import transformers

    config = dict(CASES[name])
    kind = "AutoModelForImageTextToText" if "vision_config" in config else "AutoModelForCausalLM"
    whole = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    torch.manual_seed(0)
    fresh = getattr(transformers, kind).from_config(whole).to(torch.bfloat16)
    fresh.save_pretrained(tmp_path / "hub")
    assert intarsia.verify(tmp_path / "hub").sound, intarsia.verify(tmp_path / "hub")
    intarsia.convert(tmp_path / "hub", tmp_path / "dcp", to="dcp", mesh="tp=2,fsdp=3")
    assert intarsia.verify(tmp_path / "dcp").sound, intarsia.verify(tmp_path / "dcp")


def trained(config: dict[str, object]) -> dict[str, torch.Tensor]:
    return {name: x * 0.05 for name, x in model(config).items()}


def test_tensors_without_elements_are_counted_as_inspect_counts_them(tmp_path: Path) -> None:
    tensors = trained(CONFIG) | {"none": torch.empty(0, 3), "nothing": torch.empty(0)}
    src = write_hf(tmp_path / "hf", tensors)
    report = intarsia.verify(src)
    assert report.compared == intarsia.inspect(src).tensors == len(tensors)
    assert report.compared == intarsia.verify(src, src).compared


def test_the_family_need_not_be_known(tmp_path: Path) -> None:
    tensors = trained(CONFIG)
    src = write_hf(tmp_path / "hf", tensors)
    report = intarsia.verify(src)
    assert report.sound
    assert (report.family, report.compared) == (None, len(tensors))
    tensors["model.layers.2.self_attn.q_proj.weight"][:12] = 0
    (fault,) = intarsia.verify(write_hf(tmp_path / "zero", tensors)).faults
    assert fault.kind == "zero-block"
    assert fault.tensors == ("model.layers.2.self_attn.q_proj.weight",)
    assert fault.where == "rows [0:12)"
    assert fault.elements == 12 * 20


def test_a_flipped_bit_of_what_torch_saved_is_found_where_it_is(tmp_path: Path) -> None:
    src = write_dcp(
        tmp_path / "dcp", {"a.weight": normal_tensor((64, 48), torch.float32), "b": torch.ones(3)}
    )
    assert intarsia.verify(src).sound
    file = src / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    at = data.find(normal_tensor((64, 48), torch.float32)[40].numpy().tobytes())
    data[at + 5] ^= 4
    file.write_bytes(bytes(data))
    torch.distributed.checkpoint.load(
        {"a.weight": torch.zeros(64, 48)}, checkpoint_id=src, no_dist=True
    )
    report = intarsia.verify(src)
    (fault,) = report.faults
    assert (fault.kind, fault.tensors, fault.elements) == ("checksum-wrong", ("a.weight",), 64 * 48)
    assert fault.where.startswith("__0_0.distcp bytes [")
    assert report.different == ()


def test_a_transposed_tensor_is_seen_row_by_row(tmp_path: Path) -> None:
    x = normal_tensor((24, 16), torch.bfloat16)
    x[:, 8:] = 0
    src = write_dcp(tmp_path / "dcp", {"a.weight": x.t(), "b.weight": x.clone()})
    found = {fault.tensors[0]: fault.where for fault in intarsia.verify(src).faults}
    assert found == {"a.weight": "rows [8:16)", "b.weight": "columns [8:16)"}


@pytest.mark.parametrize(
    ("dtype", "master"), [(torch.float16, 1e6), (torch.bfloat16, 8.0), (torch.float64, -8.0)]
)
def test_a_main_weight_that_its_weight_cannot_hold_is_not_that_weight(
    dtype: torch.dtype, master: float, tmp_path: Path
) -> None:
    tensors = {n: x.to(dtype) for n, x in trained(CONFIG).items()}
    state = {f"optimizer.master.{n}": x.float() for n, x in tensors.items()}
    state["optimizer.master.lm_head.weight"][3, :5] = master
    src = write_hf(tmp_path, tensors, CONFIG)
    (src / "optimizer").mkdir()
    save_file(state, src / "optimizer" / "model.safetensors")
    (fault,) = intarsia.verify(src).faults
    assert (fault.kind, fault.elements) == ("master-differs", 5)


def test_stochastic_rounding_is_no_stale_weight(tmp_path: Path) -> None:
    tensors = trained(CONFIG)
    state = {f"optimizer.master.{n}": x.float() * (1 + 2**-12) for n, x in tensors.items()}
    up = tensors["lm_head.weight"].view(torch.int16)
    up[::3] += 1
    src = write_hf(tmp_path / "hf", tensors, CONFIG)
    (src / "optimizer").mkdir()
    save_file(state, src / "optimizer" / "model.safetensors")
    assert intarsia.verify(src).sound, intarsia.verify(src)
    up[5:9] += 2
    write_hf(src, tensors, CONFIG)
    (fault,) = intarsia.verify(src).faults
    assert (fault.kind, fault.elements) == ("master-differs", 4 * 20)
    assert fault.where == "[5, 0] first"
    with Checkpoint(read_manifest(src)) as checkpoint:
        found = compare_master(checkpoint, "lm_head.weight", Budget(16 << 20, 1, share_bytes=160))
    assert found is not None
    assert (found.first, found.elements) == (fault.where, fault.elements)


def test_a_norm_that_was_trained_around_one_is_no_stale_weight(tmp_path: Path) -> None:
    tensors = trained(CONFIG)
    state = {f"optimizer.master.{n}": x.float() for n, x in tensors.items()}
    exact = normal_tensor((20,), torch.float32) * 0.01
    tensors["model.norm.weight"] = ((1 + exact).bfloat16().float() - 1).bfloat16()
    state["optimizer.master.model.norm.weight"] = exact
    src = write_hf(tmp_path, tensors, CONFIG)
    (src / "optimizer").mkdir()
    save_file(state, src / "optimizer" / "model.safetensors")
    assert intarsia.verify(src).sound, intarsia.verify(src)


def test_an_expert_that_was_chosen_less_often_may_be_steps_behind(tmp_path: Path) -> None:
    state = {
        f"optimizer.step.model.layers.0.mlp.experts.{e}.w": torch.tensor(4.0 + e) for e in range(3)
    }
    state["optimizer.step.lm_head.weight"] = torch.tensor(6.0)
    save_file(state, tmp_path / "model.safetensors")
    assert intarsia.verify(tmp_path).sound
    state["optimizer.step.lm_head.weight"] = torch.tensor(5.0)
    save_file(state, tmp_path / "model.safetensors")
    assert [f.kind for f in intarsia.verify(tmp_path).faults] == ["steps-disagree"]


def test_a_buffer_that_all_layers_share_is_no_copied_layer(tmp_path: Path) -> None:
    mask = torch.tril(torch.ones(16, 16)) * torch.arange(1, 17)
    tensors = {f"h.{k}.attn.bias": mask.clone() for k in range(3)}
    tensors |= {f"h.{k}.attn.weight": normal_tensor((16, 16), torch.float32, k) for k in range(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert intarsia.verify(tmp_path).sound, intarsia.verify(tmp_path)


def test_tokens_that_were_never_trained_are_no_fault(tmp_path: Path) -> None:
    """Equal rows, and a few zero rows at the end, are what vocabularies end with."""
    tensors = trained(CONFIG | {"vocab_size": 96})
    tensors["model.embed_tokens.weight"][60:92] = tensors["model.embed_tokens.weight"][60]
    tensors["model.embed_tokens.weight"][92:] = 0
    report = intarsia.verify(write_hf(tmp_path, tensors, CONFIG | {"vocab_size": 96}))
    assert report.sound, report
    assert "`model.embed_tokens.weight` ends with 4 zero rows, as padding does" in report.notes


def test_state_that_outlived_its_weights_does_not_name_them(tmp_path: Path) -> None:
    tensors = trained(CONFIG)
    state = {f"optimizer.exp_avg.{n}": x.float() for n, x in tensors.items()}
    state |= {f"optimizer.step.{n}": torch.tensor(3.0) for n in tensors}
    del tensors["model.norm.weight"]
    src = write_hf(tmp_path, tensors, CONFIG)
    (src / "optimizer").mkdir()
    save_file(state, src / "optimizer" / "model.safetensors")
    kinds = {fault.kind: fault for fault in intarsia.verify(src).faults}
    assert kinds["tensor-missing"].tensors == ("model.norm.weight",)
    assert kinds["tensor-missing"].elements == 20
    assert "state-missing" in kinds


def test_half_of_a_layer_that_may_be_left_out_is_a_fault(tmp_path: Path) -> None:
    config = CASES["deepseek_v3"] | {"num_nextn_predict_layers": 1}
    tensors = tabled(config)
    ahead = f"model.layers.{config['num_hidden_layers']}."
    assert intarsia.verify(write_hf(tmp_path / "whole", tensors, config)).sound
    lost = {n: x for n, x in tensors.items() if n != f"{ahead}eh_proj.weight"}
    (fault,) = intarsia.verify(write_hf(tmp_path / "half", lost, config)).faults
    assert (fault.kind, fault.tensors) == ("tensor-missing", (f"{ahead}eh_proj.weight",))
    without = {n: x for n, x in tensors.items() if not n.startswith(ahead)}
    report = intarsia.verify(write_hf(tmp_path / "without", without, config))
    assert report.sound, report
    assert any("nothing of it is stored" in note for note in report.notes)


def test_memory_and_workers_change_nothing(tmp_path: Path) -> None:
    tensors = {f"layers.{k}.w": normal_tensor((2048, 1030), torch.bfloat16, k) for k in range(3)}
    tensors["layers.1.w"][700:900] = float("inf")
    save_file(tensors, tmp_path / "model.safetensors")
    reports = [
        intarsia.verify(tmp_path, memory=memory, workers=workers)
        for memory, workers in (("16MiB", 3), ("1GiB", 1))
    ]
    assert reports[0] == reports[1]
    assert [f.elements for f in reports[0].faults] == [200 * 1030]
    assert reports[0].faults[0].where == "[700, 0] first"


def test_the_command_says_sound_or_what_is_wrong(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", trained(CONFIG), CONFIG)
    answer = command("verify", src)
    assert answer.status == 0
    assert answer.out.startswith("sound: 30 tensors")
    document = command("verify", src, "--json").json
    assert document["sound"] is True
    assert (document["compared"], document["faults"]) == (30, [])
    tensors = load_file(src / "model.safetensors")
    tensors["lm_head.weight"][3, 4] = float("nan")
    save_file(tensors, src / "model.safetensors")
    answer = command("verify", src)
    assert answer.status == 1
    assert "not-finite" in answer.out
    answer = command("verify", src, "--json")
    assert answer.status == 1
    (fault,) = answer.json["faults"]
    assert fault["kind"] == "not-finite"
    assert fault["tensors"] == ["lm_head.weight"]
    assert fault["where"] == "[3, 4] first"
    assert fault["means"] == KINDS["not-finite"].means


def test_a_file_that_ends_early_is_a_fault_and_no_checkpoint_is_wrong_usage(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", trained(CONFIG), CONFIG)
    os.truncate(src / "model.safetensors", 5000)
    answer = command("verify", src, "--json")
    assert answer.status == 1
    assert [fault["kind"] for fault in answer.json["faults"]] == ["file-too-short"]
    assert "model.safetensors" in answer.json["faults"][0]["text"]
    for path in (tmp_path / "absent", src / "config.json", tmp_path):
        assert command("verify", path).status == 2
        with pytest.raises(FormatError):
            intarsia.verify(path)


def test_one_rank_s_experts_saved_for_another_are_told_as_blocks(tmp_path: Path) -> None:
    names = [f"model.layers.{k}.mlp.experts.{e}.up_proj.weight" for k in (0, 1) for e in range(12)]
    tensors = {n: normal_tensor((6, 8), torch.bfloat16, k) for k, n in enumerate(names)}
    for e in range(4):
        tensors[names[12 + 8 + e]] = tensors[names[12 + e]].clone()
    (fault,) = intarsia.verify(write_hf(tmp_path / "block", tensors)).faults
    assert (fault.kind, fault.where) == ("expert-blocks-repeated", "layers 1")
    assert (
        "experts [8:12) equal experts [0:4), as where one rank's were saved for another"
        in fault.text
    )
    assert len(fault.tensors) == 8
    tensors[names[12 + 7]] = tensors[names[12 + 5]].clone()
    (fault,) = intarsia.verify(write_hf(tmp_path / "mixed", tensors)).faults
    assert fault.kind == "experts-repeated"
    assert "experts 0 = 8, 1 = 9, 2 = 10, 3 = 11 and 1 more of a layer are equal" in fault.text
    assert len(fault.tensors) == 10
