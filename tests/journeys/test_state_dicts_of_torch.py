"""What people hand to `dcp.save`: the tutorial's AppState, pairs of state dicts, whatever the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from transformers import AutoModelForCausalLM

import intarsia
from intarsia.errors import CoverageError, FormatError, SectionError, UsageError
from tests.checkpoints import assert_same, read_dcp, read_hf, write_dcp
from tests.checkpoints import intarsia as command
from tests.journeys.training import adam, goes_on, small, step, trained, uninterrupted


class AppState(Stateful):
    """As in PyTorch's tutorial on distributed checkpoints."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


def tutorial(model: Any, optimizer: Any) -> dict[str, Any]:
    return {"app": AppState(model, optimizer)}


def pair(model: Any, optimizer: Any) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def flattened(model: Any, optimizer: Any) -> dict[str, Any]:
    flat = get_optimizer_state_dict(
        model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True)
    )
    return {"state_dict": model.state_dict(), "trainer": {"opt": flat}}


def accelerates(model: Any, optimizer: Any) -> dict[str, Any]:
    """The nesting of accelerate's `pytorch_model_fsdp_0` and `optimizer_0`, in one."""
    weights, state = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer_0": state}


SAVERS = (tutorial, pair, flattened, accelerates)


@pytest.mark.parametrize("configured", [True, False])
@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.one_in(9)
def test_weights_reach_the_hub_and_training_goes_on(
    tmp_path: Path, saver: Callable[[Any, Any], dict[str, Any]], configured: bool
) -> None:
    model, optimizer = trained()
    src = write_dcp(tmp_path / "src", saver(model, optimizer))
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    losses = uninterrupted(model, optimizer)
    config = model.config.to_dict() if configured else None
    for out, to, mesh in (("hf", "hf", ""), ("dcp", "dcp", "tp=2,fsdp=2")):
        intarsia.convert(src, tmp_path / out, to=to, mesh=mesh, config=config)
        goes_on(tmp_path / out, losses)
    goes_on(src, losses)
    assert_same(read_hf(tmp_path / "hf"), weights)
    assert intarsia.verify(src, tmp_path / "hf", config=config)
    intarsia.convert(src, tmp_path / "bare", to="dcp", optimizer="drop", config=config)
    assert_same(read_dcp(tmp_path / "bare"), weights)


@pytest.mark.parametrize("to", ["torch_dist", "fsdp_dtensor"])
@pytest.mark.parametrize("saver", [tutorial, pair])
@pytest.mark.one_in(2)
def test_state_goes_through_megatrons_formats(
    tmp_path: Path, saver: Callable[[Any, Any], dict[str, Any]], to: str
) -> None:
    model, optimizer = trained()
    src = write_dcp(tmp_path / "src", saver(model, optimizer))
    losses = uninterrupted(model, optimizer)
    intarsia.convert(src, tmp_path / "out", to=to, config=model.config.to_dict())
    goes_on(tmp_path / "out", losses)


@pytest.mark.parametrize(
    ("kind", "value", "formats"),
    [("step", 3, ("fsdp_dtensor",)), ("beta", 0.5, ("fsdp_dtensor", "torch_dist"))],
)
@pytest.mark.parametrize("saver", [accelerates, pair])
def test_plans_refuse_state_in_plain_values_where_megatron_has_none(
    tmp_path: Path, saver: Callable[..., Any], kind: str, value: float, formats: tuple[str, ...]
) -> None:
    model, optimizer = trained()
    saved = saver(model, optimizer)
    for state in next(saved[key] for key in saved if key.startswith("opt"))["state"].values():
        state[kind] = value
    src = write_dcp(tmp_path / "src", saved)
    config = model.config.to_dict()
    for to in formats:
        with pytest.raises(UsageError, match=rf"{kind}` of .* that {to} cannot hold"):
            intarsia.plan(src, to=to, config=config)
        intarsia.convert(src, tmp_path / to, to=to, config=config, optimizer="drop")
    assert intarsia.plan(src, to="hf", config=config).proven


