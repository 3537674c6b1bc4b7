// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Managed memory of the GPU as elements of a type, and accesses of the CPU to it.

using System;

namespace GpuMem
{
  /// <summary>
  /// Managed memory of the GPU, which CUDA also calls unified memory, as elements of a type. It has one address for the
  /// CPU and all devices, and its pages move to where they are used. The garbage collector does not manage it. The CPU
  /// touches it inside <see cref="BeginHostAccess"/>. Advice and prefetches are methods of <see cref="GpuInstance"/> and
  /// <see cref="GpuStream"/>.
  /// </summary>
  public sealed partial class UnifiedMemory<T> : IDisposable
#if GPUMEM_MCS
      where T : struct
#else
      where T : unmanaged
#endif
  {
    readonly GpuMemory allocation;
    readonly long length;

    internal UnifiedMemory(GpuMemory allocation, long length)
    {
      this.allocation = allocation;
      this.length = length;
    }

    /// <summary>Number of elements.</summary>
    public long Length
    {
      get
      {
        RequireUsable();
        return length;
      }
    }

    /// <summary>Address for the CPU and all devices. The CPU touches it only inside a host access.</summary>
    public IntPtr Pointer { get { return Allocation.DevicePointer; } }

    /// <summary>
    /// Begins an access of the CPU. Where all devices are concurrent it waits for nothing; order the access as any other.
    /// Elsewhere it waits for the stream that the memory is attached to, or, for memory that is attached globally, for
    /// the streams of the instance on devices that are not concurrent. Until the result is disposed, those devices
    /// refuse work on the memory with <see cref="Status.Busy"/>, it is attached to the CPU, so that other work there takes
    /// nothing from the CPU, and it is not freed. Afterwards it is attached as it was.
    /// </summary>
    public HostAccess<T> BeginHostAccess()
    {
      GpuRange range = Range;
      HostAccessHandle handle = HostAccessHandle.Begin(allocation.Handle.Instance, range);
      return new HostAccess<T>(handle, range.Pointer, length);
    }

    /// <summary>Frees the memory once nothing uses it. It may be called repeatedly, and from any thread.</summary>
    public void Dispose() { allocation.Dispose(); }

    void RequireUsable() { allocation.Handle.Usable(nameof(UnifiedMemory<T>)); }
  }

  /// <summary>
  /// An access of the CPU to managed memory, from <see cref="UnifiedMemory{T}.BeginHostAccess"/> until it is disposed.
  /// All members refuse use after that; do not use a span or the pointer then.
  /// </summary>
  public sealed partial class HostAccess<T> : IHostMemory, IDisposable
#if GPUMEM_MCS
      where T : struct
#else
      where T : unmanaged
#endif
  {
    readonly HostAccessHandle handle;
    readonly HostElements<T> elements;

    internal HostAccess(HostAccessHandle handle, IntPtr first, long length)
    {
      this.handle = handle;
      elements = new HostElements<T>(this, first, length);
    }

    /// <summary>Ends the access. It may be called repeatedly, and from any thread.</summary>
    public void Dispose() { handle.Dispose(); }

    /// <summary>Whether it has ended.</summary>
    public bool IsDisposed { get { return handle.IsDisposed; } }

    /// <summary>Its elements.</summary>
    public override string ToString()
    {
      return new Printed("HostAccess<" + typeof(T).Name + ">").Add(nameof(Length), elements.Count)
          .AddIf(nameof(IsDisposed), IsDisposed).ToString();
    }

    void IHostMemory.Enter() { handle.Hold(); }

    void IHostMemory.Leave() { handle.DangerousRelease(); }

    void IHostMemory.RequireUsable() { handle.Usable(); }
  }
}
