"""`intarsia inspect`: what a checkpoint is, from its headers alone."""

from __future__ import annotations

from typing import Annotated

from intarsia.cli import options
from intarsia.cli.output import OUTPUT, answer, print_table, say


def run(
    path: options.Path,
    tensors: Annotated[bool, options.Option("--tensors", "List every tensor.")] = False,
    config: options.Config = None,
    section: options.Section = None,
    html: options.Html = None,
) -> None:
    """Report what a checkpoint is and whether it is complete.

    Only headers are read.
    """
    from intarsia.opened.inspection import inspect

    if html is not None:
        from intarsia.report.write import check_page

        check_page(html)
    found = inspect(path, config, section)
    if html is not None and OUTPUT.prints:
        from intarsia.report.content import of_inspection
        from intarsia.report.write import write_page

        write_page(html, of_inspection(found.manifest))

    def text() -> None:
        say(found)
        if tensors:
            rows = [
                (x.name, x.dtype, "x".join(map(str, x.shape)) or "scalar", x.chunks, x.bytes)
                for x in found.tensor_list
            ]
            print_table("", ("tensor", "dtype", "shape", "chunks", "bytes"), rows)

    answer(found.as_json(tensors=tensors), text, is_all=True)
