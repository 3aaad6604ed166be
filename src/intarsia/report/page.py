"""One page that needs nothing but itself: its content, its data, its style, its script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from intarsia import __version__
from intarsia.errors import visible
from intarsia.planning.manifest import Logical
from intarsia.report.content import PageContent, State
from intarsia.report.model_map import map_of
from intarsia.report.safe import html, script
from intarsia.report.storage import storage_map

if TYPE_CHECKING:
    from intarsia.checking.fault import Fault

LISTED = 200
"""How many faults, differences or notes are written out; the map shows every tensor."""

NAMED = 24
"""How many tensors of one fault are written out."""

FEW = 6
"""How many tensors of a fault are shown at once; more are unfolded."""

SCRIPTS = ("tensors.js", "grid.js", "pictures.js", "detail.js", "start.js")


def page_of(story: PageContent) -> str:
    """The page as HTML; every name in it is shown as text, whatever it holds."""
    known = _Known.of(story)
    style = _resource("page.css")
    code = "(() => {\n'use strict';\n" + "".join(map(_resource, SCRIPTS)) + "})();\n"
    policy = (
        f"default-src 'none'; script-src {_digest(code)}; style-src {_digest(style)};"
        " base-uri 'none'; form-action 'none'"
    )
    return Template(_resource("page.html")).substitute(
        policy=html(policy),
        style=style,
        code=code,
        title=html(story.title),
        verdict=html(story.verdict),
        good="good" if story.good else "bad",
        mark="✓" if story.good else "✗",
        facts=_facts(story),
        findings=_findings(story, known.numbers),
        data=script(known.data(story)),
        version=html(__version__),
    )


@dataclass(frozen=True)
class _Known:
    """Every tensor that the page knows, by its number."""

    tensors: tuple[Logical | None, ...]
    numbers: Mapping[str, int]

    @staticmethod
    def of(story: PageContent) -> _Known:
        found: dict[str, Logical | None] = {}
        for m in story.sides:
            for x in m.logical.values():
                found.setdefault(x.name, x)
        for m in story.sides:
            for x in m.absent:
                found.setdefault(x.name, x)
            for stored in m.stored.values():
                for name in stored.layout.tensors:
                    found.setdefault(name, None)
        for name, state in story.states.items():
            if state is State.ABSENT:
                found.setdefault(name, None)
        return _Known(tuple(found.values()), {name: k for k, name in enumerate(found)})

    def data(self, story: PageContent) -> dict[str, Any]:
        """What the script reads: parallel lists by tensor, each value that repeats kept once."""
        rows, cells = map_of(self.numbers)
        dtypes: dict[str, int] = {}
        shapes: dict[tuple[int, ...] | None, int] = {}
        kinds, forms = [], []
        for x in self.tensors:
            kinds.append(dtypes.setdefault(str(x.dtype) if x else "unknown", len(dtypes)))
            forms.append(shapes.setdefault(x.shape if x else None, len(shapes)))
        by_fault = [[self.numbers[t] for t in f.tensors if t in self.numbers] for f in story.faults]
        return {
            "fine": story.fine,
            "rows": [row.as_json() for row in rows],
            "row": [s.row for s in cells],
            "layer": [s.layer for s in cells],
            "expert": [s.expert for s in cells],
            "state": [int(story.states.get(name, State.FINE)) for name in self.numbers],
            "dtype": kinds,
            "shape": forms,
            "dtypes": list(dtypes),
            "shapes": list(shapes),
            "said": {
                self.numbers[d.tensor]: [d.elements, list(d.first), d.gap, visible(d.diagnosis)]
                for d in story.different
                if d.tensor in self.numbers
            },
            "faults": [
                [f.kind, visible(f.text), known]
                for f, known in zip(story.faults, by_fault, strict=True)
            ],
            "sides": [storage_map(m, self.numbers) for m in story.sides],
        }  # fmt: skip


def _resource(name: str) -> str:
    return files("intarsia.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _facts(story: PageContent) -> str:
    count = max((len(values) for _, values in story.facts), default=1)
    head = ""
    if count > 1:
        heads = "".join(f'<th scope="col">{side}</th>' for side in "AB"[:count])
        head = f"<thead><tr><td></td>{heads}</tr></thead>"
    rows = "".join(
        f'<tr><th scope="row">{html(name)}</th>{_values(values)}</tr>'
        for name, values in story.facts
    )
    return f"<table>{head}<tbody>{rows}</tbody></table>"


def _values(values: Sequence[str]) -> str:
    if len(values) > 1 and len(set(values)) == 1:
        return f'<td colspan="{len(values)}">{html(values[0])}</td>'
    return "".join(f"<td>{html(value)}</td>" for value in values)


def _findings(story: PageContent, numbers: Mapping[str, int]) -> str:
    parts = []
    if story.faults:
        articles = (_fault(k, fault, numbers) for k, fault in enumerate(story.faults[:LISTED]))
        parts += ["<h2>Faults</h2>", *articles, _rest(len(story.faults))]
    if story.different:
        rows = "".join(
            f"<tr><td>{_tensor(d.tensor, numbers)}</td><td>{d.elements:,}</td>"
            f'<td class="place">{html(list(d.first))}</td><td>{html(d.gap)}</td><td>{html(d.diagnosis)}</td></tr>'
            for d in story.different[:LISTED]
        )
        heads = ("tensor", "elements", "first", "largest gap", "diagnosis")
        head = "".join(f'<th scope="col">{name}</th>' for name in heads)
        parts += [
            "<h2>Different tensors</h2>",
            '<div class="wide tall" role="region" tabindex="0" aria-label="Different tensors">',
            f"<table class='differences'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>",
            _rest(len(story.different)),
        ]
    for title, texts in (("Problems", story.problems), ("Notes", story.notes)):
        if texts:
            items = "".join(f"<li>{html(text)}</li>" for text in texts[:LISTED])
            parts += [f"<h2>{title}</h2><ul>{items}</ul>", _rest(len(texts))]
    if not parts:
        return ""
    body = "\n".join(parts)
    return f'<section class="findings" aria-label="What was found">{body}</section>'


def _rest(count: int, most: int = LISTED) -> str:
    more = f"<p>… and {count - most:,} more, which <code>--json</code> lists.</p>"
    return more if count > most else ""


def _fault(k: int, fault: Fault, numbers: Mapping[str, int]) -> str:
    lines = [
        f'<article class="fault" id="fault-{k}" tabindex="-1"><h3>{html(fault.kind)}</h3>',
        f'<p class="means">{html(fault.means)}</p><p>{html(fault.text)}</p>',
        f"<p>Where: {html(fault.where)}</p>" if fault.where else "",
        f"<p>Next: {html(fault.next)}</p>",
    ]
    if fault.tensors:
        items = "".join(f"<li>{_tensor(name, numbers)}</li>" for name in fault.tensors[:NAMED])
        named = f'<ul class="names">{items}</ul>{_rest(len(fault.tensors), NAMED)}'
        if len(fault.tensors) > FEW:
            folded = f"<summary>{len(fault.tensors):,} tensors</summary>"
            named = f"<details>{folded}{named}</details>"
        lines.append(named)
    return "".join(lines) + "</article>"


def _tensor(name: str, numbers: Mapping[str, int]) -> str:
    number = numbers.get(name)
    mark = "" if number is None else f' data-tensor="{number}"'
    return f"<code{mark}>{html(name)}</code>"
