"""Optimizer state that is not there, or was never written, beside state that is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from transformers.optimization import Adafactor

import intarsia
from intarsia.checking.fault import Fault
from tests.faults.sound import Tensors, convert, trained, weights, write

Q = "model.layers.1.self_attn.o_proj.weight"
FORMATS = ("hf", "dcp", "torch_dist", "fsdp_dtensor")


def faults(tmp_path: Path, tensors: Tensors, format: str = "hf") -> tuple[Fault, ...]:
    src = write({name: x.clone() for name, x in tensors.items()}, tmp_path / "hub")
    if format != "hf":
        src = convert(src, format, tmp_path / "out")
    return intarsia.verify(src).faults


def without(tensors: Tensors, *ends: str) -> Tensors:
    return {n: x for n, x in tensors.items() if n[:10] != "optimizer." or not n.endswith(ends)}


def of_adam(parameter: str) -> tuple[str, ...]:
    return tuple(f"optimizer.{kind}.{parameter}" for kind in ("exp_avg", "exp_avg_sq", "step"))


def test_a_parameter_without_state_amid_others_that_have_it_is_a_fault(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, without(trained(weights(1)), Q))
    assert fault.kind == "state-missing"
    assert fault.tensors == tuple(
        f"optimizer.{kind}.{Q}" for kind in ("exp_avg", "exp_avg_sq", "master", "step")
    )
    assert fault.text.startswith("4 optimizer tensors are absent")


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.one_in(2)
def test_state_of_a_parameter_is_missed_where_the_groups_list_it(
    flat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen parameter is in no group that its run gave to the optimizer."""
    monkeypatch.setattr("intarsia.checking.alone.state.MAX_SMALL_BYTES", 1 << 16)
    model = torch.nn.ModuleDict(
        {"layers": torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(9))}
    )
    frozen = "layers.3.weight"
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    steps = [p for n, p in model.named_parameters() if n != frozen]
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    for name, given in (("frozen", steps), ("lost", [*model.parameters()])):
        optimizer = torch.optim.AdamW(given)
        optimizer.step()
        optimizer.state.pop(model.get_parameter(frozen), None)
        weights, state = get_state_dict(model, optimizer, options=options)
        loader = {"order": [*range(1 << 16)]}  # larger than what is read of an optimizer's groups
        dcp.save(
            {"model": weights, "optim": state, "loader": loader}, checkpoint_id=tmp_path / name
        )
        report = intarsia.verify(tmp_path / name)
        lost = () if name == "frozen" else of_adam(frozen)
        assert [fault.tensors for fault in report.faults] == [lost] * bool(lost)
        intarsia.convert(tmp_path / name, tmp_path / f"{name}-hf", to="hf")
        assert intarsia.verify(tmp_path / f"{name}-hf").sound is not bool(lost)


def test_groups_that_do_not_list_what_has_state_say_of_no_parameter_that_it_is_frozen(
    tmp_path: Path,
) -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(9))
    model = torch.nn.ModuleDict({"layers": layers})
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    del state["state"]["layers.3.weight"]
    listed = [n.replace("layers.3.", "net.layers.3.") for n in state["param_groups"][0]["params"]]  # type: ignore[index]
    state["param_groups"][0]["params"] = listed  # type: ignore[index]
    dcp.save({"model": weights, "optim": state}, checkpoint_id=tmp_path / "lost")
    (fault,) = intarsia.verify(tmp_path / "lost").faults
    assert fault.tensors == of_adam("layers.3.weight")


@pytest.mark.parametrize("frozen", [True, False])
def test_a_bias_of_zeros_is_lost_where_it_was_trained_and_not_where_it_is_frozen(
    frozen: bool, tmp_path: Path
) -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(9))
    model, bias = torch.nn.ModuleDict({"layers": layers}), "layers.3.bias"
    model.get_parameter(bias).requires_grad_(not frozen)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    model.get_parameter(bias).data.zero_()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": state}, checkpoint_id=tmp_path / "saved")
    found = intarsia.verify(tmp_path / "saved").faults
    assert [(f.kind, f.tensors) for f in found] == [("zero-tensor", (bias,))] * (not frozen)


