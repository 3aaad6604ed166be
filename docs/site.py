"""Hooks of mkdocs: pages that lie outside of docs/, and links that lead there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "attacks/README.md")


def on_config(config: Any) -> Any:
    """Append how-tos and references that the navigation does not name to their sections."""
    for section in (entry for entry in config.nav if isinstance(entry, dict)):
        for pages in (held for held in section.values() if isinstance(held, list)):
            folder = DOCS / Path(pages[0]).parent
            found = sorted(path.relative_to(DOCS).as_posix() for path in folder.glob("*.md"))
            pages += [name for name in found if name not in pages]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the decisions and the pages of the root to those of docs/."""
    for path in [*sorted((ROOT / "design").glob("*.md")), *(ROOT / name for name in OUTSIDE)]:
        name = path.relative_to(ROOT).as_posix()
        named = name in OUTSIDE[:3]
        level = InclusionLevel.INCLUDED if named else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, name, content=path.read_text(), inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at pages of the site; what is not one keeps its text and loses its link."""
    name = page.file.src_uri
    source = DOCS / name if (DOCS / name).is_file() else ROOT / name

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        path = Path(os.path.normpath(source.parent / target))
        base = DOCS if path.is_relative_to(DOCS) else ROOT
        uri = path.relative_to(base).as_posix() if path.is_relative_to(base) else ""
        if not path.exists() or files.get_file_from_path(uri) is None:
            return found[0] if not path.exists() else text
        return f"[{text}]({os.path.relpath(uri, os.path.dirname(name))}{anchor or ''})"

    return re.sub(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#:\s]+)(#[^)]*)?\)", link, markdown)
