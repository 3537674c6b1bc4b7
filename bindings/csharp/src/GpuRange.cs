// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An operand of a copy or fill.

using System;

namespace GpuMem
{
  /// <summary>
  /// A range of bytes to copy or fill: memory of gpumem, which a copy keeps alive until it is complete, or a pointer,
  /// which the caller must keep valid.
  /// </summary>
  public struct GpuRange
  {
    readonly AllocationHandle memory;
    readonly ulong offset;

    internal GpuRange(AllocationHandle memory, ulong offset, IntPtr pointer, ulong size)
    {
      this.memory = memory;
      this.offset = offset;
      Pointer = pointer;
      Size = size;
    }

    /// <summary>A range by its address. It must stay valid until the work on it is complete.</summary>
    public GpuRange(IntPtr pointer, ulong size) : this(null, 0, pointer, size) { }

    /// <summary>First byte.</summary>
    public IntPtr Pointer { get; }

    /// <summary>Number of bytes.</summary>
    public ulong Size { get; }

    internal AllocationHandle Memory { get { return memory; } }

    /// <summary>First byte, counted from the start of the memory.</summary>
    internal ulong Offset { get { return offset; } }

    /// <summary>A part of the range.</summary>
    public GpuRange Slice(ulong offset, ulong size)
    {
      if (offset > Size) throw new ArgumentOutOfRangeException(nameof(offset));
      if (size > Size - offset) throw new ArgumentOutOfRangeException(nameof(size));
      return new GpuRange(memory, this.offset + offset, (IntPtr)(long)((ulong)(long)Pointer + offset), size);
    }

    /// <summary>A whole memory.</summary>
    public static implicit operator GpuRange(GpuMemory memory)
    {
      if (memory == null) throw new ArgumentNullException(nameof(memory));
      return memory.Range;
    }
  }
}