def test_a_parameter_that_no_gradient_has_reached_is_at_step_zero(tmp_path: Path) -> None:
    tensors, head = trained(weights(1)), "model.norm.weight"
    tensors[f"optimizer.step.{head}"] = torch.tensor(0.0)
    (fault,) = faults(tmp_path / "lost", tensors)
    assert (fault.kind, fault.tensors) == ("steps-disagree", (f"optimizer.step.{head}",))
    moments = {
        n: tensors[n] * 0 for n in (f"optimizer.{k}.{head}" for k in ("exp_avg", "exp_avg_sq"))
    }
    for name, zeros in moments.items():
        found = faults(tmp_path / name, tensors | {name: zeros})
        assert "steps-disagree" in [fault.kind for fault in found]
    tensors |= moments
    report = intarsia.verify(write(tensors, tmp_path / "still"))
    assert report.sound
    assert any(f"optimizer.step.{head} at step 0, with all" in note for note in report.notes)
    begun = {n: x * 0 if "optimizer." in n else x for n, x in tensors.items()}
    report = intarsia.verify(write(begun, tmp_path / "begun"))
    assert not any("at step 0" in note for note in report.notes)


@pytest.mark.parametrize("kind", ["master", "step"])
def test_one_part_of_a_parameter_s_state_that_its_like_have_is_missed(
    kind: str, tmp_path: Path
) -> None:
    tensors = trained(weights(1))
    del tensors[f"optimizer.{kind}.{Q}"]
    (fault,) = faults(tmp_path, tensors)
    assert (fault.kind, fault.tensors) == ("state-missing", (f"optimizer.{kind}.{Q}",))


def test_adamax_keeps_a_norm_in_the_place_of_a_second_moment(tmp_path: Path) -> None:
    tensors = trained(weights(1))
    adamax = {n.replace(".exp_avg_sq.", ".exp_inf."): x for n, x in tensors.items()}
    assert not faults(tmp_path / "adamax", adamax)
    del adamax[f"optimizer.exp_inf.{Q}"]
    (fault,) = faults(tmp_path / "less", adamax)
    assert (fault.kind, fault.tensors) == ("state-missing", (f"optimizer.exp_inf.{Q}",))


def test_lion_keeps_one_moment_and_no_step(tmp_path: Path) -> None:
    tensors = trained(weights(1))
    lion = {n: x for n, x in tensors.items() if ".exp_avg_sq." not in n and ".step." not in n}
    assert not faults(tmp_path / "lion", lion)
    (fault,) = faults(tmp_path / "less", without(lion, Q))
    lost = (f"optimizer.exp_avg.{Q}", f"optimizer.master.{Q}")
    assert (fault.kind, fault.tensors) == ("state-missing", lost)


def factored(tensors: Tensors) -> Tensors:
    """As Adafactor keeps state: rows and columns of a matrix, all elements of a vector, no mean."""
    out: Tensors = {}
    for name, x in tensors.items():
        if name.startswith("optimizer.exp_avg_sq.") and x.ndim > 1:
            of = name.removeprefix("optimizer.exp_avg_sq.")
            out[f"optimizer.exp_avg_sq_row.{of}"] = x.mean(1)
            out[f"optimizer.exp_avg_sq_col.{of}"] = x.mean(0)
        elif not name.startswith("optimizer.exp_avg."):
            out[name] = x
    return out


def test_adafactor_keeps_rows_and_columns_of_matrices(tmp_path: Path) -> None:
    tensors = factored(trained(weights(1)))
    assert not faults(tmp_path / "adafactor", tensors)
    row = f"optimizer.exp_avg_sq_row.{Q}"
    (fault,) = faults(tmp_path / "row", {n: x for n, x in tensors.items() if n != row})
    assert (fault.kind, fault.tensors) == ("state-missing", (row,))
    means = {n: x for n, x in trained(weights(1)).items() if n.startswith("optimizer.exp_avg.")}
    assert not faults(tmp_path / "with a mean", tensors | means)
    del means[f"optimizer.exp_avg.{Q}"]
    (fault,) = faults(tmp_path / "less", tensors | means)
    assert (fault.kind, fault.tensors) == ("state-missing", (f"optimizer.exp_avg.{Q}",))


@pytest.mark.parametrize(("mean", "kept"), [("z", "exp_avg_sq"), ("exp_avg", "hessian")])
def test_another_optimizer_keeps_what_its_parameters_have_in_common(
    mean: str, kept: str, tmp_path: Path
) -> None:
    named = {".exp_avg.": f".{mean}.", ".exp_avg_sq.": f".{kept}."}
    tensors = trained(weights(1))
    for old, new in named.items():
        tensors = {n.replace(old, new): x for n, x in tensors.items()}
    assert not faults(tmp_path / "whole", tensors)
    for lost in (mean, kept):
        less = {n: x for n, x in tensors.items() if n != f"optimizer.{lost}.{Q}"}
        (fault,) = faults(tmp_path / lost, less)
        assert (fault.kind, fault.tensors) == ("state-missing", (f"optimizer.{lost}.{Q}",))
    (fault,) = faults(tmp_path / "bare", without(tensors, Q))
    assert fault.kind == "state-missing"
    assert {name.split(".")[1] for name in fault.tensors} == {mean, kept, "master", "step"}


