"""`intarsia verify`: are two checkpoints the same weights; is one sound?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from intarsia.cli import options
from intarsia.cli.output import OUTPUT, answer, print_table, progress, say
from intarsia.store.address import named

if TYPE_CHECKING:
    from intarsia.checking.alone.soundness import Soundness
    from intarsia.checking.pair.comparison import Comparison, Difference
    from intarsia.report.content import PageContent

SHOWN = 3
"""How many of its tensors a fault names in its text."""
ROWS = 20
"""How many differences, and how many names of tensors in one checkpoint only, are shown."""


def run(
    a: options.Path,
    b: Annotated[
        str | None,
        options.Argument("The checkpoint to compare with; without it, A is checked by itself."),
    ] = None,
    config: options.Config = None,
    section: options.Section = None,
    memory: options.Memory = None,
    workers: options.Workers = None,
    html: options.Html = None,
) -> int:
    """Compare A and B bit by bit, or look for known faults in A alone.

    A and B may be of different formats, meshes and dialects.
    """
    from intarsia import api

    if html is not None:
        from intarsia.report.write import check_page

        check_page(html)
    asked: dict[str, Any] = {
        "config": config, "section": section, "memory": memory, "workers": workers
    }  # fmt: skip
    with progress("verifying") as advance:
        if b is None:
            alone = api.verify(a, progress=advance, **asked)
        else:
            pair = api.verify(a, b, progress=advance, **asked)
    if html is not None and OUTPUT.prints:
        from intarsia.report.write import write_page

        whose = config, section
        write_page(html, _page_alone(alone, *whose) if b is None else _page_pair(pair, *whose))
    if b is None:
        answer(alone.as_json(), lambda: _print_alone(alone))
        return 0 if alone.sound else 1
    from intarsia.checking.pair.comparison import next_step

    step = next_step(pair)
    answer(pair.as_json() | {"next": step}, lambda: _print_pair(pair, step))
    return 0 if pair.equal else 1


def _page_alone(found: Soundness, config: str | None, section: str | None) -> PageContent:
    from intarsia.checking.alone.headers import read_headers
    from intarsia.format.folder.side_files import config_given
    from intarsia.report.content import of_soundness

    headers = read_headers(named(found.a), config_given(config) if config else None, section)
    return of_soundness(found, headers.manifest)


def _page_pair(found: Comparison, config: str | None, section: str | None) -> PageContent:
    from intarsia.api import open_pair
    from intarsia.report.content import of_comparison

    a, b, _ = open_pair(found.a, found.b, config, section)
    with a, b:
        return of_comparison(found, a.manifest, b.manifest)


def _print_alone(found: Soundness) -> None:
    if found.sound:
        say(f"sound: {found.compared:,} tensors, {found.elements:,} elements, no known fault")
    else:
        rows = [(fault.kind, fault.text, fault.where) for fault in found.faults]
        title = f"not sound: {len(rows)} fault{'' if len(rows) == 1 else 's'}"
        print_table(title, ("fault", "what", "where"), rows, most=40)
        for step in dict.fromkeys(fault.next for fault in found.faults if fault.next):
            say(f"next: {step}")
        names = {name for fault in found.faults for name in fault.tensors}
        if len(rows) > 40 or any(len(fault.tensors) > SHOWN for fault in found.faults):
            say(f"--json names all {len(names):,} tensors")
    for note in found.notes:
        say(f"note: {note}")


def _print_pair(found: Comparison, step: str | None) -> None:
    if found.equal:
        say(found)
    else:
        for fault in found.damaged:
            say(f"{fault.kind}: {fault.text}\n  in {fault.where}")
        _print_differences(found)
        for side, names in (("A", found.only_in_a), ("B", found.only_in_b)):
            for name in names[:ROWS]:
                say(f"only in {side}: {name}")
            if len(names) > ROWS:
                say(f"only in {side}: … and {len(names) - ROWS} more")
    _print_beside(found)
    for note in found.notes:
        say(f"note: {note}")
    # The verdict comes last, where a terminal shows it.
    for fault in () if found.equal else found.faults:
        say(f"{fault.kind}: {fault.text}\n  in {fault.where}")
    faults = () if found.equal else (*found.damaged, *found.faults)
    advice = dict.fromkeys(fault.next for fault in faults if fault.kind != "unexplained")
    if step:
        advice[step] = None
    for each in advice or dict.fromkeys(fault.next for fault in faults):
        say(f"next: {each}")


def _print_beside(found: Comparison) -> None:
    """What lies beside the tensors: each that is not equal, first what the verdict is for, and how many are."""
    unequal = [each for each in found.beside if each.verdict != "equal"]
    unequal.sort(key=lambda each: not each.counts)
    for each in unequal[:ROWS]:
        say(str(each))
    if len(unequal) > ROWS:
        say(f"… and {len(unequal) - ROWS:,} more beside the tensors; --json names all")
    if same := len(found.beside) - len(unequal):
        say(f"beside the tensors, {same:,} settings, objects and files are equal")


def _print_differences(found: Comparison) -> None:
    """One tensor for all of the same name in other layers that have the same fault."""
    from intarsia.checking.naming import pattern

    alike: dict[tuple[str, str], list[Difference]] = {}
    for each in found.different:
        alike.setdefault((pattern(each.tensor), each.kind), []).append(each)
    rows = [
        (d.tensor, len(same), d.elements, str(list(d.first)), d.gap, d.diagnosis)
        for same in alike.values()
        for d in same[:1]
    ]
    if rows:
        columns = ("tensor", "alike", "elements", "first", "max abs", "diagnosis")
        count = len(found.different)
        print_table(f"different: {count:,} of {found.compared:,} tensors", columns, rows, most=ROWS)
        if len(rows) < count:
            say(f"--json lists all {count:,}")
