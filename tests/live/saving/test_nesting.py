"""A dict that is saved has the nesting in the checkpoint that `dcp.save` would give it: its sections are found by all readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import intarsia
from intarsia.format.folder.side_files import DIGESTS


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(5, 4), nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5)))


def stepped(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    return optimizer


def equal(one: nn.Module, other: nn.Module) -> bool:
    both = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in both)


DICTS: dict[str, Any] = {
    "one": lambda: {"model": net(1)},
    "average": lambda: {"model": net(1), "ema": net(2)},
    "number": lambda: {"model": net(1), "ema": net(2), "alpha": torch.tensor(0.5)},
    "deep": lambda: {"app": {"model": net(1)}, "step": 7},
    "lightning": lambda: {"state_dict": dict(net(1).state_dict()), "epoch": 3},
}


def as_torch_keeps_it(given: Any) -> Any:
    if isinstance(given, nn.Module):
        return dict(given.state_dict())
    return {k: as_torch_keeps_it(x) for k, x in given.items()} if isinstance(given, dict) else given


def emptied(given: Any) -> Any:
    """The same dict with other numbers in it."""
    for key, x in given.items():
        if isinstance(x, dict):
            emptied(x)
        elif isinstance(x, nn.Module):
            x.load_state_dict(net(9).state_dict())
        else:
            given[key] = torch.zeros_like(x) if isinstance(x, torch.Tensor) else 0
    return given


@pytest.mark.parametrize("kind", DICTS)
def test_a_saved_dict_is_read_as_the_same_dict_of_torch_is(kind: str, tmp_path: Path) -> None:
    ours, torchs = tmp_path / "ours", tmp_path / "torchs"
    intarsia.save(ours, DICTS[kind]())
    dcp.save(as_torch_keeps_it(DICTS[kind]()), checkpoint_id=torchs, no_dist=True)
    one, other = intarsia.open(ours), intarsia.open(torchs)
    assert sorted(one.keys()) == sorted(other.keys())
    compared = intarsia.verify(ours, torchs)
    assert bool(compared)
    assert [*compared.only_in_a, *compared.only_in_b, *compared.different] == []
    assert bool(intarsia.verify(ours))
    section = "model" if kind == "number" else None
    for path in (ours, torchs):
        assert intarsia.load(path, into=(into := net(9)), section=section).unused == []
        assert equal(into, net(1))
    for path in (ours, torchs):
        again = emptied(DICTS[kind]())
        intarsia.load(path, into=again)
        assert str(as_torch_keeps_it(again)) == str(as_torch_keeps_it(DICTS[kind]()))


@pytest.mark.parametrize("kind", DICTS)
def test_torch_unfolds_what_was_saved_as_it_was_given(kind: str, tmp_path: Path) -> None:
    intarsia.save(tmp_path / "out", DICTS[kind]())
    dcp_to_torch_save(tmp_path / "out", tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=False)
    given = as_torch_keeps_it(DICTS[kind]())
    assert str({key: found[key] for key in given}) == str(given)
    again = as_torch_keeps_it(emptied(DICTS[kind]()))
    dcp.load(again, checkpoint_id=tmp_path / "out", no_dist=True)
    assert str(again) == str(given)


def test_an_average_beside_the_model_stays_out_of_a_folder_of_the_hub(tmp_path: Path) -> None:
    intarsia.save(tmp_path / "out", DICTS["average"]())
    report = intarsia.convert(tmp_path / "out", tmp_path / "hf", to="hf")
    assert not report.complete
    with intarsia.open(tmp_path / "hf") as found:
        assert sorted(found.keys()) == sorted(net(1).state_dict())


def test_digests_of_all_sections_are_kept_where_a_reader_leaves_some_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    intarsia.save(out, DICTS["average"]())
    kept = json.loads((out / DIGESTS).read_text())
    assert kept["section"] == ["."]
    names = [f"{key}.{name}" for key in ("ema", "model") for name in net(1).state_dict()]
    assert sorted(kept["tensors"]) == sorted(names)
    for section in (None, "model", "ema", "."):
        assert bool(intarsia.verify(out, section=section))


@pytest.mark.parametrize("section", [None, "model"])
def test_the_model_of_a_dict_is_loaded_with_its_optimizer(
    section: str | None, tmp_path: Path
) -> None:
    model = net(1)
    optimizer = stepped(model)
    intarsia.save(tmp_path / "out", {"model": model, "ema": net(2), "optimizer": optimizer})
    again = net(9)
    other = torch.optim.AdamW(again.parameters(), lr=0.5)
    intarsia.load(tmp_path / "out", into=again, optimizer=other, section=section)
    assert equal(again, model)
    assert other.param_groups[0]["lr"] == 0.25
    for x, y in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(other.state[x]["exp_avg"], optimizer.state[y]["exp_avg"])


def test_a_dict_of_a_model_and_its_optimizer_takes_what_torch_saved(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = net(1)
    optimizer = stepped(model)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path / "out", no_dist=True)
    again = net(9)
    other = torch.optim.AdamW(again.parameters(), lr=0.5)
    intarsia.load(tmp_path / "out", into={"model": again, "optimizer": other})
    assert equal(again, model)
    assert other.param_groups[0]["lr"] == 0.25
    for x, y in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(other.state[x]["exp_avg"], optimizer.state[y]["exp_avg"])


def test_torch_loads_a_dict_of_a_model_and_its_optimizer_as_its_own(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = net(1)
    optimizer = stepped(model)
    intarsia.save(tmp_path / "ours", {"model": model, "optimizer": optimizer})
    weights, state = get_state_dict(model, optimizer)
    torchs = {"model": weights, "optimizer": state}
    dcp.save(torchs, checkpoint_id=tmp_path / "torchs", no_dist=True)
    assert bool(intarsia.verify(tmp_path / "ours", tmp_path / "torchs"))
    again = net(9)
    other = torch.optim.AdamW(again.parameters(), lr=0.5)
    weights, state = get_state_dict(again, other)
    into = {"model": weights, "optimizer": state}
    dcp.load(into, checkpoint_id=tmp_path / "ours", no_dist=True)
    set_state_dict(again, other, model_state_dict=weights, optim_state_dict=into["optimizer"])
    assert equal(again, model)
    assert other.param_groups[0]["lr"] == 0.25
    for x, y in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(other.state[x]["exp_avg"], optimizer.state[y]["exp_avg"])


def test_only_another_class_of_optimizer_tells_two_saves_apart(tmp_path: Path) -> None:
    model = net(1)
    for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        optimizer = kind(model.parameters(), lr=0.25, weight_decay=0.0)
        optimizer.param_groups[0]["decoupled_weight_decay"] = True
        intarsia.save(tmp_path / name, model, optimizer)
    found = intarsia.verify(tmp_path / "adam", tmp_path / "adamw")
    assert not found
    assert [each.name for each in found.beside if each.counts] == ["optimizer.class"]


def llama(seed: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, **sizes)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("beside", [{}, {"alpha": torch.tensor(0.5)}], ids=["alone", "number"])
def test_a_model_of_transformers_comes_back_into_the_dict_it_was_saved_in(
    beside: dict[str, Any], tmp_path: Path
) -> None:
    model = llama(1)
    optimizer = stepped(model)
    saved = {"model": model, "optimizer": optimizer, **beside}
    intarsia.save(tmp_path / "out", saved)
    again = llama(9)
    other = torch.optim.AdamW(again.parameters(), lr=0.5)
    into = {"model": again, "optimizer": other}
    into |= {key: torch.zeros_like(x) for key, x in beside.items()}
    intarsia.load(tmp_path / "out", into=into)
    assert equal(again, model)
    assert other.param_groups[0]["lr"] == 0.25
    assert len(other.state) == len(optimizer.state)


@pytest.mark.parametrize("keys", [("model", "ema"), ("actor", "critic")])
def test_models_of_one_configuration_leave_it_to_each_of_their_folders(
    keys: tuple[str, str], tmp_path: Path
) -> None:
    models = {key: llama(seed) for seed, key in enumerate(keys)}
    intarsia.save(tmp_path / "out", models)
    for key, model in models.items():
        intarsia.convert(tmp_path / "out", tmp_path / key, to="hf", section=key)
        assert equal(type(model).from_pretrained(tmp_path / key), model)
    assert bool(intarsia.verify(tmp_path / "out", section="."))
    assert intarsia.convert(tmp_path / "out", tmp_path / "all", to="dcp", section=".").complete
    assert bool(intarsia.verify(tmp_path / "out", tmp_path / "all", section="."))
    again = {key: llama(9) for key in keys}
    intarsia.load(tmp_path / "all", into=again)
    assert all(equal(again[key], models[key]) for key in keys)
    with pytest.raises(intarsia.IntarsiaError, match=f"`{keys[0]}.`, `{keys[1]}.`: choose one, as"):
        intarsia.load(tmp_path / "out", into=llama(9), section=".")


def test_models_of_different_configurations_leave_none_and_say_so(tmp_path: Path) -> None:
    (note,) = intarsia.save(tmp_path / "out", {"model": llama(1), "head": net(2)}).notes
    assert not (tmp_path / "out" / "config.json").exists()
    assert "no config.json is written" in note
    assert "(there is one of model)" in note
    given = llama(1).config.to_dict()
    assert not intarsia.save(
        tmp_path / "a", {"model": llama(1), "head": net(2)}, config=given
    ).notes
    assert not intarsia.save(tmp_path / "b", {"model": llama(1), "ema": llama(2)}).notes
    assert not intarsia.save(tmp_path / "c", {"model": net(1), "head": net(2)}).notes


def test_tensors_below_keys_are_refused_with_all_of_these(tmp_path: Path) -> None:
    intarsia.save(tmp_path / "out", {"actor": net(1), "critic": net(2)})
    with pytest.raises(intarsia.IntarsiaError, match=r"`actor\.`, `critic\.`: choose one, as"):
        intarsia.load(tmp_path / "out", into=net(9), section=".")


def test_a_section_that_is_not_read_is_named_where_tensors_are_missing(tmp_path: Path) -> None:
    intarsia.save(
        tmp_path / "out", {"model": {"a.b": torch.ones(2)}, "ema": {"a.b": torch.ones(2)}}
    )
    with pytest.raises(intarsia.IntarsiaError, match="in a section that is not read here: ema"):
        intarsia.load(tmp_path / "out", into=net(9))


@pytest.mark.parametrize("kind", ["average", "number"])
def test_what_the_checkpoint_lacks_of_a_dict_is_named(kind: str, tmp_path: Path) -> None:
    intarsia.save(tmp_path / "out", DICTS[kind]())
    into = {**DICTS[kind](), "beta": torch.zeros(())}
    with pytest.raises(intarsia.IntarsiaError, match=r"no source in .*: beta\n"):
        intarsia.load(tmp_path / "out", into=into)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("tensor", "step"),
    [
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), r"dequantize\(\)"),
        (lambda: torch.ones(2, dtype=torch.complex32), r"view_as_real\(x\)"),
        (lambda: torch.ones(2, dtype=torch.uint8).view(torch.uint4), r"view\(torch.uint8\)"),
    ],
)
def test_numbers_that_no_format_stores_are_refused_with_ones_that_are(
    tensor: Any, step: str, tmp_path: Path
) -> None:
    with pytest.raises(intarsia.IntarsiaError, match=step):
        intarsia.save(tmp_path / "out", {"x": tensor()})


def test_a_dict_with_numbered_state_is_loaded_and_called_sound(tmp_path: Path) -> None:
    model = net(1)
    optimizer = stepped(model)
    saved = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    intarsia.save(tmp_path / "out", saved)
    assert bool(intarsia.verify(tmp_path / "out"))
    assert bool(intarsia.verify(tmp_path / "out", section="."))
    again = net(9)
    other = torch.optim.AdamW(again.parameters(), lr=0.5)
    intarsia.load(tmp_path / "out", into=again, optimizer=other)
    assert equal(again, model)
    for x, y in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(other.state[x]["exp_avg"], optimizer.state[y]["exp_avg"])