@pytest.mark.parametrize("saver", [accelerates, pair])
def test_steps_in_plain_numbers_equal_those_that_megatron_counts(
    tmp_path: Path, saver: Callable[..., Any]
) -> None:
    model, optimizer = trained()
    saved, config = saver(model, optimizer), model.config.to_dict()
    states = next(saved[key] for key in saved if key.startswith("opt"))["state"].values()
    for state in states:
        state["step"] = int(state["step"])
    src = write_dcp(tmp_path / "src", saved)
    intarsia.convert(src, tmp_path / "made", to="torch_dist", config=config)
    found = intarsia.verify(src, tmp_path / "made", config=config)
    assert found, found
    for state in states:
        state["step"] += 1
    other = write_dcp(tmp_path / "other", saved)
    assert not intarsia.verify(other, tmp_path / "made", config=config)


def test_transformers_loads_what_was_written_from_the_tutorials_checkpoint(tmp_path: Path) -> None:
    model, optimizer = trained()
    src = write_dcp(tmp_path / "src", tutorial(model, optimizer))
    intarsia.convert(src, tmp_path / "hf", to="hf", config=model.config.to_dict())
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert all(torch.equal(x, again.state_dict()[n]) for n, x in model.state_dict().items())


def test_numbers_are_parameters_by_their_order_also_with_tied_weights(tmp_path: Path) -> None:
    tied = {"tie_word_embeddings": True}
    model, optimizer = trained(**tied)
    src = write_dcp(tmp_path / "src", pair(model, optimizer))
    goes_on(src, uninterrupted(model, optimizer), model=tied)


def test_numbers_are_parameters_by_name_where_torch_was_given_names(tmp_path: Path) -> None:
    model = small()
    named = [*model.named_parameters()]
    matrices = {"params": [x for x in named if x[1].ndim > 1]}
    vectors = {"params": [x for x in named if x[1].ndim < 2], "weight_decay": 0.5}
    optimizer = adam([matrices, vectors])
    step(model, optimizer, 0)
    src = write_dcp(tmp_path / "src", pair(model, optimizer))
    fresh = small(3)
    held = [*fresh.parameters()]
    groups = [[x for x in held if x.ndim > 1], [x for x in held if x.ndim < 2]]
    again = adam([{"params": x} for x in groups], lr=0.5)
    intarsia.load(src, into=fresh, optimizer=again)
    assert [g["weight_decay"] for g in again.param_groups] == [0.03, 0.5]
    assert step(model, optimizer, 5) == step(fresh, again, 5)
    with pytest.raises(UsageError, match="stored with different settings"):
        intarsia.load(src, into=fresh, optimizer=adam(fresh.parameters()))


def test_numbers_without_names_are_for_an_optimizer_in_the_order_of_its_model(
    tmp_path: Path,
) -> None:
    def crossed(model: Any) -> torch.optim.AdamW:
        """Gate and up, which have one shape, the other way round."""
        held = dict(model.named_parameters())
        other = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
        words = [[other.get(word, word) for word in name.split(".")] for name in held]
        return adam([held[".".join(each)] for each in words])

    model = small()
    optimizer = crossed(model)
    step(model, optimizer, 0)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    src = write_dcp(tmp_path / "src", saved)
    fresh = small(3)
    with pytest.raises(FormatError, match=r"`\S+up_proj\S+ before `\S+gate_proj"):
        intarsia.load(src, into=fresh, optimizer=crossed(fresh))
    assert any("in the order of the model's" in note for note in intarsia.plan(src, to="hf").notes)


def regrouped(model: Any) -> torch.optim.AdamW:
    """Two groups without names, so that the order of the numbers is not the model's."""
    held = [*model.parameters()]
    return adam([{"params": [x for x in held if x.ndim == n]} for n in (2, 1)])


def cut(state: dict[str, Any]) -> dict[str, Any]:
    state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"][1:]
    return state


