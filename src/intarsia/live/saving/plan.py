"""The plan of a save: where every box goes, made and proven by the first rank for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.dtypes import DType
from intarsia.errors import FormatError, UsageError, few_lines
from intarsia.format.base import Arrangement
from intarsia.format.registry import live_format
from intarsia.format.strict_json import parse_json
from intarsia.live.entries import extra_entries, shared_entries
from intarsia.live.optimizer.agreement import agreed_entries
from intarsia.live.saving.exchange import Heard, RankTask, tasks_of
from intarsia.live.saving.replicas import dtype_and_shape, holders_of, ranks_of
from intarsia.mesh import Shape


@dataclass(frozen=True, slots=True)
class Outline:
    """What every rank has to know of a save."""

    tensors: list[tuple[str, DType, Shape]]
    config: Mapping[str, Any] | None
    total_bytes: int
    paths: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Where every box goes, proven to be all there is, by the first rank for all."""

    arrangement: Arrangement
    outline: Outline
    tasks: list[RankTask]

    @staticmethod
    def of(held: Sequence[Heard]) -> SavePlan:
        """Raise where what ranks hold is contradictory, or does not make whole tensors."""
        holders = holders_of([each.boxes for each in held])
        names = [[box.name for box in each.boxes] for each in held]
        entries = shared_entries(agreed_entries([each.entries for each in held], names))
        entries |= extra_entries([each.extra for each in held])
        rows = [(name, *dtype_and_shape(boxes), ranks_of(boxes)) for name, boxes in holders.items()]
        paths = {
            name: (*keys, name.removeprefix(".".join((*keys, ""))))
            for each in held
            for name, keys in each.nesting.items()
        }
        arrangement = live_format().lay_out(rows, entries, len(held), paths)
        files = [live_format().file_of(rank) for rank in range(len(held))]
        sizes = [arrangement.files.get(file, 0) for file in files]
        outline = Outline(
            [row[:3] for row in rows], _one_config(held), sum(arrangement.files.values()), paths
        )
        tasks = tasks_of(held, holders, arrangement.slots, sizes, files)
        return SavePlan(arrangement, outline, tasks)


def _one_config(held: Sequence[Heard]) -> Mapping[str, Any] | None:
    """The configuration that is written; raise where ranks have several."""
    first: tuple[int, Mapping[str, Any]] | None = None
    for rank, config in enumerate(each.config for each in held):
        if first is None and config is not None:
            first = rank, config
        elif first is not None and config not in (None, first[1]):
            at, found = first
            other = [key for key in {**found, **config} if found.get(key) != config.get(key)]
            texts = [
                f"{key}: {found.get(key, 'absent')!r} on rank {at}, {config.get(key, 'absent')!r} on rank {rank}"
                for key in other
            ]
            raise UsageError(
                f"ranks {at} and {rank} have different model configurations, and one is written:{few_lines(texts, 4)}",
                hint="give config= the whole model's configuration on every rank",
            )
    if first is None:
        return None
    try:
        parse_json(config_text(first[1]).encode(), "it")
    except (FormatError, TypeError, ValueError, RecursionError) as error:
        brief = error.brief if isinstance(error, FormatError) else f"{error}"
        raise UsageError(
            f"the configuration could not be read again: {brief}", hint="give another with config="
        ) from error
    return first[1]


def config_text(config: Mapping[str, Any]) -> str:
    """What is written as `config.json`."""
    return json.dumps(config, indent=2, default=str) + "\n"
