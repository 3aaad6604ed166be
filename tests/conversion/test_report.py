"""Whether a conversion is complete: nothing that the source holds is nowhere in its result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import intarsia
from tests.checkpoints import intarsia as command
from tests.checkpoints import llama_config, model, write_hf

FORMATS = ("hf", "dcp", "torch_dist", "fsdp_dtensor")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its AdamW after one step, in the format of `save`."""
    at = tmp_path_factory.mktemp("trained")
    config = llama_config()
    tensors = {name: tensor.float() for name, tensor in model(config).items()}
    live = {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}
    optimizer = torch.optim.AdamW(live.values(), lr=0.01)
    sum(x.square().sum() for x in live.values()).backward()  # type: ignore[union-attr]
    optimizer.step()
    module = torch.nn.Module()
    for name, parameter in live.items():
        at_module = module
        *parents, last = name.split(".")
        for parent in parents:
            if not hasattr(at_module, parent):
                at_module.add_module(parent, torch.nn.Module())
            at_module = getattr(at_module, parent)
        at_module.register_parameter(last, parameter)
    intarsia.save(at / "saved", module, optimizer, config=config)
    return at / "saved"


@pytest.mark.parametrize("second", FORMATS)
@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.one_in(3)
def test_what_we_wrote_arrives_complete_in_every_format(
    trained: Path, tmp_path: Path, first: str, second: str
) -> None:
    assert intarsia.convert(trained, tmp_path / "first", to=first).complete
    report = intarsia.convert(tmp_path / "first", tmp_path / "second", to=second)
    assert report.complete, report.plan
    assert not any(x.lost for x in report.plan.left_out)
    digests = [i for i in report.plan.src.inventory if i.name == "intarsia-digests.json"]
    assert [str(item.fate) for item in digests] == ["made anew"]


def test_state_that_is_dropped_as_asked_is_lost(trained: Path, tmp_path: Path) -> None:
    report = intarsia.convert(trained, tmp_path / "hf", to="hf", optimizer="drop")
    assert not report.complete
    assert all(x.lost and x.tensor.startswith("optimizer.") for x in report.plan.left_out)


def test_main_weights_in_whose_place_weights_are_kept_are_lost(tmp_path: Path) -> None:
    config = llama_config()
    weights = model(config)
    main = {f"optimizer.master.{name}": tensor.float() for name, tensor in weights.items()}
    src = write_hf(tmp_path / "hf", weights, config, 1)
    (src / "optimizer").mkdir()
    save_file(main, src / "optimizer" / "model.safetensors")
    report = intarsia.convert(src, tmp_path / "as-stored", to="fsdp_dtensor", dtype="bf16")
    assert {x.tensor for x in report.plan.left_out if x.lost} == {*main}
    assert not report.complete
    assert intarsia.convert(src, tmp_path / "main", to="fsdp_dtensor").complete


def test_header_metadata_without_a_place_are_named(tmp_path: Path) -> None:
    config = llama_config()
    src = write_hf(tmp_path / "hf", model(config), config, 1)
    (file,) = src.glob("*.safetensors")
    save_file(load_file(file), file, {"format": "pt", "made_by": "a tool"})
    assert intarsia.convert(src, tmp_path / "dcp", to="dcp").complete
    report = intarsia.convert(src, tmp_path / "td", to="torch_dist")
    assert not report.complete
    assert "metadata made_by (side file): said by headers of safetensors files" in str(report.plan)


def test_tensors_left_out_for_one_reason_share_a_line(trained: Path, tmp_path: Path) -> None:
    found = command("plan", trained, "--to", "torch_dist").out
    lines = [line for line in found.splitlines() if "parameter groups" in line]
    assert len(lines) == 1
    assert "more" in lines[0]
