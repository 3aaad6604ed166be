"""Megatron's models and TransformerEngine's modules in the matrix, on ranks that have imported them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import intarsia
from tests.containers.cells import Cells, close, outcome, same
from tests.distributed.ranks import on_ranks_with
from tests.parity.test_megatron_core_loads import make

MEGATRON = "tests.distributed.megatron_model"
ENGINE = "tests.live.transformer_engine_loaded"
BATCH = torch.full((6, 12), 0.1)


def megatron_cells(folder: Path) -> dict[str, Cells]:
    """Megatron-core with and without Megatron-FSDP, on tensor parallel 2 and elsewhere 1."""
    found = {}
    for title, sharded in (("Megatron-core", False), ("Megatron-FSDP", True)):
        hub = make(folder / title, "qwen3", torch.bfloat16, num_key_value_heads=4).folder
        answers = on_ranks_with(MEGATRON, 2, _megatron, folder, hub, sharded, 2)
        again = on_ranks_with(MEGATRON, 2, _megatron_again, folder, hub, sharded, 1)
        assert answers[0] == answers[1]
        assert again[0] == again[1]
        found[title] = answers[0] | {"resume elsewhere": again[0]}
        for out in (f"{hub}-{k}" for k in (2, 1)):
            intarsia.convert(out, f"{out}-hf", to="hf", dtype="bf16")
            assert intarsia.verify(f"{out}-hf", hub), out
    return found


def _megatron(folder: Path, hub: Path, fsdp: bool, tp: int) -> Cells:
    from tests.distributed.megatron_model import megatron, model_of, sharded

    with megatron(hub, tp, 1, 1) as hf:
        model = sharded(model_of(hf)) if fsdp else model_of(hf)
        held = torch.optim.Adam(model.parameters())
        config: dict[str, Any] = {}

        def load() -> None:
            config.update(intarsia.load(hub, into=model).config or {})

        return {
            "load": outcome(load, folder),
            "save": outcome(
                lambda: _done(intarsia.save(f"{hub}-{tp}", model, config=config)), folder
            ),
            "optimizer": outcome(lambda: _done(intarsia.load(hub, model, held)), folder),
        }


def _megatron_again(folder: Path, hub: Path, fsdp: bool, tp: int) -> str:
    """What tensor parallel 2 has saved, loaded on 1 and saved once more."""
    from tests.distributed.megatron_model import megatron, model_of, sharded

    with megatron(hub, tp, 1, 1) as hf:
        model = sharded(model_of(hf)) if fsdp else model_of(hf)

        def move() -> None:
            report = intarsia.load(f"{hub}-2", into=model)
            intarsia.save(f"{hub}-{tp}", model, config=report.config)

        return outcome(move, folder)


def _done(report: Any) -> None:
    assert report is not None


def engine_cells(folder: Path) -> dict[str, Cells]:
    """TransformerEngine's modules on FSDP2 x tensor parallel, 2 x 2, and elsewhere 1 x 4."""
    found = on_ranks_with(ENGINE, 4, _engine, folder)
    assert all(each == found[0] for each in found)
    return {"TransformerEngine, 2 x 2": found[0]}


def _engine(folder: Path) -> Cells:
    from tests.distributed.transformer_engine_trainer import parallel
    from tests.live.transformer_engine_model import SEED, Model, train

    def alone(seed: int) -> Any:
        SEED[0] = seed
        return Model()

    def losses(model: Any, held: Any) -> list[float]:
        found = []
        for number in (7, 8):
            loss = model(BATCH * number).square().mean()
            loss.backward()
            held.step()
            held.zero_grad()
            found.append(float(loss))
        return found

    # `full_tensor()` of torch misreads a gated weight on this mesh, so one process says what is right.
    def load() -> None:
        given, _ = parallel(1, (1, 4))
        intarsia.save(folder / "one", given)
        model, _ = parallel(2, (2, 2))
        intarsia.load(folder / "one", into=model)
        close([float(model(BATCH).square().mean())], [float(alone(1)(BATCH).square().mean())])

    def save() -> None:
        model, _ = parallel(3, (2, 2))
        intarsia.save(folder / "saved", model)
        truth = {n: x for n, x in alone(3).named_parameters() if x.numel()}
        with intarsia.open(folder / "saved") as checkpoint:
            same({name: checkpoint[name][...] for name in checkpoint}, truth)

    want: list[float] = []

    def optimizer() -> None:
        model, held = parallel(4, (2, 2))
        train(model, held)
        intarsia.save(folder / "trained", model, held)
        want.extend(losses(model, held))
        again, fresh = parallel(5, (2, 2))
        assert intarsia.load(folder / "trained", again, fresh).complete
        assert losses(again, fresh) == want

    def elsewhere() -> None:
        again, fresh = parallel(6, (1, 4))
        assert intarsia.load(folder / "trained", again, fresh).complete
        close(losses(again, fresh), want)

    roads = {"load": load, "save": save, "optimizer": optimizer, "resume elsewhere": elsewhere}
    return {name: outcome(road, folder) for name, road in roads.items()}
