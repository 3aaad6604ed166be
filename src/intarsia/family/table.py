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

`known` finds a name of any dialect; where dialects share a name, the first wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle

from intarsia.errors import FamilyError
from intarsia.family.config.fields import LAYERS, MAX_TENSORS, Fields
from intarsia.family.rows import Rows, RowsOfDialects
from intarsia.family.verbs import Verb
from intarsia.frozen import frozen
from intarsia.mesh import Rule, Shape
from intarsia.value import PLAIN, Value, shifted

DISK = ("hf", "hf-fused")
HUB = (*DISK, "hf-module")
MEGATRON = ("megatron", "megatron-local")
DIALECTS = (*HUB, *MEGATRON)

CLASSIFIERS = (
    "ForMultipleChoice", "ForQuestionAnswering", "ForRewardModel", "ForSequenceClassification",
    "ForTokenClassification",
)  # fmt: skip
"""How the classes of Transformers end that have another head than one over the vocabulary."""


@dataclass
class Table(Fields):
    """The rows of a family, filled by its file from a model configuration.

    `hf`, `module` and `megatron` are what the text model's names begin with in those dialects;
    a vision-language wrapper changes them, and has tensors that no row names unless the table is
    `whole`.  `head` is the output head's logical name.  `centered` says whether the family's norms hold
    weight − 1 on the hub.  `megatron_centered` says it of Megatron's, whose stored
    `args.layernorm_zero_centered_gamma` tells; where nothing is said they follow the hub's, as
    Megatron-Bridge trains them.
    """

    megatron_centered: bool | None = None
    centered: bool = False
    hf: str = "model."
    module: str = "model."
    megatron: str = ""
    logical: dict[str, Shape] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)
    tied: dict[str, str] = field(default_factory=dict)
    head: str = ""
    whole: bool = False
    dialects: dict[str, Rows] = field(init=False)

    def __post_init__(self) -> None:
        self.dialects = {dialect: Rows(self.logical) for dialect in DIALECTS}

    @property
    def headless(self) -> bool:
        """Whether the model is one of Transformers' without an output head over the vocabulary."""
        return bool(self.head) and self.head in self.optional and self.head not in self.tied

    @property
    def class_without_head(self) -> bool:
        """Whether the class of Transformers that the configuration names has no output head, not even a tied one."""
        return self.bare or any(kind.endswith(CLASSIFIERS) for kind in self.architectures)

    @property
    def bare(self) -> bool:
        """Whether the model is the inner one alone, whose names lack the outer one's prefix."""
        kinds = self.architectures
        return any(kind.endswith("Model") and not kind.endswith("LMHeadModel") for kind in kinds)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The classes of Transformers that the configuration names."""
        listed = self.config.get("architectures")
        kinds = listed if isinstance(listed, list | tuple) else ()
        return tuple(kind for kind in kinds if isinstance(kind, str))

    @cached_property
    def known(self) -> RowsOfDialects:
        """Every stored name of every dialect that reading recognises."""
        return RowsOfDialects(self.dialects.values())

    def is_beside_the_text(self, name: str) -> bool:
        """Whether a tensor is of a vision tower or the like, which every format carries by name."""
        text = (self.hf, self.module, "lm_head.", "mtp.")
        return self.wrapped and not name.startswith(text)

    def wrap(self, hf: str) -> None:
        """Say what the text model's names begin with inside a vision-language wrapper."""
        self.hf, self.module, self.megatron = hf, "model.language_model.", "language_model."

    def layers(self) -> Iterator[Layer]:
        """Every layer of the decoder, with its names in each dialect."""
        count = self.number(LAYERS)
        if count < 1:
            raise FamilyError(f"config.json: {LAYERS} is {count}")
        for i in range(count):
            hf, module = f"{self.hf}layers.{i}.", f"{self.module}layers.{i}."
            megatron = f"{self.megatron}decoder.layers.{i}."
            yield Layer(self, hf, module, megatron, (i, count))

    def top(self, *, last: bool) -> Layer:
        """What comes before (or after) the layers, on the first (or last) pipeline stage."""
        count = self.number(LAYERS)
        return Layer(self, "", "", self.megatron, (count - 1 if last else 0, count))

    def norm_value(self, centered: bool | None = None) -> Value:
        """What Megatron stores for the hub's norms; `centered` where a norm is unlike the rest."""
        hub = self.centered if centered is None else centered
        ours = self.centered if self.megatron_centered is None else self.megatron_centered
        return shifted(float(hub) - float(ours))

    def tensor(self, name: str, *shape: int, optional: bool = False) -> str:
        """Declare a logical tensor; no dialect stores it yet."""
        self.check_room(1)
        self.declare([name], [shape], optional)
        return name

    def declare(self, names: Sequence[str], shapes: Iterable[Shape], optional: bool) -> None:
        """As `tensor`, for many of them; shapes come in turn."""
        declared = dict(zip(names, cycle(shapes), strict=False))
        if len(declared) < len(names) or not self.logical.keys().isdisjoint(declared):
            listed = Counter([*self.logical, *names])
            raise FamilyError(f"`{listed.most_common(1)[0][0]}` is declared twice")
        self.logical |= declared
        if optional:
            self.optional |= declared.keys()

    def check_room(self, count: int) -> None:
        """Raise where so many more tensors are more than any model has."""
        if len(self.logical) + count > MAX_TENSORS:
            raise FamilyError(
                f"config.json describes a model of more than {MAX_TENSORS:,} tensors",
                hint="its numbers of layers or experts are wrong: give the right one with --config",
            )

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
        value: Value = PLAIN,
    ) -> None:
        """Say that `dialects` store `verb` of logical tensors under `name`."""
        recipe = (verb, operands, rule, value)
        for dialect in dialects:
            self.dialects[dialect].add(name, recipe)

    def respell(self, dialect: str, like: str, old: str, new: str) -> None:
        """Add `dialect`: the rows of `like`, their names beginning with `new` instead of `old`."""
        self.dialects[dialect] = self.dialects[like].respelled(old, new)

    def respell_usual(self, dialect: str, old: str, new: str) -> None:
        """Have names of `dialect` begin with `new` instead of `old`; the usual ones stay known."""
        self.dialects[f"{dialect}-usual"] = self.dialects[dialect]
        self.respell(dialect, dialect, old, new)


@frozen
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
        value: Value = PLAIN,
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
            self.fused(megatron, None, full, tp=tp, local=local, value=value)
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
        value = self.table.norm_value(centered)
        return self.tensor(name, size, megatron=megatron, local=local, value=value)

    def fused(
        self,
        name: str,
        verb: Verb | None,
        *operands: str,
        tp: int | None = None,
        ep: int | None = None,
        local: str | None = None,
        value: Value = PLAIN,
    ) -> None:
        """Say what Megatron stores under `name`, or under `local` with its local specs."""
        rule = Rule(tp=tp, ep=ep, layer=self.stage)
        for dialect, each in zip(MEGATRON, (name, local or name), strict=True):
            full = self.megatron + each
            self.table.store((dialect,), full, verb, *operands, rule=rule, value=value)
