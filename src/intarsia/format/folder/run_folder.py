"""Which checkpoint a folder means that holds several: the folder of a run, or of the hub's cache.

The framework's own word decides: its tracker, or the number in the names that it gives.  The
newest whole one is taken and named; where nothing decides, the candidates are listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath

from intarsia.errors import FormatError, few
from intarsia.format.added import added_formats
from intarsia.format.dcp.accelerate import PARTS, is_accelerate
from intarsia.format.hf.files import has_weights
from intarsia.format.megatron.frame import TRACKER, tracked_folder
from intarsia.frozen import frozen
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import exists, is_file, is_folder, names_like

LATEST = "latest"
_NAME_BYTES = 4096
_PICKLED = re.compile(r"(pytorch_model|adapter_model)(-00001-of-\d+)?\.bin")
_NUMBERED = re.compile(r"^(?P<stem>.*?)(?P<number>\d+)$")
_SERIES = re.compile(r"(checkpoint|ckpt|(global_?)?step|epoch|iter|iteration)[-_]?")
"""How the names begin that count time; `fold_2` and `seed-3` are other models, not newer ones."""
_SHOWN = 6
_WRITTEN_LAST = ("trainer_state.json", "random_states_0.pkl")
"""What Trainer and accelerate write when all else of a checkpoint is there."""


@frozen
class FoundCheckpoint:
    """The checkpoint that a path means, and what is to be said of the choice."""

    path: PurePath
    notes: tuple[str, ...] = ()


Unfit = Callable[[PurePath], str | None]
"""Why a folder is no whole checkpoint; None where it is one."""


def find(path: PurePath, unfit: Unfit) -> FoundCheckpoint:
    """The checkpoint that a path means: itself, or the newest whole one of its folder."""
    if not is_folder(path):
        return FoundCheckpoint(path)
    if is_checkpoint(path):
        return _itself(path)
    tracked = tracked_folder(path)
    if tracked is not None and is_checkpoint(tracked):
        return FoundCheckpoint(tracked, tuple(_untracked(path, tracked)))
    if is_file(path / LATEST):
        return _latest(path)
    for cache in (path, path.parent) if path.name == "snapshots" else (path,):
        if is_folder(cache / "snapshots") and (exists(cache / "refs") or exists(cache / "blobs")):
            return _snapshot(cache)
    return _newest(path, unfit)


def is_checkpoint(path: PurePath) -> bool:
    """Whether a folder looks like a checkpoint itself, whole or not."""
    return (
        is_file(path / ".metadata")
        or is_accelerate(path)
        or has_weights(path)
        or any(format.detect(path) for format in added_formats().values())
    )


def _untracked(run: PurePath, taken: PurePath) -> Iterable[str]:
    """Remarks on Megatron's iterations where there are several and the tracker names one."""
    iterations, number = names_like(run, "iter_*"), _by_number(taken)
    if len(iterations) < 2:
        return
    later = [p.name for p in iterations if number >= 0 and _by_number(p) > number]
    newer = f"; {', '.join(later)} is newer and not named there" if later else ""
    yield f"{run} is the folder of a run: {taken.name} is read, which {TRACKER} names{newer}"


def _itself(path: PurePath) -> FoundCheckpoint:
    """A checkpoint that lies beside others; a tracker that names one of them contradicts it."""
    if is_file(path / LATEST):
        named = path / named_latest(path)
        if named != path and is_folder(named) and is_checkpoint(named):
            raise FormatError(
                f"{path} is a checkpoint, but its file {LATEST} names another: {named.name}",
                hint=f"give {named} for that one, or remove {path / LATEST} to use the"
                " checkpoint in the folder itself",
            )
    beside = [p for p in names_like(path) if _is_numbered(p) and is_checkpoint(p)]
    if not beside:
        return FoundCheckpoint(path)
    others = [p.name for p in sorted(beside, key=_by_number)]
    note = (
        f"{path} itself holds a model, which is read; {few(others, _SHOWN)} beside it"
        f" {'are other checkpoints' if len(others) > 1 else 'is another checkpoint'}:"
        " give its folder to take one"
    )
    return FoundCheckpoint(path, (note,))


