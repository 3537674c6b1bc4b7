# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""numba-cuda over a pool: ``NUMBA_CUDA_MEMORY_MANAGER=gpumem.adapters.numba_pool``. See
:class:`gpumem.adapters.numba.PoolMemoryManager`."""

from .numba import PoolMemoryManager

_numba_memory_manager = PoolMemoryManager
