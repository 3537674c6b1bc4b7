# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensors over memory of gpumem, and memory of tensors for gpumem; both without a copy, by DLPack."""

import torch

import gpumem

_CPU, _CUDA_HOST = (1, 0), (3, 0)


def as_tensor(memory, dtype=None, shape=None, *, offset=0):
    """A tensor over a Memory or View: on the GPU for device memory of the cuda backend, else on the CPU.

    The memory is kept, and cannot be closed, for as long as the tensor's storage lives. A tensor over pinned memory answers
    True to ``is_pinned()``.
    """
    if isinstance(memory, gpumem.Memory):
        memory = memory.view(dtype, shape, offset=offset)
    elif dtype is not None or shape is not None or offset:
        raise TypeError("a view has its type, shape and offset already")
    if memory.dlpack_device == _CUDA_HOST:
        # PyTorch does not know pinned memory by DLPack; to the CPU it is the same. It asks the driver by itself.
        return torch.from_dlpack(memory.__dlpack__(dl_device=_CPU, copy=False))
    return torch.from_dlpack(memory)


def from_tensor(tensor):
    """A view of a tensor, for copies by gpumem; the tensor's storage is kept for as long as the view lives."""
    return gpumem.from_dlpack(tensor.detach())
