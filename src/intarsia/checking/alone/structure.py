"""Faults that headers alone show: what is absent, what overlaps, what has the wrong shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import combinations, pairwise
from operator import itemgetter

from intarsia.checking.fault import Fault
from intarsia.checking.naming import ModelPlace, few_numbers, place_of
from intarsia.errors import few
from intarsia.family import table_for
from intarsia.family.optional_parts import missing_tower
from intarsia.format.registry import format_named
from intarsia.planning.manifest import Chunk, Manifest, Stored
from intarsia.planning.problem import ABSENT
from intarsia.planning.proof import prover_of

_ALIKE = (
    ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8"),
    ("F16", "BF16", "I16"),
    ("F32", "I32"),
    ("F64", "I64"),
)
_MISTAKEN = [{*pair} for types in _ALIKE for pair in combinations(types, 2)]
"""Element types of one width: a header may name the wrong one."""


def structure_faults(
    manifest: Manifest, known: Collection[str] = (), files: Collection[str] = ()
) -> Iterator[Fault]:
    """Every fault of a manifest; tensors and files in `known` cannot be read and are not reported again."""
    yield from missing_files(manifest, files)
    yield from missing_tensors(manifest, known)
    yield from missing_towers(manifest)
    yield from bad_tilings(manifest)
    yield from uncovered(manifest)
    yield from shared_bytes(manifest)
    yield from mixed_dtypes(manifest)
    yield from beyond_configuration(manifest)
    yield from padded_twice(manifest)
    yield from other_problems(manifest)


def missing_files(manifest: Manifest, known: Collection[str] = ()) -> Iterator[Fault]:
    """Numbered files whose numbers say that there are more, though the index names no others."""
    for found in format_named(manifest.format).absent_files(manifest.files):
        names = [name for name in found.names if name not in known]
        if names:
            counts = f"the files' names count {found.all}, {found.there} are there"
            text = f"{counts}; absent: {few(names)}"
            yield Fault("file-missing", (), few(names), text)


def missing_tensors(manifest: Manifest, known: Collection[str] = ()) -> Iterator[Fault]:
    """Tensors of the configuration that are not stored: whole layers, experts, others."""
    without = [s for s in manifest.stored.values() if not s.chunks and s.layout.size]
    empty = {name for s in without for name in s.layout.tensors}
    weights = [name for name in manifest.logical if not place_of(name).kind]
    held = {name for name in weights if name not in empty}
    absent = [x.name for x in manifest.absent] + [name for name in weights if name in empty]
    absent = [name for name in absent if name not in known]
    if not absent:
        return
    alive = {place_of(name).layer_of_stack for name in held}
    siblings = {(p.template, p.layer) for p in map(place_of, held) if p.expert is not None}
    groups: dict[str, list[str]] = {}
    for name in absent:
        place = place_of(name)
        kind = "tensor-missing"
        if place.layer is not None and place.layer_of_stack not in alive:
            kind = "layers-missing"
        elif place.expert is not None and (place.template, place.layer) in siblings:
            kind = "experts-missing"
        groups.setdefault(kind, []).append(name)
    sizes = {x.name: x.size for x in (*manifest.absent, *manifest.logical.values())}
    for kind, names in groups.items():
        places = [place_of(name) for name in names]
        where = ""
        if kind == "layers-missing":
            where = f"layers {few_numbers(p.layer for p in places)}"
        elif kind == "experts-missing":
            where = f"experts {few_numbers(p.expert for p in places)}"
        text = f"{len(names):,} of {len(weights) + len(manifest.absent):,} tensors are not stored: {few(names)}"
        elements = sum(sizes[name] for name in names)
        yield Fault(kind, tuple(names), where, text, elements)


def missing_towers(manifest: Manifest) -> Iterator[Fault]:
    """A configuration with a vision or audio tower, where no tensor of the tower is stored."""
    table = table_for(manifest.config)
    section = missing_tower(table, manifest.logical) if table else None
    if section is not None and manifest.logical:
        text = f"the configuration has a {section}, and no tensor of such a tower is stored"
        yield Fault("tower-missing", (), manifest.path, text)


def bad_tilings(manifest: Manifest) -> Iterator[Fault]:
    """Chunks that leave elements of their tensor out, or hold some twice."""
    for stored in manifest.stored.values():
        if not stored.chunks and not place_of(_first(stored)).kind:
            continue  # named among the missing tensors
        gap = prover_of(manifest).links.stored_fault(stored)
        if gap is not None:
            files = tuple(sorted({chunk.file for chunk in stored.chunks}))
            names = stored.layout.tensors or (stored.name,)
            yield Fault(gap.kind, names, few(files), gap.text, gap.elements, files=files)


def uncovered(manifest: Manifest) -> Iterator[Fault]:
    """Logical tensors that the stored ones together do not hold once, each element of them."""
    links = prover_of(manifest).links
    for name in manifest.logical:
        for gap in links.held_faults(name):
            yield Fault(gap.kind, (name,), "", gap.text, gap.elements)


def shared_bytes(manifest: Manifest) -> Iterator[Fault]:
    """Chunks of two tensors that claim the same bytes of a file."""
    by_file: dict[str, list[tuple[int, int, Stored, Chunk]]] = {}
    for stored in manifest.stored.values():
        for chunk in stored.chunks:
            if chunk.length_bytes and chunk.file not in manifest.in_memory_files:
                start = chunk.start_bytes
                claim = start, start + chunk.length_bytes, stored, chunk
                by_file.setdefault(chunk.file, []).append(claim)
    for file, held in by_file.items():
        held.sort(key=itemgetter(0))
        if all(a[1] <= b[0] for a, b in pairwise(held)):
            continue
        # Two names of one tensor on disk share their bytes rightly.
        claims = {(lo, hi, f"{stored.key} {chunk.box}"): stored for lo, hi, stored, chunk in held}
        last_end, last = 0, None
        for (start, end, _), stored in sorted(claims.items(), key=itemgetter(0)):
            if last is not None and start < last_end:
                both = (*last.layout.tensors[:2], *stored.layout.tensors[:2])
                names = tuple(dict.fromkeys(both))
                text = f"`{last.key}` and `{stored.key}` occupy the same bytes: [{start:,}:{min(end, last_end):,})"
                where = f"{file} byte {start:,}"
                yield Fault("bytes-overlap", names, where, text, files=(file,))
            if end > last_end:
                last_end, last = end, stored


def mixed_dtypes(manifest: Manifest) -> Iterator[Fault]:
    """Tensors in one element type whose like in all other layers are in another of its width.

    Integers only where the shapes are alike, too: a header that names the wrong type leaves them.
    """
    alike: dict[tuple[str, str], dict[str, list[Stored]]] = {}
    for stored in manifest.stored.values():
        key = place_of(_first(stored)).kind, place_of(stored.name).template
        alike.setdefault(key, {}).setdefault(stored.dtype.name, []).append(stored)
    both = [x for x in alike.items() if x[1].keys() in _MISTAKEN]
    counts = [{name: len(held) for name, held in by_type.items()} for _, by_type in both]
    rare = Counter(min(x, key=lambda t: x[t]) for x in counts if len({*x.values()}) > 1)
    causes: dict[tuple[str, str, frozenset[object]], list[tuple[str, list[str], int]]] = {}
    for ((_, template), by_type), count in zip(both, counts, strict=True):
        # Where two layers have one each, the rarer type is that of the other tensors.
        few_, many = sorted(count, key=lambda t: (count[t], -rare[t]))
        shapes = {stored.shape for stored in by_type[many] if stored.layout.size > 1}
        floats = all(held[0].dtype.floating for held in by_type.values())
        names = [_first(s) for s in by_type[few_] if floats or s.shape in shapes]
        if names:
            layers: frozenset[object] = frozenset(place_of(name).layer_of_stack for name in names)
            causes.setdefault((few_, many, layers), []).append((template, names, count[many]))
    for (few_, many, _), found in causes.items():
        odd = tuple(name for _, names, _ in found for name in names)
        rest = f"the other {found[0][2]} of `{found[0][0]}`"
        if len(found) > 1:
            rest = f"the others of {few([f'`{template}`' for template, *_ in found])}"
        yield Fault("dtype-mixed", odd, "", f"{few(odd)} in {few_}, {rest} in {many}")


def beyond_configuration(manifest: Manifest) -> Iterator[Fault]:
    """Layers and experts that are stored and that the configuration does not count.

    A layer that holds tensors of no known name as well is one that predicts further tokens.
    """
    table = table_for(manifest.config)
    if table is None:
        return
    known = {name for rows in table.dialects.values() for name in rows} | {*table.logical}
    templates = {_together(place_of(name)) for name in known}
    extra: dict[tuple[str, int | None], list[tuple[ModelPlace, Stored]]] = {}
    for stored in manifest.stored.values():
        place = place_of(stored.name)
        if not place.kind and table.logical.keys().isdisjoint(stored.layout.tensors):
            extra.setdefault(place.layer_of_stack, []).append((place, stored))
    alike = [x for x in extra.values() if all(_together(place) in templates for place, _ in x)]
    beyond = [stored for held in alike for _, stored in held]
    if beyond:
        names = [name for stored in beyond for name in stored.layout.tensors]
        at = few_numbers(place_of(s.name).layer or 0 for s in beyond)
        text = f"{len(beyond):,} tensors do not belong to the configuration of {table.family}: {few(names)}"
        yield Fault("config-contradicts", tuple(names), f"layers {at}", text)


def _together(place: ModelPlace) -> str:
    """The template of all experts and both halves, as tables have them of Megatron."""
    whole = place.template.replace(".experts.experts.*.", ".experts.experts.")
    return whole.removesuffix("_w").removesuffix("_v") if ".linear_fc1." in whole else whole


def padded_twice(manifest: Manifest) -> Iterator[Fault]:
    """Vocabularies with more rows than one padding to a multiple gives, or more than the tensor that they are tied to."""
    held = [
        (stored, manifest.logical[name].shape[0])
        for stored in manifest.stored.values()
        if stored.layout.mapped < stored.layout.size
        for name in stored.layout.tensors[:1]
        if place_of(stored.name).is_vocabulary and not place_of(name).kind
    ]
    fewest = min((stored.shape[0] for stored, _ in held), default=0)
    for stored, tokens in held:
        rows = stored.shape[0]
        cuts = len({chunk.box.offsets[0] for chunk in stored.chunks})
        if rows == fewest and is_padded_once(tokens, rows, cuts):
            continue
        text = f"`{stored.on_disk}` has {rows:,} rows for {tokens:,} tokens: "
        text += "padding to a multiple cannot give that number"
        if rows != fewest:
            text += f", and the tensor tied to it has {fewest:,}"
        files = few(sorted({chunk.file for chunk in stored.chunks}))
        elements = (rows - tokens) * stored.layout.size // rows
        yield Fault("vocabulary-padded", stored.layout.tensors, files, text, elements)


def is_padded_once(tokens: int, rows: int, ranks: int = 1) -> bool:
    """Whether rows are the least multiple that holds the tokens, of a number that trainers pad to.

    Megatron pads to a multiple of 128 for each tensor-parallel rank; others to any smaller number.

    >>> is_padded_once(1000, 1024), is_padded_once(1000, 1048)
    (True, False)
    """
    steps = {*range(1, 129), *(1 << k for k in range(7, 15)), 128 * ranks}
    return any(-(-tokens // step) * step == rows for step in steps)


def other_problems(manifest: Manifest) -> Iterator[Fault]:
    """What reading the headers found wrong beside absent tensors."""
    for problem in manifest.problems:
        if problem.kind not in ("", ABSENT):
            yield Fault(problem.kind, problem.tensors, manifest.path, problem.text)


def _first(stored: Stored) -> str:
    return stored.layout.tensors[0] if stored.layout.tensors else stored.name
