# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensors over memory of gpumem, and views of tensors for gpumem, both without a copy, through DLPack."""

from __future__ import annotations

from typing import Any, Union

import torch

import gpumem

_CPU, _CUDA_HOST = (1, 0), (3, 0)


def as_tensor(memory: Union[gpumem.Memory, gpumem.View], dtype: Any = None, shape: Any = None, *,
              offset: int = 0) -> torch.Tensor:
    """A tensor over a Memory or View: on the GPU for device memory of the cuda backend, otherwise on the CPU.

    The memory is kept alive, and cannot be closed, while the tensor's storage is alive. ``is_pinned()`` of a tensor over
    pinned memory is True.
    """
    if isinstance(memory, gpumem.Memory):
        memory = memory.view(dtype, shape, offset=offset)
    elif dtype is not None or shape is not None or offset:
        raise TypeError("a view has its type, shape and offset already")
    if memory.dlpack_device == _CUDA_HOST:
        # PyTorch cannot import pinned memory as such. It imports it as CPU memory and asks the driver for the rest.
        return torch.from_dlpack(memory.__dlpack__(dl_device=_CPU, copy=False))
    return torch.from_dlpack(memory)


def from_tensor(tensor: torch.Tensor) -> gpumem.View:
    """A view of a tensor, for copies by gpumem. It keeps the tensor's storage alive."""
    return gpumem.from_dlpack(tensor.detach())
