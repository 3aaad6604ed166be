"""The kinds of rounds: each gets a run into trouble, and looks at what is left and at what was said."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch

import intarsia
from intarsia.errors import IntarsiaError
from tests.checkpoints import files_of, leftovers
from tests.faults.soak.child import CHANGING, Child, Ended, Trouble
from tests.faults.soak.ground import Files, Round, command
from tests.faults.soak.ranks import Ranks

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _signalled(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _failing(number: int) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    return fail


def _somewhere(r: Round, share: float = 1.05) -> int:
    return r.chance.randint(1, int(r.ground.calls[r.job] * share))


def _workers(r: Round) -> tuple[str, str]:
    return "--workers", str(r.chance.choice([1, 1, 3]))


def _old(r: Round) -> tuple[Files | None, tuple[str, ...]]:
    """Nothing at the destination, or an older checkpoint that is to be replaced."""
    return (None, ()) if r.chance.random() < 0.6 else (r.put(), ("--overwrite",))


def killed(r: Round) -> None:
    """SIGKILL at some call, and again while it is resumed."""
    before, more = _old(r)
    for _ in range(r.chance.randint(1, 3)):
        found = r.convert(*more, *_workers(r), trouble=Trouble(_somewhere(r), _die))
        r.judge(found, before)
        if r.here() == r.whole:
            break
        more = ("--resume", *[m for m in more if m == "--overwrite"])
    r.finish(found, before)


def stopped(r: Round) -> None:
    """Ctrl-C, SIGTERM or SIGHUP at some call."""
    number = r.chance.choice(STOPS)
    before, more = _old(r)
    found = r.convert(*more, *_workers(r), trouble=Trouble(_somewhere(r), _signalled(number)))
    assert found.status in (0, 128 + number), f"stopped by {number}"
    r.judge(found, before)
    r.finish(found, before)


def stopped_again(r: Round) -> None:
    """A scheduler that signals all the time, from some call on."""
    before, more = _old(r)
    number = r.chance.choice(STOPS[1:])
    trouble = Trouble(_somewhere(r), _signalled(number), lasts=True)
    found = r.convert(*more, trouble=trouble)
    ended = (0, 128 + number, -number)  # by the signal itself once all is said
    assert found.status in ended, f"stopped by {number}"
    r.judge(found, before)
    r.finish(found, before)


def full(r: Round) -> None:
    """A disk that refuses to write, once or from some call on, or files of a limited length."""
    before, more = _old(r)
    if r.chance.random() < 0.3:
        longest = max(map(len, r.whole.values()))
        trouble = Trouble(limit_bytes=r.chance.randint(999, longest))  # what is said has room
    else:
        number = r.chance.choice([errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
        lasts = r.chance.random() < 0.5
        at = r.chance.randint(1, r.ground.calls[r.job] // 2)
        trouble = Trouble(at, _failing(number), lasts, calls=CHANGING)
    found = r.convert(*more, *_workers(r), trouble=trouble)
    r.judge(found, before, dead_disk=trouble.lasts)
    r.finish(found, before)


def _tamper(path: Path, chance: Random) -> Callable[[], None]:
    """Change a file as others do: in place, by a rename, cut off, grown, removed."""
    how = chance.choice(["flip", "replace", "cut", "grow", "remove"])
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data)) if data else 0

    def act() -> None:
        if how == "remove":
            path.unlink(missing_ok=True)
            return
        changed = data[:at] if how == "cut" else data + b"x" if how == "grow" else data
        if how in ("flip", "replace") and changed:
            changed[at] ^= 1
        if how == "replace":
            fresh = path.with_name("fresh")
            fresh.write_bytes(changed)
            fresh.rename(path)
        else:
            path.write_bytes(changed)

    return act


def source_tampered(r: Round) -> None:
    """A file of the source changes while it is converted: the old content arrives as a whole, or nothing."""
    before, more = _old(r)
    source = r.own_source()
    honest = files_of(source)
    victim = source / r.chance.choice(sorted(honest))
    trouble = Trouble(_somewhere(r), _once(_tamper(victim, r.chance)))
    found = r.convert(*more, *_workers(r), trouble=trouble, source=source)
    if found.status == 0:  # the content of before or of after, and no mixture
        now = r.here()
        if now != r.whole:
            twin = r.disk / "src-out"
            again = r.ended(
                r.start(["convert", *r.ground.words(r.job, twin, source)]), "as it is now"
            )
            assert again.status == 0, "what cannot be converted was"
            assert now == files_of(twin), "half-valid"
        return
    r.judge(found, before)
    shutil.rmtree(source)
    again = r.convert(*more, *_workers(r), source=r.own_source())
    assert again.status == 0, "the run after it fails"
    assert r.here() == r.whole
    assert not leftovers(r.disk)


def _once(act: Callable[[], None]) -> Callable[[], None]:
    """An act whose own calls to the disk set off nothing."""
    done = []

    def once() -> None:
        if not done:
            done.append(1)
            act()

    return once


def destination_taken(r: Round) -> None:
    """Somebody puts a file where the destination is to be, or changes the one that is to be replaced."""
    before, more = _old(r)
    mine = r.out / "thesis.txt"

    def act() -> None:
        r.out.mkdir(exist_ok=True)
        mine.write_text("a year of work")

    found = r.convert(*more, *_workers(r), trouble=Trouble(_somewhere(r, 0.98), _once(act)))
    assert mine.exists() or found.status != 0, "somebody's file is gone"
    if not mine.exists():  # the call was never made
        r.judge(found, before)
        return
    assert mine.read_text() == "a year of work"
    held = {k: v for k, v in (r.here() or {}).items() if k != mine.name}
    if found.status == 0:
        assert held == r.whole
    else:
        assert held == (before or {}), "it was left as it is"
        assert r.out.name in found.err
    r.settled()
    mine.unlink()
    if found.status:
        if before is None:
            r.out.rmdir()
        r.finish(found, before)


def partial_tampered(r: Round) -> None:
    """What a killed run left is damaged, cut or thinned out before it is resumed."""
    found = r.convert(trouble=Trouble(_somewhere(r, 0.9), _die))
    kept = [
        p for name in leftovers(r.disk) for p in sorted((r.disk / name).rglob("*")) if p.is_file()
    ]
    for victim in r.chance.sample(kept, min(len(kept), r.chance.randint(1, 3))):
        _tamper(victim, r.chance)()
    r.judge(found, None)
    r.finish(found, None)


_BESIDE_ANOTHER = (
    "another process is writing",
    "exists",
    "changed",
    "another checkpoint may have taken its place",
)
"""Why a run does not go on beside another one: the last where it looked at what that one replaced."""


def two_at_once(r: Round) -> None:
    """Two runs to one destination: one does it, the other is refused or comes after it."""
    _, more = _old(r)
    words = ["convert", *r.ground.words(r.job, r.out), *more]
    pause = r.chance.uniform(0, 0.004)
    first = r.start(words, Trouble(pause=pause))
    time.sleep(r.chance.uniform(0, 0.25))
    second = r.start(words, Trouble(pause=pause))
    ends = [r.ended(first, "first"), r.ended(second, "second")]
    assert any(end.status == 0 for end in ends), "neither did it"
    for end in ends:
        if end.status:
            assert any(why in end.err for why in _BESIDE_ANOTHER), end.err
    assert r.here() == r.whole
    assert not leftovers(r.disk), leftovers(r.disk)
    r.settled()


def two_resumes(r: Round) -> None:
    """A killed run that two others take up at once."""
    r.judge(r.convert(trouble=Trouble(_somewhere(r, 0.9), _die)), None)
    words = ["convert", *r.ground.words(r.job, r.out), "--resume"]
    both = [r.start(words, Trouble(pause=r.chance.uniform(0, 0.004))) for _ in range(2)]
    ends = [r.ended(child, "resume") for child in both]
    assert any(end.status == 0 for end in ends), "neither did it"
    for end in ends:
        if end.status:
            assert (
                "another process is writing" in end.err or "there is nothing to resume" in end.err
            )
    assert r.here() == r.whole
    assert not leftovers(r.disk), leftovers(r.disk)
    r.settled()


def read_while_replaced(r: Round) -> None:
    """A reader gets the old checkpoint or the new one, or is told that it was replaced."""
    r.job = "hf to dcp" if "hf to dcp" in r.ground.whole else r.job
    r.whole = r.ground.whole[r.job]
    before = r.put()
    old, new = r.ground.root / "other", r.ground.root / "hf"
    how = r.chance.choice(["digest", "verify", "open", "load", "verify A B"])
    answer = r.disk.parent / f"answer-{r.number}"

    def read() -> None:
        with intarsia.open(r.out) as found:
            held = {name: found[name][:] for name in found}
        torch.save(held, answer)

    def load() -> None:
        with intarsia.open(r.out) as found:
            into = {n: torch.zeros(found[n].shape, dtype=torch.bfloat16) for n in found}
        intarsia.load(r.out, into=into)
        torch.save(into, answer)

    def told(work: Callable[[], None]) -> Callable[[], None]:
        def tell() -> None:
            try:
                work()
            except IntarsiaError as error:
                os.write(2, f"intarsia: {error}\n".encode())
                raise SystemExit(2) from error

        return tell

    works = {"open": told(read), "load": told(load)}
    lines = {
        "digest": ["--json", "digest", str(r.out)],
        "verify": ["verify", str(r.out)],
        "verify A B": ["verify", str(old), str(r.out)],
    }
    work = works.get(how) or command(lines[how])
    folder = r.ground.root / "children" / str(r.number)
    begun = Child(folder, work, Trouble(r.chance.randint(1, 200), lambda: time.sleep(0.3)))
    found = r.convert("--overwrite", trouble=Trouble(pause=r.chance.uniform(0, 0.001)))
    seen = r.ended(begun, how)
    r.judge(found, before)
    assert found.status == 0
    if how in works and seen.status == 0:
        held = torch.load(answer)
        sides = [{n: c[n][:] for n in c} for c in (intarsia.open(old), intarsia.open(new))]
        same = [all(torch.equal(held[n], s[n]) for n in s) for s in sides]
        assert any(same), "a mixture of two checkpoints was read"
    if how == "verify":
        assert seen.status != 1, "a sound checkpoint is called unsound"
    if how == "verify A B" and seen.status == 1:
        assert "differ" in seen.out or "only in" in seen.out
    answer.unlink(missing_ok=True)


def checked_while_stopped(r: Round) -> None:
    """A check that is stopped says so, and no more."""
    number = r.chance.choice(STOPS)
    words = r.chance.choice(
        [["verify"], ["digest"], ["inspect"], ["verify", str(r.ground.root / "hf")]]
    )
    trouble = Trouble(r.chance.randint(1, 300), _signalled(number))
    found = r.ended(r.start([*words, str(r.ground.root / "dcp")], trouble), words[0])
    assert found.status in (0, 128 + number)
    if found.status:
        word = {
            signal.SIGINT: "interrupted",
            signal.SIGTERM: "terminated",
            signal.SIGHUP: "hung up",
        }
        assert found.err == f"intarsia: {word[number]}\n"
    r.settled()


def _state(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {f"w{k}": torch.randn(40, 50, generator=random) for k in range(6)}


def saved(r: Round) -> None:
    """A save, in the foreground or aside, that is killed, stopped or out of room: the last one stays."""
    root = r.out
    first, second = root / "step-1", root / "step-2"
    background = r.chance.random() < 0.5
    intarsia.save(first, _state(1))
    before = files_of(root)

    def work() -> None:
        try:
            saving = intarsia.save(second, _state(2), background=background)
            if background:
                saving.wait()  # type: ignore[union-attr]
        except IntarsiaError as error:
            os.write(2, f"intarsia: {error}\n".encode())
            raise SystemExit(2) from error

    at, kind = r.chance.randint(1, 120), r.chance.choice(["kill", "full", "fail"])
    acts = {"kill": _die, "full": _failing(errno.ENOSPC), "fail": _failing(errno.EIO)}
    trouble = Trouble(at, acts[kind], calls=CHANGING if kind == "full" else Trouble.calls)
    folder = r.ground.root / "children" / str(r.number)
    found = r.ended(Child(folder, work, trouble), f"save, {kind} at {at}")
    now = {k: v for k, v in files_of(root).items() if ".intarsia-" not in k}
    latest = now.get("latest", b"").decode().strip()
    if found.status == 0:
        assert latest == "step-2"
    if "step-2/.metadata" in now:
        into = {n: torch.zeros(40, 50) for n in _state(2)}
        intarsia.load(second, into=into)
        assert all(torch.equal(x, _state(2)[n]) for n, x in into.items()), "half-valid"
        assert found.status == 0 or found.killed or "in its place" in found.err, "untrue"
    else:
        assert found.status != 0
        assert not second.exists(), "half of a save"
        assert now == before, "the save before it was changed"
    assert latest in ("step-1", "step-2")
    into = {n: torch.zeros(40, 50) for n in _state(1)}
    intarsia.load(first, into=into)
    assert all(torch.equal(x, _state(1)[n]) for n, x in into.items())
    if latest == "step-1":
        shutil.rmtree(second, ignore_errors=True)
        intarsia.save(second, _state(2))
        assert not leftovers(root)
    r.settled()


def rank_lost(r: Round) -> None:
    """One of two ranks dies, is stopped or has a full disk: no rank waits, and nothing half is there."""
    before, more = _old(r)
    kind = r.chance.choice(["kill", "term", "int", "full", "hup"])
    act = {
        "kill": _die,
        "term": _signalled(signal.SIGTERM),
        "int": _signalled(signal.SIGINT),
        "hup": _signalled(signal.SIGHUP),
        "full": _failing(errno.ENOSPC),
    }[kind]
    calls = CHANGING if kind == "full" else Trouble.calls
    most = r.ground.calls[r.job] // (3 if kind == "full" else 1)
    trouble = Trouble(r.chance.randint(1, most), act, calls=calls)
    victim = r.chance.randrange(2)
    words = ["convert", *r.ground.words(r.job, r.out), *more]
    ends = Ranks(r, [words, words], {victim: trouble}).ended(f"{kind} on rank {victim}")
    _judge_ranks(r, ends, before)


def rank_differs(r: Round) -> None:
    """One of two ranks has another source, other options or another destination: refused on both."""
    before, more = _old(r)
    words = ["convert", *r.ground.words(r.job, r.out), *more]
    kind = r.chance.choice(["source", "copy", "options", "destination"])
    other = list(words)
    if kind == "source":
        r.job, r.whole = "hf to dcp", r.ground.whole["hf to dcp"]
        words = ["convert", *r.ground.words(r.job, r.out), *more]
        other = [words[0], str(r.ground.root / "other"), *words[2:]]
    elif kind == "copy":
        other[1] = str(r.own_source())
    elif kind == "destination":
        other[2] = str(r.disk / "elsewhere")
    else:
        other += r.chance.choice(
            [["--memory", "64MiB"], ["--dtype", "fp32"], ["--optimizer", "drop"]]
        )
    pair = [words, other] if r.chance.random() < 0.5 else [other, words]
    ends = Ranks(r, pair, {}).ended(f"another {kind}")
    if kind == "options" and all(end.status == 0 for end in ends):
        assert "--optimizer" in other, "ranks with other options"
    else:
        assert [end.status for end in ends] == [2, 2], "ranks that differ"
        assert all("was called with something else" in end.err for end in ends)
        assert r.here() == before
        assert not leftovers(r.disk)
        ended = r.convert(*more)
        assert ended.status == 0
    assert r.here() == r.whole
    r.settled()


def _judge_ranks(r: Round, ends: list[Ended], before: Files | None) -> None:
    now = r.here()
    assert now in (before, r.whole), "half-valid"
    for end in ends:
        if end.status == 0 or "in its place" in end.err:
            assert now == r.whole, "it said that it was done"
        elif end.status > 0 and "nothing was committed" in end.err:
            assert now == before, "it said that nothing was committed"
    if now == r.whole and before != r.whole:
        said = any(end.status == 0 or "in its place" in end.err for end in ends)
        assert said or any(end.status < 0 for end in ends), "nobody said that it is there"
    r.settled()
    failed = max(ends, key=lambda end: abs(end.status))
    r.finish(failed, before)


KINDS: dict[str, tuple[Callable[[Round], None], int]] = {
    "killed": (killed, 5),
    "stopped": (stopped, 5),
    "stopped again": (stopped_again, 2),
    "disk full": (full, 5),
    "source tampered with": (source_tampered, 4),
    "destination taken": (destination_taken, 3),
    "partial folder tampered with": (partial_tampered, 3),
    "two runs at once": (two_at_once, 3),
    "two resumes at once": (two_resumes, 2),
    "read while replaced": (read_while_replaced, 4),
    "check stopped": (checked_while_stopped, 2),
    "save in trouble": (saved, 4),
    "rank lost": (rank_lost, 4),
    "ranks that differ": (rank_differs, 2),
}
"""Each kind of round, and how often it comes beside the others."""
