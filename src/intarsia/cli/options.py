"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Path = Annotated[str, typer.Argument(help="A checkpoint: a folder, or one safetensors file.")]
To = Annotated[
    str, typer.Option("--to", help="The format to write: hf, dcp, torch_dist or fsdp_dtensor.")
]
Mesh = Annotated[
    str,
    typer.Option(
        "--mesh",
        help="The ranks to write for, such as tp=2,fsdp=3. Axes: tp, etp, ep, pp, cp, fsdp, replicate.",
    ),
]
Dialect = Annotated[
    str | None,
    typer.Option(
        "--dialect",
        help="Names and fusions to write: same (as stored), hf (as on the hub), hf-fused (3-D experts), hf-module (as"
        " the Transformers module), megatron. [default: same between hf and dcp, otherwise the format's own]",
    ),
]
MegatronSpec = Annotated[
    str,
    typer.Option(
        "--megatron-spec", help="Megatron's layer specification to name tensors by: te or local."
    ),
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="Cast floating-point weights, to bf16 for example.")
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", help="Most memory for buffers. [default: 2GiB or a quarter of the machine]"
    ),
]
Workers = Annotated[int | None, typer.Option("--workers", help="Threads that move bytes.")]
MaxShardSize = Annotated[
    str, typer.Option("--max-shard-size", help="Largest safetensors file to write.")
]
Optimizer = Annotated[
    str, typer.Option("--optimizer", help="keep or drop optimizer state and other training state.")
]
Config = Annotated[
    str | None,
    typer.Option("--config", help="The model's config.json, where the checkpoint holds none."),
]
Alone = Annotated[
    bool,
    typer.Option("--alone", help="Await no other ranks, whatever torchrun has started."),
]
Section = Annotated[
    str | None,
    typer.Option(
        "--section",
        help="The section that is the model, where a checkpoint holds several; after a comma its optimizer's.",
    ),
]
Html = Annotated[
    str | None,
    typer.Option(
        "--html", help="Also write a page to look at, which needs no network, to this file."
    ),
]
