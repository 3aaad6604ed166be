"""Models inside of PEFT: the weights of the model inside go by its own names, and adapters are told from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import torch.distributed.checkpoint as dcp
from peft import (
    LoraConfig,
    PromptTuningConfig,
    get_peft_model,
    get_peft_model_state_dict,
)
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from transformers import Qwen3MoeForCausalLM

import intarsia
from intarsia.errors import CoverageError, UsageError
from tests.checkpoints import assert_same, read_dcp, write_dcp
from tests.distributed.small_model import Small, optimizer_of, step
from tests.journeys.parallelized_training import CONFIG as EXPERTS
from tests.journeys.training import small


def adapted(seed: int, **options: Any) -> Any:
    torch.manual_seed(seed)
    settings = {"r": 2, "target_modules": ["up", "head"], "modules_to_save": ["down"]}
    model = get_peft_model(Small(), LoraConfig(**(settings | options)))
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "lora_B" in name:
                x.normal_()
    return model


def state(model: Any) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in model.state_dict().items()}


def is_adapters(name: str) -> bool:
    return "lora_" in name or "modules_to_save" in name


@pytest.fixture
def base(tmp_path: Path) -> Path:
    torch.manual_seed(9)
    intarsia.save(tmp_path / "base", Small())
    return tmp_path / "base"


def test_a_checkpoint_of_the_model_inside_fills_it_and_leaves_the_adapters(base: Path) -> None:
    model, truth = adapted(1), read_dcp(base)
    before = state(model)
    with pytest.raises(CoverageError, match=r"10 tensors .*PEFT added it[\s\S]*before PEFT wraps"):
        intarsia.load(base, into=model)
    assert_same(state(model), before)
    report = intarsia.load(base, into=model, strict=False)
    assert not report.complete
    assert sorted(report.kept) == sorted(n for n in report.kept if is_adapters(n))
    assert len(report.kept) == 10
    for name, why in report.kept.items():
        assert ("still holds those" in why) == ("modules_to_save" in name)
    words = ("base_model.model.", "base_layer.", "original_module.")
    for name, x in state(model).items():
        if is_adapters(name):
            assert torch.equal(x, before[name])
            continue
        for word in words:
            name = name.replace(word, "")
        assert torch.equal(x, truth.pop(name))
    assert not truth


def test_what_is_saved_inside_of_peft_has_the_names_of_the_model_and_comes_back(
    tmp_path: Path,
) -> None:
    model = adapted(1)
    optimizer = optimizer_of(model)
    step(model, optimizer, 0)
    intarsia.save(tmp_path / "saved", model, optimizer)
    held = read_dcp(tmp_path / "saved")
    assert torch.equal(held["blocks.0.up.weight"], model.base_model.model.blocks[0].up.weight)
    again = adapted(2)
    fresh = optimizer_of(again, lr=0.5)
    assert intarsia.load(tmp_path / "saved", again, fresh).complete
    assert_same(state(again), state(model))
    assert step(again, fresh, 1) == step(model, optimizer, 1)
    plain = Small()
    report = intarsia.load(tmp_path / "saved", plain, strict=False)
    assert report.complete
    assert len(report.unused) == 10
    assert torch.equal(plain.head.weight, model.base_model.model.head.base_layer.weight)


@pytest.mark.parametrize("how", ["dcp", "section", "safetensors"])
def test_a_state_dict_of_pefts_own_is_loaded(tmp_path: Path, how: str) -> None:
    model = adapted(1)
    if how == "safetensors":
        save_file(state(model), tmp_path / "model.safetensors")
    else:
        held = state(model)
        saved = {"model": held} if how == "section" else held
        dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)
    again = adapted(2)
    assert intarsia.load(tmp_path, into=again).complete
    assert_same(state(again), state(model))


def tuned(seed: int) -> tuple[Any, torch.optim.Optimizer]:
    """A model of Transformers' inside of PEFT: its configuration lends the checkpoint a table."""
    torch.manual_seed(seed)
    settings = {"r": 2, "target_modules": ["q_proj", "down_proj"], "modules_to_save": ["lm_head"]}
    model = get_peft_model(small(seed), LoraConfig(**settings))
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, torch.optim.AdamW(trained, lr=0.1 * seed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
def test_what_torch_saved_of_a_transformers_model_inside_of_peft_is_loaded(
    tmp_path: Path, flat: bool
) -> None:
    model, optimizer = tuned(1)
    for _ in range(2):
        model(torch.arange(12)[None]).logits.square().mean().backward()
        optimizer.step()
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    weights, moments = get_state_dict(model, optimizer, options=options)
    dcp.save({"model": weights, "optim": moments}, checkpoint_id=tmp_path, no_dist=True)
    other, again = tuned(2)
    assert intarsia.load(tmp_path, into=other, optimizer=again).complete
    assert_same(state(other), state(model))
    want, found = optimizer.state_dict(), again.state_dict()
    assert found["param_groups"] == want["param_groups"]
    for number, kinds in want["state"].items():
        assert_same(found["state"][number], kinds)


def test_an_adapter_of_which_a_part_is_missing_is_not_left_as_it_was(tmp_path: Path) -> None:
    held = state(adapted(1))
    del held[next(name for name in held if "lora_B" in name)]
    save_file(held, tmp_path / "model.safetensors")
    with pytest.raises(CoverageError, match="have no source"):
        intarsia.load(tmp_path, into=adapted(2), strict=False)


def test_adapters_without_memory_are_not_left_as_they_were(base: Path) -> None:
    with torch.device("meta"):
        model = get_peft_model(Small(), LoraConfig(r=2, target_modules=["up"]))
    for _ in range(2):  # the first gives them memory, in which there is nothing
        with pytest.raises(CoverageError, match=r"4 tensors of PEFT adapters hold nothing"):
            intarsia.load(base, into=model, strict=False)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            torch.nn.init.zeros_(parameter)
    assert len(intarsia.load(base, into=model, strict=False).kept) == 4
    assert intarsia.load(base, into=model, strict=False).kept


def test_weights_that_an_adapter_is_merged_into_are_refused(base: Path, tmp_path: Path) -> None:
    model = adapted(1)
    model.merge_adapter()
    with pytest.raises(UsageError, match="an adapter is merged into the weights of"):
        intarsia.save(tmp_path / "out", model)
    with pytest.raises(UsageError, match="an adapter is merged into the weights of"):
        intarsia.load(base, into=model, strict=False)
    model.unmerge_adapter()
    intarsia.save(tmp_path / "out", model)


def test_an_adapter_alone_is_pefts_to_load(tmp_path: Path) -> None:
    adapted(1).save_pretrained(tmp_path)
    with pytest.raises(CoverageError, match=r"PEFT's own load_adapter\(\)"):
        intarsia.load(tmp_path, into=adapted(2), strict=False)


def test_a_prompt_is_an_adapter_too(tmp_path: Path) -> None:
    truth = small(1)
    truth.save_pretrained(tmp_path)
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = get_peft_model(small(2), config)
    report = intarsia.load(tmp_path, into=model, strict=False)
    assert [*report.kept] == ["prompt_encoder.default.embedding.weight"]
    assert_same(dict(model.base_model.state_dict()), dict(truth.state_dict()))


def test_an_embedding_with_trainable_tokens_keeps_its_name(tmp_path: Path) -> None:
    truth = small(1)
    truth.save_pretrained(tmp_path / "base")
    config = LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[1, 2])
    model, other = (get_peft_model(small(seed), config) for seed in (2, 3))
    report = intarsia.load(tmp_path / "base", into=model, strict=False)
    assert all("lora_" in name or "trainable_tokens" in name for name in report.kept)
    embedding = model.get_input_embeddings().token_adapter.base_layer.weight
    assert torch.equal(embedding, truth.get_input_embeddings().weight)
    intarsia.save(tmp_path / "saved", model)
    assert intarsia.verify(tmp_path / "saved")
    assert intarsia.load(tmp_path / "saved", into=other).complete
    assert_same(state(other), state(model))


