// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Operands of copies and fills: bytes, or elements of a type.

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
      FillSize = 1;
      Element = null;
    }

    /// <summary>A range by its address. It must stay valid until the work on it is complete.</summary>
    /// <exception cref="ArgumentOutOfRangeException">The size is negative.</exception>
    public GpuRange(IntPtr pointer, long size) : this(null, 0, pointer, (long)Sizes.ToNative(size, nameof(size))) { }

    /// <summary>First byte.</summary>
    public IntPtr Pointer { get; }

    /// <summary>Number of bytes.</summary>
    public long Size { get; }

    /// <summary>Bytes of a value that fills it, if the call does not say; 0 in a default range, which is of nothing.</summary>
    internal int FillSize { get; private set; }

    /// <summary>Type of its elements; null for bytes.</summary>
    internal Type Element { get; private set; }

    /// <summary>The same range as elements of a type.</summary>
    internal GpuRange Of(Type element, int size)
    {
      GpuRange range = this;
      range.Element = element;
      range.FillSize = size;
      return range;
    }

    /// <summary>What must live as long as the range is used; null for a pointer.</summary>
    internal GpuHandle Owner { get { return owner; } }

    /// <summary>Takes a reference to the owner, so that the range can be used; <c>EndWork</c> releases it.</summary>
    internal GpuHandle HoldOwner()
    {
      owner.BeginWork();
      try
      {
        owner.RequireCurrent(this);
      }
      catch
      {
        owner.EndWork();
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

    /// <summary>A part of the range, in bytes.</summary>
    /// <exception cref="ArgumentOutOfRangeException">The part leaves the range.</exception>
    public GpuRange Slice(long offset, long size) { return Slice(offset, size, nameof(size)); }

    /// <summary>The same for a size that follows from a parameter of the caller.</summary>
    internal GpuRange Slice(long offset, long size, string name)
    {
      if (offset < 0 || offset > Size)
      {
        throw new ArgumentOutOfRangeException(nameof(offset), offset, "the range has " + Size + " bytes");
      }
      if (size < 0 || size > Size - offset)
      {
        throw new ArgumentOutOfRangeException(
            name, size, "from offset " + offset + " the range has " + (Size - offset) + " bytes");
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

  /// <summary>Elements of typed memory to copy or fill: a <see cref="GpuRange"/> that counts in elements.</summary>
  public struct GpuRange<T>
#if GPUMEM_MCS
      where T : struct
#else
      where T : unmanaged
#endif
  {
    readonly GpuRange bytes;

    internal GpuRange(GpuRange bytes) { this.bytes = bytes.Of(typeof(T), Elements<T>.Size); }

    /// <summary>First byte.</summary>
    public IntPtr Pointer { get { return bytes.Pointer; } }

    /// <summary>Number of elements.</summary>
    public long Length { get { return bytes.Size / Elements<T>.Size; } }

    /// <summary>Number of bytes.</summary>
    public long Size { get { return bytes.Size; } }

    /// <summary>Some of the elements.</summary>
    /// <exception cref="ArgumentOutOfRangeException">The part leaves the range.</exception>
    public GpuRange<T> Slice(long start, long length)
    {
      long all = Length;
      if (start < 0 || start > all)
      {
        throw new ArgumentOutOfRangeException(nameof(start), start, "the range has " + all + " elements");
      }
      if (length < 0 || length > all - start)
      {
        throw new ArgumentOutOfRangeException(
            nameof(length), length, "from element " + start + " the range has " + (all - start) + " elements");
      }
      return new GpuRange<T>(bytes.Slice(start * Elements<T>.Size, length * Elements<T>.Size));
    }

    /// <summary>The same bytes.</summary>
    public static implicit operator GpuRange(GpuRange<T> range) { return range.bytes; }

    /// <summary>The elements without gaps between rows and slices, as an operand of a region.</summary>
    public static implicit operator CopyOperand(GpuRange<T> range) { return new CopyOperand(range); }

    /// <summary>Its address and elements.</summary>
    public override string ToString()
    {
      return new Printed("GpuRange<" + typeof(T).Name + ">").Add(nameof(Pointer), Pointer).Add(nameof(Length), Length)
          .Add(nameof(Size), Size).ToString();
    }
  }
}
