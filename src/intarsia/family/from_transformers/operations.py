"""The operations of Transformers' conversion rules, on layouts instead of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.errors import FamilyError, few
from intarsia.family.from_transformers.skeleton import Skeleton
from intarsia.layout import Layout, chunk, concat, split, stack

Parts = dict[str, list[Layout]]
"""Layouts by the pattern that caught their names."""


@dataclass(frozen=True, slots=True)
class OperationInput:
    """What an operation is given: parts, the patterns of its converter, and the tensor in question."""

    parts: Parts
    sources: list[str]
    targets: list[str]
    name: str
    model: Skeleton

    @property
    def only(self) -> Layout:
        """The one tensor that there is."""
        if len(self.parts) != 1:
            raise FamilyError(
                f"`{self.name}` is made of {len(self.parts)} tensors, expected 1",
                tensors=(self.name,),
            )
        return one(self.name, next(iter(self.parts.values())))

    @property
    def target(self) -> str:
        """Where a step in the middle of a chain puts its result: a chain's last step names targets."""
        return self.sources[0] if len(self.targets) > 1 else self.targets[0]


def one(name: str, held: Sequence[Layout]) -> Layout:
    """The one layout that there is for a tensor of the module."""
    if len(held) > 1:
        raise FamilyError(
            f"{len(held)} tensors are `{name}`: {few([x.tensors[0] for x in held], 4)}",
            hint="keep those that are the model's",
            tensors=(name,),
        )
    return held[0]


def in_order_of_modules(name: str, held: list[Layout]) -> list[Layout]:
    """Tensors of a list of modules, whose numbers are all from 0 on: others would take the place of one left out."""
    words = zip(*[x.tensors[0].split(".") for x in held], strict=False)
    for numbers in (each for each in words if len({*each}) > 1):
        if numbers != (*map(str, range(len(held))),):
            raise FamilyError(
                f"`{name}` is made of tensors with the numbers {few(numbers, 4)}, expected 0 to {len(held) - 1}",
                tensors=(name,),
            )
    return held


def _chunk(op: Any, task: OperationInput) -> Parts:
    targets = task.targets
    count = getattr(op, "num_shards_attribute", None)
    if count is not None:
        number = getattr(task.model.config.get_text_config(), count)
        targets = [targets[0].replace("*", str(i)) for i in range(number)]
    pieces = chunk(task.only, len(targets), op.dim)
    return {t: [x] for t, x in zip(targets, pieces, strict=True)}


def _split(op: Any, task: OperationInput) -> Parts:
    first = task.targets[0]
    sizes = [task.model.shapes[task.name.replace(first, t)][op.dim] for t in task.targets]
    pieces = split(task.only, sizes, op.dim)
    return {t: [x] for t, x in zip(task.targets, pieces, strict=True)}


def _concatenate(op: Any, task: OperationInput) -> Parts:
    held = [x for pattern in task.sources for x in task.parts.get(pattern, ())]
    return {task.targets[0]: [concat(held, op.dim)]}


def _merge(op: Any, task: OperationInput) -> Parts:
    alone = len(task.parts) == 1
    return {
        task.targets[0] if alone else pattern: [stack(in_order_of_modules(task.name, held), op.dim)]
        for pattern, held in task.parts.items()
    }


def _unstacked(x: Layout, axis: int) -> Iterator[Layout]:
    """What `stack` undoes: each index of an axis as a layout without it."""
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return (x.narrow(axis, i, i + 1).reshape(*shape) for i in range(x.shape[axis]))


def _unmerge(op: Any, task: OperationInput) -> Parts:
    out: Parts = {}
    for pattern, held in task.parts.items():
        x = one(task.name, held)
        to = task.targets[0] if len(task.parts) == 1 else pattern
        for i, each in enumerate(_unstacked(x, op.dim)):
            out[to.replace("*", str(i))] = [each]
    return out