@pytest.mark.parametrize("how", ["groups", "shape", "frozen"])
def test_numbers_that_lead_nowhere_are_refused_and_weights_are_not(
    tmp_path: Path, how: str
) -> None:
    model = small()
    some = [*model.parameters()][3:]
    optimizer = regrouped(model) if how == "groups" else adam(model.parameters())
    optimizer = adam(some) if how == "frozen" else optimizer
    step(model, optimizer, 0)
    state = optimizer.state_dict()
    saved = {"model": model.state_dict(), "optimizer": cut(state) if how == "shape" else state}
    src = write_dcp(tmp_path / "src", saved)
    fresh = small(3)
    with pytest.raises(
        FormatError, match="is numbered, and nothing says which parameter"
    ) as raised:
        intarsia.load(src, into=fresh, optimizer=adam(fresh.parameters()))
    assert "named_parameters()" in str(raised.value.hint)
    assert torch.equal(fresh.lm_head.weight, small(3).lm_head.weight)
    config = model.config.to_dict()
    with pytest.raises(FormatError, match="is numbered"):
        intarsia.convert(src, tmp_path / "no", to="torch_dist", config=config)
    intarsia.load(src, into=fresh)
    assert torch.equal(fresh.lm_head.weight, model.lm_head.weight)
    intarsia.convert(src, tmp_path / "yes", to="torch_dist", config=config, optimizer="drop")


def test_an_optimizer_of_some_parameters_is_told_of_the_others(tmp_path: Path) -> None:
    model, optimizer = trained()
    src = write_dcp(tmp_path / "src", tutorial(model, optimizer))
    fresh = small(3)
    some = adam([*fresh.parameters()][:10])
    with pytest.raises(CoverageError, match="state of 11 parameters that the optimizer does not"):
        intarsia.load(src, into=fresh, optimizer=some)
    assert not some.state
    report = intarsia.load(src, into=fresh, optimizer=some, strict=False)
    assert len(report.unused) == 11
    assert len(some.state) == 10


def test_state_that_was_lost_is_not_taken_for_a_parameter_that_was_never_stepped(
    tmp_path: Path,
) -> None:
    model, optimizer = trained()
    weights, state = get_state_dict(model, optimizer)
    del state["state"]["model.norm.weight"]
    never = write_dcp(tmp_path / "never", {"model": weights, "optim": state})
    state["param_groups"][0]["params"].remove("model.norm.weight")
    lost = write_dcp(tmp_path / "lost", {"model": weights, "optim": state})
    fresh = small(3)
    report = intarsia.load(never, into=fresh, optimizer=adam(fresh.parameters()))
    assert report.never_stepped == ["model.norm.weight"]
    with pytest.raises(CoverageError, match=r"no optimizer state of 1 parameters.*model\.norm"):
        intarsia.load(lost, into=fresh, optimizer=adam(fresh.parameters()))


@pytest.mark.parametrize("saver", SAVERS)
def test_an_optimizer_without_state_gets_its_settings(
    tmp_path: Path, saver: Callable[[Any, Any], dict[str, Any]]
) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    step(model, optimizer, 0)
    src = write_dcp(tmp_path / "src", saver(model, optimizer))
    fresh = small(3)
    again = torch.optim.SGD(fresh.parameters(), lr=0.5)
    report = intarsia.load(src, into=fresh, optimizer=again)
    assert again.param_groups[0]["lr"] == 0.25
    assert len(report.never_stepped) == len([*fresh.parameters()])
    assert step(model, optimizer, 1) == step(fresh, again, 1)


def test_two_optimizers_are_refused_until_one_is_named(tmp_path: Path) -> None:
    model, optimizer = trained()
    state = optimizer.state_dict()
    saved = {"model": model.state_dict(), "optimizer_0": state, "optimizer_1": state}
    src = write_dcp(tmp_path / "src", saved)
    losses = uninterrupted(model, optimizer)
    with pytest.raises(intarsia.FamilyError, match="there are optimizer_0, optimizer_1"):
        intarsia.convert(src, tmp_path / "no", to="hf")
    intarsia.convert(src, tmp_path / "yes", to="hf", optimizer="drop")
    assert not (tmp_path / "yes" / "optimizer").exists()
    goes_on(src, losses, section="model,optimizer_1")