def test_state_of_what_peft_put_beside_the_model_is_found_where_torch_saved_it(
    tmp_path: Path,
) -> None:
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    models = [get_peft_model(small(seed), config) for seed in (1, 2)]
    prompts = [model.prompt_encoder.default.embedding.weight for model in models]
    one, two = (torch.optim.AdamW([prompt]) for prompt in prompts)
    models[0](torch.tensor([[1, 2, 3]])).logits.square().sum().backward()
    one.step()
    weights, state = get_state_dict(models[0], one)
    dcp.save({"model": weights, "optim": state}, checkpoint_id=tmp_path, no_dist=True)
    report = intarsia.load(tmp_path, into=models[1], optimizer=two)
    assert not report.never_stepped
    assert_same(two.state[prompts[1]], one.state[prompts[0]])
    assert_same(dict(models[1].state_dict()), dict(models[0].state_dict()))


@pytest.mark.parametrize("key", ["", "model", "state.net"])
def test_projections_that_peft_keeps_beside_the_model_are_found_under_any_key(
    tmp_path: Path, key: str
) -> None:
    config = peft.VeraConfig(r=2, target_modules=["q_proj", "o_proj"])
    one, two = (get_peft_model(small(seed), config) for seed in (1, 2))
    with torch.no_grad():
        for x in (*two.parameters(), *two.buffers()):
            x.mul_(1.5)
    state: Any = one.state_dict()
    for word in reversed(key.split(".") if key else ()):
        state = {word: state}
    write_dcp(tmp_path / "saved", state)
    assert intarsia.load(tmp_path / "saved", into=two).complete
    assert_same(dict(two.state_dict()), dict(one.state_dict()))


