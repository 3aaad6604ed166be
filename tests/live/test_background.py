"""A save in the background is finished, or its failure is loud, however the process ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.errors import StoreError
from intarsia.live import background
from intarsia.live.background import Saving
from intarsia.live.saving import copying
from intarsia.live.saving.snapshot import Snapshot
from intarsia.store.local.transaction import LocalTransaction
from tests.checkpoints import environment, leftovers

SLOW_DISK = """
import time
import intarsia.live.saving.write as saving
write = saving._write_slot
def slowly(*given):
    time.sleep(0.5)
    write(*given)
saving._write_slot = slowly
"""
SAVE = """
import torch, intarsia
intarsia.save("step-1", {"a": torch.arange(6.0), "b": torch.ones(3)}, background=True)
"""

HELD = {"a": torch.arange(6.0), "b": torch.ones(3)}


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def script(folder: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    """A training script that runs in a process of its own."""
    source = "\n".join(textwrap.dedent(part) for part in parts)
    return subprocess.run(
        [sys.executable, "-c", source],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def saved(folder: Path) -> bool:
    held = {"a": torch.empty(6), "b": torch.empty(3)}
    intarsia.load(folder / "step-1", into=held)
    return bool((held["a"] == torch.arange(6.0)).all() and (held["b"] == 1).all())


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("raise RuntimeError('training failed')", 1),
        pytest.param("", 0, marks=pytest.mark.slow),
        pytest.param("raise SystemExit(3)", 3, marks=pytest.mark.slow),
    ],
)
def test_a_save_on_the_last_line_is_finished(tmp_path: Path, end: str, status: int) -> None:
    done = script(tmp_path, SLOW_DISK, SAVE, end)
    assert done.returncode == status, done.stderr
    assert saved(tmp_path)


def test_a_save_that_fails_unnoticed_makes_the_process_fail(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "notes.txt").write_text("mine")
    done = script(tmp_path, SAVE, "print('trained')")
    assert done.returncode == 1
    assert "step-1 was not saved" in done.stderr
    assert done.stdout == "trained\n"
    assert [p.name for p in (tmp_path / "step-1").iterdir()] == ["notes.txt"]


def test_a_save_that_fails_unnoticed_makes_a_forked_process_fail(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def training(folder: Path, *, fails: bool) -> None:
        intarsia.save(folder / "step-1", HELD, background=True)
        if fails:
            raise RuntimeError("training failed")

    def told(folder: Path, *, fails: bool = False) -> tuple[int | None, str]:
        forked = multiprocessing.get_context("fork").Process(
            target=training, args=(folder,), kwargs={"fails": fails}
        )
        forked.start()
        forked.join()
        return forked.exitcode, capfd.readouterr().err

    file = tmp_path / "file"
    file.touch()
    status, said = told(file)
    assert status == 1
    assert f"{file}/step-1 was not saved" in said
    status, said = told(file, fails=True)
    assert status == 1
    assert f"{file}/step-1 was not saved" in said
    assert "training failed" in said
    assert told(tmp_path) == (0, "")
    assert saved(tmp_path)


def test_a_failure_that_was_handled_is_not_reported_again(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "notes.txt").write_text("mine")
    held = {"w": torch.ones(2)}
    saving = intarsia.save(tmp_path / "step-1", held, background=True)
    assert isinstance(saving, Saving)
    for _ in range(2):
        with pytest.raises(intarsia.IntarsiaError, match="exists"):
            saving.wait()
    intarsia.save(tmp_path / "step-2", held, background=True).wait()  # type: ignore[union-attr]
    assert intarsia.open(tmp_path / "step-2").keys() == {"w"}


def test_a_signal_that_ends_training_lets_the_save_finish(tmp_path: Path) -> None:
    """Also where the first save was begun by another thread, which no handler is taken from."""
    first = """
    import threading, torch, intarsia
    def early():
        intarsia.save("step-0", {"a": torch.ones(2)}, background=True).wait()
    thread = threading.Thread(target=early)
    thread.start()
    thread.join()
    """
    # Of a signal that comes just before a sleep, Python hears when that ends.
    wait = "print('saving', flush=True)\nimport time\nfor _ in range(600): time.sleep(0.1)"
    source = "\n".join(map(textwrap.dedent, (first, SLOW_DISK, SAVE, wait)))
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "saving\n"
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert "finishing the save of step-1" in said
    assert saved(tmp_path)


def test_an_interrupt_while_a_save_is_waited_for_does_not_end_it(tmp_path: Path) -> None:
    """Python 3.11 calls a thread dead after an interrupt of `join()`, and its process would not wait for it."""
    until_interrupted = """
    import threading
    import intarsia.live.saving.write as saving
    write, interrupted = saving._write_slot, threading.Event()
    saving._write_slot = lambda *given: (interrupted.wait(60), write(*given))
    """
    wait = """
    import os, signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        intarsia.save("step-2", {"a": torch.arange(6.0)}, background=True)
    finally:
        interrupted.set()
    """
    done = script(tmp_path, until_interrupted, SAVE, wait)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert not (tmp_path / "step-2").exists()
    assert not leftovers(tmp_path)
    assert saved(tmp_path)


def test_a_process_that_is_forked_meanwhile_waits_for_no_save(tmp_path: Path) -> None:
    fork = """
    import multiprocessing
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join(20)
    print(child.exitcode)
    child.kill()
    """
    done = script(tmp_path, SLOW_DISK, SAVE, fork)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert saved(tmp_path)


def test_an_interrupt_while_a_save_is_started_leaves_no_thread_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, threads = threading.Thread.start, list[threading.Thread]()

    def late(self: threading.Thread) -> None:
        start(self)
        threads.append(self)
        interrupted()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", late)
        with pytest.raises(KeyboardInterrupt):
            intarsia.save(tmp_path / "step-1", HELD, background=True)
    threads[0].join(20)
    assert not threads[0].is_alive()
    assert not leftovers(tmp_path)
    intarsia.save(tmp_path / "step-1", HELD, background=True).wait()  # type: ignore[union-attr]
    assert saved(tmp_path)


@pytest.mark.parametrize("call", ["commit", "settle_down", "clear_up"])
def test_an_interrupt_after_a_save_is_whole_is_not_kept_from_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    honest = getattr(LocalTransaction, call)

    def late(*given: object) -> None:
        honest(*given)
        interrupted()

    with monkeypatch.context() as patch:
        patch.setattr(LocalTransaction, call, late)
        with pytest.raises(KeyboardInterrupt):
            intarsia.save(tmp_path / "step-1", HELD)
    assert saved(tmp_path)
    assert (tmp_path / "latest").read_text() == "step-1\n"
    intarsia.save(tmp_path / "step-1", HELD, overwrite=True)  # nobody writes it any more
    assert not leftovers(tmp_path)


def test_type_and_shape_are_those_of_the_moment_of_the_call(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 5)
    before = {n: x.clone() for n, x in model.state_dict().items()}
    saving = intarsia.save(tmp_path / "a", model, background=True)
    model.bfloat16()
    model.weight.data = torch.zeros(2, 2)
    saving.wait()  # type: ignore[union-attr]
    again = torch.nn.Linear(3, 5)
    intarsia.load(tmp_path / "a", into=again)
    assert all(torch.equal(x, before[n]) for n, x in again.state_dict().items())


def test_latest_is_moved_only_by_its_own_series(tmp_path: Path) -> None:
    held = {"w": torch.ones(2)}
    named = tmp_path / "latest"
    for path, latest, found in [
        ("step-4", None, "step-4"),
        ("ema-4", None, "step-4"),
        ("step-12", None, "step-12"),
        ("final", None, "step-12"),
        ("ema-8", True, "ema-8"),
        ("step-16", False, "ema-8"),
    ]:
        intarsia.save(tmp_path / path, held, latest=latest)
        assert named.read_text() == f"{found}\n", path


def test_extra_comes_back_under_the_keys_that_were_given(tmp_path: Path) -> None:
    given = {"x/rank_0": 1, "0_of_1.y": [2, (3, None)], "": {"t": torch.arange(3)}}
    intarsia.save(tmp_path / "a", {"w": torch.ones(2)}, extra=given)
    found = intarsia.load(tmp_path / "a", into={"w": torch.empty(2)}).extra
    assert found.keys() == given.keys()
    assert found["x/rank_0"] == 1
    assert found["0_of_1.y"] == [2, (3, None)]
    assert torch.equal(found[""]["t"], torch.arange(3))


def test_extra_with_keys_that_are_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(intarsia.IntarsiaError, match="the key 1 of type int"):
        intarsia.save(tmp_path / "a", {"w": torch.ones(2)}, extra={1: 2})  # type: ignore[dict-item]
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("call", ["continues", "looks", "writes"])
def test_a_save_that_is_whole_says_so_where_latest_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fails(*_: object) -> bool:
        raise StoreError(f"{tmp_path / 'latest'}: Input/output error")

    name = {
        "continues": "live.saving.latest.named_latest",
        "looks": "live.saving.latest.exists",
    }.get(call)
    monkeypatch.setattr(f"intarsia.{name or 'store.local.store.LocalStore.put'}", fails)
    with pytest.raises(StoreError, match="latest: Input/output error") as raised:
        intarsia.save(tmp_path / "step-1", {"w": torch.ones(2)})
    assert f"{tmp_path / 'step-1'} is complete and in its place" in str(raised.value.hint)
    monkeypatch.undo()
    assert intarsia.verify(tmp_path / "step-1")


def test_a_load_waits_for_the_save_that_is_under_way(tmp_path: Path) -> None:
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    for step in (1, 2):
        with torch.no_grad():
            model.weight += step
        intarsia.save(
            tmp_path / "saved",
            model,
            background=True,
            overwrite=True,
            progress=lambda done, total: time.sleep(0.3),
        )
        assert intarsia.load(tmp_path / "saved", other).complete
        assert torch.equal(other.weight, model.weight)


def test_a_load_raises_what_the_save_before_it_failed_with(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    intarsia.save(tmp_path / "saved", model)
    intarsia.save(tmp_path / "saved", model, background=True)
    with pytest.raises(intarsia.IntarsiaError, match="exists"):
        intarsia.load(tmp_path / "saved", model)
    assert intarsia.load(tmp_path / "saved", model).complete


def test_a_path_is_that_of_the_folder_in_which_the_save_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, write = threading.Event(), background.write
    monkeypatch.setattr(background, "write", lambda *a, **b: left.wait() and write(*a, **b))
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    saving = intarsia.save("run/step-1", torch.nn.Linear(3, 2), background=True)
    monkeypatch.chdir("later")
    left.set()
    saving.wait()
    assert (tmp_path / "run/step-1/.metadata").exists()
    assert [*Path.cwd().iterdir()] == []


def test_the_default_device_of_torch_is_not_where_copies_and_counters_are_made(
    tmp_path: Path,
) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    again = torch.nn.Linear(3, 2)
    its = torch.optim.AdamW(again.parameters())
    with torch.device("meta"):
        intarsia.save(tmp_path / "step-1", model, optimizer, background=True)
        intarsia.load(tmp_path / "step-1", again, its)
    assert torch.equal(again.weight, model.weight)
    of_first = its.state[again.weight]
    assert of_first["step"].item() == 1
    assert torch.equal(of_first["exp_avg"], optimizer.state[model.weight]["exp_avg"])


def test_threads_that_save_at_once_each_save_their_own_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, copy_of = threading.Barrier(2), copying.copy_of

    def meeting(*given: object) -> Snapshot:
        what = copy_of(*given)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.1)
        return what

    monkeypatch.setattr(copying, "copy_of", meeting)
    models = [torch.nn.Linear(3, 2) for _ in range(2)]

    def work(number: int) -> None:
        saving = intarsia.save(tmp_path / f"model-{number}", models[number], background=True)
        assert isinstance(saving, Saving)
        saving.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for number, model in enumerate(models):
        again = torch.nn.Linear(3, 2)
        intarsia.load(tmp_path / f"model-{number}", again)
        assert torch.equal(again.weight, model.weight)
