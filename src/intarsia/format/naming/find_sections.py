"""Finding the sections of a state dict: by the names of a table, by torch's nesting, by the first word."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from intarsia.format.naming.section import APP, OWN, Paths, Section, TensorHeader
from intarsia.format.naming.wrappers import MODULE, bare, without_wrappers


def by_table(tensors: Mapping[str, TensorHeader], known: Collection[str]) -> dict[str, Section]:
    """Sections by the prefix of names that a table explains."""
    found: dict[str, Section] = {}
    labels: dict[str, str] = {}
    ends = {MODULE, *(name[name.rfind(".") + 1 :] for name in known)}
    for key, tensor in tensors.items():
        plain = bare(key)
        if plain[plain.rfind(".") + 1 :] in ends and (hit := known_name_in(plain, known)):
            prefix, name = hit
            label = labels.get(prefix)
            if label is None:
                label = labels[prefix] = _label(prefix.split("."))
                found.setdefault(label, Section(label))
            found[label].add(key, name, prefix, tensor)
    return found


def are_themselves(names: Iterable[str], known: Collection[str]) -> bool:
    """Whether no name has a word of a wrapper or something before a known one, asked of all of them at once.

    Then what is not known as it is has no known end either.
    """
    strange = [name for name in names if name not in known]
    ends = {name[name.rfind(".") + 1 :] for name in strange}
    text = "\n".join(("", *known, "")) if ends else ""
    if MODULE in ends or any(f".{end}\n" in text or f"\n{end}\n" in text for end in ends):
        return False
    text = "\n".join(("", *strange))
    return "._" not in text and "\n_" not in text


def known_name_in(name: str, known: Container[str]) -> tuple[str, str] | None:
    """The prefix of a known name, and that name; a plain reading goes before one without `module`."""
    if name in known:
        return "", name
    starts = [0, *(k + 1 for k, letter in enumerate(name) if letter == ".")]
    for start in starts:
        if name[start:] in known:
            return name[:start], name[start:]
    if f".{MODULE}." in name:
        for start in starts:
            if hit := without_wrappers(name[start:], known):
                return name[:start], hit
    return None


def _label(words: Sequence[str | int]) -> str:
    """A section's name: the words before its tensors, without those of wrappers."""
    label = ".".join(str(word) for word in words if word not in (MODULE, ""))
    return "" if label == "base_model.model" else label


def by_nesting(tensors: Mapping[str, TensorHeader], paths: Paths) -> dict[str, Section]:
    """Sections by where torch's nesting of the state dict ends and the keys of a module begin."""
    found: dict[str, Section] = {}
    for key, tensor in tensors.items():
        *outer, leaf = paths.get(key) or (key,)
        words = [str(word) for word in outer]
        # A module's keys have dots; words without any may go on inside of it.
        end = len(words) if "." in str(leaf) else _end(words)
        label = ".".join(words[:end])
        prefix = f"{label}." if label else ""
        section = found.setdefault(label, Section(label))
        section.add(key, bare(key.removeprefix(prefix)), bare(prefix), tensor)
    return found


def _end(words: Sequence[str]) -> int:
    """How many words of a nested dict are a section's name: up to its word for a model, else the first."""
    start = next((k for k, w in enumerate(words) if w in OWN and w != APP), None)
    if start is None:
        return min(len(words), 1 + sum(word == APP for word in words[:1]))
    return next((k for k in range(start, len(words)) if words[k] not in OWN), len(words))


def by_word(
    tensors: Mapping[str, TensorHeader], configured: bool, asked: bool
) -> dict[str, Section]:
    """Sections by first word, where nothing else is known of names and one is a word for another model."""
    found: dict[str, Section] = {}
    if configured and not asked:
        return found
    for key, tensor in tensors.items():
        word, _, name = bare(key).partition(".")
        if name:
            found.setdefault(word, Section(word)).add(key, name, f"{word}.", tensor)
    named = [s for s in found.values() if s.called_other]
    twins = [s for s in found.values() for o in named if s is not o and s.overlaps(o)]
    twins += [s for s in named if any(s is not o and s.overlaps(o) for o in twins)]
    if asked:
        return found
    return {s.label: s for s in found.values() if s in twins}
