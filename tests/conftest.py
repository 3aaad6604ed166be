"""What all tests share: how property tests choose their examples, and a disk that is soon full.

`make test` takes the same examples every time, `make test-all` new ones.
"""

import gc
import os
import subprocess
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from intarsia.collector import paused
from intarsia.store import registry

settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("new", deadline=None, print_blob=True)
settings.load_profile("same")
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the ranks of these tests have no GPU each


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hold the collector back while all that stays is imported: a quarter of the time."""
    with paused():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most cases of a test that says `one_in` to the slow ones, and give those an hour each."""
    cases = Counter[str]()
    for item in items:
        one_in = item.get_closest_marker("one_in")
        if one_in and not item.get_closest_marker("slow"):
            test = item.nodeid.partition("[")[0]
            if cases[test] % one_in.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


def pytest_collection_finish() -> None:
    """Keep the collector from walking, again and again, what importing torch has made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True)
def registered_stores() -> Iterator[None]:
    """The stores that a test registers are gone after it."""
    before = dict(registry._REGISTERED)
    yield
    registry._REGISTERED.clear()
    registry._REGISTERED.update(before)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of four megabytes."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "intarsia-test", str(where)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)
