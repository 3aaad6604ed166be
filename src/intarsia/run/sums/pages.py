"""Words of tensors added up in pages, and the key that each page has."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from intarsia.planning.coalesce import Ints
from intarsia.run.sums.mixing import odd_numbers

Words = NDArray[np.uint64]

PAGE = 512
"""Words that are added up before their sum meets a key."""

PAGE_BYTES = 8 * PAGE

FIRST_PAGES = 1 << 14
"""The pages of the first 64 MiB of a tensor, whose keys are kept."""


def sum_rows(words: Words, widths: Ints, first: Ints) -> Words:
    """Σ key · words of each row, which are `widths` words that follow each other.

    `first` says which word of its tensor the first one of a row is.
    """
    if not len(first):
        return np.empty(0, np.uint64)
    page = first // PAGE
    met = (first + widths - 1) // PAGE - page + 1  # pages that each row lies in
    before = np.cumsum(met) - met
    row = np.repeat(np.arange(len(met)), met)
    pages = page[row] + np.arange(len(row)) - before[row]
    begins = (np.cumsum(widths) - widths)[row] + np.maximum(pages * PAGE - first[row], 0)
    found: Words = np.add.reduceat(np.add.reduceat(words, begins) * keys_of_pages(pages), before)
    return found


def keys_of_pages(pages: Ints) -> Words:
    """The keys of pages, in any order."""
    if len(pages) and int(pages.max()) < FIRST_PAGES:
        return _first_keys()[pages]
    return odd_numbers(pages)


@cache
def _first_keys() -> Words:
    return odd_numbers(np.arange(FIRST_PAGES))
