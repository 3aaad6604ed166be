"""The page that lists the files of a conversion is true."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.walk import PAGE, ROOT


def test_the_page_lists_the_files_that_a_conversion_goes_through() -> None:
    # In a process of its own nothing is remembered from other conversions.
    code = "from tests.docs.walk import page, walked; print(page(walked()), end='')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == PAGE.read_text()
