"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

from intarsia.frozen import frozen
from intarsia.options import Options

_TEXT = str | None
_KINDS = (bool, str, int | None)
"""What words of a command line become; every other type is given as a text."""

_HINTS = get_type_hints(Options)
_FIELDS = {f.name: f for f in fields(Options)}


@frozen
class Argument:
    """A word of a command that stands alone."""

    help: str


@frozen
class Option:
    """A word of a command that follows its flag, or a flag alone; `words` are what it may be."""

    flag: str
    help: str
    words: tuple[str, ...] = ()
    least: int | None = None


def _option(field: Field[Any]) -> Any:
    """A field of `Options` as the annotation of a command's parameter."""
    hint, flag = _HINTS[field.name], f"--{field.name.replace('_', '-')}"
    spelled = f"{flag}/--no-{flag[2:]}" if hint is bool else flag
    said = Option(spelled, field.metadata["help"], field.metadata["words"])
    return Annotated[hint if hint in _KINDS else _TEXT, said]


def spelled_out(run: Callable[..., int]) -> Callable[..., int]:
    """A command whose parameter of type `Options` is an option of the command line for each field."""
    own = signature(run, eval_str=True).parameters.values()
    (name,) = (p.name for p in own if p.annotation is Options)

    def spelled() -> Iterator[Parameter]:
        for p in own:
            if p.name != name:
                yield p.replace(kind=Parameter.KEYWORD_ONLY)
                continue
            for f in _FIELDS.values():
                default = Parameter.empty if f.default is MISSING else f.default
                yield Parameter(
                    f.name, Parameter.KEYWORD_ONLY, default=default, annotation=_option(f)
                )

    def command(**words: Any) -> int:
        asked = Options(**{field: words.pop(field) for field in _FIELDS})
        return run(**words, **{name: asked})

    command.__doc__ = run.__doc__
    command.__signature__ = Signature(list(spelled()))  # type: ignore[attr-defined]
    return command


Path = Annotated[str, Argument("A checkpoint: a folder, or one safetensors file.")]
Mesh = _option(_FIELDS["mesh"])
Memory = _option(_FIELDS["memory"])
Workers = _option(_FIELDS["workers"])
Config = _option(_FIELDS["config"])
Section = _option(_FIELDS["section"])
Alone = Annotated[bool, Option("--alone", "Do not wait for other ranks, even under torchrun.")]
Html = Annotated[
    str | None,
    Option("--html", "Also write the result to this file as an HTML page that works offline."),
]
