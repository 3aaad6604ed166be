"""The two halves of a resume on one rank: train and save and go on, or load and go on; and what is there then."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import intarsia
from tests.live.resume_model import WORDS, Odd
from tests.live.resume_scenario import Scenario, Side

BEFORE, AFTER = 3, 2
"""Steps before the save, and after it."""
LR = 0.02

Told = dict[str, Any]
"""Everything that a training has, by name: tensors whole and as bytes, other values with their types."""


class OddSteps(torch.optim.Optimizer):
    """An optimizer of a user's: state of every type, state that belongs to no parameter, a step in its groups."""

    def __init__(self, params: Any, lr: float = LR, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        shared = self.state.setdefault("global", {"tokens": 1 << 40, "window": torch.zeros(4)})
        shared["tokens"] += 7
        shared["window"].add_(1)
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {
                        "count": 20000001, "long": torch.tensor(1 << 40), "flag": False, "last": None,
                        "double": torch.tensor(0.1, dtype=torch.float64), "slow": torch.zeros_like(p),
                    }  # fmt: skip
                state["count"] += 1
                state["long"] += 1
                state["double"] *= 0.9
                state["flag"] = not state["flag"]
                state["slow"].mul_(0.9).add_(p.grad)
                lr = group["lr"] * (1 + (state["count"] % 5) / 8) / (1 + int(state["long"]) % 3)
                lr *= (1.5 if state["flag"] else 1.0) + float(state["double"]) + group["step"] / 16
                lr *= 1 + (shared["tokens"] % 4) / 8 + float(shared["window"][0]) / 16
                p.mul_(1 - lr * group["weight_decay"]).add_(state["slow"], alpha=-lr)


CLASSES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"foreach": False}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "foreach": False}),
    "Adam": (torch.optim.Adam, {"eps": 1e-3, "foreach": False}),
    "AdamW": (torch.optim.AdamW, {"eps": 1e-3, "betas": (0.8, 0.95), "foreach": False}),
    "amsgrad": (torch.optim.AdamW, {"eps": 1e-3, "amsgrad": True, "foreach": False}),
    "Adagrad": (torch.optim.Adagrad, {"eps": 1e-3, "foreach": False}),
    "RMSprop": (
        torch.optim.RMSprop,
        {"eps": 1e-3, "momentum": 0.5, "centered": True, "foreach": False},
    ),
    "Adafactor": (torch.optim.Adafactor, {"foreach": False}),
    "NAdam": (torch.optim.NAdam, {"eps": 1e-3, "foreach": False}),
    "LBFGS": (torch.optim.LBFGS, {"max_iter": 2, "history_size": 3}),
    "Odd": (OddSteps, {}),
}
SEVERAL = ("momentum", "AdamW")
"""The optimizers of matrices and of all else, where there are several."""


@dataclass
class Run:
    """A training on this rank; `model` is what training code has in hand, wrappers and all."""

    scenario: Scenario
    side: Side
    model: nn.Module
    optimizers: list[Any]
    schedulers: list[Any]

    @property
    def optimizer(self) -> Any:
        """What is given to `save` and `load`."""
        return self.optimizers if self.scenario.optimizer == "several" else self.optimizers[0]

    def step(self) -> None:
        ids = torch.randint(0, WORDS, (2, 5))

        def closure() -> torch.Tensor:
            for each in self.optimizers:
                each.zero_grad()
            loss = self.model(ids).float().square().mean()
            loss.backward()
            return loss

        if self.scenario.optimizer == "LBFGS":
            self.optimizers[0].step(closure)
        else:
            closure()
            for each in self.optimizers:
                each.step()
        for each in self.schedulers:
            each.step()


