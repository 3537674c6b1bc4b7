// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An operand of a copy or fill.

using System;

namespace GpuMem
{
  /// <summary>
  /// A range of bytes to copy or fill: memory, mapped addresses or a part of a buffer of gpumem, which a copy keeps alive
  /// until it is complete, or a pointer, which the caller must keep valid.
  /// </summary>
  public struct GpuRange
  {
    readonly GpuHandle owner;
    readonly long offset;

    internal GpuRange(GpuHandle owner, long offset, IntPtr pointer, long size)
    {
      this.owner = owner;
      this.offset = offset;
      Pointer = pointer;
      Size = size;
    }

    /// <summary>A range by its address. It must stay valid until the work on it is complete.</summary>
    /// <exception cref="ArgumentOutOfRangeException">The size is negative.</exception>
    public GpuRange(IntPtr pointer, long size) : this(null, 0, pointer, (long)Sizes.ToNative(size, nameof(size))) { }

    /// <summary>First byte.</summary>
    public IntPtr Pointer { get; }

    /// <summary>Number of bytes.</summary>
    public long Size { get; }

    /// <summary>What must live as long as the range is used; null for a pointer.</summary>
    internal GpuHandle Owner { get { return owner; } }

    /// <summary>Takes a reference to the owner, so that the range can be used.</summary>
    internal GpuHandle HoldOwner()
    {
      owner.Hold();
      try
      {
        owner.RequireCurrent(this);
      }
      catch
      {
        owner.DangerousRelease();
        throw;
      }
      return owner;
    }

    /// <summary>The same, if it is a memory.</summary>
    internal AllocationHandle Memory { get { return owner as AllocationHandle; } }

    /// <summary>Whether it is a part of memory of no bytes, which the library does not know.</summary>
    internal bool IsOfNothing { get { return owner != null && owner.IsInvalid && !owner.IsDisposed; } }

    /// <summary>First byte, counted from the start of the memory.</summary>
    internal long Offset { get { return offset; } }

    /// <summary>A part of the range.</summary>
    /// <exception cref="ArgumentOutOfRangeException">The part leaves the range.</exception>
    public GpuRange Slice(long offset, long size)
    {
      if (offset < 0 || offset > Size)
      {
        throw new ArgumentOutOfRangeException(nameof(offset), offset, "the range has " + Size + " bytes");
      }
      if (size < 0 || size > Size - offset)
      {
        throw new ArgumentOutOfRangeException(
            nameof(size), size, "from offset " + offset + " the range has " + (Size - offset) + " bytes");
      }
      return new GpuRange(owner, this.offset + offset, (IntPtr)unchecked((long)Pointer + offset), size);
    }

    /// <summary>Its address and size.</summary>
    public override string ToString()
    {
      return new Printed(nameof(GpuRange)).Add(nameof(Pointer), Pointer).Add(nameof(Size), Size).ToString();
    }

    /// <summary>A whole memory.</summary>
    public static implicit operator GpuRange(GpuMemory memory)
    {
      if (memory == null) throw new ArgumentNullException(nameof(memory));
      return memory.Range;
    }

    /// <summary>Imported memory, from the byte that was exported.</summary>
    public static implicit operator GpuRange(ImportedMemory memory)
    {
      if (memory == null) throw new ArgumentNullException(nameof(memory));
      return memory.Range;
    }
  }
}
