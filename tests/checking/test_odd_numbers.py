"""What looks like a lost rank and is none, and what looks like nothing and is lost."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import intarsia
from tests.checkpoints import llama_config, model, normal_tensor, write_hf
from tests.faults.sound import FORMATS, convert, trained, weights, write

CONFIG = llama_config()


def small(**changes: int) -> dict[str, torch.Tensor]:
    return {name: x * 0.05 for name, x in model(CONFIG | changes).items()}


def alone(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> set[str]:
    tmp_path.mkdir(parents=True, exist_ok=True)
    save_file({n: x.contiguous() for n, x in tensors.items()}, tmp_path / "model.safetensors")
    return {fault.kind for fault in intarsia.verify(tmp_path).faults}


@pytest.mark.parametrize("format", FORMATS)
def test_heads_and_neurons_that_were_pruned_are_no_fault(format: str, tmp_path: Path) -> None:
    tensors = weights(3)
    at = "model.layers.{}.self_attn.{}_proj.weight"
    for layer, head in ((0, 1), (2, 3)):
        rows = slice(8 * head, 8 * head + 8)
        tensors[at.format(layer, "q")][rows] = 0
        tensors[at.format(layer, "o")][:, rows] = 0
    report = intarsia.verify(convert(write(tensors, tmp_path / "hub"), format, tmp_path / "out"))
    assert report.sound, report


def test_a_few_dead_neurons_are_no_fault(tmp_path: Path) -> None:
    tensors = small(intermediate_size=96)
    for row in (3, 17, 18, 40, 41, 42, 95):
        tensors["model.layers.1.mlp.gate_proj.weight"][row] = 0
        tensors["model.layers.1.mlp.up_proj.weight"][row] = 0
    report = intarsia.verify(write_hf(tmp_path, tensors, CONFIG | {"intermediate_size": 96}))
    assert report.sound, report


def test_adapters_may_be_trained_in_some_layers_only(tmp_path: Path) -> None:
    at = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    tensors = {}
    for layer in range(6):
        tensors[at.format(layer, "A")] = normal_tensor((4, 32), torch.float32, layer)
        trained_ = normal_tensor((32, 4), torch.float32, 9 + layer)
        tensors[at.format(layer, "B")] = trained_ if layer > 1 else torch.zeros(32, 4)
    assert not alone(tmp_path, tensors)


def test_doubles_whose_bits_sum_to_nothing_are_not_zero(tmp_path: Path) -> None:
    at = "model.layers.{}.{}.weight"
    tensors = {"model.norm.weight": torch.ones(4096).double()}
    for layer in range(3):
        tensors[at.format(layer, "input_layernorm")] = normal_tensor((4096,), torch.float64, layer)
        tensors[at.format(layer, "mlp.up_proj")] = normal_tensor((64, 64), torch.float64, layer)
    tensors[at.format(1, "mlp.up_proj")][:16] = torch.tensor([2.0, -2.0]).repeat(32).double()
    assert not alone(tmp_path / "sound", tensors)
    tensors["model.norm.weight"].zero_()
    tensors[at.format(2, "mlp.up_proj")][16:32] = 0
    assert alone(tmp_path / "lost", tensors) == {"zero-tensor", "zero-block"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_signs_and_powers_of_two_are_numbers_of_their_own_type(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    signs = torch.sign(normal_tensor((64, 64), torch.float32)).to(dtype)
    assert not alone(tmp_path / "signs", {"rotation.weight": signs})
    powers = torch.pow(
        2.0, torch.randint(-2, 3, (64, 64), generator=torch.Generator().manual_seed(1))
    )
    assert not alone(tmp_path / "powers", {"table.weight": (powers * signs).to(dtype)})


def test_factors_near_one_in_fp16_are_of_that_type(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_norm.weight"  # a norm for every head, as Cohere's
    norms = 1 + 0.1 * normal_tensor((16, 24), torch.float32)
    assert not alone(tmp_path / "norms", {name: norms.half()})
    weights = 0.02 * normal_tensor((16, 24), torch.float32)
    taken = weights.bfloat16().view(torch.float16)
    assert alone(tmp_path / "weights", {name: taken}) == {"dtype-implausible"}


def test_tiny_numbers_of_one_draw_in_bf16_are_of_that_type(tmp_path: Path) -> None:
    name = "vision_model.embeddings.patch_embedding.weight"  # BLIP-2's begin so
    drawn = normal_tensor((32, 192), torch.float32)
    assert not alone(tmp_path / "drawn", {name: (1e-10 * drawn).bfloat16()})
    taken = (0.02 * drawn).half().view(torch.bfloat16)
    assert alone(tmp_path / "taken", {name: taken}) == {"dtype-implausible"}


def test_a_zero_block_is_no_padding_in_the_same_breath(tmp_path: Path) -> None:
    tensors = small(vocab_size=128)
    tensors["lm_head.weight"][64:] = 0
    report = intarsia.verify(write_hf(tmp_path, tensors, CONFIG | {"vocab_size": 128}))
    assert [fault.kind for fault in report.faults] == ["zero-block"]
    assert not any("padding" in note for note in report.notes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_of_negative_zeros_is_a_zero_block(dtype: torch.dtype, tmp_path: Path) -> None:
    w = normal_tensor((32, 32), dtype)
    w[8:16] = -0.0
    w[8:16, ::3] = 0.0
    assert alone(tmp_path, {"layers.0.w.weight": w}) == {"zero-block"}


@pytest.mark.parametrize("leaf", ["mlp.fc.bias", "self_attn.sinks", "mixer.A_log", "mixer.dt_bias"])
def test_one_layer_s_vector_of_zeros_is_a_fault(leaf: str, tmp_path: Path) -> None:
    tensors = {f"model.layers.{k}.{leaf}": normal_tensor((16,), torch.float32, k) for k in range(4)}
    assert not alone(tmp_path / "sound", tensors)
    tensors[f"model.layers.2.{leaf}"].zero_()
    assert alone(tmp_path / "lost", tensors) == {"zero-tensor"}


def test_biases_that_were_never_trained_are_no_fault(tmp_path: Path) -> None:
    tensors = {f"layers.{k}.fc.bias": torch.zeros(16) for k in range(6)}
    assert not alone(tmp_path / "fresh", tensors)
    tensors |= {f"layers.{k}.fc.bias": normal_tensor((16,), torch.float32, k) for k in (4, 5)}
    assert not alone(tmp_path / "tuned", tensors)


@pytest.mark.parametrize("name", ["experts.gate_up_proj", "fc.bias", "mixer.A_log"])
def test_absurd_numbers_are_found_whatever_the_name(name: str, tmp_path: Path) -> None:
    w = normal_tensor((6, 8, 8), torch.float32)
    w[2, 3, 4] = 1e30
    assert alone(tmp_path, {f"layers.0.{name}": w}) == {"value-implausible"}


def test_ranges_of_integers_that_a_model_keeps_are_no_fault(tmp_path: Path) -> None:
    """As I-BERT's, after it has run; of one end alone, something is wrong."""
    kept = {
        f"layers.{k}.act.{leaf}": torch.tensor([1e20 * (k + 1)])
        for k in range(2)
        for leaf in ("x_min", "x_max", "act_scaling_factor")
    }
    kept["layers.0.fc.weight"] = normal_tensor((8, 8), torch.float32)
    assert not alone(tmp_path / "whole", kept)
    for leaf, number in {"x_min": 0.5, "x_max": 1e19}.items():
        assert alone(tmp_path / leaf, kept | {f"layers.1.act.{leaf}": torch.tensor([number])}) == {
            "value-implausible"
        }


