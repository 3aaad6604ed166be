"""What lies beside the tensors is equal, different, or said not to be compared, from either side."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intarsia
from tests.checkpoints import intarsia as command
from tests.checkpoints import llama_config, model, write_dcp, write_hf
from tests.fixtures import fixture

CONFIG = llama_config()
DIFFERENT = "different"


def saved(folder: Path, **changes: Any) -> Path:
    """A training run as DCP saves it, by name."""
    groups = {"lr": 1e-3, "weight_decay": 0.1} | changes.get("group", {})
    weights = model(CONFIG)
    state = {
        n: {"exp_avg": x.float(), "exp_avg_sq": x.float() ** 2, "step": torch.tensor(4.0)}
        for n, x in weights.items()
    }
    held = {
        "model": weights,
        "optimizer": {"state": state, "param_groups": [{"params": list(weights), **groups}]},
        "lr_scheduler": {"last_epoch": 4, "base_lrs": [1e-3]} | changes.get("scheduler", {}),
        "train_state": {"step": 4},
    }
    for name in changes.get("without", ()):
        del held[name]
    write_dcp(folder, held)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"group": {"lr": 2e-3}}, "lr"),
        ({"scheduler": {"last_epoch": 9}}, "lr_scheduler.last_epoch"),
        ({"without": ("lr_scheduler",)}, "lr_scheduler.last_epoch"),
        ({"scheduler": {"last_epoch": None}}, "lr_scheduler.last_epoch"),
    ],
)
@pytest.mark.one_in(2)
def test_the_state_of_a_run_that_differs_is_a_difference(
    changes: dict[str, Any], name: str, tmp_path: Path
) -> None:
    a, b = saved(tmp_path / "a"), saved(tmp_path / "b", **changes)
    for x, y in ((a, b), (b, a)):
        found = intarsia.verify(x, y)
        assert not found.equal
        assert not found.different
        assert any(name in each.name and each.counts for each in found.beside), found.beside
        answer = command("verify", x, y)
        assert answer.status == 1
        assert name in answer.out
    assert intarsia.verify(a, a).equal


def test_generators_of_a_save_that_differ_are_a_difference(tmp_path: Path) -> None:
    first, second = torch.arange(9), torch.arange(1, 10)
    for name, state in (("a", {"n": 1, "torch": first}), ("b", {"n": 1, "torch": second}),
                        ("c", {"torch": first, "n": 1})):  # fmt: skip
        intarsia.save(tmp_path / name, {"w": torch.ones(2, 3)}, None, {"generators": state})
    assert intarsia.verify(tmp_path / "a", tmp_path / "c").equal
    found = intarsia.verify(tmp_path / "a", tmp_path / "b")
    assert not found.equal
    assert [str(x) for x in found.beside] == ["different: object `extra.generators`, its content"]


@pytest.mark.parametrize(
    ("here", "there"),
    [({1, 2}, {1, 3}), (np.arange(3), np.arange(1, 4)), (b"a", b"b"), ({(0, 1): 5}, {(0, 1): 6})],
)
def test_objects_are_not_equal_by_what_of_them_is_plain(
    here: Any, there: Any, tmp_path: Path
) -> None:
    for name, held in (("a", here), ("b", there)):
        write_dcp(tmp_path / name, {"w": torch.ones(2, 3), "loader": ({"epoch": 1, "held": held},)})
    found = intarsia.verify(tmp_path / "a", tmp_path / "b")
    assert not found.equal, [str(each) for each in found.beside]


def test_objects_that_memory_does_not_hold_are_not_passed_over(tmp_path: Path) -> None:
    for name, seen in (("a", 1), ("b", 2)):
        loader = {"seen": seen, "order": bytes(5 << 20)}
        write_dcp(tmp_path / name, {"w": torch.ones(2, 3), "loader": loader})
    intarsia.convert(tmp_path / "a", tmp_path / "weights", to="hf", optimizer="drop")
    assert not intarsia.verify(tmp_path / "a", tmp_path / "b").equal
    with pytest.raises(intarsia.IntarsiaError, match="take more than 4") as refused:
        intarsia.verify(tmp_path / "a", tmp_path / "b", memory="16MiB")
    assert "--memory" in str(refused.value)
    assert intarsia.verify(tmp_path / "a", tmp_path / "weights", memory="16MiB").equal


def test_settings_are_compared_between_formats(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a"), saved(tmp_path / "b", group={"lr": 0.5})
    for src, equal in ((a, True), (b, False)):
        out = tmp_path / f"{src.name}-hf"
        intarsia.convert(src, out, to="hf")
        for x, y in ((a, out), (out, a)):
            found = intarsia.verify(x, y)
            assert found.equal is equal, [str(each) for each in found.beside]


def test_what_arguments_of_megatron_fsdp_say_of_a_mesh_is_no_difference(tmp_path: Path) -> None:
    other = CONFIG | {"rms_norm_eps": 0.5}
    for name, mesh, config in (("a", "tp=2", CONFIG), ("b", "tp=1", CONFIG), ("c", "tp=2", other)):
        src = write_hf(tmp_path / f"src-{name}", model(CONFIG), config)
        intarsia.convert(src, tmp_path / name, to="fsdp_dtensor", mesh=mesh)
    found = intarsia.verify(tmp_path / "a", tmp_path / "b")
    assert found.equal
    said = [(x.verdict, x.text) for x in found.beside if x.name.startswith("args")]
    assert said == [("equal", "but for how its tensors are stored")]
    found = intarsia.verify(tmp_path / "b", tmp_path / "c")
    wrong = {x.name for x in found.beside if x.part == "object" and x.verdict == "different"}
    assert wrong == {"args.norm_epsilon", "args.layernorm_epsilon"}


def test_a_training_whose_experts_are_parallel_on_one_mesh_alone_is_the_same(
    tmp_path: Path,
) -> None:
    src = fixture("megatron", "td_moe_tp2pp2ep2")
    config = json.loads((src / "hf_truth" / "config.json").read_text())
    for n in (1, 2):
        stacked, apart = tmp_path / f"td{n}", tmp_path / f"fd{n}"
        intarsia.convert(src, stacked, to="torch_dist", mesh=f"ep={n}", config=config)
        intarsia.convert(stacked, apart, to="fsdp_dtensor", mesh=f"ep={n}")
    found = intarsia.verify(tmp_path / "fd1", tmp_path / "fd2")
    assert found.equal
    said = {x.verdict for x in found.beside if x.name.endswith(".is_expert_parallel")}
    assert said == {"equal"}


def test_what_megatrons_common_state_says_of_a_mesh_is_no_difference(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "src", model(CONFIG), CONFIG)
    for name, mesh in (("a", "tp=2,pp=2"), ("b", "tp=2")):
        intarsia.convert(src, tmp_path / name, to="torch_dist", mesh=mesh)
    found = intarsia.verify(tmp_path / "a", tmp_path / "b")
    assert found.equal
    assert not [x for x in found.beside if x.verdict == "different"]
    (file,) = (tmp_path / "b").glob("iter_*/common.pt")
    torch.serialization.add_safe_globals([Namespace])
    common = torch.load(file, weights_only=True)
    common["args"].attention_dropout = 0.25
    torch.save(common, file)
    found = intarsia.verify(tmp_path / "a", tmp_path / "b")
    (said,) = (x for x in found.beside if x.verdict == "different")
    assert said.name.endswith(".args.attention_dropout")
    assert said.text.endswith("0.25 in B")


def test_how_megatron_stores_a_training_is_no_difference(tmp_path: Path) -> None:
    """Optimizer state by parameter, and in the buffers of other ranks; a vocabulary with other padding."""
    by_parameter = fixture("megatron", "td_dense_tp2")
    config = json.loads((by_parameter / "hf_truth" / "config.json").read_text())
    in_buckets = fixture("megatron", "td_dense_tp2pp2_dpresh")
    converted = tmp_path / "td"
    intarsia.convert(by_parameter, converted, to="torch_dist", mesh="pp=2", config=config)
    others = {".args.load", ".args.save", ".args.dist_ckpt_optim_fully_reshardable"}
    for x, y, apart in ((by_parameter, in_buckets, others), (by_parameter, converted, set())):
        for one, other in ((x, y), (y, x)):
            found = intarsia.verify(one, other, config=config)
            assert found.equal
            wrong = {
                e.name.partition("/shard_0_1")[2] for e in found.beside if e.verdict == DIFFERENT
            }
            assert wrong == apart
            left = {e.name.partition("/")[0] for e in found.beside if e.verdict == "not compared"}
            assert left == {"rng_state"}


def test_what_an_optimizer_counts_beside_its_groups_is_still_compared(tmp_path: Path) -> None:
    for name, scale in (("a", 1024.0), ("b", 512.0)):
        intarsia.convert(saved(tmp_path / f"src-{name}"), tmp_path / name, to="torch_dist")
        (file,) = (tmp_path / name).glob("iter_*/common.pt")
        state = torch.load(file, weights_only=True)
        state["optimizer"]["grad_scaler"] = {"scale": scale}
        torch.save(state, file)
    said = [
        e for e in intarsia.verify(tmp_path / "a", tmp_path / "b").beside if e.verdict == DIFFERENT
    ]
    assert [e.name.rpartition(".")[2] for e in said] == ["optimizer"]
    assert "1024.0" in said[0].text
    assert "512.0" in said[0].text


def test_what_the_verdict_is_for_is_printed_first(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    torch.serialization.add_safe_globals([Namespace])
    for k, name in enumerate("ab"):
        intarsia.convert(src, tmp_path / name, to="torch_dist")
        (file,) = (tmp_path / name).glob("iter_*/common.pt")
        state = torch.load(file, weights_only=True)
        vars(state["args"]).update(
            {f"a_setting_{n}": k for n in range(30)}, skipped_train_samples=k
        )
        torch.save(state, file)
    out = command("verify", tmp_path / "a", tmp_path / "b").out
    assert "skipped_train_samples`, 0 in A, 1 in B" in out
    assert "… and 11 more beside the tensors" in out


@pytest.mark.parametrize("to", ["torch_dist", "fsdp_dtensor"])
@pytest.mark.parametrize("counter", ["consumed_train_samples", "skipped_train_samples"])
def test_the_data_that_megatrons_run_has_read_is_a_difference(
    counter: str, to: str, tmp_path: Path
) -> None:
    hub = write_hf(tmp_path / "hf", model(CONFIG), CONFIG, 1)
    for name, samples in (("a", 70), ("b", 80)):
        intarsia.convert(hub, tmp_path / "td", to="torch_dist", overwrite=True)
        (file,) = (tmp_path / "td").glob("iter_*/common.pt")
        torch.serialization.add_safe_globals([Namespace])
        state = torch.load(file, weights_only=True)
        setattr(state["args"], counter, samples)
        torch.save(state, file)
        intarsia.convert(tmp_path / "td", tmp_path / name, to=to)
    found = intarsia.verify(tmp_path / "a", tmp_path / "b")
    assert not found.equal
    assert {x.text for x in found.beside if x.counts} == {"70 in A, 80 in B"}


def test_what_megatron_fsdp_says_of_groups_is_no_difference_where_settings_are_compared(
    tmp_path: Path,
) -> None:
    here = start = saved(tmp_path / "start", without=("lr_scheduler", "train_state"))
    for to, rates in (("torch_dist", "1e-3,1e-4"), ("fsdp_dtensor", None), ("dcp", None)):
        intarsia.convert(here, tmp_path / to, to=to, config=CONFIG, megatron_lr=rates)
        here = tmp_path / to
    for x, y in ((start, here), (here, start)):
        found = intarsia.verify(x, y)
        assert found.equal, found
        said = [each for each in found.beside if "param_to_group_meta" in each.name]
        assert {each.verdict for each in said} == {"not compared"}


def test_configuration_and_small_files_are_reported(tmp_path: Path) -> None:
    a = write_hf(tmp_path / "a", model(CONFIG), CONFIG)
    b = write_hf(tmp_path / "b", model(CONFIG), CONFIG | {"rms_norm_eps": 0.5})
    (b / "tokenizer_config.json").write_text("{}")
    (b / "generation_config.json").write_text("{}")
    for x, y, only in ((a, b, "only in B"), (b, a, "only in A")):
        found = intarsia.verify(x, y)
        told = {each.name: each.verdict for each in found.beside}
        assert found.equal
        assert told["config.json: rms_norm_eps"] == "different"
        assert told["tokenizer_config.json"] == "different"
        assert told["generation_config.json"] == only
        assert told["merges.txt"] == "equal"
        out = command("verify", x, y).out
        assert "config.json: rms_norm_eps" in out
        assert "tokenizer_config.json" in out


@pytest.mark.parametrize(
    ("to", "where"), [("torch_dist", "by the arguments"), ("fsdp_dtensor", "args.")]
)
def test_arguments_that_describe_another_model_are_reported(
    tmp_path: Path, to: str, where: str
) -> None:
    """The same weights in half as many heads of twice the width: each side is read by its own arguments."""
    heads = [CONFIG, CONFIG | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12}]
    for k, config in enumerate(heads):
        write_hf(tmp_path / f"hf{k}", model(heads[0]), config)
        intarsia.convert(tmp_path / f"hf{k}", tmp_path / f"{k}", to=to)
        for file in (tmp_path / f"{k}").rglob("config.json"):
            file.unlink()
    found = intarsia.verify(tmp_path / "0", tmp_path / "1")
    told = [
        each.text for each in found.beside if where in each.name and "num_attention" in each.name
    ]
    assert told == ["4 in A, 2 in B"]
    again = intarsia.verify(tmp_path / "0", tmp_path / "0").beside
    assert {each.verdict for each in again} == {"equal"}


def test_objects_that_changed_since_are_not_those_of_the_digests(tmp_path: Path) -> None:
    intarsia.convert(saved(tmp_path / "a"), tmp_path / "hf", to="hf")
    assert intarsia.verify(tmp_path / "hf").sound
    where = tmp_path / "hf" / "optimizer" / "entries.json"
    entries = json.loads(where.read_text())
    name = next(n for n in entries if "last_epoch" in n)
    for changed in ({n: d for n, d in entries.items() if n != name}, entries | {name: ""}, {}):
        where.write_text(json.dumps(changed))
        faults = intarsia.verify(tmp_path / "hf").faults
        assert [f.kind for f in faults] == ["digest-differs"]
        assert name in faults[0].tensors
