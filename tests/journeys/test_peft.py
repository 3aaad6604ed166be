"""PEFT: an adapter that was copied or went through DCP is loaded by PEFT, and a wrong one is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import intarsia
from intarsia.errors import FamilyError, ForeignNamesError, UsageError
from intarsia.planning.inventory import items_left_out
from tests.checkpoints import assert_same, write_dcp

WORDS = torch.arange(10).reshape(1, 10)


def base() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config).eval()


def adapted(name: str = "default", **options: object) -> PeftModel:
    settings = {"r": 4, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"}
    model = get_peft_model(base(), LoraConfig(**(settings | options)), adapter_name=name)
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    adapted().save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return PeftModel.from_pretrained(base(), folder).eval()(WORDS).logits


@pytest.mark.parametrize("through", ["hf", "dcp"])
def test_peft_loads_what_became_of_an_adapter(adapter: Path, tmp_path: Path, through: str) -> None:
    intarsia.convert(adapter, tmp_path / "first", to=through, mesh="")
    intarsia.convert(tmp_path / "first", tmp_path / "last", to="hf", max_shard_size="1KB")
    held = sorted(p.name for p in (tmp_path / "last").iterdir() if "digests" not in p.name)
    assert held == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    file = "adapter_model.safetensors"
    assert_same(load_file(tmp_path / "last" / file), load_file(adapter / file))
    assert torch.equal(logits(tmp_path / "last"), logits(adapter))
    assert not torch.equal(logits(adapter), base()(WORDS).logits)


def test_an_adapter_that_was_saved_sharded_needs_its_configuration_beside_it(
    adapter: Path, tmp_path: Path
) -> None:
    held = load_file(adapter / "adapter_model.safetensors")
    src, file = write_dcp(tmp_path / "src", {"model": held}), adapter / "adapter_config.json"
    with pytest.raises(UsageError, match="of a PEFT adapter, not of a model") as refused:
        intarsia.convert(src, tmp_path / "out", to="hf", config=file)
    assert "put it into the folder of the adapter as adapter_config.json" in str(refused.value)
    shutil.copy(file, src)
    intarsia.convert(src, tmp_path / "out", to="hf")
    assert torch.equal(logits(tmp_path / "out"), logits(adapter))


def test_factors_of_lora_that_are_taken_for_a_model_are_called_so(
    adapter: Path, tmp_path: Path
) -> None:
    """Those of an adapter alone, and those of a model with an adapter in it, which has a name there."""
    said = "factors of LoRA"
    factors = load_file(adapter / "adapter_model.safetensors")
    for k, held in enumerate((factors, adapted(name="my-task").state_dict())):
        src = write_dcp(tmp_path / f"src{k}", {"model": held})
        for to in ("hf", "dcp"):
            (note,) = (
                n for n in intarsia.convert(src, tmp_path / f"{to}{k}", to=to).notes if said in n
            )
            assert "8 tensors are" in note
            assert "adapter_config.json" in note
            assert ("put it into" in note) == (held is factors)
    for src in (adapter, tmp_path / "base"):
        if src != adapter:
            base().save_pretrained(src)
        report = intarsia.convert(src, tmp_path / f"{src.name}-out", to="hf")
        assert said not in "".join(report.notes)


@pytest.mark.parametrize("options", [{"use_dora": True, "target_modules": ["embed_tokens", "v_proj"]}, {"rank_pattern": {"down_proj": 2}}, {"modules_to_save": ["lm_head"]}, {"target_modules": ["embed_tokens", "v_proj"]}, {"target_modules": "all-linear"}])  # fmt: skip
def test_other_adapters_of_peft_are_read_and_kept(
    tmp_path: Path, options: dict[str, object]
) -> None:
    adapted(**options).save_pretrained(tmp_path / "adapter")
    intarsia.convert(tmp_path / "adapter", tmp_path / "copy", to="hf")
    assert torch.equal(logits(tmp_path / "copy"), logits(tmp_path / "adapter"))


@pytest.mark.parametrize("to", ["torch_dist", "fsdp_dtensor"])
def test_an_adapter_is_no_model_of_megatron(adapter: Path, tmp_path: Path, to: str) -> None:
    base().config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"PEFT adapter[\s\S]*merge_and_unload"):
        intarsia.convert(adapter, tmp_path / "out", to=to, config=tmp_path)


def test_an_adapter_and_a_configuration_that_disagree_are_refused(adapter: Path) -> None:
    file = adapter / "adapter_config.json"
    config = json.loads(file.read_text())
    for change, text in (
        ({"r": 8}, "has rank 4, the configuration says 8"),
        ({"target_modules": ["q_proj"]}, "is no target of the configuration"),
        ({"use_dora": True}, r"DoRA is configured, and `.*down_proj` has no lora_magnitude_vector"),
    ):
        file.write_text(json.dumps(config | change))
        with pytest.raises(FamilyError, match=text):
            intarsia.open(adapter)
        assert "config-contradicts" in {fault.kind for fault in intarsia.verify(adapter).faults}
    file.unlink()
    with pytest.raises(FamilyError, match=r"no adapter_config\.json"):
        intarsia.open(adapter)


@pytest.mark.parametrize(
    ("options", "change", "text"),
    [
        (
            {},
            {"layers_to_transform": [0]},
            r"layers\.1\.\S+` is in no layer of layers_to_transform",
        ),
        ({}, {"layers_to_transform": 1}, r"layers\.0\.\S+` is in no layer of layers_to_transform"),
        ({}, {"exclude_modules": ["layers.1.mlp.down_proj"]}, "is among the exclude_modules"),
        ({"use_dora": True}, {"use_dora": False}, "is stored, and use_dora is not configured"),
        ({"lora_bias": True}, {"lora_bias": False}, "is stored, and lora_bias is not configured"),
        (
            {"trainable_token_indices": [1, 2]},
            {"trainable_token_indices": None},
            "is stored, and trainable_token_indices is not configured",
        ),
    ],
)
def test_what_peft_would_leave_out_without_a_word_is_refused(
    tmp_path: Path, options: dict[str, object], change: dict[str, object], text: str
) -> None:
    model = adapted(**options)
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "magnitude" in name or "tokens_delta" in name:
            parameter.data += 1
    model.save_pretrained(tmp_path)
    assert intarsia.verify(tmp_path)
    whole, file = logits(tmp_path), tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert not torch.allclose(logits(tmp_path), whole), (
        "PEFT says nothing, and the model is another"
    )
    with pytest.raises(FamilyError, match=text):
        intarsia.open(tmp_path)


def test_adapters_of_another_kind_or_without_their_modules_are_refused(adapter: Path) -> None:
    file = adapter / "adapter_config.json"
    config = json.loads(file.read_text())
    for change, text in (
        ({"peft_type": "IA3"}, "IA3 is configured, and the tensors are factors of LoRA"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save are configured \(lm_head\), and none"),
    ):
        file.write_text(json.dumps(config | change))
        with pytest.raises(FamilyError, match=text):
            intarsia.open(adapter)
    adapted(modules_to_save=["score", "lm_head"]).save_pretrained(adapter)
    assert intarsia.verify(adapter), "PEFT lists heads that a model may lack"


def test_a_factor_without_its_other_half_is_refused(adapter: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    del tensors[next(name for name in tensors if "lora_B" in name)]
    save_file(tensors, file)
    with pytest.raises(FamilyError, match=r"lora_A\.weight` has no matching factor B"):
        intarsia.open(adapter)


def test_names_that_peft_does_not_look_for_are_foreign(adapter: Path) -> None:
    """PEFT leaves the factors out, and the model is as it was without them."""
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    root, lost = "base_model.model.", "model.layers.0.mlp.down_proj"
    for bare in (lost, "model."):
        names = {n: n.removeprefix(root) if n.startswith(root + bare) else n for n in tensors}
        save_file({names[n]: x for n, x in tensors.items()}, file)
        with pytest.raises(
            ForeignNamesError, match=rf"`{lost}`[\s\S]*'base_model\.model\.' before"
        ):
            intarsia.open(adapter)
        assert [fault.kind for fault in intarsia.verify(adapter).faults] == ["names-foreign"]
    assert torch.equal(logits(adapter), base()(WORDS).logits)


def test_a_module_that_lacks_both_factors_where_most_layers_have_them_is_noted(
    adapter: Path, tmp_path: Path
) -> None:
    file, lost = adapter / "adapter_model.safetensors", "base_model.model.model.layers.1.mlp"
    tensors = load_file(file)
    assert "factors of LoRA" not in "".join(intarsia.verify(adapter).notes)
    tensors |= {n.replace("layers.0", "layers.2"): 2 * x for n, x in tensors.items() if "s.0" in n}
    save_file({n: x for n, x in tensors.items() if lost not in n}, file)
    for report in (intarsia.verify(adapter), intarsia.convert(adapter, tmp_path / "out", to="hf")):
        assert f"no factors of LoRA for `{lost}.down_proj`" in "".join(report.notes)


def test_factors_of_dora_without_their_magnitude_are_refused(tmp_path: Path) -> None:
    """PEFT would load them, with a magnitude of the base model in place of what was trained."""
    adapted(use_dora=True).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    del tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_magnitude_vector"]
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(FamilyError, match=r"1\.self_attn\.q_proj` has no lora_magnitude_vector"):
        intarsia.open(tmp_path)
    assert [fault.kind for fault in intarsia.verify(tmp_path).faults] == ["config-contradicts"]


def test_an_adapter_beside_a_model_is_left_out_with_its_configuration(
    adapter: Path, tmp_path: Path
) -> None:
    base().save_pretrained(tmp_path / "model")
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        (tmp_path / "model" / file).write_bytes((adapter / file).read_bytes())
    report = intarsia.convert(tmp_path / "model", tmp_path / "out", to="hf")
    lost = {item.name for item in items_left_out(report.plan.src.inventory)}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= lost
    assert not list((tmp_path / "out").glob("adapter*"))
    LlamaForCausalLM.from_pretrained(tmp_path / "out")


def test_a_model_inside_of_peft_lacks_nothing_and_is_to_be_merged_first(tmp_path: Path) -> None:
    model = adapted()
    run = write_dcp(tmp_path / "run", {"model": model.state_dict()})
    base().config.save_pretrained(run)
    assert intarsia.verify(run)
    for to in ("hf", "torch_dist"):
        with pytest.raises(ForeignNamesError, match=r"base_layer.*[\s\S]*merge_and_unload"):
            intarsia.convert(run, tmp_path / "out", to=to)
    (tmp_path / "hf").mkdir()
    base().config.save_pretrained(tmp_path / "hf")
    save_file(dict(model.base_model.model.state_dict()), tmp_path / "hf" / "model.safetensors")
    assert [f.kind for f in intarsia.verify(tmp_path / "hf").faults] == ["names-foreign"]
    again = adapted()
    torch.nn.init.zeros_(again.base_model.model.model.layers[0].self_attn.q_proj.weight)
    intarsia.load(run, into=again)
    assert_same(dict(again.state_dict()), dict(model.state_dict()))


def test_tokens_that_never_came_leave_an_embeddings_adapter_as_it_began(tmp_path: Path) -> None:
    model = adapted(target_modules=["embed_tokens", "q_proj"])
    for name, x in model.named_parameters():
        if "lora_embedding_A" in name:
            torch.nn.init.normal_(x.data[:, :24])
    model.save_pretrained(tmp_path)
    assert intarsia.verify(tmp_path).sound
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors[next(name for name in tensors if "lora_A" in name)][:, :8] = 0
    save_file(tensors, file, {"format": "pt"})
    (fault,) = intarsia.verify(tmp_path).faults
    assert (fault.kind, fault.where) == ("zero-block", "columns [0:8)")
