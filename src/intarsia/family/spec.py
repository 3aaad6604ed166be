"""A family as a table: logical tensors, and what each dialect stores under which name.

A family file declares every logical tensor once, with its shape and the axis that tensor
parallelism cuts.  What a dialect stores under the same name needs no further word; what it
fuses, stacks, cuts or shifts is one more line: a stored name, a verb, and its operands.

The dialects are

    hf              files on the hub, one tensor per expert
    hf-fused        the same, the experts of a layer in one 3-D tensor
    hf-module       `state_dict()` of the Transformers v5 model
    megatron        Megatron's `torch_dist` keys under TransformerEngine specs, one per layer
    megatron-local  the same under Megatron's local specs

Layouts are made when a row is asked for, so a table of 70,000 tensors costs little more than
its names.  `known` finds a name of any dialect; where dialects share a name, the first wins.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family.verbs import Verb
from intarsia.layout import Layout, Loop, Piece
from intarsia.mesh import Rule, Shape

Config = Mapping[str, Any]

DIALECTS = ("hf", "hf-fused", "hf-module", "megatron", "megatron-local")
DISK = ("hf", "hf-fused")
MEGATRON = ("megatron", "megatron-local")


LAYERS = "num_hidden_layers"
MAX_LAYERS, MAX_NUMBER, MAX_TENSORS = 10_000, 1 << 31, 400_000
"""What no configuration may go beyond: the largest models have 120 layers and 70,000 tensors."""


def _shown(value: Any) -> str:
    return reprlib.repr(value)[:200]


@dataclass(frozen=True, slots=True)
class Param:
    """One stored tensor of a dialect; each stored element is the logical one plus `shift`."""

    name: str
    layout: Layout
    rule: Rule = Rule()
    shift: float = 0.0


_Recipe = tuple[Verb | None, tuple[str, ...], Rule, float]


class Rows(Mapping[str, Param]):
    """The stored tensors of one dialect by name, each made when first asked for."""

    def __init__(self, logical: Mapping[str, Shape]) -> None:
        self._logical = logical
        self._recipes: dict[str, _Recipe | Rule] = {}
        self._made: dict[str, Param] = {}

    def add(self, name: str, recipe: _Recipe | Rule) -> None:
        """Add a row; a rule alone stands for the whole logical tensor of the same name."""
        if name in self._recipes:
            raise FamilyError(f"`{name}` is declared twice in one dialect")
        self._recipes[name] = recipe

    def __getitem__(self, name: str) -> Param:
        made = self._made.get(name)
        if made is None:
            recipe = self._recipes[name]
            if isinstance(recipe, Rule):
                made = Param(name, whole(name, self._logical[name]), recipe)
            else:
                verb, operands, rule, shift = recipe
                parts = [whole(x, self._logical[x]) for x in operands]
                made = Param(name, verb(*parts) if verb else parts[0], rule, shift)
            self._made[name] = made
        return made

    def __contains__(self, name: object) -> bool:
        return name in self._recipes

    def __iter__(self) -> Iterator[str]:
        return iter(self._recipes)

    def __len__(self) -> int:
        return len(self._recipes)

    def operands(self, name: str) -> tuple[str, ...]:
        """The logical tensors that a row is made of."""
        recipe = self._recipes[name]
        return (name,) if isinstance(recipe, Rule) else recipe[1]

    def respelled(self, old: str, new: str) -> Rows:
        """The same rows, their names beginning with `new` instead of `old`."""
        out = Rows(self._logical)
        for name, recipe in self._recipes.items():
            if isinstance(recipe, Rule):
                recipe = (None, (name,), recipe, 0.0)
            out.add(new + name.removeprefix(old) if name.startswith(old) else name, recipe)
        return out


class Known(Mapping[str, Param]):
    """The rows of several dialects as one; where they share a name, the first dialect wins."""

    def __init__(self, dialects: Iterable[Rows]) -> None:
        self._rows: dict[str, Rows] = {}
        for rows in reversed(list(dialects)):
            self._rows.update(dict.fromkeys(rows, rows))

    def __getitem__(self, name: str) -> Param:
        return self._rows[name][name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


@dataclass
class Table:
    """The rows of a family, filled by its file from a model configuration.

    `hf`, `module` and `megatron` are what the text model's names begin with in those dialects;
    a vision-language wrapper changes them.  `centered` says whether the family's norms hold
    weight − 1 on the hub.  `megatron_centered` says it of Megatron's, whose stored
    `args.layernorm_zero_centered_gamma` tells; where nothing is said they follow the hub's, as
    Megatron-Bridge trains them.
    """

    family: str
    config: Config
    megatron_centered: bool | None = None
    centered: bool = False
    hf: str = "model."
    module: str = "model."
    megatron: str = ""
    logical: dict[str, Shape] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)
    tied: dict[str, str] = field(default_factory=dict)
    dialects: dict[str, Rows] = field(init=False)

    def __post_init__(self) -> None:
        self.dialects = {dialect: Rows(self.logical) for dialect in DIALECTS}

    @property
    def known(self) -> Known:
        """Every stored name of every dialect that reading recognises."""
        return Known(self.dialects.values())

    @property
    def text(self) -> Config:
        """The configuration of the text model, which a vision-language wrapper nests."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, Mapping) else self.config

    @property
    def wrapped(self) -> bool:
        """Whether the configuration is a vision-language wrapper's."""
        return "text_config" in self.config

    def wrap(self, hf: str, module: str) -> None:
        """Say what the text model's names begin with inside a vision-language wrapper."""
        self.hf, self.module, self.megatron = hf, module, "language_model."

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of these whole numbers that the configuration gives."""
        for name in names:
            value = self.text.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                most = MAX_LAYERS if name == LAYERS else MAX_NUMBER
                if not 0 <= value <= most:
                    why = "which is negative" if value < 0 else f"no model has more than {most:,}"
                    raise FamilyError(f"config.json: {name} is {_shown(value)}, {why}")
                return value
            if value is not None:
                raise FamilyError(f"config.json: {name} is {_shown(value)}, not a whole number")
        if default is None:
            raise FamilyError(
                f"config.json of model_type {self.family!r} does not give {' or '.join(names)}",
                hint="pass the model's own config.json with --config",
            )
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        """A yes or no of the configuration."""
        value = self.text.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise FamilyError(f"config.json: {name} is {_shown(value)}, neither true nor false")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers of the configuration, empty where it is absent."""
        value = self.text.get(name)
        value = () if value is None else value
        short = isinstance(value, list | tuple) and len(value) <= MAX_LAYERS
        if not short or not all(type(x) is int for x in value):
            raise FamilyError(f"config.json: {name} is {_shown(value)}, not a list of layers")
        return tuple(value)

    def kinds(self, name: str, allowed: Iterable[str], default: Iterable[str]) -> tuple[str, ...]:
        """One word per layer, each of which the family knows."""
        value, count = self.text.get(name), self.number("num_hidden_layers")
        if value is not None and not isinstance(value, list | tuple):
            raise FamilyError(f"config.json: {name} is {_shown(value)}, not a list of words")
        found = tuple(default) if value is None else tuple(value)
        if len(found) != count:
            raise FamilyError(
                f"config.json: {name} has {len(found)} entries, num_hidden_layers is {count}"
            )
        allowed = tuple(allowed)
        for layer, kind in enumerate(found):
            if kind not in allowed:
                raise FamilyError(
                    f"config.json: {name}[{layer}] is {_shown(kind)}, model_type {self.family!r} has"
                    f" {', '.join(allowed)}"
                )
        return found

    def divide(self, whole_name: str, total: int, part_name: str, parts: int) -> int:
        """`total / parts`, or an error that names both fields where that leaves a rest."""
        if parts < 1 or total % parts:
            raise FamilyError(
                f"config.json: {whole_name} is {total}, which {part_name} = {parts} does not divide"
            )
        return total // parts

    def layers(self) -> Iterator[Layer]:
        """Every layer of the decoder, with its names in each dialect."""
        count = self.number("num_hidden_layers")
        if count < 1:
            raise FamilyError(f"config.json: num_hidden_layers is {count}")
        for i in range(count):
            yield Layer(
                self,
                f"{self.hf}layers.{i}.",
                f"{self.module}layers.{i}.",
                f"{self.megatron}decoder.layers.{i}.",
                (i, count),
            )

    def top(self, *, last: bool) -> Layer:
        """What stands before (or after) the layers, on the first (or last) pipeline stage."""
        count = self.number("num_hidden_layers")
        return Layer(self, "", "", self.megatron, (count - 1 if last else 0, count))

    def shift(self, centered: bool | None = None) -> float:
        """What Megatron's norms add to the hub's; `centered` where a norm is unlike the rest."""
        hub = self.centered if centered is None else centered
        ours = self.centered if self.megatron_centered is None else self.megatron_centered
        return float(hub) - float(ours)

    def tensor(self, name: str, *shape: int, optional: bool = False) -> str:
        """Declare a logical tensor; no dialect stores it yet."""
        self.declare(name, shape, optional)
        return name

    def declare(self, name: str, shape: Shape, optional: bool) -> None:
        """As `tensor`; tensors may share one shape."""
        if name in self.logical:
            raise FamilyError(f"`{name}` is declared twice")
        if len(self.logical) >= MAX_TENSORS:
            raise FamilyError(
                f"config.json describes a model of more than {MAX_TENSORS:,} tensors",
                hint="its numbers of layers or experts are wrong: give the right one with --config",
            )
        self.logical[name] = shape
        if optional:
            self.optional.add(name)

    def tie(self, name: str, to: str) -> None:
        """Say that `name` shares its elements with `to`, and need not be stored."""
        self.optional.add(name)
        self.tied[name] = to

    def store(
        self,
        dialects: Iterable[str],
        name: str,
        verb: Verb | None,
        *operands: str,
        rule: Rule = Rule(),
        shift: float = 0.0,
    ) -> None:
        """Say that `dialects` store `verb` of logical tensors under `name`."""
        recipe = (verb, operands, rule, shift)
        for dialect in dialects:
            self.dialects[dialect].add(name, recipe)

    def respell(self, dialect: str, like: str, old: str, new: str) -> None:
        """Add `dialect`: the rows of `like`, their names beginning with `new` instead of `old`."""
        self.dialects[dialect] = self.dialects[like].respelled(old, new)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a model: what its names begin with in each dialect, and its pipeline place.

    `module` is None where the Transformers model has no such layer: it leaves out the layers
    that predict further tokens.
    """

    table: Table
    hf: str
    module: str | None
    megatron: str
    stage: tuple[int, int]
    optional: bool = False

    def tensor(
        self,
        name: str,
        *shape: int,
        tp: int | None = None,
        megatron: str | None = None,
        local: str | None = None,
        module: str | None = None,
        shift: float = 0.0,
    ) -> str:
        """Declare a tensor that every dialect stores whole; Megatron only under another name.

        Without `megatron` a line of its own says what Megatron stores.
        """
        full = self.table.tensor(self.hf + name, *shape, optional=self.optional)
        rule = Rule(tp=tp, layer=self.stage)
        self.table.store(DISK, full, None, full, rule=rule)
        if self.module is not None:
            self.table.store(("hf-module",), self.module + (module or name), None, full, rule=rule)
        if megatron is not None:
            self.fused(megatron, None, full, tp=tp, local=local, shift=shift)
        return full

    def norm(
        self,
        name: str,
        size: int,
        megatron: str,
        *,
        local: str | None = None,
        centered: bool | None = None,
    ) -> str:
        """Declare a norm's weight; Megatron's may be centred on another value."""
        shift = self.table.shift(centered)
        return self.tensor(name, size, megatron=megatron, local=local, shift=shift)

    def fused(
        self,
        name: str,
        verb: Verb | None,
        *operands: str,
        tp: int | None = None,
        ep: int | None = None,
        local: str | None = None,
        shift: float = 0.0,
    ) -> None:
        """Say what Megatron stores under `name`, or under `local` with its local specs."""
        rule = Rule(tp=tp, ep=ep, layer=self.stage)
        spelled = zip(MEGATRON, (name, local or name), strict=True)
        for dialect, each in spelled:
            self.table.store(
                (dialect,), self.megatron + each, verb, *operands, rule=rule, shift=shift
            )


def whole(name: str, shape: Shape) -> Layout:
    """`Layout.of`, with the loops of equal sizes shared between tensors."""
    n = prod(shape)
    return Layout(shape, (Piece(name, 0, 0, _run(n)),)) if n else Layout(shape, ())


@lru_cache(maxsize=1024)
def _run(n: int) -> tuple[Loop, ...]:
    return Layout.of("", (n,)).pieces[0].loops
