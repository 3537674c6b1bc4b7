// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory of another process.

using System;
using System.Runtime.InteropServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// Memory of another process. It is mapped once in a process, for each device and access, however often it is imported;
  /// the exporter sees the last of these being disposed.
  /// </summary>
  /// <remarks>
  /// Others may write it at any time. What happens when the exporter ends depends on the way.
  /// <see cref="ShareWay.PosixFd"/>: nothing, the memory stays. With <see cref="ShareWay.Legacy"/>, copies and fills fail with
  /// <see cref="Status.PeerGone"/>.
  /// </remarks>
  public sealed unsafe partial class ImportedMemory : IDisposable
  {
    readonly MemoryInfo info;
    readonly long offset;

    ImportedMemory(GpuInstance instance, AllocationHandle handle, IntPtr pointer) : this(instance, handle)
    {
      info = Calls.gpumem_memory_get_info(handle);
      offset = (long)pointer - (long)info.DevicePointer;
      handle.Info = info;
      handle.Own();
    }

    /// <summary>Information about the import as it stands now. The exporter is not asked.</summary>
    public ImportInfo Info { get { return Calls.gpumem_memory_get_import_info(handle.Usable()); } }

    /// <summary>What the library knows of the memory, which is <see cref="MemoryKind.Imported"/>. It never changes.</summary>
    public MemoryInfo MemoryInfo { get { return handle.IfUsable(info); } }

    /// <summary>Bytes from the one that was exported to the end of the memory.</summary>
    public long Size { get { return MemoryInfo.Size - offset; } }

    /// <summary>Where in the whole memory the byte lies that was exported.</summary>
    public long Offset { get { return handle.IfUsable(offset); } }

    /// <summary>Address for devices of the byte that was exported. It is valid until the import is disposed.</summary>
    public IntPtr DevicePointer { get { return (IntPtr)((long)MemoryInfo.DevicePointer + offset); } }

    /// <summary>Address of the same byte for the CPU; zero if it cannot access the memory.</summary>
    public IntPtr HostPointer
    {
      get
      {
        IntPtr first = MemoryInfo.HostPointer;
        return first == IntPtr.Zero ? first : (IntPtr)((long)first + offset);
      }
    }

    /// <summary>The memory from the byte that was exported, as an operand of a copy or fill.</summary>
    public GpuRange Range { get { return new GpuRange(handle, offset, DevicePointer, Size); } }

    /// <summary>
    /// Ends the import, as soon as no work that this binding enqueued can still use it. It may be called repeatedly, and
    /// from any thread.
    /// </summary>
    public void Dispose() { handle.DisposeAndSweep(); }

    internal static ImportedMemory Import(
        GpuInstance instance, ShareHandle share, SafeHandle[] descriptors, ImportOptions options)
    {
      gpumem_share_handle native = ShareHandle.ToNative(share);
      using (var held = new HeldDescriptors(descriptors))
      {
        return Import(instance, handle => Calls.gpumem_share_import(
            instance.Handle, native, held.Numbers, options.Describe(), options.Name, handle));
      }
    }

    /// <summary>Makes what <paramref name="import"/> attaches to the handle, whose exported byte it returns; null if it attaches nothing.</summary>
    internal static ImportedMemory Import(GpuInstance instance, Func<AllocationHandle, IntPtr> import)
    {
      var handle = new AllocationHandle(instance.Handle, nameof(ImportedMemory));
      return Handles.Make(handle, made =>
      {
        IntPtr pointer = Forgotten.Retry(() => import(made));
        if (!made.IsInvalid) return new ImportedMemory(instance, made, pointer);
        made.Abandon();
        return null;
      });
    }
  }
}
