"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from intarsia.options import Options

_TEXT = str | None
_KINDS = (bool, str, int | None)
"""What words of a command line become; every other type is given as a text."""

_HINTS = get_type_hints(Options)
_FIELDS = {f.name: f for f in fields(Options)}


def _option(field: Field[Any]) -> Any:
    """A field of `Options` as typer annotates an option."""
    hint, flag = _HINTS[field.name], f"--{field.name.replace('_', '-')}"
    words = field.metadata["words"]
    info = typer.Option(
        f"{flag}/--no-{flag[2:]}" if hint is bool else flag,
        help=field.metadata["help"],
        autocompletion=(lambda: list(words)) if words else None,
    )
    return Annotated[hint if hint in _KINDS else _TEXT, info]


def spelled_out(run: Callable[..., None]) -> Callable[..., None]:
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

    def command(**words: Any) -> None:
        asked = Options(**{field: words.pop(field) for field in _FIELDS})
        run(**words, **{name: asked})

    command.__doc__ = run.__doc__
    command.__signature__ = Signature(list(spelled()))  # type: ignore[attr-defined]
    return command


Path = Annotated[str, typer.Argument(help="A checkpoint: a folder, or one safetensors file.")]
Mesh = _option(_FIELDS["mesh"])
Memory = _option(_FIELDS["memory"])
Workers = _option(_FIELDS["workers"])
Config = _option(_FIELDS["config"])
Section = _option(_FIELDS["section"])
Alone = Annotated[
    bool, typer.Option("--alone", help="Do not wait for other ranks, even under torchrun.")
]
Html = Annotated[
    str | None,
    typer.Option(
        "--html", help="Also write the result to this file as an HTML page that works offline."
    ),
]