def model_of(scenario: Scenario, side: Side) -> nn.Module:
    """The model of a scenario as one side trains it."""
    model: nn.Module = Odd(scenario)
    if scenario.peft:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(target_modules=["wide"], r=2, lora_dropout=0.0))
    inner: nn.Module = model.base_model.model if scenario.peft else model  # type: ignore[assignment, union-attr]
    tp, shard = _meshes(side)
    if tp is not None:
        for name in scenario.names:
            plan = {"wide": ColwiseParallel(), "narrow": RowwiseParallel()}
            parallelize_module(getattr(inner, name), tp, plan)
    for word, name in zip(("checkpointed", "compiled"), scenario.names, strict=True):
        if word in side.wrapped:
            wrap = checkpoint_wrapper if word == "checkpointed" else torch.compile
            inner.add_module(name, wrap(getattr(inner, name)))
    if shard is not None:
        # torch's FSDP2 takes none of these.
        whole = {p for p in model.parameters() if p.dim() == 0 or not p.numel() or p.is_complex()}
        for name in scenario.names:
            fully_shard(getattr(inner, name), mesh=shard)
        return fully_shard(model, mesh=shard, ignored_params=whole)
    if side.mesh == "ddp":
        return DistributedDataParallel(model, find_unused_parameters=True)
    if side.mesh == "fsdp1":
        return FullyShardedDataParallel(
            model,
            use_orig_params=with_parameters(scenario, side),
            device_id=torch.device("cpu"),
        )
    return model


