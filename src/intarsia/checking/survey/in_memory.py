"""Matrices in memory surveyed by the kernel, or in NumPy where there is none: the same numbers come of both."""

from __future__ import annotations

import ctypes

import numpy as np

from intarsia.checking.survey.matrix_facts import Sums
from intarsia.kernel.library import has_kernel
from intarsia.kernel.surveying import (
    CRC,
    PAGES,
    Asked,
    Matrix,
    Surveyed,
    SurveyedMatrix,
    survey_memory,
)
from intarsia.run.sums.checksum import remainder
from intarsia.run.sums.hashing import sum_run


def survey_in_memory(asked: Asked) -> Surveyed:
    """What matrices show that begin at addresses."""
    return survey_memory(asked) if has_kernel() else survey_in_numpy(asked)


def survey_in_numpy(asked: Asked) -> Surveyed:
    """What the kernel shows, but for hashes: all sums count as odd, so that somebody looks at them."""
    sums = np.empty(asked.sums, np.uint64)
    return Surveyed([_look(matrix, sums[matrix.sums_at :]) for matrix in asked.matrices], sums)


def _look(matrix: Matrix, sums: Sums) -> SurveyedMatrix:
    """What a matrix shows; its sums, those of rows first, are put where `sums` begin."""
    rows, columns, count = matrix.rows, matrix.columns, matrix.nbytes
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(matrix.at))
    bits = raw.view(f"<u{matrix.itemsize}").reshape(rows, columns)
    sign = bits.dtype.type(matrix.sign_bit)
    signed_zero = bits == sign
    if signed_zero.any():
        bits = np.where(signed_zero, bits.dtype.type(0), bits)
    magnitude = bits & ~sign
    # Few small numbers are summed twice as fast in a narrow type.
    narrow = matrix.itemsize <= 2 and max(rows, columns) <= 1 << 16
    for axis, to in ((1, sums[:rows]), (0, sums[rows : rows + columns])):
        to[:] = bits.sum(axis=axis, dtype=np.uint32 if narrow else np.uint64)
    crc = remainder(raw) if matrix.wanted & (CRC | PAGES) else 0
    pages = sum_run(raw, matrix.start, matrix.start + count).pages if matrix.wanted & PAGES else 0
    return SurveyedMatrix(
        most=int(magnitude.max(initial=0)),
        least=int(magnitude.min()),
        used=int(np.bitwise_or.reduce(bits, axis=None)),
        signed_zero=int(signed_zero.any()),
        total=int(sums[:rows].sum()),
        odd=1,
        hash_low=0,
        hash_high=0,
        pages=pages,
        crc=crc,
    )