def test_how_far_absurd_numbers_go_is_not_told_beside_nan(tmp_path: Path) -> None:
    w = normal_tensor((8, 8), torch.float32)
    w[0, 0], w[1, 1] = 1e30, float("nan")
    found = intarsia.verify(write_hf(tmp_path, {"layers.0.fc.weight": w}))
    (text,) = [fault.text for fault in found.faults if fault.kind == "value-implausible"]
    assert "nan" not in text


def test_nan_is_found_in_complex_numbers_and_in_scales(tmp_path: Path) -> None:
    z = torch.complex(normal_tensor((4, 4), torch.float32), normal_tensor((4, 4), torch.float32, 1))
    z[1, 2] = complex(0, float("nan"))
    assert alone(tmp_path / "complex", {"filter.freqs": z}) == {"not-finite"}
    scales = torch.full((4, 8), 127, dtype=torch.uint8)
    scales[2, 3] = 255
    held = {"w.scale": scales.view(torch.float8_e8m0fnu)}
    assert alone(tmp_path / "scales", held) == {"not-finite"}


def bounds(**values: float) -> dict[str, torch.Tensor]:
    return {f"tower.layers.0.fc.{name}": torch.tensor(x) for name, x in values.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "held", [bounds(input_min=-inf, input_max=inf), bounds(min=-inf, max=inf), bounds(min_x=-inf, max_x=inf)]
)  # fmt: skip
def test_an_interval_that_is_open_is_no_fault_and_noted(
    held: dict[str, torch.Tensor], dtype: torch.dtype, tmp_path: Path
) -> None:
    path = write_hf(tmp_path / "src", {name: x.to(dtype) for name, x in held.items()})
    report = intarsia.verify(path)
    assert report, report.faults
    opened = [name for name, x in held.items() if x.isinf()]
    assert [all(f"`{n}`" in note for n in opened) for note in report.notes if "open" in note] == [
        True
    ]


