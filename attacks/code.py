"""Exploits that try to have code run: each would create the canary file."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

from attacks import sound


class Runs:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def system(canary: Path) -> Runs:
    return Runs(os.system, f"touch {canary}")


def metadata_that_runs_a_command(folder: Path, canary: Path) -> None:
    """`.metadata` calls os.system."""
    sound.dcp(folder, pickle.dumps(system(canary)))


def tensor_that_runs_a_command(folder: Path, canary: Path) -> None:
    """The pickle inside a tensor's archive calls os.system."""
    import io
    from zipfile import ZipFile

    out = io.BytesIO()
    with ZipFile(out, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(system(canary), 2))
        file.writestr("archive/data/0", bytes(16))
    sound.dcp(folder, data=out.getvalue())


def common_state_that_runs_a_command(folder: Path, canary: Path) -> None:
    """Megatron's common.pt calls os.system, as one of its arguments."""
    sound.torch_dist(folder, pickle.dumps({"args": {"lr": system(canary)}}, 2))


def entry_that_runs_a_command(folder: Path, canary: Path) -> None:
    """An entry of the side folder, carried as bytes, is a pickle that calls exec."""
    import base64

    data = pickle.dumps(Runs(exec, f"open({str(canary)!r}, 'w')"))
    sound.hf(folder)
    (folder / "optimizer").mkdir()
    entries = {"optimizer.param_groups.0.lr": base64.b64encode(data).decode()}
    (folder / "optimizer" / "entries.json").write_text(json.dumps(entries))


def configuration_with_remote_code(folder: Path, canary: Path) -> None:
    """config.json names a module beside it, which would run when it is imported."""
    config = {
        "model_type": "evil", "architectures": ["EvilForCausalLM"], "trust_remote_code": True,
        "auto_map": {"AutoConfig": "modeling_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"},
    }  # fmt: skip
    code = f"open({str(canary)!r}, 'w')".encode()
    sound.hf(folder, config__json=config, modeling_evil__py=code)


def configuration_with_a_module_for_a_type(folder: Path, canary: Path) -> None:
    """config.json gives a path and a module where the model's type belongs."""
    (folder.parent / "evil.py").write_text(f"open({str(canary)!r}, 'w')")
    sound.hf(folder, config__json={"model_type": "../../evil", "architectures": ["os"]})


def configuration_with_a_kernel_of_the_hub(folder: Path, canary: Path) -> None:
    """config.json asks for an attention kernel out of a repository, and calls a function a model."""
    config = {
        "model_type": "gpt2", "architectures": ["pipeline"], "n_layer": 1, "n_embd": 4, "n_head": 1,
        "attn_implementation": "evil/kernel", "_attn_implementation": "evil/kernel",
    }  # fmt: skip
    sound.hf(folder, config__json=config)