@pytest.mark.parametrize("configured", [True, False])
def test_the_average_is_not_the_model(tmp_path: Path, configured: bool) -> None:
    model, optimizer = trained()
    average = small(9)
    state = {"model": model.state_dict(), "ema": average.state_dict()}
    src = write_dcp(tmp_path / "src", state | {"optimizer": optimizer.state_dict()})
    config = tmp_path / "config.json"
    config.write_text(model.config.to_json_string(use_diff=False))
    given = ["--config", config] if configured else []
    told = command("--json", "convert", src, tmp_path / "hf", "--to", "hf", *given)
    left = [item for item in told.json["inventory"] if item["fate"] == "left out"]
    assert [(item["name"], item["role"]) for item in left] == [("ema", "other model")]
    assert left[0]["bytes"] == sum(x.nbytes for x in average.state_dict().values())
    assert_same(read_hf(tmp_path / "hf"), model.state_dict())
    told = command("convert", src, tmp_path / "ema", "--to", "hf", "--section", "ema", *given)
    assert "left out section optimizer" in told.out
    assert_same(read_hf(tmp_path / "ema"), average.state_dict())
    into = small(3)
    intarsia.load(src, into=into, strict=False)
    assert torch.equal(into.lm_head.weight, model.lm_head.weight)
    intarsia.load(src, into=into, section="ema")
    assert torch.equal(into.lm_head.weight, average.lm_head.weight)
    with pytest.raises(UsageError, match="a section of"):
        intarsia.load(src, into={"ema": into.state_dict()})


@pytest.mark.parametrize(("one", "other"), [("policy", "reference"), ("actor", "critic")])
@pytest.mark.parametrize("configured", [True, False])
@pytest.mark.one_in(2)
def test_of_two_models_the_user_chooses(
    tmp_path: Path, one: str, other: str, configured: bool
) -> None:
    models = {one: small(1), other: small(2)}
    src = write_dcp(tmp_path / "src", {name: x.state_dict() for name, x in models.items()})
    config = models[one].config.to_dict() if configured else None
    calls: list[Callable[..., Any]] = [
        lambda **more: intarsia.plan(src, to="hf", config=config, **more),
        lambda **more: intarsia.open(src, config, **more),
        lambda **more: intarsia.verify(src, config=config, **more),
        lambda **more: intarsia.digest(src, config=config, **more),
        lambda **more: intarsia.diff(src, src, config=config, **more),
        lambda **more: intarsia.load(src, into=small(3), strict=False, config=config, **more),
    ]
    for call in calls:
        with pytest.raises(SectionError, match=rf"(?s)2 sections.*{one} \(21 .*{other} \(21 "):
            call()
        call(section=other)
    intarsia.convert(src, tmp_path / "hf", to="hf", section=other, config=config)
    assert_same(read_hf(tmp_path / "hf"), models[other].state_dict())
    assert intarsia.verify(src, tmp_path / "hf", section=other, config=config)
    assert not intarsia.verify(src, tmp_path / "hf", section=one, config=config)


def test_a_section_is_compared_with_the_one_of_its_name_where_both_sides_have_it(
    tmp_path: Path,
) -> None:
    weights = {"weight": torch.randn(3, 4)}
    average = {"weight": weights["weight"] + 1}
    a = write_dcp(tmp_path / "a", {"model": weights, "ema": average})
    same = write_dcp(tmp_path / "same", {"model": average, "ema": average})
    swapped = write_dcp(tmp_path / "swapped", {"model": average, "ema": weights})
    assert intarsia.verify(a, same, section="ema")
    assert intarsia.verify(a, same, section="ema.")
    assert not intarsia.verify(a, swapped, section="ema")
    assert [x.max_abs for x in intarsia.diff(a, same, section="ema")] == [0]
    intarsia.convert(a, tmp_path / "hf", to="hf", section="ema")
    assert intarsia.verify(a, tmp_path / "hf", section="ema")


def test_tensors_beside_the_model_are_carried_by_name(tmp_path: Path) -> None:
    model = small()
    head = {"value_head.weight": torch.randn(1, 16)}
    src = write_dcp(tmp_path / "src", {"model": model.state_dict() | head, "noise": torch.ones(3)})
    for config in (model.config.to_dict(), None):
        out = tmp_path / f"hf-{config is None}"
        intarsia.convert(src, out, to="hf", config=config)
        assert_same(read_hf(out), model.state_dict() | head | {"noise": torch.ones(3)})


