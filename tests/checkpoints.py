"""Small checkpoints for tests: made with torch and safetensors, read back with the same.

Nothing here uses Intarsia, except `intarsia` which runs its command line in this process.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from tests import fixtures

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = (
    "deepseek_v3", "glm4_moe", "gpt_oss", "llama", "mixtral", "qwen3", "qwen3_moe",
    "qwen3_moe_sharded", "qwen3_next",
)  # fmt: skip

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64,
)  # fmt: skip
"""Every element type that both formats can hold."""

Tensors = Mapping[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]


def fixture(family: str) -> Path:
    """A checkpoint that Transformers wrote."""
    return fixtures.fixture("hf", family)


def llama_config(**changes: Any) -> dict[str, Any]:
    """A Llama whose sizes divide by few things."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 20,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "intermediate_size": 33,
        "vocab_size": 47,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    } | changes


def qwen3_config(**changes: Any) -> dict[str, Any]:
    changes = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"} | changes
    return llama_config(**changes)


def shapes(config: Mapping[str, Any]) -> Shapes:
    """Every tensor of a Llama or Qwen3 model, by its name on the hub."""
    hidden, inner, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    found: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found[f"{at}.self_attn.q_proj.weight"] = (heads * width, hidden)
        found[f"{at}.self_attn.k_proj.weight"] = (groups * width, hidden)
        found[f"{at}.self_attn.v_proj.weight"] = (groups * width, hidden)
        found[f"{at}.self_attn.o_proj.weight"] = (hidden, heads * width)
        if config["model_type"] == "qwen3":
            found[f"{at}.self_attn.q_norm.weight"] = (width,)
            found[f"{at}.self_attn.k_norm.weight"] = (width,)
        found[f"{at}.mlp.gate_proj.weight"] = (inner, hidden)
        found[f"{at}.mlp.up_proj.weight"] = (inner, hidden)
        found[f"{at}.mlp.down_proj.weight"] = (hidden, inner)
        found[f"{at}.input_layernorm.weight"] = (hidden,)
        found[f"{at}.post_attention_layernorm.weight"] = (hidden,)
    found["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], hidden)
    return found


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random *bits*: for floating types that includes infinities, subnormals and odd NaNs."""
    random = torch.Generator().manual_seed(seed)
    size = prod(shape)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=random, dtype=torch.uint8).bool()
    itemsize = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (size * itemsize,), generator=random, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


def matrix() -> dict[str, torch.Tensor]:
    """Every element type in every kind of shape."""
    found = {}
    for k, dtype in enumerate(DTYPES):
        name = str(dtype).removeprefix("torch.")
        for shape in ((), (0,), (5,), (3, 0), (7, 5), (2, 3, 5)):
            found[f"{name}.{'x'.join(map(str, shape)) or 'scalar'}"] = random_tensor(
                shape, dtype, k
            )
    return found


def normal_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Numbers such as weights are."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random, dtype=torch.float32).to(dtype)


def model(
    config: Mapping[str, Any], dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> dict[str, torch.Tensor]:
    """A model with normal random weights."""
    return {
        name: normal_tensor(shape, dtype, seed * 1000 + k)
        for k, (name, shape) in enumerate(shapes(config).items())
    }


def write_hf(
    folder: Path, tensors: Tensors, config: Mapping[str, Any] | None = None, files: int = 1
) -> Path:
    """A Hugging Face folder: one file, or several with an index, and some small files."""
    folder.mkdir(parents=True, exist_ok=True)
    if files == 1:
        save_file(dict(tensors), folder / "model.safetensors", {"format": "pt"})
    else:
        names = list(tensors)
        weight_map = {}
        for k in range(files):
            file = f"model-{k + 1:05d}-of-{files:05d}.safetensors"
            part = names[k::files]
            save_file({n: tensors[n] for n in part}, folder / file, {"format": "pt"})
            weight_map |= dict.fromkeys(part, file)
        total = sum(t.numel() * t.element_size() for t in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=3) + "\n\n")
        (folder / "tokenizer_config.json").write_bytes(b'{"odd":  "spacing"}')
        (folder / "merges.txt").write_bytes(b"\xff\x00 not even text\r\n")
    return folder


def read_hf(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a Hugging Face folder, by plain safetensors."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return load_file(folder / "model.safetensors")
    weight_map = json.loads(index.read_text())["weight_map"]
    found: dict[str, torch.Tensor] = {}
    for file in sorted(set(weight_map.values())):
        for name, tensor in load_file(folder / file).items():
            assert weight_map[name] == file, f"the index sends {name} elsewhere"
            found[name] = tensor
    assert found.keys() == weight_map.keys()
    return found


def write_dcp(folder: Path, state: Mapping[str, Any]) -> Path:
    """A folder that torch's own `dcp.save` wrote, in this process."""
    with warnings.catch_warnings(action="ignore"):
        dcp.save(dict(state), checkpoint_id=folder, no_dist=True)
    return folder


def read_dcp(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a DCP folder, by plain `dcp.load`."""
    described = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    found = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in described.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings(action="ignore"):
        dcp.load(found, checkpoint_id=folder, no_dist=True)
    return found


def archived_at_another_time(file: Path) -> None:
    """Let the first zip archive in a file of a DCP checkpoint say another time, and hold the same."""
    whole = bytearray(file.read_bytes())
    whole[whole.index(b"PK\x03\x04") + 10] ^= 1
    file.write_bytes(whole)


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor in row-major order."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def assert_same(found: Tensors, expected: Tensors) -> None:
    """The same names, element types, shapes and bits."""
    assert sorted(found) == sorted(expected)
    for name, want in expected.items():
        have = found[name]
        assert have.dtype == want.dtype, name
        assert have.shape == want.shape, name
        assert bits(have) == bits(want), name


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones included."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


class Answer(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def intarsia(*words: object) -> Answer:
    """Run the command line in this process."""
    from intarsia.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    status = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            status = int(stop.code or 0)
    return Answer(status, out.getvalue(), err.getvalue())


def environment(**changes: str) -> dict[str, str]:
    """The environment of a child process that can import Intarsia and these tests."""
    given = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *([given] if given else [])])
    kept = {k: v for k, v in os.environ.items() if not k.startswith("INTARSIA_")}
    return kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | changes


def python(
    *words: object, check: bool = False, seconds: int = 240, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a child process, Intarsia being importable."""
    command = [sys.executable, *(str(word) for word in words)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment(**changes),
        check=check,
        timeout=seconds,
    )


def leftovers(parent: Path) -> Iterable[str]:
    """What a run left beside its destination."""
    return sorted(p.name for p in parent.iterdir() if ".intarsia-" in p.name)


SLOWLY = """
import os, signal, sys, time
# A shell that runs the tests in the background has its children ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
from intarsia.cli.main import main
from intarsia.run.budget import Budget
honest, count = os.pwritev, [0]

def slow(*arguments):
    count[0] += 1
    if count[0] == 12:
        print("half way", flush=True)
        os.read(0, 1)
    if count[0] >= 12:
        time.sleep(0.01)
    return honest(*arguments)

os.pwritev = slow
Budget.window_bytes = property(lambda self: 1024)
main(sys.argv[1:])
"""
"""A conversion that says when it is half way, waits until nobody can write to it, and is slow from there on."""


def half_way(*words: object) -> subprocess.Popen[str]:
    """A conversion in another process, which has written some of its bytes; `communicate` lets it go on."""
    child = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, *(str(word) for word in words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "half way\n"
    return child