def _meshes(side: Side) -> tuple[Any, Any]:
    """The mesh that blocks are cut on by tensor parallelism, and the one of FSDP2."""
    if side.mesh == "tp":
        return init_device_mesh("cpu", (side.ranks,), mesh_dim_names=("tp",)), None
    if side.mesh == "fsdp2+tp":
        mesh = init_device_mesh("cpu", (2, side.ranks // 2), mesh_dim_names=("dp", "tp"))
        return mesh["tp"], mesh["dp"]
    if side.mesh == "hsdp":
        return None, init_device_mesh("cpu", (2, side.ranks // 2), mesh_dim_names=("copy", "cut"))
    if side.mesh == "fsdp2":
        return None, init_device_mesh("cpu", (side.ranks,), mesh_dim_names=("cut",))
    return None, None


_WORDS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def named(scenario: Scenario, side: Side, model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The parameters of a model under the names that they have without any wrapper."""
    start = "module." if side.mesh == "ddp" else ""
    start += "base_model.model." if scenario.peft else ""
    for name, param in model.named_parameters():
        for word in _WORDS:
            name = name.replace(word, "")
        assert name.startswith(start)
        yield name.removeprefix(start), param


def label_of(name: str, param: Any, grouping: str) -> str:
    """The parameter group that a grouping puts a parameter into."""
    if grouping == "decay":
        return "matrices" if param.dim() > 1 else "vectors"
    return {"one": "all", "blocks": name.split(".")[0], "each": name}[grouping]


def is_stepped(scenario: Scenario, param: Any) -> bool:
    """Whether an optimizer is given a parameter: frozen ones by half of all trainings."""
    return param.requires_grad or (scenario.seed % 2 == 0 and not scenario.peft)


def groups_of(
    scenario: Scenario, side: Side, params: list[tuple[str, Any]], *, resumed: bool
) -> list[dict[str, Any]]:
    """The parameter groups of a side; a resumed one begins with settings that are to be replaced."""
    labels: dict[str, list[Any]] = {}
    for name, param in params:
        labels.setdefault(label_of(name, param, side.grouping), []).append(param)
    groups = []
    for k, (label, held) in enumerate(labels.items()):
        group: dict[str, Any] = {"params": held[::-1] if side.backwards else held}
        if scenario.optimizer != "LBFGS":
            group |= {"lr": LR, "weight_decay": 0.125}
        if scenario.own and scenario.optimizer != "LBFGS":
            group |= {"lr": LR * (1 + k / 4), "weight_decay": k / 64}
            if not resumed:
                group |= {"tag": f"group of {label}", "own": (k, None)}
        if resumed and "lr" in group:
            group |= {"lr": 7.0, "weight_decay": 0.5}
        if scenario.tensor_lr:
            group["lr"] = torch.tensor(group["lr"])
        groups.append(group)
    return groups[::-1] if side.backwards else groups


def optimizer_of(
    kind: str, scenario: Scenario, side: Side, params: list[tuple[str, Any]], *, resumed: bool
) -> Any:
    made, options = CLASSES[kind]
    groups = groups_of(scenario, side, params, resumed=resumed)
    if side.zero:
        return ZeroRedundancyOptimizer(groups, made, **options)
    if scenario.optimizer == "LBFGS":
        groups = groups[0]["params"]
    found: Any = made(groups, **options)
    if side.accelerated:
        from accelerate import Accelerator

        return Accelerator(cpu=True).prepare_optimizer(found, device_placement=False)
    return found


def _schedule(optimizer: Any, done: int = 0) -> Any:
    def factor(step: int) -> float:
        return 1 / (1 + step / 4)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor, last_epoch=done - 1)


def run_of(scenario: Scenario, side: Side, *, resumed: bool) -> Run:
    """A training that has not begun."""
    torch.manual_seed(2 * scenario.seed + resumed)
    torch.compiler.set_stance("force_eager")
    model = model_of(scenario, side)
    params = [(n, p) for n, p in named(scenario, side, model) if is_stepped(scenario, p)]
    kinds = {scenario.optimizer: params}
    if scenario.optimizer == "several":
        two = [[x for x in params if (x[1].dim() > 1) is wide] for wide in (True, False)]
        kinds = dict(zip(SEVERAL, two, strict=True))
    optimizers = [
        optimizer_of(kind, scenario, side, held, resumed=resumed) for kind, held in kinds.items()
    ]
    late = resumed and _regrouped(scenario)
    schedulers = [_schedule(o) for o in optimizers] if scenario.scheduled and not late else []
    return Run(scenario, side, model, optimizers, schedulers)


def _regrouped(scenario: Scenario) -> bool:
    return scenario.before.grouping != scenario.after.grouping or (
        scenario.before.backwards != scenario.after.backwards
    )


def with_parameters(scenario: Scenario, side: Side) -> bool:
    """Whether FSDP1 shows parameters, which groups are made of, or one flat parameter."""
    return scenario.peft or side.grouping != "one" or scenario.seed % 2 == 0


def before(scenario: Scenario, folder: Path, rank: int) -> tuple[Told, Told]:
    """Train, save, and go on: what there was when it was saved, and in the end."""
    run = run_of(scenario, scenario.before, resumed=False)
    for _ in range(BEFORE):
        run.step()
    point = told(run)
    extra = {
        "rng": torch.get_rng_state(),
        "epoch": BEFORE,
        "rank": rank,
        "schedulers": [{"last_epoch": s.last_epoch, "base_lrs": _plain(s)} for s in run.schedulers],
    }
    saved = intarsia.save(
        folder / "saved",
        run.model,
        run.optimizer,
        extra,
        background=scenario.background,
    )
    for _ in range(AFTER):
        run.step()
    if scenario.background:
        saved.wait()
    return point, told(run)


def _plain(scheduler: Any) -> list[Any]:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in scheduler.base_lrs]


def after(scenario: Scenario, folder: Path, rank: int) -> tuple[Told, Told]:
    """Load, and go on: what there is then, and in the end."""
    run = run_of(scenario, scenario.after, resumed=True)
    if scenario.stepped_before:
        run.step()
    report = intarsia.load(folder / "saved", into=run.model, optimizer=run.optimizer)
    assert report.complete, report.kept
    extra = report.extra
    torch.set_rng_state(extra["rng"])
    ranks = scenario.before.ranks
    same = ranks in (1, scenario.after.ranks)
    mine = 0 if ranks == 1 else rank
    assert extra["rank"] == (mine if same else list(range(ranks))), extra["rank"]
    assert extra["epoch"] == BEFORE
    if scenario.scheduled:
        if not run.schedulers:
            run.schedulers = [_schedule(o, BEFORE) for o in run.optimizers]
        else:
            for each, state in zip(run.schedulers, extra["schedulers"], strict=True):
                each.load_state_dict({**state, "lr_lambdas": [None] * len(state["base_lrs"])})
    point = told(run)
    for _ in range(AFTER):
        run.step()
    return point, told(run)


def told(run: Run) -> Told:
    """Everything that a training has; collective."""
    names = {id(p): n for n, p in named(run.scenario, run.side, run.model)}
    found: Told = {n: exact(x) for n, x in _weights(run)}
    ranges = run.side.mesh == "fsdp1"
    if ranges and not with_parameters(run.scenario, run.side):
        return found | _told_by_fsdp1(run)
    for number, given in enumerate(run.optimizers):
        inner = given.optim if isinstance(given, ZeroRedundancyOptimizer) else given
        inner = getattr(inner, "optimizer", inner)
        held = {
            f"state of {names[id(param)]}: {kind}": x
            for param, state in inner.state.items()
            # A rank without an element of a parameter does not step it.
            if isinstance(param, torch.Tensor) and (param.numel() or not ranges)
            for kind, x in state.items()
        }
        held |= {f"state {number}: {k}": x for k, x in inner.state.items() if isinstance(k, str)}
        found |= {n: exact(x) for n, x in (_joined(found, held) if ranges else held).items()}
        for group in given.param_groups:
            for p in group["params"]:
                settings = {k: x for k, x in group.items() if k != "params"}
                found |= {f"setting of {names[id(p)]}: {k}": exact(x) for k, x in settings.items()}
    return found


def _told_by_fsdp1(run: Run) -> Told:
    """The optimizer of an FSDP1 model with one flat parameter, as torch gathers it; collective."""
    found: Told = {}
    with _whole(run):
        held = FullyShardedDataParallel.optim_state_dict(run.model, run.optimizers[0])
    for name, state in held["state"].items():
        found |= {f"state of {_clean(run, name)}: {kind}": exact(x) for kind, x in state.items()}
    for group in held["param_groups"]:
        for name in group["params"]:
            settings = {k: x for k, x in group.items() if k != "params"}
            found |= {f"setting of {_clean(run, name)}: {k}": exact(x) for k, x in settings.items()}
    return found


def _joined(found: Told, state: dict[str, Any]) -> dict[str, Any]:
    """States of parameters of which each rank has a range; torch's own gathering mixes their kinds up."""
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, state)
    whole: dict[str, Any] = {}
    for key in dict.fromkeys(key for held in ranks for key in held):
        parts = [held[key] for held in ranks if key in held]
        if isinstance(parts[0], torch.Tensor) and parts[0].dim():
            shape = found[key.removeprefix("state of ").rpartition(": ")[0]][2]
            whole[key] = torch.cat([x.reshape(-1) for x in parts]).reshape(shape)
        else:
            assert len({repr(x) for x in parts}) == 1, (key, parts)
            whole[key] = parts[0]
    return whole


def _clean(run: Run, name: str) -> str:
    """A name of a state dict without what its wrappers put in."""
    for word in _WORDS:
        name = name.replace(word, "")
    start = "module." if run.side.mesh == "ddp" else ""
    return name.removeprefix(start + ("base_model.model." if run.scenario.peft else ""))


def _weights(run: Run) -> Iterator[tuple[str, Any]]:
    """Parameters, lasting buffers and extra state, each by one name."""
    with _whole(run):
        for name, x in run.model.state_dict().items():
            yield _clean(run, name), x


def _whole(run: Run) -> Any:
    if run.side.mesh != "fsdp1":
        return nullcontext()
    return FullyShardedDataParallel.state_dict_type(
        run.model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(rank0_only=False),
        FullOptimStateDictConfig(rank0_only=False),
    )


def exact(value: Any) -> Any:
    """A value that is equal only to one of the same types and bits; collective for DTensors."""
    if isinstance(value, torch.Tensor):
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        whole = whole.detach().cpu().contiguous()
        data = whole.reshape(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b""
        return "tensor", str(whole.dtype), tuple(whole.shape), data
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [exact(x) for x in value]
    if isinstance(value, dict):
        return {k: exact(x) for k, x in value.items()}
    return type(value).__name__, value


HALVES: dict[str, Callable[[Scenario, Path, int], tuple[Told, Told]]] = {
    "before": before,
    "after": after,
}


def half_on(
    half: str, scenario: Scenario, folder: Path, rank: int
) -> tuple[Told, Told] | intarsia.IntarsiaError:
    """One half of a scenario on one of its ranks, in a process group of its own."""
    side = getattr(scenario, half)
    grouped = side.ranks > 1 or side.mesh != "plain"
    if grouped:
        store = dist.FileStore(str(folder / f"{half}.store"), side.ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=side.ranks)
    try:
        return HALVES[half](scenario, folder, rank)
    except intarsia.IntarsiaError as error:
        refused = intarsia.IntarsiaError(str(error))  # without the frames, which hold a DDP model
    finally:
        gc.collect()
        torch.compiler.set_stance("default")
        if grouped:
            dist.destroy_process_group()
    return refused
