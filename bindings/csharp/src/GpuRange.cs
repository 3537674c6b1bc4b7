// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An operand of a copy or fill.

using System;

namespace GpuMem
{
  /// <summary>
  /// A range of bytes to copy or fill: memory of gpumem, which a copy keeps alive until it is complete, or a pointer, which
  /// is the caller's to keep.
  /// </summary>
  public struct GpuRange
  {
    readonly AllocationHandle memory;

    internal GpuRange(AllocationHandle memory, IntPtr pointer, ulong size)
    {
      this.memory = memory;
      Pointer = pointer;
      Size = size;
    }

    /// <summary>A range by its address. It must stay valid until the work on it is complete.</summary>
    public GpuRange(IntPtr pointer, ulong size) : this(null, pointer, size) { }

    /// <summary>First byte.</summary>
    public IntPtr Pointer { get; }

    /// <summary>Number of bytes.</summary>
    public ulong Size { get; }

    internal AllocationHandle Memory { get { return memory; } }

    /// <summary>A part of the range.</summary>
    public GpuRange Slice(ulong offset, ulong size)
    {
      if (offset > Size) throw new ArgumentOutOfRangeException(nameof(offset));
      if (size > Size - offset) throw new ArgumentOutOfRangeException(nameof(size));
      return new GpuRange(memory, (IntPtr)(long)((ulong)(long)Pointer + offset), size);
    }

    /// <summary>All of a memory.</summary>
    public static implicit operator GpuRange(GpuMemory memory)
    {
      if (memory == null) throw new ArgumentNullException(nameof(memory));
      return memory.Range;
    }
  }
}