@pytest.mark.parametrize(
    "held",
    [
        bounds(input_min=inf, input_max=-inf),
        bounds(input_min=-inf, input_max=-inf),
        bounds(input_min=-inf, input_max=nan),
        bounds(input_min=-inf),
        bounds(min=-inf, max=6.0),
        bounds(min=0.5, max=inf),
        bounds(weight=inf, min=0.0, max=1.0),
        bounds(minimum=-inf, maximum=inf),
        {"fc.bias_min": torch.tensor([-inf, 0.0]), "fc.bias_max": torch.tensor([inf, inf])},
        {"optimizer.exp_avg.fc.min": torch.tensor(-inf), "optimizer.exp_avg.fc.max": torch.tensor(inf)},
    ],
)  # fmt: skip
def test_what_is_no_open_interval_stays_a_fault(
    held: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    assert alone(tmp_path, held) == {"not-finite"}


@pytest.mark.parametrize(
    "stack", ["visual.transformer.resblocks.{}", "stages.{}", "stages.1.units.{}"]
)
def test_repeated_layers_are_found_in_any_list_of_modules(stack: str, tmp_path: Path) -> None:
    tensors = {
        f"{stack.format(k)}.{leaf}.weight": normal_tensor((16, 16), torch.float32, 7 * k + i)
        for k in range(4)
        for i, leaf in enumerate(("attn", "fc"))
    }
    assert not alone(tmp_path / "sound", tensors)
    for leaf in ("attn", "fc"):
        source = tensors[f"{stack.format(1)}.{leaf}.weight"]
        tensors[f"{stack.format(3)}.{leaf}.weight"] = source.clone()
    assert alone(tmp_path / "faulty", tensors) == {"layers-repeated"}


@pytest.mark.parametrize("how", ["flipped", "rolled", "shuffled"])
@pytest.mark.parametrize("format", ["hf", "dcp", "torch_dist"])
@pytest.mark.one_in(3)
def test_weights_in_another_order_than_their_main_weights_are_found(
    how: str, format: str, tmp_path: Path
) -> None:
    tensors = trained(weights(1))
    name = "model.layers.2.self_attn.o_proj.weight"
    w = tensors[name]
    order = torch.randperm(len(w), generator=torch.Generator().manual_seed(5))
    tensors[name] = {"flipped": w.flip(0), "rolled": w.roll(1, 0), "shuffled": w[order]}[
        how
    ].clone()
    hub = write(tensors, tmp_path / "hub")
    report = intarsia.verify(convert(hub, format, tmp_path / "out"))
    assert [(f.kind, f.tensors[0]) for f in report.faults] == [("master-differs", name)]
