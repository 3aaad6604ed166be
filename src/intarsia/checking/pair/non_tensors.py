"""What lies beside the tensors of two checkpoints: settings, objects, configuration, small files.

Each is equal, different, on one side only, or not compared, and it is said which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from intarsia.checking.pair.quantised_differently import differing_schemes
from intarsia.document import Document
from intarsia.errors import FormatError, UsageError, few
from intarsia.format.folder.run_objects import (
    ARGUMENTS,
    beside_groups,
    group_objects,
    is_of_buckets,
    is_of_the_mesh,
    is_of_the_run,
    is_settings,
    plain_object,
    run_objects,
)
from intarsia.format.folder.trainer_files import STEPS, is_run_state
from intarsia.format.optimizer_state.parameter_groups import unplain_settings
from intarsia.format.registry import format_named
from intarsia.format.strict_json import parse_json
from intarsia.format.torch_file.packed_members import members_held
from intarsia.format.torch_file.plain import DROPPED, wholly_plain
from intarsia.format.torch_file.zip_directory import BROKEN_ZIP
from intarsia.frozen import frozen
from intarsia.opened.entries import groups_of, read_entries
from intarsia.planning.manifest import Manifest
from intarsia.run.budget import Budget
from intarsia.state.names import CLASS, TORCH_GROUPS, state_among
from intarsia.store.address import named
from intarsia.store.reading.folder import Folder, read_file

EQUAL, DIFFERENT, NOT_COMPARED = "equal", "different", "not compared"
ONLY = {"A": "only in A", "B": "only in B"}

_SHOWN = 3
_LONGEST = 60


@frozen
class NonTensor(Document):
    """One thing beside the tensors, and how the two checkpoints compare in it.

    `counts` says that the two are not equal for it: the state of a run differs, or what equal codes stand for.
    """

    part: str
    name: str
    verdict: str
    text: str = ""
    counts: bool = False

    def __str__(self) -> str:
        return f"{self.verdict}: {self.part} `{self.name}`{', ' if self.text else ''}{self.text}"


def compare_non_tensors(a: Manifest, b: Manifest, budget: Budget) -> tuple[NonTensor, ...]:
    """Everything beside the tensors of both, whatever their formats."""
    schemes = differing_schemes(a, b)
    said = NonTensor("configuration", "quantisation", DIFFERENT, schemes, counts=True)
    return (
        *_objects(a, b, budget),
        *([said] if schemes else ()),
        *_configurations(a, b),
        *_files(a, b, budget.window_bytes),
    )


def _objects(a: Manifest, b: Manifest, budget: Budget) -> Iterator[NonTensor]:
    held = []
    for side, manifest in (("A", a), ("B", b)):
        try:
            held.append(read_entries(manifest, budget.memory_bytes // 4))
        except (FormatError, UsageError, *BROKEN_ZIP) as error:
            # Nothing is equal that was not compared, where there is something to compare it with.
            both = bool(a.entries and b.entries)
            if both and isinstance(error, UsageError):
                error.hint = "give more with --memory: the objects of both are held at once"
                raise
            text = f"{side}: {str(error).partition(chr(10))[0]}"
            yield NonTensor("objects", manifest.path, NOT_COMPARED, text, counts=both)
            return
    left, right = held
    groups = list(_settings(a, b, left, right))
    yield from groups
    spelled = {n for n in {*left, *right} if groups and n.startswith(TORCH_GROUPS)}
    compared = any(each.part == "setting" for each in groups)
    odd = {n for held in (left, right) if compared for n in unplain_settings(held)}
    # A checkpoint of weights alone has nothing to hold against the objects of a run.
    same_names = all(format_named(m.format).keeps_names for m in (a, b))
    same_names &= all(held or _has_state(m) for held, m in ((left, a), (right, b)))
    apart: dict[str, list[str]] = {"A": [], "B": []}
    # Where there is optimizer state, the frame is left aside only if its settings were compared.
    aside = compared or not any(map(_has_state, (a, b)))
    frame = _frame_of_one(left, right) if aside else set()
    for name in sorted({*left, *right} - (spelled - odd)):
        side = "A" if name in left else "B"
        if name in left and name in right:
            yield from _same_name(name, left[name], right[name], compared)
        elif compared and is_of_buckets(name):
            continue  # how buffers are cut, and groups that were compared
        elif same_names and name not in frame and name not in odd and name != CLASS:
            yield NonTensor("object", name, ONLY[side], counts=True)
        else:
            apart[side].append(name)
    for side, names in apart.items():
        text = f"{side} has it, and the other side ({(b if side == 'A' else a).format}) does not"
        yield from (NonTensor("object", name, NOT_COMPARED, text) for name in names)


def _frame_of_one(left: Mapping[str, bytes], right: Mapping[str, bytes]) -> set[str]:
    """The objects of a run, and of Megatron's groups, where one side has them and the other does not."""
    found = ((objects(left), objects(right)) for objects in (run_objects, group_objects))
    return {name for one, other in found if not (one and other) for name in one | other}


