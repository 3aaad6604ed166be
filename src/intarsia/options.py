"""What a conversion is asked for: one set of options, for Python and for the command line.

Each field of `Options` is a keyword argument of `plan` and `convert` and an option of both
commands; its help is written here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from textwrap import indent, wrap
from typing import Any, TypeVar

from intarsia.format.built_in import DIALECTS, NAMES
from intarsia.mesh import Mesh

PathLike = str | PurePath
ConfigLike = str | PurePath | Mapping[str, Any] | None
MeshLike = str | Mapping[str, int] | Mesh | None
SectionLike = str | Sequence[str] | None
Call = TypeVar("Call", bound=Callable[..., Any])


def _says(text: str, *words: str) -> dict[str, Any]:
    """What an option means, and the words that it may have where they are few."""
    return {"help": text, "words": words}


def _option(default: Any, text: str, *words: str) -> Any:
    return field(default=default, metadata=_says(text, *words))


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a conversion should write, and what it may use."""

    to: str = field(
        metadata=_says(f"The format to write: {', '.join(NAMES[:-1])} or {NAMES[-1]}.", *NAMES)
    )
    mesh: MeshLike = _option(
        None,
        "The ranks to write for, such as tp=2,fsdp=3. Axes: tp, etp, ep, pp, cp, fsdp, replicate.",
    )
    dialect: str | None = _option(
        None,
        f"Names and fusions to write: {', '.join(DIALECTS.values())}."
        " [default: same between hf and dcp, otherwise the format's own]",
        *DIALECTS,
    )
    megatron_spec: str = _option(
        "te", "Megatron's layer specification to name tensors by: te or local.", "te", "local"
    )
    megatron_lr: str | float | None = _option(
        None, "LR,MIN_LR of the run that will resume, for optimizer state of Megatron-core 0.19 and later."
    )  # fmt: skip
    dtype: str | None = _option(
        None, "Cast floating-point weights, to bf16 for example.", "bf16", "fp16", "fp32"
    )
    memory: str | int | None = _option(
        None, "The most memory for buffers. [default: 2GiB or a quarter of the machine]"
    )
    workers: int | None = _option(None, "Threads that move bytes, at most.")
    max_shard_size: str | int = _option("5GB", "Largest safetensors file to write.")
    optimizer: str = _option(
        "keep", "keep or drop optimizer state and other training state.", "keep", "drop"
    )
    config: ConfigLike = _option(None, "The model's config.json, where the checkpoint holds none.")
    section: SectionLike = _option(
        None,
        "The section that is the model, where a checkpoint holds several; after a comma,"
        " that of its optimizer. `.` is what lies in no section; where nothing does, the whole"
        " state dict, under its own names.",
    )
    digests: bool = _option(
        True, "Compute digests during the conversion, and store them in the result."
    )


def with_options_explained(call: Call) -> Call:
    """A function with what each of the options means added to its docstring."""
    meanings = [f"{f.name}: {f.metadata['help']}" for f in fields(Options)]
    wrapped = [wrap(m, 90, subsequent_indent="    ", break_on_hyphens=False) for m in meanings]
    lines = [line for each in wrapped for line in each]
    call.__doc__ = f"{call.__doc__}\n    Options:\n{indent(chr(10).join(lines), ' ' * 8)}\n    "
    return call