def _interleave(op: Any, task: OperationInput) -> Parts:
    x = task.only
    d, n = op.dim, x.shape[op.dim]
    pair = (2, n // 2) if op.inverse else (n // 2, 2)
    pulled = x.reshape(*x.shape[:d], *pair, *x.shape[d + 1 :]).transpose(d, d + 1)
    return {task.targets[0]: [pulled.reshape(*x.shape)]}


def _transpose(op: Any, task: OperationInput) -> Parts:
    x = task.only
    if op.check_dims and x.shape[op.dim0] == x.shape[op.dim1]:
        raise FamilyError(
            f"`{task.name}` {list(x.shape)} may be stored transposed or not, and Transformers"
            " decides by the shape, which is square",
            tensors=(task.name,),
        )
    if not (op.check_dims and task.model.shapes.get(task.name) == x.shape):
        x = x.transpose(op.dim0, op.dim1)
    return {task.target: [x]}


def _flatten(op: Any, task: OperationInput) -> Parts:
    x = task.only
    return {task.target: [x.reshape(x.shape[0], -1) if len(x.shape) == 5 else x]}


def _unflatten(op: Any, task: OperationInput) -> Parts:
    x = task.only
    return {task.target: [x.reshape(x.shape[0], op.in_channels, *op.kernel_size)]}


def _rope(op: Any, task: OperationInput) -> Parts:
    config = task.model.config
    if op.subconfig_key:
        config = getattr(config, op.subconfig_key, config)
    heads, names = getattr(config, "num_attention_heads", 1), op.permute_layer_names
    chained = len(task.sources) != len(task.targets)
    out: Parts = {}
    for pattern, held in task.parts.items():
        x = one(task.name, held)
        if names is None or any(n in pattern for n in names):
            half = x.shape[0] // heads // 2
            pair = (2, half) if op.inverse else (half, 2)
            x = x.reshape(heads, *pair, *x.shape[1:]).transpose(1, 2).reshape(*x.shape)
        out[pattern if chained else task.targets[0]] = [x]
    return out


def _fuse_two_towers(op: Any, task: OperationInput) -> Parts:
    """Of each list of experts the first part is the first target's, and so on; lists are joined there."""
    out: Parts = {target: [] for target in task.targets}
    for pattern in task.sources:
        held = task.parts.get(pattern, [])
        if not held or len(held) % len(out):
            raise FamilyError(
                f"`{task.name}` is made of {len(held)} tensors `{pattern}`, expected as many for"
                f" each of {', '.join(out)}",
                tensors=(task.name,),
            )
        each, held = len(held) // len(out), in_order_of_modules(task.name, held)
        for k, stacks in enumerate(out.values()):
            stacks.append(stack(held[k * each : (k + 1) * each], op.stack_dim))
    return {target: [concat(stacks, op.concat_dim)] for target, stacks in out.items()}


def _part_two_towers(op: Any, task: OperationInput) -> Parts:
    """What `_fuse_two_towers` undoes: one list of experts for each target, those of all sources in turn."""
    if missing := [pattern for pattern in task.sources if pattern not in task.parts]:
        raise FamilyError(
            f"`{task.name}` is made of `{missing[0]}` too, which is absent", tensors=(task.name,)
        )
    whole = [one(task.name, task.parts[pattern]) for pattern in task.sources]
    fused = [chunk(x, len(task.targets), op.concat_dim) for x in whole]
    out: Parts = {}
    for target, stacks in zip(task.targets, zip(*fused, strict=True), strict=True):
        experts = (each for x in stacks for each in _unstacked(x, op.stack_dim))
        for i, each in enumerate(experts):
            out[target.replace("*", str(i))] = [each]
    return out


OPERATIONS: dict[str, Callable[[Any, OperationInput], Parts]] = {
    "Chunk": _chunk,
    "Concatenate": _concatenate,
    "Conv3dToLinear": _flatten,
    "ErnieFuseAndSplitTextVisionExperts": _fuse_two_towers,
    "ErnieSplitAndDecoupleTextVisionExperts": _part_two_towers,
    "Interleave": _interleave,
    "LinearToConv3d": _unflatten,
    "MergeModulelist": _merge,
    "PermuteForRope": _rope,
    "Split": _split,
    "SplitModulelist": _unmerge,
    "Transpose": _transpose,
}
"""By the names of Transformers' classes."""
