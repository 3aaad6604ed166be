"""What a random resume draws: a model with odd tensors, two sides to train it on, an optimizer, and how it is saved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

ODDITIES = (
    "scalar", "empty", "tied", "counter", "mask", "average", "passing", "complex", "wave", "bf16", "double",
    "frozen", "unused", "spoken",
)  # fmt: skip
"""Odd tensors of a model; `resume_model.Odd` makes them."""

NAMES = (
    "up", "layers", "module", "model", "state", "optimizer", "extra", "step", "exp_avg", "params",
    "param_groups", "teacher", "student", "ema", "critic", "0", "1", "target", "optim_state",
)  # fmt: skip
"""What blocks are called: also words that wrappers, optimizers and checkpoints use themselves."""

OPTIMIZERS = (
    "SGD", "momentum", "Adam", "AdamW", "amsgrad", "Adagrad", "RMSprop", "Adafactor", "NAdam", "LBFGS", "Odd",
    "several",
)  # fmt: skip
GROUPINGS = ("one", "decay", "blocks", "each")
MESHES = {
    1: ("plain", "plain", "plain", "ddp", "fsdp2", "fsdp1"),
    2: ("plain", "ddp", "fsdp2", "fsdp2", "tp", "fsdp1"),
    3: ("ddp", "fsdp2", "fsdp2", "tp"),
    4: ("ddp", "fsdp2", "fsdp2", "hsdp", "hsdp", "tp", "fsdp2+tp", "fsdp2+tp", "fsdp1"),
}
SHARDED = ("fsdp2", "hsdp", "tp", "fsdp2+tp")


@dataclass(frozen=True)
class Side:
    """How a model is trained: its ranks, how they share it, what wraps its blocks, and its parameter groups."""

    ranks: int = 1
    mesh: str = "plain"
    wrapped: tuple[str, ...] = ()
    grouping: str = "one"
    backwards: bool = False
    zero: bool = False
    accelerated: bool = False

    @property
    def place(self) -> tuple[int, str]:
        """Where numbers are summed: sides of one place train bit-equal."""
        return self.ranks, self.mesh


@dataclass(frozen=True)
class Scenario:
    """A training that is saved on one side and goes on on another."""

    seed: int
    odd: frozenset[str]
    names: tuple[str, ...]
    rows: tuple[int, ...]
    optimizer: str
    own: bool
    tensor_lr: bool
    scheduled: bool
    peft: bool
    background: bool
    stepped_before: bool
    before: Side
    after: Side

    @staticmethod
    def drawn(seed: int, ranks: int = 4) -> Scenario:
        """The scenario of a seed, on at most so many ranks."""
        r = Random(seed)
        optimizer = r.choice(OPTIMIZERS)
        before = _side(r, ranks)
        after = before if r.random() < 0.3 else _side(r, ranks)
        odd = {x for x in ODDITIES if r.random() < 0.3}
        if optimizer in ("Adafactor", "several"):
            odd -= {"empty", "complex"}
        if any(s.mesh == "fsdp1" for s in (before, after)):
            odd -= {"scalar", "empty", "complex", "tied", "bf16", "unused", "frozen"}
        # torch cuts only even rows by tensor parallelism, and no layer of PEFT's; one FSDP group has one type.
        cut = any("tp" in s.mesh for s in (before, after))
        peft_fits = optimizer != "several" and not cut and "bf16" not in odd
        names = r.sample(NAMES, 2) if r.random() < 0.5 else ["up", "down"]
        return Scenario(
            seed=seed,
            odd=frozenset(odd),
            names=tuple(names),
            rows=(12, 12) if cut else (r.choice((4, 5, 7, 8)), r.choice((4, 5, 7, 8))),
            optimizer=optimizer,
            own=r.random() < 0.6,
            tensor_lr=r.random() < 0.2 and optimizer in ("Adam", "AdamW", "amsgrad"),
            scheduled=r.random() < 0.5,
            peft=r.random() < 0.12 and peft_fits,
            background=r.random() < 0.4,
            stepped_before=r.random() < 0.4,
            before=_fitting(before, optimizer, odd),
            after=_fitting(after, optimizer, odd),
        )


def _side(r: Random, most: int) -> Side:
    ranks = r.choice([n for n in (1, 1, 2, 2, 3, 4, 4) if n <= most])
    mesh = r.choice(MESHES[ranks])
    wrapped = tuple(w for w in ("checkpointed", "compiled") if r.random() < 0.2)
    return Side(
        ranks,
        mesh,
        wrapped,
        r.choice(GROUPINGS),
        backwards=r.random() < 0.2,
        zero=ranks > 1 and mesh in ("plain", "ddp") and r.random() < 0.5,
        accelerated=ranks == 1 and mesh == "plain" and r.random() < 0.3,
    )


def _fitting(side: Side, optimizer: str, odd: set[str]) -> Side:
    """The side, as far as torch itself can train with that optimizer on it."""
    if optimizer in ("LBFGS", "Adafactor") and side.mesh not in ("plain", "ddp"):
        side = replace(side, mesh="ddp" if side.ranks > 1 else "plain")
    if optimizer in ("several", "Odd") and side.mesh == "fsdp1":
        side = replace(side, mesh="fsdp2")
    if side.mesh == "fsdp1" and side.grouping == "decay":  # its parameters are flat
        side = replace(side, grouping="blocks")
    if optimizer == "LBFGS":
        return replace(side, grouping="one", zero=False)
    if optimizer == "Odd" or odd & {"bf16", "complex"}:
        return replace(side, zero=False)
    return side
