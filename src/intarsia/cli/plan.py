"""`intarsia plan`: a conversion's proof and cost, with nothing moved."""

from __future__ import annotations

import typer

from intarsia.cli import options
from intarsia.cli.output import answer, say

NAME = "plan"


def run(
    src: options.Path,
    to: options.To,
    mesh: options.Mesh = "",
    dialect: options.Dialect = None,
    megatron_spec: options.MegatronSpec = "te",
    dtype: options.Dtype = None,
    memory: options.Memory = None,
    workers: options.Workers = None,
    max_shard_size: options.MaxShardSize = "5GB",
    optimizer: options.Optimizer = "keep",
    config: options.Config = None,
    section: options.Section = None,
) -> None:
    """Prove a conversion before a byte moves, and say what it would read, write and hold in memory."""
    from intarsia import api

    found = api.plan(
        src,
        to=to,
        mesh=mesh,
        dialect=dialect,
        megatron_spec=megatron_spec,
        dtype=dtype,
        memory=memory,
        workers=workers,
        max_shard_size=max_shard_size,
        optimizer=optimizer,
        config=config,
        section=section,
    )
    answer(found.as_json(), lambda: say(found))
    raise typer.Exit(0 if found.proven else 1)