def with_experts(seed: int) -> Any:
    """Two parameters of one module with an adapter each: PEFT wraps the module twice."""
    torch.manual_seed(seed)
    both = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    model = get_peft_model(
        Qwen3MoeForCausalLM(EXPERTS),
        LoraConfig(r=2, target_modules=["q_proj"], target_parameters=both),
    )
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "lora_" in name:
                x.normal_()
    return model


def test_adapters_of_two_parameters_of_one_module_are_told_apart(tmp_path: Path) -> None:
    model, other = with_experts(1), with_experts(2)
    intarsia.save(tmp_path / "saved", model)
    held = set(intarsia.open(tmp_path / "saved"))
    experts = "model.layers.0.mlp.experts."
    assert {f"{experts}{way}lora_A.default.weight" for way in ("", "base_layer.")} < held
    assert not any("base_layer" in name and "lora_" not in name for name in held)
    report = intarsia.load(tmp_path / "saved", into=other)
    assert report.complete
    assert_same(state(other), state(model))


def test_a_wrapper_around_a_layer_with_an_adapter_leaves_its_name(tmp_path: Path) -> None:
    model = adapted(1)
    intarsia.save(tmp_path / "plain", model)
    inner = model.base_model.model
    inner.head = torch.nn.DataParallel(inner.head)
    intarsia.save(tmp_path / "wrapped", model)
    assert set(intarsia.open(tmp_path / "wrapped")) == set(intarsia.open(tmp_path / "plain"))


def test_an_adapter_alone_names_what_loads_it_whatever_wrote_it(tmp_path: Path) -> None:
    def model(seed: int) -> Any:
        torch.manual_seed(seed)
        settings = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
        return get_peft_model(small(seed), settings)

    truth = model(1)
    truth.save_pretrained(tmp_path / "pefts")
    intarsia.convert(tmp_path / "pefts", tmp_path / "converted", to="dcp")
    write_dcp(tmp_path / "torchs", get_peft_model_state_dict(truth))
    factors = {n: x for n, x in truth.state_dict().items() if ".lora_" in n}
    write_dcp(tmp_path / "inside", factors)
    for name in ("pefts", "converted", "torchs", "inside"):
        into = model(2)
        with pytest.raises(CoverageError, match="PEFT adapter: load the model, and the") as refused:
            intarsia.load(tmp_path / name, into=into)
        *_, step = str(refused.value).partition("into=")
        intarsia.load(tmp_path / name, into=eval(step, {"model": into, "peft": peft}))
        assert_same({n: x for n, x in into.state_dict().items() if n in factors}, factors)
