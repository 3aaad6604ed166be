"""Files that differ as wholes: one of an older save, one that was never filled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from intarsia.checking.diagnosis.finding import LOST, UNEXPLAINED, Finding
from intarsia.checking.diagnosis.names import where
from intarsia.checking.fault import Fault
from intarsia.planning.manifest import Manifest

CONTENT = {"rank-stale": "stale", UNEXPLAINED: "stale", "rank-zero": "zero", "zero": "zero"}
NEARLY_ALL = 0.9

Files = Mapping[str, frozenset[str]]


def files_by_tensor(manifest: Manifest) -> Files:
    """The files that hold elements of each logical tensor."""
    return {
        name: frozenset(c.file for s in stored for c in s.chunks)
        for name, stored in manifest.sources.items()
    }


def wrong_files(
    findings: list[Finding], sides: Iterable[tuple[str, Manifest]]
) -> tuple[list[Fault], list[Finding]]:
    """Faults of files whose tensors all differ, and the findings that these leave over."""
    faults: list[Fault] = []
    for side, manifest in sides:
        if len(manifest.files) < 2 or not any(f.kind in CONTENT for f in findings):
            continue
        held = files_by_tensor(manifest)
        groups: dict[tuple[str, str], list[Finding]] = {}
        for f in findings:
            files = sorted(_files_of(f, side, held))
            counts = f.kind in CONTENT and (CONTENT[f.kind] == "stale" or f.exact)
            if counts and len(files) == 1:
                groups.setdefault((files[0], CONTENT[f.kind]), []).append(f)
        blamed = {key: group for key, group in groups.items() if _is_all_of(key[0], group, held)}
        if {file for file, _ in blamed} >= frozenset().union(*held.values()):
            continue  # two trainings differ in every file, and none of them is stale
        for (file, content), group in blamed.items():
            touched = [name for name, files in held.items() if file in files]
            tensors = tuple(f.tensor for f in group)
            differing = sum(f.differing for f in group)
            text = (
                f"{len(group)} of the {len(touched)} tensors that {file} of {side} holds a part of"
            )
            text += f" {'are zero' if content == 'zero' else 'differ'} there where they differ, and"
            text += f" nowhere else ({differing:,} elements)"
            faults.append(
                Fault(LOST[content], tensors, f"{file}; {where(tensors)}", text, differing)
            )
            findings = [f for f in findings if f not in group]
    return faults, findings


def _files_of(found: Finding, side: str, held: Files) -> Iterable[str]:
    """The files of a side where a tensor differs; none where it does so by the other's files."""
    where = found.where
    if where is None:
        return found.files or held.get(found.tensor, ())
    if where.dense and where.holder != side:
        return ()
    seen = where.a if side == "A" else where.b
    partly = seen.more or seen.unseen or not seen.chunks
    return held.get(found.tensor, ()) if partly else {chunk.file for chunk in seen.chunks}


def _is_all_of(file: str, group: list[Finding], held: Files) -> bool:
    """Whether nearly all that a file holds is in a group, and nothing of the other side's file of that name."""
    touched = {name for name, files in held.items() if file in files}
    enough = len(group) >= max(2, NEARLY_ALL * len(touched))
    return enough and {f.tensor for f in group} <= touched
