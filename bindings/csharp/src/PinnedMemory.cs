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
  /// Page-locked host memory as elements of a type. With .NET 8 it offers <c>Span</c> and <c>Memory</c>. A span does
  /// not keep the memory alive: do not use one after <c>Dispose</c>, and keep this object until its last use, by <c>using</c>
  /// or <see cref="System.GC.KeepAlive"/>. Pins, views and copies in a stream keep the memory alive. Write-combined memory is
  /// very slow to read, so only write to it.
  /// </summary>
#if NETCOREAPP3_0_OR_GREATER
  public sealed unsafe partial class PinnedMemory<T> : MemoryManager<T>, IHostMemory, IDisposable
#else
  public sealed partial class PinnedMemory<T> : IHostMemory, IDisposable
#endif
#if GPUMEM_MCS
      where T : struct
#else
      where T : unmanaged
#endif
  {
    readonly GpuMemory allocation;
    readonly HostElements<T> elements;
#if NETCOREAPP3_0_OR_GREATER
    int pins;
#endif

    internal PinnedMemory(GpuMemory allocation, long length)
    {
      this.allocation = allocation;
      elements = new HostElements<T>(this, allocation.Info.HostPointer, length);
    }

    /// <summary>Address for the CPU.</summary>
    public IntPtr HostPointer { get { return Allocation.HostPointer; } }

    /// <summary>Address for devices.</summary>
    public IntPtr DevicePointer { get { return Allocation.DevicePointer; } }

    /// <summary>Opens the bytes as a stream. The memory is not freed before the view is disposed.</summary>
    public Stream OpenView(FileAccess access = FileAccess.ReadWrite) { return Allocation.OpenView(access); }

#if NETCOREAPP3_0_OR_GREATER
    /// <summary>Keeps the memory alive until <see cref="Unpin"/>.</summary>
    public override MemoryHandle Pin(int elementIndex = 0)
    {
      long all = Length;
      if ((ulong)elementIndex > (ulong)all) throw Elements<T>.Outside(all, nameof(elementIndex), elementIndex);
      allocation.Handle.BeginView();
      Interlocked.Increment(ref pins);
      return new MemoryHandle((byte*)elements.Pointer + (long)elementIndex * Elements<T>.Size, default(GCHandle), this);
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
      allocation.Handle.EndView();
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

    void IHostMemory.Enter() { allocation.Handle.Enter(nameof(PinnedMemory<T>)); }

    void IHostMemory.Leave() { allocation.Handle.Leave(); }

    void IHostMemory.RequireUsable() { RequireUsable(); }

    void RequireUsable()
    {
      allocation.Handle.Usable(nameof(PinnedMemory<T>));
      allocation.Handle.Instance.RequireOpen();
    }
  }
}
