"""TransformerEngine's own modules on a machine without a GPU: only its compiled extension is a stand-in.

Construction, parameters, names, shapes, `state_dict`, `GroupedTensor` and initialisation are its own.  Its wheel is
pure Python, and lies in a folder of its own: beside Megatron-core and PEFT it would be taken for a working one.
"""

from __future__ import annotations

import enum
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

HOME = Path(sys.prefix) / "transformer_engine"
"""Where `make` installs it."""


class _Anything:
    """A value of the extension that nobody looks at while modules are built."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else _Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __int__(self) -> int:
        return 0

    __index__ = __int__

    def __hash__(self) -> int:
        return id(self)

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _StandIn(types.ModuleType):
    """A module whose every name is a class of anything."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__, self.__file__ = ModuleSpec(name, None), "stand-in"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def member(cls: Any, key: str) -> Any:
            if key.startswith("__"):
                raise AttributeError(key)
            setattr(cls, key, object.__new__(cls))
            return cls.__dict__[key]

        kind = type(
            f"Kind_{name}", (type,), {"__getattr__": member, "__iter__": lambda _: iter(())}
        )
        made = kind(name, (_Anything,), {})
        setattr(self, name, made)
        return made


def _extension(root: Path) -> types.ModuleType:
    """`transformer_engine_torch`, with every enumeration that the Python modules name."""
    source = "".join(p.read_text() for p in [root / "constants.py", *sorted(root.rglob("*.py"))])

    def numbered(name: str, words: list[str]) -> Any:
        return enum.IntEnum(name, {word: i for i, word in enumerate(dict.fromkeys(words))})

    made = _StandIn("transformer_engine_torch")
    vars(made)["DType"] = numbered("DType", re.findall(r"tex\.DType\.(k\w+)\)", source))
    for name in ("FP8FwdTensors", "FP8BwdTensors"):
        vars(made)[name] = numbered(name, re.findall(rf"tex\.{name}\.(\w+)", source))
    for name in set(re.findall(r"\b(NVTE_[A-Z]\w*[a-z]\w*)\.", source)):
        vars(made)[name] = numbered(name, re.findall(rf"\b{name}\.(NVTE_\w+)", source))
    return made


@contextmanager
def building() -> Iterator[None]:
    """While modules are constructed CUDA is said to be there; with `device="cpu"` nothing is put on it."""
    card = types.SimpleNamespace(
        total_memory=1 << 34, multi_processor_count=1, major=9, minor=0, name="none"
    )
    with (
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.current_device", lambda: 0),
        patch("torch.cuda.get_device_capability", lambda *_, **__: (9, 0)),
        patch("torch.cuda.get_device_properties", lambda *_, **__: card),
        patch("torch.cuda.get_rng_state", lambda *_, **__: torch.get_rng_state()),
    ):
        yield


def load() -> Any:
    """`transformer_engine.pytorch`."""
    if "transformer_engine" not in sys.modules:
        assert HOME.is_dir(), f"TransformerEngine is not in {HOME}; `make test` installs it"
        root = HOME / "transformer_engine" / "pytorch"
        sys.modules["transformer_engine_torch"] = _extension(root)
        export = {name: _StandIn(name) for name in ("onnxscript", "onnx") if not find_spec(name)}
        sys.modules.update(export)
        with (
            building(),
            warnings.catch_warnings(),
            patch.object(sys, "path", [str(HOME), *sys.path]),
            patch.dict(os.environ, NVTE_PROJECT_BUILDING="1"),
        ):
            warnings.simplefilter("ignore")  # it misses its extension
            common = import_module("transformer_engine.common")
            vars(common)["load_framework_extension"] = lambda *_, **__: None
            import_module("transformer_engine.pytorch")
        for name in export:
            del sys.modules[name]
    return sys.modules["transformer_engine.pytorch"]