def test_a_second_moment_that_every_parameter_lacks_is_missed(tmp_path: Path) -> None:
    tensors = trained(weights(1))
    (fault,) = faults(tmp_path, {n: x for n, x in tensors.items() if ".exp_avg_sq." not in n})
    assert fault.kind == "state-missing"


def test_layers_and_parts_that_were_frozen_need_no_state(tmp_path: Path) -> None:
    tensors = trained(weights(1))
    frozen = [n for n in tensors if ".layers.0." in n or n.endswith("k_proj.weight")]
    assert not faults(tmp_path / "layer", without(tensors, *frozen))
    half = [n for n in tensors if ("layers.1." in n) == n.endswith("o_proj.weight")]
    assert not faults(tmp_path / "chosen", without(tensors, *half)), "matrices chosen one by one"


@pytest.mark.parametrize("kind", ["exp_avg", "exp_avg_sq", "master"])
def test_state_of_another_shape_than_its_parameter_is_a_fault(kind: str, tmp_path: Path) -> None:
    tensors = trained(weights(1))
    name = f"optimizer.{kind}.{next(n for n in tensors if n.endswith('1.self_attn.k_proj.weight'))}"
    tensors[name] = tensors[name].T.contiguous()
    (fault,) = faults(tmp_path, tensors)
    assert (fault.kind, fault.tensors) == ("shape-wrong", (name,))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", ["exp_avg", "exp_avg_sq"])
@pytest.mark.one_in(2)
def test_a_moment_of_zeros_in_a_layer_that_was_trained_is_a_fault(
    kind: str, format: str, tmp_path: Path
) -> None:
    tensors = trained(weights(1))
    name = f"optimizer.{kind}.{Q}"
    tensors[name] = torch.zeros_like(tensors[name])
    (fault,) = faults(tmp_path, tensors, format)
    assert (fault.kind, fault.tensors) == ("zero-tensor", (name,))


def test_a_layer_without_gradients_and_experts_never_chosen_have_moments_of_zero(
    tmp_path: Path,
) -> None:
    tensors = trained(weights(1))
    for name in tensors:
        still = ".layers.0." in name or ".experts.2." in name or "embed_tokens" in name
        if still and name.startswith("optimizer.exp_avg"):
            tensors[name] = torch.zeros_like(tensors[name])
    assert not faults(tmp_path, tensors)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.one_in(2)
def test_a_rank_s_moments_saved_for_another_are_found(format: str, tmp_path: Path) -> None:
    tensors = trained(weights(1))
    name = f"optimizer.exp_avg.{Q}"
    half = tensors[name].shape[0] // 2
    tensors[name][half:] = tensors[name][:half]
    (fault,) = faults(tmp_path, tensors, format)
    assert (fault.kind, fault.tensors) == ("shards-repeated", (name,))


def test_shards_that_were_repeated_with_their_state_are_told_of_the_weight(tmp_path: Path) -> None:
    tensors = trained(weights(1))
    for name in tensors:
        if name.endswith(Q) and tensors[name].ndim > 1:
            half = tensors[name].shape[0] // 2
            tensors[name][half:] = tensors[name][:half].clone()
    assert [f.tensors for f in faults(tmp_path, tensors) if f.kind == "shards-repeated"] == [(Q,)]


@pytest.mark.parametrize("beta1", [None, 0.9])
def test_adafactor_that_is_saved_live_keeps_rows_and_columns_as_objects(
    beta1: float | None, tmp_path: Path
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
    optimizer = Adafactor(model.parameters(), lr=1e-3, beta1=beta1, relative_step=False)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    for state in optimizer.state.values():
        state["RMS"] = float(state["RMS"])  # as pytorch_optimizer's keeps it
    intarsia.save(tmp_path / "saved", model, optimizer)
    assert not intarsia.verify(tmp_path / "saved").faults


def test_one_number_of_each_parameter_is_an_optimizer_s_choice_and_of_one_parameter_a_loss(
    tmp_path: Path,
) -> None:
    tensors = trained(weights(1))
    mean = {n: x.mean() if ".exp_avg_sq." in n else x for n, x in tensors.items()}
    assert not faults(tmp_path / "all", mean)
    name = f"optimizer.exp_avg_sq.{Q}"
    (fault,) = faults(tmp_path / "one", tensors | {name: mean[name]})
    assert (fault.kind, fault.tensors) == ("shape-wrong", (name,))
