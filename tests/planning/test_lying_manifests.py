"""Whatever a manifest claims wrongly is refused with the same error wherever it is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.format.dcp.metadata import TensorRecord
from intarsia.mesh import Box
from tests.checkpoints import bits, leftovers, model, read_hf, write_dcp, write_hf
from tests.checkpoints import intarsia as command
from tests.planning.lies import CONFIG, LIES, MESHES, NAME, Lie, lying, rewrite, sound

OLD = -7.5
"""What memory holds before it is loaded into."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sound(tmp_path_factory.mktemp("sound"))


def module() -> torch.nn.Module:
    """A module with the model's parameters, all of them old."""
    root = torch.nn.Module()
    for name, tensor in model(CONFIG, torch.float32).items():
        *path, leaf = name.split(".")
        here = root
        for word in path:
            if not hasattr(here, word):
                here.add_module(word, torch.nn.Module())
            here = getattr(here, word)
        here.register_parameter(leaf, torch.nn.Parameter(torch.full_like(tensor, OLD)))
    return root


def load(path: Path, into: torch.nn.Module | dict[str, torch.Tensor]) -> None:
    held = into if isinstance(into, dict) else into.state_dict()
    try:
        intarsia.load(path, into=into, config=CONFIG)
    except intarsia.IntarsiaError:
        assert all((x == OLD).all() for x in held.values()), "nothing is read before the proof"
        raise


def explain(path: Path, tensor: str) -> None:
    """`explain` has no Python function: the error is taken from what it prints."""
    answer = command("explain", path, tensor, "--json")
    if answer.status:
        found = answer.json
        raise getattr(intarsia, found["error"])(found["message"], hint=found["hint"])


def convert(path: Path, folder: Path, to: str) -> None:
    try:
        intarsia.convert(path, folder / "out", to=to)
    finally:
        done = (folder / "out").exists()
        assert done or not leftovers(folder)


def read(path: Path, take: Callable[[intarsia.Checkpoint, str], object], name: str) -> None:
    with intarsia.open(path, CONFIG) as checkpoint:
        take(checkpoint, name)