def _same_name(name: str, left: bytes, right: bytes, grouped: bool) -> Iterator[NonTensor]:
    if left == right:
        yield NonTensor("object", name, EQUAL)
        return
    held = members_held(left)
    if (held is not None and held == members_held(right)) or _alike(
        *(plain_object(name, data, wholly_plain) for data in (left, right))
    ):
        yield NonTensor("object", name, EQUAL, "though its bytes differ")
        return
    one, other = (plain_object(name, data) for data in (left, right))
    settings = is_settings(name) and isinstance(one, Mapping) and isinstance(other, Mapping)
    if not settings and not is_of_the_mesh(name):
        yield NonTensor("object", name, DIFFERENT, _both(one, other), counts=True)
        return
    if settings and grouped:  # compared for every parameter
        one, other = beside_groups(one), beside_groups(other)
    keys = sorted({*one, *other}, key=str) if settings else ()
    wrong = [k for k in keys if not _alike(one.get(k), other.get(k))]
    for key in wrong:
        x, y = one.get(key), other.get(key)
        run = is_of_the_run(key, x, y)
        yield NonTensor("object", f"{name}.{key}", DIFFERENT, _both(x, y), counts=run)
    if not wrong:
        yield NonTensor("object", name, EQUAL, "but for how its tensors are stored")


def _settings(
    a: Manifest, b: Manifest, left: Mapping[str, bytes], right: Mapping[str, bytes]
) -> Iterator[NonTensor]:
    """The optimizer's settings for every parameter, where both sides have them."""
    both_groups = []
    for manifest, entries in ((a, left), (b, right)):
        try:
            both_groups.append(groups_of(manifest, entries))
        except (FormatError, UsageError, *BROKEN_ZIP):
            both_groups.append(None)
    one, other = (
        {
            member: group.fields
            for group in (groups.each if groups else ())
            for member in group.members
            if member in a.logical or member in b.logical
        }
        for groups in both_groups
    )
    if not one or not other:
        if a.format != b.format and (one or other) and any(map(_has_state, (a, b))):
            side = "B" if one else "A"
            yield NonTensor("settings", "parameter groups", NOT_COMPARED, f"{side} has none")
        return
    fields = sorted({f for fields in (*one.values(), *other.values()) for f in fields})
    for field in fields:
        both = [n for n in one if n in other and field in one[n] and field in other[n]]
        wrong = [n for n in both if not _alike(one[n][field], other[n][field])]
        if wrong:
            values = _both(one[wrong[0]][field], other[wrong[0]][field])
            text = f"{values} of {few(sorted(wrong), _SHOWN)}"
            yield NonTensor("setting", field, DIFFERENT, text, counts=True)
        elif both:
            yield NonTensor("setting", field, EQUAL)
        else:
            holds = "A" if any(field in fields for fields in one.values()) else "B"
            yield NonTensor("setting", field, ONLY[holds], counts=a.format == b.format)
    alone = [n for n in {*one, *other} if (n in one) != (n in other)]
    if alone:
        members = f"members: {few(sorted(alone), _SHOWN)}"
        yield NonTensor("settings", "parameter groups", DIFFERENT, members, counts=True)


