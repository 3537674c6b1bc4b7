// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Page-locked host memory as elements of a type.

using System;
using System.IO;
#if NETCOREAPP3_0_OR_GREATER
using System.Buffers;
using System.Runtime.InteropServices;
using System.Threading;
#endif

namespace GpuMem
{
  /// <summary>
  /// Page-locked host memory as elements of a type. With .NET 8 it offers <c>Span</c> and <c>Memory</c>. Do not use a
  /// span after <c>Dispose</c>; pins, views and copies in a stream keep the memory alive. Write-combined memory is very
  /// slow to read, so only write to it.
  /// </summary>
#if NETCOREAPP3_0_OR_GREATER
  public sealed unsafe class PinnedMemory<T> : MemoryManager<T>, IDisposable
#else
  public sealed unsafe class PinnedMemory<T> : IDisposable
#endif
#if GPUMEM_MCS
      where T : struct
#else
      where T : unmanaged
#endif
  {
    readonly IntPtr first;
    readonly GpuMemory allocation;
    readonly long length;
#if NETCOREAPP3_0_OR_GREATER
    int pins;
#endif

    internal PinnedMemory(GpuMemory allocation, long length)
    {
      this.allocation = allocation;
      this.length = length;
      first = allocation.Info.HostPointer;
    }

    /// <summary>The memory without its element type.</summary>
    public GpuMemory Allocation
    {
      get
      {
        Usable();
        return allocation;
      }
    }

    /// <summary>Number of elements.</summary>
    public long Length
    {
      get
      {
        Usable();
        return length;
      }
    }

    /// <summary>Number of bytes.</summary>
    public long Size { get { return Allocation.Size; } }

    /// <summary>Address for the CPU.</summary>
    public IntPtr HostPointer { get { return Allocation.HostPointer; } }

    /// <summary>Address for devices.</summary>
    public IntPtr DevicePointer { get { return Allocation.DevicePointer; } }

    /// <summary>The whole memory, as an operand of a copy or fill.</summary>
    public GpuRange Range { get { return Allocation.Range; } }

    /// <summary>The whole memory, as an operand of a copy or fill.</summary>
    public static implicit operator GpuRange(PinnedMemory<T> memory)
    {
      if (memory == null) throw new ArgumentNullException(nameof(memory));
      return new GpuRange<T>(memory.Range);
    }

    /// <summary>The whole memory without gaps between rows and slices, as an operand of a region.</summary>
    public static implicit operator CopyOperand(PinnedMemory<T> memory) { return new CopyOperand(memory); }

    /// <summary>Some elements, as an operand of a copy or fill.</summary>
    public GpuRange<T> Slice(long start, long length)
    {
      RequireInside(start, length);
      return new GpuRange<T>(allocation.Slice(start * Elements<T>.Size, length * Elements<T>.Size));
    }

    /// <summary>
    /// One element. Each access checks the bounds and keeps the memory alive; in a hot loop use a span or
    /// <see cref="HostPointer"/>.
    /// </summary>
    public T this[long index]
    {
      get
      {
        if ((ulong)index >= (ulong)length) throw Outside(nameof(index), index);
        Hold();
        T value = Elements<T>.Get(first, index);
        allocation.Handle.DangerousRelease();
        return value;
      }
      set
      {
        if ((ulong)index >= (ulong)length) throw Outside(nameof(index), index);
        Hold();
        Elements<T>.Set(first, index, value);
        allocation.Handle.DangerousRelease();
      }
    }

    /// <summary>Copies elements from an array with the CPU.</summary>
    public void CopyFrom(T[] source, int sourceStart, long start, int count)
    {
      Usable();
      Elements<T>.RequireInside(source, sourceStart, count, nameof(source));
      RequireInside(start, count);
      using (new ViewUse(allocation.Handle)) Elements<T>.Write(first, start, source, sourceStart, count);
    }

    /// <summary>Copies an array to the start of the memory with the CPU.</summary>
    public void CopyFrom(T[] source)
    {
      Usable();
      if (source == null) throw new ArgumentNullException(nameof(source));
      CopyFrom(source, 0, 0, source.Length);
    }

    /// <summary>Copies elements to an array with the CPU.</summary>
    public void CopyTo(long start, T[] destination, int destinationStart, int count)
    {
      Usable();
      Elements<T>.RequireInside(destination, destinationStart, count, nameof(destination));
      RequireInside(start, count);
      using (new ViewUse(allocation.Handle)) Elements<T>.Read(first, start, destination, destinationStart, count);
    }

    /// <summary>Copies from the start of the memory to an array with the CPU.</summary>
    public void CopyTo(T[] destination)
    {
      Usable();
      if (destination == null) throw new ArgumentNullException(nameof(destination));
      CopyTo(0, destination, 0, destination.Length);
    }

    /// <summary>Copies all elements to a new array with the CPU.</summary>
    public T[] ToArray()
    {
      var array = new T[checked((int)Length)];
      CopyTo(array);
      return array;
    }

    /// <summary>Opens the bytes as a stream. The memory is not freed before the view is disposed.</summary>
    public Stream OpenView(FileAccess access = FileAccess.ReadWrite) { return Allocation.OpenView(access); }

#if NETCOREAPP3_0_OR_GREATER
    /// <summary>Gets all elements. If a span cannot hold them, use <see cref="GetSpan(long, int)"/>.</summary>
    /// <exception cref="OverflowException">There are more elements than a span can hold.</exception>
    public override Span<T> GetSpan() { return GetSpan(0, checked((int)Length)); }

    /// <summary>Gets some elements.</summary>
    public Span<T> GetSpan(long start, int length)
    {
      RequireInside(start, length);
      return new Span<T>((byte*)first + start * Elements<T>.Size, length);
    }

    /// <summary>Keeps the memory alive until <see cref="Unpin"/>.</summary>
    public override MemoryHandle Pin(int elementIndex = 0)
    {
      if ((ulong)elementIndex > (ulong)length) throw Outside(nameof(elementIndex), elementIndex);
      Hold();
      allocation.Handle.Instance.CountView(1);
      Interlocked.Increment(ref pins);
      return new MemoryHandle((byte*)first + (long)elementIndex * Elements<T>.Size, default(GCHandle), this);
    }

    /// <summary>Undoes one <see cref="Pin"/>; does nothing if there is none.</summary>
    public override void Unpin()
    {
      int before;
      do
      {
        before = Volatile.Read(ref pins);
        if (before == 0) return;
      }
      while (Interlocked.CompareExchange(ref pins, before - 1, before) != before);
      allocation.Handle.Instance.CountView(-1);
      allocation.Handle.DangerousRelease();
    }

    /// <summary>Frees the memory once nothing uses it. It may be called repeatedly, and from any thread.</summary>
    protected override void Dispose(bool disposing)
    {
      // The handle has the finalizer.
      if (disposing) allocation.Dispose();
    }

    /// <summary>Frees the memory once nothing uses it. It may be called repeatedly, and from any thread.</summary>
    public void Dispose() { Dispose(true); }
#else
    /// <summary>Frees the memory once nothing uses it. It may be called repeatedly, and from any thread.</summary>
    public void Dispose() { allocation.Dispose(); }
#endif

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get { return allocation.IsDisposed; } }

    /// <summary>Its name, elements and device.</summary>
    public override string ToString()
    {
      var text = new Printed("PinnedMemory<" + typeof(T).Name + ">").Add(nameof(Length), length);
      return allocation.Handle.Info.Print(text, false).AddIf(nameof(IsDisposed), IsDisposed).ToString();
    }

    /// <summary>Throws if the memory is gone: it was disposed, or its instance closed by force.</summary>
    void Usable()
    {
      allocation.Handle.Usable(nameof(PinnedMemory<T>));
      allocation.Handle.Instance.Usable();
    }

    void Hold()
    {
      allocation.Handle.Hold(nameof(PinnedMemory<T>));
      if (!allocation.Handle.Instance.IsDisposed) return;
      allocation.Handle.DangerousRelease();
      allocation.Handle.Instance.Usable();
    }

    Exception Outside(string name, long value)
    {
      Usable();
      return new ArgumentOutOfRangeException(name, value, "there are " + length + " elements");
    }

    void RequireInside(long start, long count)
    {
      if (start < 0 || start > Length) throw Outside(nameof(start), start);
      if (count < 0 || count > length - start) throw Outside(nameof(count), count);
    }
  }
}
