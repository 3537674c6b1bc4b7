// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One allocation or registration of any kind.

using System;
using System.IO;
using System.Runtime.InteropServices;
using System.Threading;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// An allocation or registration. <see cref="Dispose"/> frees it as soon as no view of it lives and no work that this
  /// binding enqueued can still use it. It never fails and does not wait for that work, but the driver may synchronise
  /// with its device when it frees memory.
  /// </summary>
  public sealed unsafe partial class GpuMemory : IDisposable
  {
    readonly MemoryInfo info;

    GpuMemory(GpuDevice device, AllocationHandle handle, MemoryInfo info) : this(device, handle)
    {
      this.info = info;
      handle.Info = info;
      handle.Own();
    }

    /// <summary>Information about the memory. It never changes.</summary>
    public MemoryInfo Info { get { return handle.IfUsable(info); } }

    /// <summary>Kind of memory.</summary>
    public MemoryKind Kind { get { return Info.Kind; } }

    /// <summary>Number of bytes.</summary>
    public long Size { get { return Info.Size; } }

    /// <summary>Properties of the memory; they contain the required ones.</summary>
    public MemoryFlags GrantedFlags { get { return Info.GrantedFlags; } }

    /// <summary>Address for the CPU; zero for device memory. It is valid until the memory is disposed.</summary>
    public IntPtr HostPointer { get { return Info.HostPointer; } }

    /// <summary>Address for devices; zero if the memory has none.</summary>
    public IntPtr DevicePointer { get { return Info.DevicePointer; } }

    /// <summary>The whole memory, as an operand of a copy or fill.</summary>
    public GpuRange Range
    {
      get
      {
        MemoryInfo info = Info;
        return new GpuRange(handle, 0, info.HostPointer != IntPtr.Zero ? info.HostPointer : info.DevicePointer, info.Size);
      }
    }

    /// <summary>
    /// Opens the bytes as a stream, if the CPU can access the memory. The memory is not freed before the view is
    /// disposed. A view of managed memory is an access of the CPU, as <see cref="HostAccess{T}"/> is.
    /// </summary>
    public Stream OpenView(FileAccess access = FileAccess.ReadWrite)
    {
      if (Info.Size == 0) return new MemoryStream(new byte[0], access != FileAccess.Read);
      if (info.HostPointer == IntPtr.Zero)
      {
        throw new InvalidOperationException("the CPU cannot access this memory; copy it to host memory first");
      }
      IDisposable use = info.Kind == MemoryKind.Managed ? HostAccessHandle.Begin(device.Instance.Handle, Range)
                                                        : (IDisposable)new ViewUse(handle);
      return new MemoryView(use, info.HostPointer, info.Size, access);
    }

    /// <summary>Queries the information again. It works after the device was lost.</summary>
    public MemoryInfo QueryInfo() { return Info.Size == 0 ? info : Calls.gpumem_memory_get_info(handle); }

    /// <summary>Frees the memory once nothing uses it. It may be called repeatedly, and from any thread.</summary>
    public void Dispose() { handle.DisposeAndSweep(); }

    /// <summary>Memory of no bytes. The library does not know it.</summary>
    internal static GpuMemory Empty(GpuDevice device, MemoryKind kind, MemoryFlags flags, string name)
    {
      GC.KeepAlive(device.Value);  // refused after the instance was closed
      var handle = new AllocationHandle(device.Instance.Handle);
      handle.ReleaseParent();
      return new GpuMemory(device, handle, new MemoryInfo(kind, device.Ordinal, flags, name));
    }

    internal static GpuMemory Create(GpuDevice device, MemoryKind kind, long size, MemoryOptions options)
    {
      gpumem_memory_desc desc = options.Describe();
      desc.kind = (int)kind;
      desc.size = Sizes.ToNative(size, nameof(size));
      return Make(device, default(GCHandle), handle => Calls.gpumem_memory_create(device, desc, options.Name, handle));
    }

    /// <summary>Registers memory. It owns <paramref name="array"/>, even if it fails.</summary>
    internal static GpuMemory Register(
        GpuDevice device, IntPtr pointer, long size, RegisterOptions options, GCHandle array = default(GCHandle))
    {
      gpumem_register_desc desc = options.Describe();
      desc.pointer = pointer;
      desc.size = Sizes.ToNative(size, nameof(size));
      return Make(device, array, handle => Calls.gpumem_memory_register(device, desc, options.Name, handle));
    }

    static GpuMemory Make(GpuDevice device, GCHandle array, Action<AllocationHandle> make)
    {
      AllocationHandle handle = null;
      bool done = false;
      try
      {
        Leftovers.Sweep();
        handle = new AllocationHandle(device.Instance.Handle);
        Forgotten.Retry(() => make(handle));
        handle.Keep(array);
        done = true;
      }
      finally
      {
        if (!done)
        {
          if (handle != null) handle.Abandon();
          if (array.IsAllocated) array.Free();
        }
      }
      try
      {
        MemoryInfo info = Calls.gpumem_memory_get_info(handle);
        // The collector accounts for registered arrays itself. When a device is full, an allocation collects.
        if (info.Kind != MemoryKind.Registered && info.Kind != MemoryKind.Device) handle.Weigh(info.GrantedSize);
        return new GpuMemory(device, handle, info);
      }
      catch
      {
        handle.Dispose();
        throw;
      }
    }
  }

  /// <summary>
  /// A stream over memory, which it keeps alive. One that is disposed during an access by another thread ends after that.
  /// </summary>
  sealed unsafe class MemoryView : UnmanagedMemoryStream
  {
    readonly IDisposable use;
    readonly long size;
    // Accesses that run, and one for the stream until it is disposed.
    int users = 1;
    int disposed;

    internal MemoryView(IDisposable use, IntPtr pointer, long size, FileAccess access)
        : base((byte*)pointer, size, size, access)
    {
      this.use = use;
      this.size = size;
    }

    public override string ToString()
    {
      bool ended = Volatile.Read(ref disposed) != 0;
      return new Printed(nameof(MemoryView)).Add(nameof(Length), size).AddIf(nameof(GpuMemory.IsDisposed), ended).ToString();
    }

    // Whatever else reads or writes calls one of these.
    public override int Read(byte[] buffer, int offset, int count)
    {
      using (Enter()) return base.Read(buffer, offset, count);
    }

    public override int ReadByte()
    {
      using (Enter()) return base.ReadByte();
    }

    public override void Write(byte[] buffer, int offset, int count)
    {
      using (Enter()) base.Write(buffer, offset, count);
    }

    public override void WriteByte(byte value)
    {
      using (Enter()) base.WriteByte(value);
    }

    // It writes zeros when it grows again.
    public override void SetLength(long value)
    {
      using (Enter()) base.SetLength(value);
    }

    protected override void Dispose(bool disposing)
    {
      // A forgotten stream has no access that runs, and what keeps the memory has a finalizer.
      if (disposing && Interlocked.Exchange(ref disposed, 1) == 0) Leave();
    }

    // Ends what Enter() begins.
    struct Access : IDisposable
    {
      internal MemoryView View;

      public void Dispose() { View.Leave(); }
    }

    Access Enter()
    {
      int seen;
      do
      {
        seen = Volatile.Read(ref users);
        if (seen == 0 || Volatile.Read(ref disposed) != 0) throw new ObjectDisposedException(nameof(Stream));
      }
      while (Interlocked.CompareExchange(ref users, seen + 1, seen) != seen);
      return new Access { View = this };
    }

    void Leave()
    {
      if (Interlocked.Decrement(ref users) != 0) return;
      // The stream forgets the address of the memory, so it ends before that is freed, and after the last access.
      base.Dispose(true);
      use.Dispose();
    }
  }
}
