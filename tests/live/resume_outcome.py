"""How a random resume ends: equal to the training that never stopped, refused for a known reason, or wrong."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

import intarsia
from tests.live.resume_scenario import Scenario
from tests.live.resume_training import Told, half_on, label_of

Half = tuple[Told, Told] | intarsia.IntarsiaError


class Ranks(Protocol):
    """Whoever runs one half of a scenario on all of its ranks."""

    def __call__(self, half: str, scenario: Scenario, folder: Path) -> Sequence[Half]: ...


class WrongError(AssertionError):
    """A resume that is neither equal nor refused for a known reason."""


REFUSALS = {
    "name": (
        r"has a name that is reserved for optimizer state",
        "a checkpoint tells optimizer state by such names",
    ),
    "order": (r"keeps one history of all its parameters", "LBFGS lays its parameters end to end"),
    "unlike": (r"stored with different settings", "one group has one value of each setting"),
}
"""Why a resume may be refused: the words of the error, and the reason."""


def here(half: str, scenario: Scenario, folder: Path) -> list[Half]:
    """One half on one rank, in this process."""
    assert getattr(scenario, half).ranks == 1
    return [half_on(half, scenario, folder, 0)]


def outcome(scenario: Scenario, ranks: Ranks) -> str:
    """ "equal", or the reason for which it was refused; raise where it is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        first = ranks("before", scenario, Path(folder))
        known = _refused(scenario, "save", first, _why_not_saved(scenario))
        if known:
            return known
        then = ranks("after", scenario, Path(folder))
        known = _refused(scenario, "load", then, _why_not_loaded(scenario, _all(first, 0)))
        if known:
            return known
    for number, moment in enumerate(("when it was loaded", "in the end")):
        expected = _all(first, number)
        exact = not number or scenario.before.place == scenario.after.place
        for rank, half in enumerate(then):
            found = half[number]
            whole = found if not scenario.after.zero else expected | found
            _check(scenario, f"{moment}, rank {rank}", expected, whole, exact=exact)
        _check(scenario, moment, expected, _all(then, number), exact=exact)
    return "equal"


def _all(halves: Sequence[Half], number: int) -> Told:
    """What all ranks have together."""
    found: Told = {}
    for half in halves:
        assert not isinstance(half, intarsia.IntarsiaError)
        found |= half[number]
    return found


def _refused(
    scenario: Scenario, verb: str, halves: Sequence[Half], reason: str | None
) -> str | None:
    """The reason for which all ranks refused; raise where some did, or it is no reason, or none did."""
    errors = [half for half in halves if isinstance(half, intarsia.IntarsiaError)]
    if not errors:
        if reason is not None:
            raise WrongError(f"{verb} took what is listed as refused ({reason})\n{scenario}")
        return None
    texts = [str(error) for error in errors]
    if len(errors) < len(halves):
        raise WrongError(f"only some ranks refused to {verb}: {texts}\n{scenario}")
    if reason is None or not all(re.search(REFUSALS[reason][0], text) for text in texts):
        raise WrongError(f"{verb} refused, expected {reason}: {texts[0]}\n{scenario}")
    return reason


def _why_not_saved(scenario: Scenario) -> str | None:
    return "name" if {"optimizer", "optim", "param_groups"} & {*scenario.names} else None


def _why_not_loaded(scenario: Scenario, point: Told) -> str | None:
    if scenario.optimizer == "LBFGS" and scenario.before.backwards != scenario.after.backwards:
        return "order"
    settings: dict[str, dict[str, Any]] = {}
    for name, value in point.items():
        if name.startswith("setting of "):
            param, _, key = name.removeprefix("setting of ").partition(": ")
            settings.setdefault(param, {})[key] = value
    held: dict[Any, set[str]] = {}
    for param, mine in settings.items():
        shape = point[param][2]
        which = len(shape) > 1 if scenario.optimizer == "several" else None
        label = label_of(param, torch.empty(shape, device="meta"), scenario.after.grouping)
        held.setdefault((which, label), set()).add(repr(sorted(mine.items())))
    return "unlike" if any(len(x) > 1 for x in held.values()) else None


def _check(scenario: Scenario, moment: str, expected: Told, found: Told, *, exact: bool) -> None:
    """Raise where anything differs: in a bit, or beyond the rounding of sums on another mesh."""
    if lost := sorted(expected.keys() - found.keys()):
        raise WrongError(f"lost {moment}: {lost[:6]}\n{scenario}")
    if new := sorted(found.keys() - expected.keys()):
        raise WrongError(f"nowhere before, {moment}: {new[:6]}\n{scenario}")
    # A sum that is rounded to bf16 in another order moves all that is trained after it.
    rounding = 2.0**-7 if "bf16" in scenario.odd else 1e-5
    for name, value in expected.items():
        if value != found[name] and (exact or not _near(value, found[name], rounding)):
            raise WrongError(
                f"{name} differs {moment}:\n  {_shown(value)}\n  {_shown(found[name])}\n{scenario}"
            )


def _near(a: Any, b: Any, rounding: float) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_near(x, b[k], rounding) for k, x in a.items())
    if a[0] == b[0] in ("list", "tuple") and len(a[1]) == len(b[1]):
        return all(_near(x, y, rounding) for x, y in zip(a[1], b[1], strict=True))
    if a[0] == b[0] == "float":
        return bool(abs(a[1] - b[1]) <= rounding * max(1.0, abs(a[1])))
    if a[:3] != b[:3] or a[0] != "tensor":
        return bool(a == b)
    x, y = _tensor(a), _tensor(b)
    if not (x.is_floating_point() or x.is_complex()):
        return torch.equal(x, y)
    return torch.allclose(x, y, rtol=rounding, atol=rounding, equal_nan=True)


def _tensor(told: Any) -> torch.Tensor:
    _, dtype, shape, data = told
    kind = getattr(torch, dtype.removeprefix("torch."))
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape) if data else torch.empty(0)


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and value[0] == "tensor":
        return f"{value[1]} {list(value[2])} {_tensor(value).flatten()[:8].tolist()}"
    return repr(value)
