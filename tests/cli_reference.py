"""The page of all commands: `python -m tests.cli_reference` rewrites it from the commands themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from intarsia.cli.typer_app import app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "command-line.md"


def page() -> str:
    """Every command with its arguments and options, as `--help` gives them."""
    group: Any = typer.main.get_command(app())
    parts = [
        "# Commands and options\n",
        "Generated from the commands by `python -m tests.cli_reference`. "
        "[Use the command line](../how-to/command-line.md) has exit statuses, pipes and completion.\n",
        group.help + "\n",
        "## Every command\n",
        _table(group.params),
    ]
    for name, command in group.commands.items():
        operands = [p for p in command.params if p.param_type_name == "argument"]
        words = [f"[{p.name.upper()}]" if not p.required else p.name.upper() for p in operands]
        parts += [
            f"## {name}\n",
            f"```\nintarsia {' '.join([name, *words, '[OPTIONS]'])}\n```\n",
            " ".join(command.help.split()) + "\n",
            _table(command.params),
        ]
    return "\n".join(part for part in parts if part)


def _table(parameters: list[Any]) -> str:
    if not parameters:
        return ""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    rows += [f"| {_words(p)} | {_default(p)} | {_cell(p.help or '')} |" for p in parameters]
    return "\n".join(rows) + "\n"


def _words(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return ", ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts))


def _default(parameter: Any) -> str:
    found = parameter.default
    return f"`{found}`" if isinstance(found, str | int) and not isinstance(found, bool) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
