"""Which versions of the frameworks are installed: the pinned ones, or those that some user has."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

import pytest
from packaging.version import Version

from tests.checkpoints import ROOT


@cache
def pins() -> dict[str, str]:
    """The versions that the tests were written against, by package."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def newer_than_pinned(package: str) -> bool:
    """Whether a later version is installed, in which what a test shows of it may have changed."""
    return Version(Version(version(package)).public) > Version(pins()[package])


def since(package: str, least: str) -> pytest.MarkDecorator:
    """Skips a test of what an earlier version of a framework does not do."""
    held = version(package)
    return pytest.mark.skipif(
        Version(held) < Version(least), reason=f"{package} {held} is older than {least}"
    )
