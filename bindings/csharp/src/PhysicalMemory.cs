// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Physical memory without an address, and the file descriptors and fabric handles by which processes share it.

using System;
using System.Diagnostics.CodeAnalysis;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using GpuMem.Interop;
using Microsoft.Win32.SafeHandles;

namespace GpuMem
{
  /// <summary>
  /// A block of physical memory on a device or on the host, to be mapped into an <see cref="AddressRange"/>. The object
  /// is a handle: the block lives while it is mapped, or while another handle, a descriptor or another process refers to
  /// it.
  /// </summary>
  public sealed unsafe partial class PhysicalMemory : IDisposable
  {
    readonly PhysicalInfo info;

    PhysicalMemory(GpuDevice device, PhysicalHandle handle, PhysicalInfo info) : this(device, handle) { this.info = info; }

    /// <summary>Information about the memory. It never changes.</summary>
    public PhysicalInfo Info { get { return handle.IfUsable(info); } }

    /// <summary>Number of bytes.</summary>
    public long Size { get { return Info.Size; } }

    /// <summary>Number of the block behind the handle; the same for every handle and mapping of it.</summary>
    public ulong BlockId { get { return Info.BlockId; } }

    /// <summary>
    /// Makes a file descriptor, which another process can import, as
    /// <see cref="GpuDevice.ImportPhysical(SafeHandle, long, PhysicalOptions)"/> does. The memory must have been created
    /// with <see cref="HandleTypes.PosixFd"/>. The descriptor keeps it alive until it is disposed, and is closed on exec.
    /// </summary>
    public FileDescriptorHandle ExportFileDescriptor()
    {
      return new FileDescriptorHandle(Calls.gpumem_physical_export_fd(handle.Usable()));
    }

    /// <summary>
    /// Makes a handle that a process on this or another node of the fabric can import, as
    /// <see cref="GpuDevice.ImportPhysical(FabricHandle, long, PhysicalOptions)"/> does. The memory must have been created
    /// with <see cref="HandleTypes.Fabric"/>. The handle does not keep it alive.
    /// </summary>
    public FabricHandle ExportFabricHandle() { return Calls.gpumem_physical_export_fabric(handle.Usable()); }

    /// <summary>
    /// Releases the handle. The memory itself lives on while it is mapped or shared. It may be called repeatedly, and
    /// from any thread.
    /// </summary>
    public void Dispose() { handle.DisposeAndSweep(); }

    internal static PhysicalMemory Create(GpuDevice device, long size, PhysicalOptions options)
    {
      PhysicalMemory made = Make(
          device, size, options, (desc, handle) => Calls.gpumem_physical_create(device, desc, options.Name, handle));
      if (made.info.Location.Kind != Location.Device) made.handle.Weigh(made.info.Size);
      return made;
    }

    internal static PhysicalMemory Import(GpuDevice device, SafeHandle descriptor, long size, PhysicalOptions options)
    {
      if (descriptor == null) throw new ArgumentNullException(nameof(descriptor));
      return Make(device, size, options, (desc, handle) =>
      {
        using (var held = new HeldDescriptors(new[] { descriptor }))
        {
          Calls.gpumem_physical_import_fd(device, desc, options.Name, held.Numbers[0], handle);
        }
      });
    }

    internal static PhysicalMemory Import(GpuDevice device, FabricHandle fabric, long size, PhysicalOptions options)
    {
      return Make(device, size, options, (desc, handle) =>
          Calls.gpumem_physical_import_fabric(device, desc, options.Name, fabric.Native, handle));
    }

    internal static PhysicalMemory Retain(GpuInstance instance, IntPtr pointer)
    {
      return Make(instance, null, handle => Calls.gpumem_physical_retain(instance.Handle, pointer, handle));
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    internal static void GetGranularity(
        GpuDevice device, PhysicalOptions options, out long minimum, out long recommended)
    {
      gpumem_physical_desc desc = Describe(device, 0, options);
      ulong least, best;
      gpumem_error* error = Error.Detail;
      device.Instance.Handle.Check(Native.gpumem_physical_get_granularity(device.Value, &desc, &least, &best, error), error);
      minimum = Sizes.FromNative(least);
      recommended = Sizes.FromNative(best);
    }

    static PhysicalMemory Make(
        GpuDevice device, long size, PhysicalOptions options, Action<gpumem_physical_desc, PhysicalHandle> make)
    {
      gpumem_physical_desc desc = Describe(device, size, options);
      return Make(device.Instance, device, handle => make(desc, handle));
    }

    static PhysicalMemory Make(GpuInstance instance, GpuDevice device, Action<PhysicalHandle> make)
    {
      return Handles.Make(new PhysicalHandle(instance.Handle), handle =>
      {
        Forgotten.Retry(() => make(handle));
        handle.Info = Calls.gpumem_physical_get_info(handle);
        return new PhysicalMemory(device ?? instance.GetDevice(handle.Info.DeviceOrdinal), handle, handle.Info);
      });
    }

    static gpumem_physical_desc Describe(GpuDevice device, long size, PhysicalOptions options)
    {
      gpumem_physical_desc desc = options.Describe();
      desc.location = (int)options.Location.Kind;
      desc.location_id = options.Location.IdFor(device);
      desc.size = Sizes.ToNative(size, nameof(size));
      return desc;
    }
  }

