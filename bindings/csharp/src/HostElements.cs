// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Access of the CPU, in place, to the elements of memory of the library.

using System;

namespace GpuMem
{
  /// <summary>Memory that the CPU may touch between the two calls.</summary>
  interface IHostMemory
  {
    /// <summary>Begins a use, during which the memory stays as it is; throws if it is gone.</summary>
    void Enter();

    /// <summary>Ends a use.</summary>
    void Leave();

    /// <summary>Throws if the memory is gone.</summary>
    void RequireUsable();
  }

  /// <summary>A use of memory by the CPU, until it is disposed.</summary>
  struct HostUse : IDisposable
  {
    readonly IHostMemory owner;

    internal HostUse(IHostMemory owner)
    {
      owner.Enter();
      this.owner = owner;
    }

    public void Dispose() { owner.Leave(); }
  }

  /// <summary>The elements of memory. Whatever touches them is a use of it.</summary>
  unsafe struct HostElements<T>
#if GPUMEM_MCS
      where T : struct
#else
      where T : unmanaged
#endif
  {
    readonly IHostMemory owner;
    readonly IntPtr first;
    readonly long length;

    internal HostElements(IHostMemory owner, IntPtr first, long length)
    {
      this.owner = owner;
      this.first = first;
      this.length = length;
    }

    /// <summary>Number of elements, also if the memory is gone.</summary>
    internal long Count { get { return length; } }

    internal long Length
    {
      get
      {
        owner.RequireUsable();
        return length;
      }
    }

    internal IntPtr Pointer
    {
      get
      {
        owner.RequireUsable();
        return first;
      }
    }

    internal T Get(long index)
    {
      using (new HostUse(owner))
      {
        if ((ulong)index >= (ulong)length) throw Elements<T>.Outside(length, nameof(index), index);
        return Elements<T>.Get(first, index);
      }
    }

    internal void Set(long index, T value)
    {
      using (new HostUse(owner))
      {
        if ((ulong)index >= (ulong)length) throw Elements<T>.Outside(length, nameof(index), index);
        Elements<T>.Set(first, index, value);
      }
    }

    internal void CopyFrom(T[] source, int sourceStart, long start, int count)
    {
      using (new HostUse(owner))
      {
        Elements<T>.RequireInside(source, sourceStart, count, nameof(source));
        Elements<T>.RequireInside(length, start, count, nameof(count));
        Elements<T>.Write(first, start, source, sourceStart, count);
      }
    }

    internal void CopyTo(long start, T[] destination, int destinationStart, int count)
    {
      using (new HostUse(owner))
      {
        Elements<T>.RequireInside(destination, destinationStart, count, nameof(destination));
        Elements<T>.RequireInside(length, start, count, nameof(count));
        Elements<T>.Read(first, start, destination, destinationStart, count);
      }
    }

    internal void CopyFrom(T[] source) { CopyFrom(source, 0, 0, source == null ? 0 : source.Length); }

    internal void CopyTo(T[] destination) { CopyTo(0, destination, 0, destination == null ? 0 : destination.Length); }

    internal T[] ToArray()
    {
      var array = new T[checked((int)Length)];
      CopyTo(array);
      return array;
    }

#if NETCOREAPP3_0_OR_GREATER
    internal Span<T> GetSpan() { return GetSpan(0, checked((int)Length)); }

    internal Span<T> GetSpan(long start, int length)
    {
      Elements<T>.RequireInside(Length, start, length, nameof(length));
      return new Span<T>((byte*)first + start * Elements<T>.Size, length);
    }
#endif
  }
}