def ways(
    path: Path, other: Path, folder: Path, name: str = NAME
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every way to read a checkpoint that raises where it is not proven."""
    yield "plan", lambda: intarsia.plan(path, to="hf").check()
    yield "plan to dcp", lambda: intarsia.plan(path, to="dcp", mesh="fsdp=3", config=CONFIG).check()
    for to in ("hf", "dcp"):
        yield f"convert to {to}", lambda to=to: convert(path, folder, to)
    yield "load into a module", lambda: load(path, module())
    yield "load into a state dict", lambda: load(path, module().state_dict())
    yield "open()[...]", lambda: read(path, lambda ck, n: ck[n][...], name)
    yield "open()[0:1]", lambda: read(path, lambda ck, n: ck[n][0:1], name)
    yield "open()[0, 0]", lambda: read(path, lambda ck, n: ck[n][0, 0], name)
    yield "an array", lambda: read(path, lambda ck, n: np.asarray(ck[n]), name)
    yield "tobytes", lambda: read(path, lambda ck, n: ck[n].tobytes(), name)
    yield "shard", lambda: read(path, lambda ck, n: ck.shard("tp=2", 1), name)
    yield "digest", lambda: intarsia.digest(path, config=CONFIG)
    yield "digest, secure", lambda: intarsia.digest(path, config=CONFIG, secure=True)
    yield "verify A B", lambda: intarsia.verify(path, other, config=CONFIG)
    yield "verify B A", lambda: intarsia.verify(other, path, config=CONFIG)
    yield "diff", lambda: intarsia.diff(other, path, config=CONFIG)
    yield "explain", lambda: explain(path, name)


def refused(path: Path, other: Path, folder: Path, name: str = NAME) -> set[tuple[type, str]]:
    """The errors of every way; each raises, and what they say is collected."""
    found = set()
    for way, call in ways(path, other, folder, name):
        error = error_of(call)
        assert error is not None, f"{way} did not refuse"
        found.add((type(error), str(error)))
    return found


def error_of(call: Callable[[], object]) -> intarsia.IntarsiaError | None:
    try:
        call()
    except intarsia.IntarsiaError as error:
        return error
    return None


@pytest.mark.parametrize("format", MESHES)
@pytest.mark.parametrize("lie", LIES, ids=lambda x: x.title)
@pytest.mark.one_in(4)
def test_a_lie_is_refused_with_the_same_words_everywhere(
    whole: dict[str, Path], tmp_path: Path, lie: Lie, format: str
) -> None:
    path = lying(whole[format], tmp_path / format, lie)
    ((error, text),) = refused(path, whole["hf"], tmp_path)
    assert error is lie.error
    with pytest.raises(lie.error, match=lie.text):
        raise lie.error(text)
    assert "embed" in text
    assert "\n  hint: " in text


@pytest.mark.parametrize("format", MESHES)
@pytest.mark.parametrize("lie", LIES, ids=lambda x: x.title)
@pytest.mark.one_in(3)
def test_verify_reports_a_lie_as_a_fault(
    whole: dict[str, Path], tmp_path: Path, lie: Lie, format: str
) -> None:
    found = intarsia.verify(lying(whole[format], tmp_path / format, lie), config=CONFIG)
    assert not found.sound
    with pytest.raises(lie.error, match=lie.text):
        raise lie.error("\n".join(fault.text for fault in found.faults))


@pytest.mark.parametrize("format", [*MESHES, "hf"])
def test_what_is_sound_is_read_everywhere(
    whole: dict[str, Path], tmp_path: Path, format: str
) -> None:
    for k, (_, call) in enumerate(ways(whole[format], whole["hf"], tmp_path)):
        (tmp_path / "out").rename(tmp_path / f"out-{k}") if (tmp_path / "out").exists() else None
        call()
    assert intarsia.verify(whole[format], config=CONFIG).sound


def test_an_empty_chunk_is_harmless(whole: dict[str, Path], tmp_path: Path) -> None:
    def tell(tensors: dict[str, TensorRecord]) -> None:
        held = tensors[NAME]
        empty = replace(held.chunks[0], box=Box((48, 0), (0, 20)), length_bytes=0)
        tensors[NAME] = replace(held, chunks=(empty, *held.chunks))

    path = rewrite(whole["dcp"], tmp_path / "dcp", tell)
    with intarsia.open(path) as found:
        assert bits(found[NAME][...]) == bits(read_hf(whole["hf"])[NAME])


@pytest.mark.parametrize(
    ("chunks", "text"), [(0, "first missing []"), (2, "stored twice at offset ()")]
)
def test_a_scalar_has_one_chunk(tmp_path: Path, chunks: int, text: str) -> None:
    source = write_dcp(tmp_path / "source", {"scale": torch.tensor(2.0), "w": torch.ones(3)})

    def tell(tensors: dict[str, TensorRecord]) -> None:
        held = tensors["scale"]
        tensors["scale"] = replace(held, chunks=(*held.chunks,) * chunks)

    path = rewrite(source, tmp_path / "dcp", tell)
    into = {"scale": torch.tensor(OLD), "w": torch.full((3,), OLD)}
    ways: dict[str, Callable[[], object]] = {
        "plan": lambda: intarsia.plan(path, to="hf").check(),
        "convert": lambda: intarsia.convert(path, tmp_path / "out", to="hf"),
        "load": lambda: intarsia.load(path, into=into),
        "open": lambda: intarsia.open(path)["scale"][()],
        "number": lambda: intarsia.open(path)["scale"].number(),
        "digest": lambda: intarsia.digest(path),
        "secure": lambda: intarsia.digest(path, secure=True),
        "verify": lambda: intarsia.verify(path, source),
        "diff": lambda: intarsia.diff(source, path),
        "explain": lambda: explain(path, "scale"),
    }
    said = set()
    for call in ways.values():
        with pytest.raises(intarsia.IntarsiaError) as raised:
            call()
        said.add(str(raised.value))
    (found,) = said
    assert text in found
    assert into["scale"] == OLD
    faults = intarsia.verify(path).faults
    assert any(text in fault.text or fault.tensors == ("scale",) for fault in faults)


def test_a_safetensors_header_that_lies_is_refused_everywhere(
    whole: dict[str, Path], tmp_path: Path
) -> None:
    """Two tensors on the same bytes, a hole between two, and a shape that needs other bytes."""
    raw = (whole["hf"] / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    for k, change in enumerate(
        (
            lambda at: [0, at[1] - at[0]],
            lambda at: [at[0] + 4, at[1] + 4],
            lambda at: [at[0], at[1] - 4],
        )
    ):
        header = json.loads(raw[8 : 8 + size])
        header[NAME]["data_offsets"] = change(header[NAME]["data_offsets"])
        folder = write_hf(tmp_path / f"{k}", {"x": torch.ones(1)}, CONFIG)
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(
            len(text).to_bytes(8, "little") + text + raw[8 + size :]
        )
        ((error, _),) = refused(folder, whole["hf"], tmp_path)
        assert error is intarsia.FormatError
        assert not intarsia.verify(folder, config=CONFIG).sound


MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
    "intermediate_size": 12, "moe_intermediate_size": 4, "num_experts": 2,
    "num_experts_per_tok": 1, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 16,
    "rms_norm_eps": 1e-6, "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("format", ["hf", "dcp"])
def test_experts_that_are_stored_fused_and_apart_are_refused_everywhere(
    tmp_path: Path, format: str
) -> None:
    """Which of the two would be the model's is not for us to say."""
    at = "model.layers.0.mlp.experts"
    tensors = {
        f"{at}.{e}.{k}_proj.weight": torch.randn(4, 8) for e in range(2) for k in ("gate", "up")
    }
    tensors |= {f"{at}.{e}.down_proj.weight": torch.randn(8, 4) for e in range(2)}
    apart = write_hf(tmp_path / "apart", tensors, MOE)
    both = tensors | {f"{at}.gate_up_proj": torch.randn(2, 8, 8)}
    name = f"{at}.0.gate_proj.weight"
    if format == "hf":
        path = write_hf(tmp_path / "both", both, MOE)
    else:
        path = write_dcp(tmp_path / "both", both)
        (path / "config.json").write_text(json.dumps(MOE))
    into = {n: torch.full_like(x, OLD) for n, x in tensors.items()}
    ways: dict[str, Callable[[], object]] = {
        "load": lambda: intarsia.load(path, into=into, strict=False),
        "open": lambda: intarsia.open(path)[name][...],
        "digest": lambda: intarsia.digest(path),
        "secure": lambda: intarsia.digest(path, secure=True),
        "verify": lambda: intarsia.verify(path, apart),
        "diff": lambda: intarsia.diff(apart, path),
        "shard": lambda: intarsia.open(path).shard("tp=2", 0),
        "explain": lambda: explain(path, name),
    }
    for way, call in ways.items():
        text = str(error_of(call))
        assert "have more than one source" in text, way
        assert f"held by {name}, {at}.gate_up_proj" in text, way
    assert "have more than one source" in "\n".join(intarsia.plan(path, to="hf").problems)
    assert all((x == OLD).all() for x in into.values())
    assert any("have more than one source" in f.text for f in intarsia.verify(path).faults)