  /// <summary>
  /// A file descriptor, closed when it is disposed or collected. The runtimes' own handles of files do not all close
  /// descriptors that they did not open.
  /// </summary>
  public sealed class FileDescriptorHandle : SafeHandleMinusOneIsInvalid
  {
    /// <summary>Wraps a descriptor, such as one that came through a socket.</summary>
    /// <param name="descriptor">The descriptor.</param>
    /// <param name="ownsHandle">Whether to close it.</param>
    public FileDescriptorHandle(int descriptor, bool ownsHandle = true) : base(ownsHandle)
    {
      SetHandle((IntPtr)descriptor);
    }

    /// <summary>The number, for other code. It is valid until the handle is disposed.</summary>
    public int Descriptor
    {
      get
      {
        if (IsClosed) throw new ObjectDisposedException(nameof(FileDescriptorHandle));
        return (int)handle;
      }
    }

    /// <summary>Its number.</summary>
    public override string ToString()
    {
      var text = new Printed(nameof(FileDescriptorHandle));
      return (IsClosed ? text.Add(nameof(IsClosed), true) : text.Add(nameof(Descriptor), Descriptor)).ToString();
    }

    /// <summary>Closes the descriptor.</summary>
    protected override bool ReleaseHandle() { return close((int)handle) == 0; }

    [DllImport("libc")]
    static extern int close(int descriptor);
  }

  /// <summary>
  /// A handle of physical memory for other nodes of the fabric: 64 bytes, which may be sent by any channel. Only the driver
  /// can read them.
  /// </summary>
  public unsafe struct FabricHandle : IEquatable<FabricHandle>
  {
    /// <summary>Number of bytes of a handle.</summary>
    public const int Size = 64;

    internal FabricHandle(gpumem_fabric_handle native) { Native = native; }

    /// <summary>Makes a handle of the bytes of another one.</summary>
    /// <exception cref="ArgumentException">There are not <see cref="Size"/> bytes.</exception>
    public FabricHandle(byte[] bytes) : this(Read(bytes)) { }

    internal gpumem_fabric_handle Native { get; }

    /// <summary>Copies the bytes.</summary>
    public byte[] ToArray()
    {
      gpumem_fabric_handle native = Native;
      return Bytes.Read(native.bytes, Size);
    }

    /// <summary>Whether both have the same bytes.</summary>
    public bool Equals(FabricHandle other)
    {
      gpumem_fabric_handle one = Native, two = other.Native;
      return Bytes.AreEqual(one.bytes, two.bytes, Size);
    }

    /// <summary>Whether both have the same bytes.</summary>
    public override bool Equals([AllowNull] object other) { return other is FabricHandle && Equals((FabricHandle)other); }

    /// <summary>Agrees with <see cref="Equals(FabricHandle)"/>.</summary>
    public override int GetHashCode()
    {
      gpumem_fabric_handle native = Native;
      return Bytes.Hash(native.bytes, Size);
    }

    /// <summary>Whether both have the same bytes.</summary>
    public static bool operator ==(FabricHandle one, FabricHandle other) { return one.Equals(other); }

    /// <summary>Whether their bytes differ.</summary>
    public static bool operator !=(FabricHandle one, FabricHandle other) { return !one.Equals(other); }

    /// <summary>Its bytes.</summary>
    public override string ToString() { return new Printed(nameof(FabricHandle)).Add("Bytes", ToArray()).ToString(); }

    static gpumem_fabric_handle Read(byte[] bytes)
    {
      if (bytes == null) throw new ArgumentNullException(nameof(bytes));
      if (bytes.Length != Size)
      {
        throw new ArgumentException("a fabric handle has " + Size + " bytes, not " + bytes.Length, nameof(bytes));
      }
      gpumem_fabric_handle native = default(gpumem_fabric_handle);
      Bytes.Write(bytes, native.bytes, Size, nameof(bytes));
      return native;
    }
  }
}
