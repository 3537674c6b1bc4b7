# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gpumem as the allocator of other packages. Each module needs the package that it is named after:

- :mod:`gpumem.adapters.numba`: an External Memory Manager for numba-cuda; :mod:`gpumem.adapters.numba_pool`: over a pool
- :mod:`gpumem.adapters.cupy`: allocators for CuPy's device and pinned memory
- :mod:`gpumem.adapters.cuda_core`: a memory resource for cuda.core
- :mod:`gpumem.adapters.torch`: gpumem as the allocator of PyTorch, and tensors over memory of gpumem, through DLPack
- :mod:`gpumem.adapters.vllm`: a sleep mode of vLLM
"""
