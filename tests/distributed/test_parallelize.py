"""Training on meshes is training in one process: losses, norms, every tensor, every moment."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file

from tests.checkpoints import ROOT, python
from tests.distributed.moe_checks import check
from tests.distributed.moe_trainer import CASES, STEPS, Trained, model, train, train_cases
from tests.distributed.ranks import on_ranks

EXPERTS = "model.layers.0.mlp.experts"

QUICK = ("dp2", "ep2", "dp2_ep2", "dp2_tp2", "ep4")
CHECKS = (
    "each_rank_holds_its_part",
    "a_model_on_meta_is_filled_later",
    "a_rank_with_zeros_is_refused",
    "experts_that_do_not_divide_are_refused",
    "rank_0_is_broadcast_as_accelerate_1_13_did",
    "transformers_loads_for_a_broadcast",
)
ON_EIGHT = ("dp2_ep2_tp2", "rep2_dp2_ep2", "ep8", "dp4_ep2")
ON_FOUR = tuple(name for name in CASES if name not in {*QUICK, *ON_EIGHT})


def torchrun(ranks: int, script: Path, *words: object) -> str:
    done = python(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, script, *words,
        PYTHONPATH=f"{ROOT / 'src'}:{ROOT}", OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def told(folder: Path, names: tuple[str, ...]) -> dict[str, Trained]:
    found = {}
    for name in names:
        losses, norms = json.loads((folder / f"{name}.json").read_text())
        found[name] = Trained(losses, norms, load_file(folder / f"{name}.safetensors"))
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four ranks wrote: one start for all the quick tests."""
    if Version(torch.__version__) < Version("2.12"):
        pytest.skip(
            "full_tensor() of torch 2.11, by which whole tensors are compared, ends in an error"
        )
    folder = tmp_path_factory.mktemp("ranks")
    model().save_pretrained(folder / "hf")
    on_ranks(4, check, folder, *QUICK, *CHECKS)
    return folder


@pytest.fixture(scope="module")
def quick(ranks: Path) -> dict[str, Trained]:
    return told(ranks, QUICK)


@pytest.fixture(scope="module")
def checked(ranks: Path) -> dict[str, list[Any]]:
    """What each of four ranks found, by check."""
    return {name: json.loads((ranks / f"{name}.json").read_text()) for name in CHECKS}


@pytest.fixture(scope="module")
def on_four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    folder = tmp_path_factory.mktemp("four")
    on_ranks(4, train_cases, folder, *ON_FOUR, seconds=280)
    return told(folder, ON_FOUR)


@pytest.fixture(scope="module")
def on_eight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    folder = tmp_path_factory.mktemp("eight")
    on_ranks(8, train_cases, folder, *ON_EIGHT, seconds=280)
    return told(folder, ON_EIGHT)


@cache
def alone(**changes: Any) -> Trained:
    """The same training in this process, on the whole batch, clipped by torch."""
    return train(model(**changes), clip=torch.nn.utils.clip_grad_norm_)


def assert_same_training(name: str, found: Trained) -> None:
    want = alone(**CASES[name].model)
    assert len(found.losses) == STEPS
    assert found.losses == pytest.approx(want.losses, abs=1e-5)
    assert found.norms == pytest.approx(want.norms, rel=2e-5)
    assert found.tensors.keys() == want.tensors.keys()
    for tensor, x in want.tensors.items():
        # Adam divides by the root of tiny numbers, so a rounding grows with every step.
        torch.testing.assert_close(
            found.tensors[tensor], x, rtol=0, atol=1e-3 * x.abs().max().item(), msg=tensor
        )


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.one_in(6)
def test_a_mesh_trains_as_one_process(quick: dict[str, Trained], name: str) -> None:
    assert_same_training(name, quick[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_FOUR)
def test_other_models_and_choices_train_as_one_process(
    on_four: dict[str, Trained], name: str
) -> None:
    assert_same_training(name, on_four[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_EIGHT)
def test_eight_ranks_train_as_one_process(on_eight: dict[str, Trained], name: str) -> None:
    assert_same_training(name, on_eight[name])


def test_the_training_tells_something() -> None:
    run = alone()
    assert run.losses[0] - run.losses[-1] > 1, "the model does not learn"
    assert min(run.norms) > 0.5, "nothing is clipped"
    assert run.tensors[f"exp_avg {EXPERTS}.down_proj"].flatten(1).any(1).all(), "an expert idles"


def test_each_rank_holds_the_part_that_its_parameters_say(checked: dict[str, list[Any]]) -> None:
    for found in checked["each_rank_holds_its_part"]:
        assert len(found) == 6
        assert not any(found.values()), found


def test_a_model_on_meta_becomes_dtensors_to_be_filled(checked: dict[str, list[Any]]) -> None:
    for found in checked["a_model_on_meta_is_filled_later"]:
        assert found == {"on meta": True, "misplaced": [], "close": True}


def test_a_rank_with_other_weights_is_refused_by_all(checked: dict[str, list[Any]]) -> None:
    for error in checked["a_rank_with_zeros_is_refused"]:
        assert "rank 2 holds other weights than rank 0; 1 of 4 ranks differ" in error


def test_experts_that_do_not_divide_are_refused_by_all(checked: dict[str, list[Any]]) -> None:
    for error in checked["experts_that_do_not_divide_are_refused"]:
        assert "6 experts" in error
        assert "4 expert-parallel ranks" in error


def test_a_broadcast_of_rank_0_loses_experts_and_ours_keeps_them(
    checked: dict[str, list[Any]],
) -> None:
    for found in checked["rank_0_is_broadcast_as_accelerate_1_13_did"]:
        assert found["experts"] == [0, 1] * 4, "every rank has the experts of rank 0"
        assert found["theirs"] == [f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"]
        assert found["loss"], "and the model runs"
        assert found["ours"] == []


def test_weights_left_for_a_broadcast_are_not_trained_on(checked: dict[str, list[Any]]) -> None:
    """Under `cpu_ram_efficient_loading` Transformers leaves zeros on all ranks but the first."""
    found = checked["transformers_loads_for_a_broadcast"]
    if not any(rank["native experts are zero"] for rank in found):
        pytest.skip("the installed Transformers fills every rank")
    assert [rank["native experts are zero"] for rank in found] == [False, True, True, True]
    for rank in found:
        assert "3 of 4 ranks differ" in rank["whole"]
        assert rank["ours"] == []


@pytest.mark.slow
def test_the_example_trains() -> None:
    said = torchrun(2, ROOT / "examples" / "ep_fsdp_train.py", "--steps", 8)
    losses = [float(line.split()[3]) for line in said.splitlines() if line.startswith("step")]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 1
