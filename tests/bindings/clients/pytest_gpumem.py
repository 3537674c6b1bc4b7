# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A pytest plug-in that runs tests of CuPy with the allocators of gpumem: `pytest -p pytest_gpumem`."""

from gpumem.adapters import cupy as adapter

adapter.install()
