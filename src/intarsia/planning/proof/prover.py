"""Who has a proof: a `Proven`, which nothing else can make.

Whoever moves bytes asks for a `Proven`, and only `Prover` makes one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NoReturn, final

import numpy as np

from intarsia.errors import CoverageError, UnsupportedError, few_lines
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.planning.chunks import Chunks, FileRanges, Numbers, places_of
from intarsia.planning.copy import Copy, sources_of
from intarsia.planning.manifest import Manifest, Stored, Target
from intarsia.planning.proof.alike import ProvenTargets
from intarsia.planning.proof.links import Gap, Links
from intarsia.planning.proof.stored_as_is import in_one_chunk, is_whole, runs_in
from intarsia.planning.proof.template import Template, Templates
from intarsia.planning.whole_tensor import WholeTensor

_NEXT = {
    "elements-missing": "restore what is missing, or use a checkpoint that is whole",
    "chunks-overlap": "save the checkpoint again: nothing says which of the two is right",
    "chunk-mismatch": "restore the file and the metadata that belong to one save; if a library quantised these weights"
    " (torchao, TransformerEngine), save them dequantised",
}


HoldingTensors = WholeTensor | tuple[Stored, ...]
"""The stored tensors that hold a logical one."""


@final
class _Key:
    """What only this file has, so that only it makes a proof."""


_KEY: Final = _Key()


@final
class Proven:
    """A target, each element of which has exactly one source in a checkpoint.

    Only `Prover` makes one; whatever moves bytes takes nothing else.
    `is_one_chunk` says that the target is a logical tensor and a stored one, which lies in one chunk.
    `runs` are, where the target is put together from runs of whole tensors, those tensors, one for each piece
    of its layout; then the pieces fill it one after another.
    """

    __slots__ = ("_sources", "_template", "is_one_chunk", "runs", "src", "target")

    def __init__(
        self,
        src: Manifest,
        target: Target,
        sources: tuple[Stored, ...] | None,
        key: _Key,
        *,
        is_one_chunk: bool = False,
        template: Template | None = None,
        runs: tuple[WholeTensor, ...] = (),
    ) -> None:
        if key is not _KEY:
            raise TypeError("only `Prover` makes a proof")
        self.src: Final = src
        self.target: Final = target
        self._sources = sources
        self.is_one_chunk: Final = is_one_chunk
        self._template = template
        self.runs: Final = runs

    @property
    def sources(self) -> tuple[Stored, ...]:
        """The stored tensors that hold its elements."""
        if self._sources is None:
            stored = self.src.stored  # where whole tensors have the names of the logical ones
            self._sources = tuple([stored[name] for name in self.target.layout.tensors])
        return self._sources

    @property
    def template(self) -> Template:
        """What this has in common with tensors that differ by name alone."""
        if self._template is None:
            self._template = prover_of(self.src).templates.of(self.target.layout, self.sources)
        return self._template

    def copies(self, box: Box) -> list[Copy]:
        """The copies that fill the row-major buffer of a box of the target."""
        return self.template.copies(self.target.layout, box, self.sources)

    def stretch(self, start: int, stop: int) -> list[Copy]:
        """The copies into row-major elements `[start, stop)` of the target, counted from `start`."""
        return self.template.stretch(self.target.layout, start, stop, self.sources)


@final
class Proofs(Mapping[str, Proven]):
    """Proofs of logical tensors by their names; only `Prover` makes them.

    `whole` are those of the tensors that are runs of files as they are, `in_columns` of those that lie in columns: a
    `Proven` is made of each when it is asked for.
    """

    __slots__ = ("_made", "_prover", "in_columns", "src", "whole")

    def __init__(
        self,
        prover: Prover,
        whole: Mapping[str, WholeTensor],
        in_columns: Mapping[str, Stored],
        made: dict[str, Proven],
        key: _Key,
    ) -> None:
        if key is not _KEY:
            raise TypeError("only `Prover` makes a proof")
        self.src: Final = prover.src
        self.whole: Final = whole
        self.in_columns: Final = in_columns
        self._made = made
        self._prover = prover

    def __getitem__(self, name: str) -> Proven:
        later = name in self.whole or name in self.in_columns
        return self._prover.tensor(name) if later else self._made[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.whole
        yield from self.in_columns
        yield from self._made

    def __len__(self) -> int:
        return len(self.whole) + len(self.in_columns) + len(self._made)


@final
class AlikeTensors:
    """Logical tensors that differ by name alone, each of them proven; only `Prover` makes them.

    `first` is the proof of one, and `numbers` are theirs among those that were asked for.
    """

    __slots__ = ("_columns", "_held", "first", "numbers")

    def __init__(
        self, first: Proven, numbers: list[int], held: Sequence[HoldingTensors], key: _Key
    ) -> None:
        if key is not _KEY:
            raise TypeError("only `Prover` makes a proof")
        self.first: Final = first
        self.numbers: Final = numbers
        self._held = held
        self._columns = _columns_of(held)

    def sources(self, member: int) -> tuple[Stored, ...]:
        """The stored tensors that hold one of them."""
        held = self._held[member]
        return (self.first.src.stored[held.name],) if isinstance(held, WholeTensor) else held

    def places(
        self, members: Sequence[int] | Numbers, wanted: Sequence[tuple[int, int]]
    ) -> FileRanges:
        """Where chunks are, by the numbers of their sources and their own; a row for each member."""
        if self._columns is not None:
            (names, *lying), firsts = self._columns
            at = firsts[members][:, None] + np.array([n for _, n in wanted], np.int64)
        else:
            each = [(int(member), k, n) for member in members for k, n in wanted]
            names, *lying = places_of([[self.sources(m)[k].chunks[n] for m, k, n in each]])
            at = np.arange(len(each)).reshape(len(members), len(wanted))
        return FileRanges(names, *[column[at] for column in lying])


def _columns_of(held: Sequence[HoldingTensors]) -> tuple[FileRanges, Numbers] | None:
    """Where tensors lie that have one chunk each, or that are in the same columns, and the numbers of their first chunks."""
    whole = [x for x in held if isinstance(x, WholeTensor)]
    if whole:
        return (places_of([whole]), np.arange(len(held))) if len(whole) == len(held) else None
    chunks = [x[0].chunks for x in held if not isinstance(x, WholeTensor) and len(x) == 1]
    columns = [x for x in chunks if isinstance(x, Chunks)]
    if len(columns) < len(held) or len({id(x.places) for x in columns}) > 1:
        return None
    return columns[0].places, np.array([x.first for x in columns])


def prover_of(src: Manifest) -> Prover:
    """The prover of a manifest: there is one, so nothing is proven twice."""
    found: Prover | None = src.__dict__.get("_prover")
    if found is None:
        found = src.__dict__["_prover"] = Prover(src)
    return found


class Prover:
    """Proofs over one manifest, each made once for every template of shapes."""

    def __init__(self, src: Manifest) -> None:
        self.src = src
        self.templates = Templates()
        self.links = Links(src, self.templates)
        self._alike = ProvenTargets(src, self.links, self.templates)
        self._proven: dict[str, Proven] = {}

    def prove(self, target: Target) -> Proven:
        """The proof of a target; raise where there is none."""
        found = self.attempt(target)
        if not isinstance(found, Proven):
            self.refuse(found)
        return found

    def attempt(self, target: Target) -> Proven | list[Gap]:
        """The proof of a target, or the faults that forbid it."""
        if target.value.parts:
            raise UnsupportedError(
                f"`{target.name}` would be {target.value}, which can be read but not yet written",
                hint="write plain numbers: give an element type with --dtype",
            )
        runs = runs_in(target.layout, self.links.whole)
        if runs and self.links.tiling(target.shape, target.boxes) is None:
            return Proven(self.src, target, None, _KEY, runs=runs)
        sources = sources_of(target.layout, self.src)
        key = self._alike.key(target, sources)
        if key is not None and (template := self._alike.proven(key)) is not None:
            return Proven(self.src, target, sources, _KEY, template=template)
        faults = [*self.links.target_faults(target, sources)]
        return faults or self._keep(key, Proven(self.src, target, sources, _KEY))

    def _keep(self, key: Hashable, proven: Proven) -> Proven:
        """A proof, from now on that of all targets of a key, too."""
        if key is not None:
            self._alike.add(key, proven.target.boxes, proven.template)
        return proven

    def tensor(self, name: str) -> Proven:
        """The proof of a logical tensor."""
        found = self._at_a_glance(name)
        if found is None:
            x = self.src.logical[name]
            whole = (Box.whole(x.shape),)
            found = self.prove(Target(name, x.dtype, Layout.of(name, x.shape), whole))
            self._proven[name] = found
        return found

    def tensors(self, names: Iterable[str]) -> Proofs:
        """The proofs of logical tensors; raise what is wrong with any of them, in their order."""
        known, columns = self.links.whole, self.links.in_columns
        whole, lying, rest = dict[str, WholeTensor](), dict[str, Stored](), list[str]()
        for name in names:
            if name in known:
                whole[name] = known[name]
            elif name in columns:
                lying[name] = columns[name]
            else:
                rest.append(name)
        seen = {name: self._at_a_glance(name) for name in rest}
        unseen = (name for name, proven in seen.items() if proven is None)
        faults = [fault for name in unseen for fault in self.links.tensor_faults(name)]
        if faults:
            self.refuse(faults)
        made = {name: proven or self.tensor(name) for name, proven in seen.items()}
        return Proofs(self, whole, lying, made, _KEY)

    def alike(self, names: Sequence[str]) -> list[AlikeTensors]:
        """The proofs of logical tensors, together for those that differ by name alone."""
        kinds: dict[Hashable, tuple[list[int], list[HoldingTensors]]] = {}
        kind: Hashable
        held: HoldingTensors
        known, columns = self.links.whole.get, self.links.in_columns.get
        for number, name in enumerate(names):
            if (whole := known(name)) is not None:
                kind, held = (whole.shape, whole.dtype.name), whole
            elif (stored := columns(name)) is not None:
                kind, held = self._kind_in_columns(stored), (stored,)
            else:
                kind, held = self._kind_of(name)
            numbers, each = kinds.get(kind) or kinds.setdefault(kind, ([], []))
            numbers.append(number)
            each.append(held)
        return [
            AlikeTensors(self.tensor(names[numbers[0]]), numbers, each, _KEY)
            for numbers, each in kinds.values()
        ]

    def _kind_in_columns(self, stored: Stored) -> Hashable:
        """What tensors in columns have in common that differ by name alone."""
        chunks, layout = stored.chunks, stored.layout
        assert isinstance(chunks, Chunks)
        cut = id(chunks.places), id(chunks.boxes)
        return *cut, layout.shape, stored.dtype.name, id(stored.value)

    def _kind_of(self, name: str) -> tuple[Hashable, tuple[Stored, ...]]:
        """What a logical tensor has in common with those that differ by name alone; and the stored ones that hold it."""
        sources, links = self.src.sources.get(name, ()), self.links
        if is_whole(self.src.logical[name].shape, sources) and not links.tensor_faults(name):
            (stored,) = sources
            boxes = id(self.templates.boxes_of(stored))
            return (stored.layout.shape, boxes, stored.dtype.name, id(stored.value)), sources
        proven = self.tensor(name)
        each = [(stored.dtype.name, id(stored.value)) for stored in proven.sources]
        return (proven.template, *each), proven.sources

    def _at_a_glance(self, name: str) -> Proven | None:
        """The proof of a logical tensor that was proven before, or that one chunk holds as it is."""
        found = self._proven.get(name)
        if found is not None:
            return found
        known = name in self.links.whole
        stored = self.src.stored[name] if known else in_one_chunk(self.src, name)
        if stored is not None:
            x = self.src.logical[name]
            target = Target(name, x.dtype, stored.layout, (stored.chunks[0].box,))
            found = Proven(self.src, target, (stored,), _KEY, is_one_chunk=True)
            self._proven[name] = found
        return found

    def stored(self, stored: Stored) -> Proven:
        """The proof of a stored tensor: that nothing else holds what it holds."""
        if (fault := self.links.stored_fault(stored)) is not None:
            self.refuse([fault])
        whole = (Box.whole(stored.shape),)
        return self.prove(Target(stored.on_disk, stored.dtype, stored.layout, whole))

    def all(self) -> None:
        """Raise unless every stored and every logical tensor is proven."""
        stored, links = self.src.stored, self.links
        whole, columns = links.whole, links.in_columns
        rest = [stored[name] for name in stored if name not in whole]
        rest = [s for s in rest if columns.get(s.name) is not s]
        found = [fault for s in rest if (fault := links.stored_fault(s)) is not None]
        unseen = [name for name in self.src.logical if name not in whole and name not in columns]
        found += [fault for name in unseen for fault in links.tensor_faults(name)]
        if found:
            self.refuse(found)

    def refuse(self, faults: Sequence[Gap]) -> NoReturn:
        """Raise what every path raises."""
        texts = list(dict.fromkeys(fault.text for fault in faults))
        lost = sum({fault.text: fault.elements for fault in faults}.values())
        brief = texts[0] if len(texts) == 1 else f"{len(texts)} faults, {lost:,} elements"
        lines = few_lines(texts) if len(texts) > 1 else ""
        raise CoverageError(
            f"not proven: {brief}{lines}",
            at=self.src.path,
            hint=f"{faults[0].hint or _NEXT[faults[0].kind]}; nothing was written",
            kind=faults[0].kind,
        )
