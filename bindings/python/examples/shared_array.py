# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Workers that write the rows of an array in place."""

import multiprocessing

import gpumem
import numpy
from numpy.typing import NDArray


def fill(row: NDArray[numpy.float32]) -> None:
    row[:] = 7  # in another process, in the same memory


if __name__ == "__main__":
    rows = gpumem.shared_array((4, 1000), "float32")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(fill, rows)
    print(f"shared array: the sum is {rows.sum():.0f}")