def _latest(run: PurePath) -> FoundCheckpoint:
    name = named_latest(run)
    if not name or "/" in name or name in (".", "..") or not exists(run / name):
        raise FormatError(
            f"{run / LATEST} names {name!r}, which is not in {run}",
            hint="give the folder of the checkpoint itself",
        )
    note = f"{run} is the folder of a run: {name} is read, which {LATEST} names"
    return FoundCheckpoint(run / name, (note,))


def named_latest(run: PurePath) -> str:
    """What `latest` says in a folder; nothing where there is no such file."""
    return _name_in(run, LATEST)


def _name_in(root: PurePath, file: str) -> str:
    if not is_file(root / file):
        return ""
    with Folder(root) as folder:
        return folder.read_all(file, _NAME_BYTES).decode("utf-8", "replace").strip()


def _snapshot(cache: PurePath) -> FoundCheckpoint:
    """The snapshot of a model in the hub's cache that `refs/main` names, or the only one."""
    held = [p for p in names_like(cache / "snapshots") if is_folder(p)]
    named = _name_in(cache, "refs/main")
    taken = next((p for p in held if p.name == named), None)
    why = "refs/main names it"
    if taken is None and len(held) == 1:
        taken, why = held[0], "it is the only one"
    if taken is None:
        raise FormatError(
            f"{cache} is a model of the hub's cache with {len(held)} snapshots, and refs/main names"
            f" {f'{named!r}, which is none of them' if named else 'none'}:"
            f" {few([p.name for p in held], _SHOWN)}",
            hint="give the folder of one: snapshots/<revision>",
        )
    note = f"{cache} is a model of the hub's cache: snapshots/{taken.name} is read, {why}"
    return FoundCheckpoint(taken, (note,))


def _newest(run: PurePath, unfit: Unfit) -> FoundCheckpoint:
    """The whole checkpoint with the highest number, where one series of numbers holds checkpoints."""
    series: dict[str, list[PurePath]] = {}
    for path in names_like(run):
        if _is_numbered(path):
            series.setdefault(_stem(path.name), []).append(path)
    held = {s: p for s, p in series.items() if any(map(is_checkpoint, p))}
    if not held or held.keys() == {"iter_"}:  # Megatron's reader says what is wrong there
        return FoundCheckpoint(run)
    own = [p.name for p in names_like(run) if _PICKLED.fullmatch(p.name)]
    numbered = [p for paths in held.values() for p in sorted(paths, key=_by_number)]
    others = [
        p.name for p in names_like(run) if p not in numbered and is_folder(p) and is_checkpoint(p)
    ]
    if len(held) > 1 or own or not _SERIES.fullmatch(next(iter(held))):
        names = own + others + [p.name for p in numbered]
        if len(names) == 1:
            return FoundCheckpoint(run)
        raise FormatError(
            f"{run} holds {len(names)} checkpoints, and nothing says which one to read: {few(names, _SHOWN)}",
            hint=f"give the folder of one: {run / names[-1]}",
        )
    (paths,) = held.values()
    last = [file for file in _WRITTEN_LAST if any(is_file(p / file) for p in paths)]
    skipped: list[str] = []
    for path in sorted(paths, key=_by_number, reverse=True):
        absent = next((file for file in last if not is_file(path / file)), None)
        if (why := f"no {absent}, which is written last" if absent else unfit(path)) is None:
            return FoundCheckpoint(path, (_taken(run, path, skipped, others),))
        skipped.append(f"{path.name} ({why})")
    raise FormatError(
        f"{run} holds {len(skipped)} checkpoints, and none is complete: {few(skipped, _SHOWN)}",
        hint="restore the files that are missing; `intarsia verify` on one of them lists its"
        " missing files",
    )


def _taken(run: PurePath, path: PurePath, skipped: Sequence[str], others: Sequence[str]) -> str:
    passed = f"; newer, but incomplete: {few(skipped, _SHOWN)}" if skipped else ""
    passed += f"; without a number, and not read: {few(others, _SHOWN)}" if others else ""
    return f"{run} is the folder of a run: {path.name} is read, the newest complete one{passed}"


def _is_numbered(path: PurePath) -> bool:
    return (
        _NUMBERED.match(path.name) is not None
        and not path.name.startswith(".")
        and not PARTS.fullmatch(path.name)
        and is_folder(path)
    )


def _stem(name: str) -> str:
    found = _NUMBERED.match(name)
    return found["stem"] if found else name


def _by_number(path: PurePath) -> int:
    found = _NUMBERED.match(path.name)
    return int(found["number"]) if found else -1