def _has_state(manifest: Manifest) -> bool:
    return bool(state_among(manifest.logical))


def _configurations(a: Manifest, b: Manifest) -> Iterator[NonTensor]:
    where, held = "config.json", [{} if m.config_made else m.config or {} for m in (a, b)]
    if a.config_made and b.config_made:
        if ARGUMENTS in a.entries and ARGUMENTS in b.entries:
            return  # objects, and compared as such
        where, held = "by the arguments", [m.config or {} for m in (a, b)]
    one, other = held
    if not one or not other:
        if one or other:
            text = f"{'A' if one else 'B'} alone has one of its own"
            yield NonTensor("configuration", where, NOT_COMPARED, text)
        return
    wrong = [k for k in sorted({*one, *other}) if not _alike(one.get(k), other.get(k))]
    if not wrong:
        yield NonTensor("configuration", where, EQUAL)
    for key in wrong:
        text = _both(one.get(key), other.get(key))
        yield NonTensor("configuration", f"{where}: {key}", DIFFERENT, text)


def _files(a: Manifest, b: Manifest, window_bytes: int) -> Iterator[NonTensor]:
    one, other = ({s.name: s.path for s in m.sides if s.name != "config.json"} for m in (a, b))
    # Weights alone have nothing to hold against the state of a run.
    both = all(any(map(is_run_state, side)) for side in (one, other))
    for name in sorted({*one, *other}):
        counts = both and is_run_state(name)
        if name not in one or name not in other:
            yield NonTensor("file", name, ONLY["A" if name in one else "B"], counts=counts)
            continue
        paths = named(one[name]), named(other[name])
        if _same_bytes(*paths, window_bytes):
            yield NonTensor("file", name, EQUAL)
        else:
            counts = counts and (name != STEPS or not _same_place(*paths))
            yield NonTensor("file", name, DIFFERENT, counts=counts)


def _same_bytes(x: PurePath, y: PurePath, window_bytes: int) -> bool:
    with Folder(x.parent) as one, Folder(y.parent) as other:
        size = one.size(x.name)
        return other.size(y.name) == size and all(
            one.read(x.name, at, n) == other.read(y.name, at, n)
            for at in range(0, size, window_bytes)
            for n in [min(window_bytes, size - at)]
        )


def _same_place(x: PurePath, y: PurePath) -> bool:
    """Whether two files of Trainer's say the same of how far a run is; the rest is its log."""
    try:
        one, other = (parse_json(read_file(path), str(path), unique=False) for path in (x, y))
        return all(one[key] == other[key] for key in ("global_step", "epoch"))
    except (FormatError, KeyError, TypeError):
        return False


def _alike(x: Any, y: Any) -> bool:
    """Whether two plain values are the same; 1 and 1.0 are, and so are NaN and NaN."""
    return bool(x is not DROPPED and y is not DROPPED and (x == y or repr(x) == repr(y)))


def _both(x: Any, y: Any) -> str:
    if isinstance(x, Mapping) and isinstance(y, Mapping):
        keys = [k for k in sorted({*x, *y}, key=str) if not _alike(x.get(k), y.get(k))]
        if keys and len(keys) < len({*x, *y}):
            more = f", and {len(keys) - 1:,} more" if keys[1:] else ""
            return f"{keys[0]}: {_both(x.get(keys[0]), y.get(keys[0]))}{more}"
    one, other = map(_brief, (x, y))
    return "its content" if one == other else f"{one} in A, {other} in B"


def _brief(value: Any) -> str:
    if value is DROPPED:
        return "bytes"
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