@pytest.mark.parametrize("key", ["model", "state", None])
def test_a_submodule_called_optimizer_is_not_taken_for_state(
    tmp_path: Path, key: str | None
) -> None:
    learned = torch.nn.ModuleDict(
        {"optimizer": torch.nn.Sequential(torch.nn.Linear(3, 3)), "body": torch.nn.Linear(3, 3)}
    )
    held = learned.state_dict()
    src = write_dcp(tmp_path / "src", {key: held} if key else held)
    with pytest.raises(intarsia.FamilyError, match="no parameter here has such a state"):
        intarsia.convert(src, tmp_path / "no", to="hf", optimizer="drop")
    assert not (tmp_path / "no").exists()


def test_names_of_torchtitan_are_another_dialect(tmp_path: Path) -> None:
    words = {
        "model.": "", "embed_tokens": "tok_embeddings", "self_attn": "attention", "q_proj": "wq",
        "k_proj": "wk", "v_proj": "wv", "o_proj": "wo", "lm_head": "output",
    }  # fmt: skip
    model = small()
    renamed = {}
    for name, x in model.state_dict().items():
        for old, new in words.items():
            name = name.replace(old, new)
        renamed[name] = x
    src = write_dcp(tmp_path / "src", renamed)
    with pytest.raises(intarsia.FamilyError, match="torchtitan") as raised:
        intarsia.convert(src, tmp_path / "no", to="hf", config=model.config.to_dict())
    assert "convert_to_hf.py" in str(raised.value.hint)
    intarsia.convert(src, tmp_path / "yes", to="hf")
    assert_same(read_hf(tmp_path / "yes"), renamed)


class Two(nn.Module):
    """One model whose parts have the words that people call several models by."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        for word in words:
            self.add_module(word, nn.Linear(3, 4))


@pytest.mark.parametrize("shard", [10**9, 40], ids=["one file", "shards"])
@pytest.mark.parametrize(
    "words", [("actor", "critic"), ("model", "ema"), ("student", "teacher"), ("net", "target")]
)
@pytest.mark.one_in(4)
def test_parts_that_are_called_like_several_models_stay_one_in_safetensors(
    words: tuple[str, str], shard: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Two(words)
    optimizer = torch.optim.AdamW(model.parameters())
    sum(each(torch.ones(3)).square().sum() for each in model.children()).backward()
    optimizer.step()
    want = {name: x.clone() for name, x in model.state_dict().items()}
    intarsia.save(tmp_path / "saved", model, optimizer)
    made = [("saved", "hf", "hf"), ("hf", "dcp", "dcp"), ("dcp", "again", "hf")]
    for src, out, to in made:
        intarsia.convert(tmp_path / src, tmp_path / out, to=to, max_shard_size=shard)
        assert intarsia.verify(tmp_path / "saved", tmp_path / out)
        assert intarsia.verify(tmp_path / out)
        assert intarsia.digest(tmp_path / out).root == intarsia.digest(tmp_path / "saved").root
        torch.manual_seed(1)
        other = Two(words)
        again = torch.optim.AdamW(other.parameters())
        assert intarsia.load(tmp_path / out, into=other, optimizer=again).complete
        assert_same(dict(other.state_dict()), want)
        for number, kinds in optimizer.state_dict()["state"].items():
            assert_same(again.state_dict()["state"][number], kinds)
    files = (tmp_path / "again").glob("*.safetensors")
    assert_same({name: x for file in files for name, x in load_file(file).items()}, want)


def test_a_file_whose_sections_are_all_asked_for_is_converted(tmp_path: Path) -> None:
    held = {name: x.clone() for name, x in Two(("actor", "critic")).state_dict().items()}
    save_file(held, tmp_path / "both.safetensors")
    intarsia.convert(tmp_path / "both.safetensors", tmp_path / "out", to="hf", section=".")
    assert_same(load_file(tmp_path / "out" / "model.safetensors"), held)
    assert set(intarsia.open(tmp_path / "out")) == set(held)
    with pytest.raises(SectionError, match="2 sections may be the model"):
        intarsia.convert(tmp_path / "both.safetensors", tmp_path / "other", to="hf")
