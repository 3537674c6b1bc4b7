// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Reserved addresses, and the physical memory that is mapped there.

using System;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// Reserved addresses, into which blocks of <see cref="PhysicalMemory"/> are mapped, of several devices and of the
  /// host if wished. Offsets count from the first byte. Mapping, unmapping and changes of access happen at the call, not
  /// in the order of a stream.
  /// </summary>
  public sealed unsafe partial class AddressRange : IDisposable
  {
    readonly IntPtr pointer;
    readonly long size;

    AddressRange(GpuInstance instance, RangeHandle handle, AddressRangeInfo info) : this(instance, handle)
    {
      pointer = info.Base;
      size = info.Size;
    }

    /// <summary>First byte. It never changes.</summary>
    public IntPtr Pointer { get { return handle.IfUsable(pointer); } }

    /// <summary>Bytes reserved.</summary>
    public long Size { get { return handle.IfUsable(size); } }

    GpuRange Range { get { return handle.IfUsable(new GpuRange(handle, 0, pointer, size)); } }

    /// <summary>
    /// Maps blocks of physical memory one behind the other, all or none. Each is mapped whole, and the mapping keeps it
    /// alive. No processor has access to a new mapping: see <see cref="SetAccess(long, long, ProcessorAccess[])"/>.
    /// </summary>
    /// <param name="offset">Where the first block begins, a multiple of the granularity.</param>
    /// <param name="physicals">The blocks; one may be there more than once.</param>
    public void Map(long offset, params PhysicalMemory[] physicals)
    {
      handle.Usable();
      ulong begin = Sizes.ToNative(offset, nameof(offset));
      if (physicals == null || Array.IndexOf(physicals, null) >= 0) throw new ArgumentNullException(nameof(physicals));
      Calls.gpumem_range_map(handle, begin, Array.ConvertAll(physicals, block => block.Handle.Value));
      GC.KeepAlive(physicals);
    }

    /// <summary>
    /// Unmaps whole mappings, one or several in a row. All work that uses them must have been observed complete: a wait
    /// of one stream for another is no such observation.
    /// </summary>
    /// <param name="offset">Where the first mapping begins.</param>
    /// <param name="size">Bytes, up to the end of the last mapping.</param>
    public void Unmap(long offset, long size)
    {
      handle.Usable();
      Calls.gpumem_range_unmap(handle, Sizes.ToNative(offset, nameof(offset)), Sizes.ToNative(size, nameof(size)));
    }

    /// <summary>
    /// Sets what processors may do with whole mappings, one or several in a row; all is set or nothing. Processors that
    /// are not named keep what they have. Before access is taken away, all work that uses it must have been observed
    /// complete.
    /// </summary>
    /// <param name="offset">Where the first mapping begins.</param>
    /// <param name="size">Bytes, up to the end of the last mapping.</param>
    /// <param name="accesses">The processors, and what each may do.</param>
    public void SetAccess(long offset, long size, params ProcessorAccess[] accesses)
    {
      handle.Usable();
      ulong begin = Sizes.ToNative(offset, nameof(offset)), bytes = Sizes.ToNative(size, nameof(size));
      if (accesses == null) throw new ArgumentNullException(nameof(accesses));
      Calls.gpumem_range_set_access(handle, begin, bytes, Array.ConvertAll(accesses, one => one.Describe(instance)));
    }

    /// <summary>The same for one processor: a device, or <see cref="MemoryLocation.Host"/> for the CPU.</summary>
    public void SetAccess(long offset, long size, MemoryLocation processor, Access access)
    {
      SetAccess(offset, size, new ProcessorAccess(processor, access));
    }

    /// <summary>Gets what is mapped at an offset.</summary>
    public MappingInfo GetMapping(long offset)
    {
      handle.Usable();
      if (offset < 0 || offset >= size)
      {
        throw new ArgumentOutOfRangeException(nameof(offset), offset, "the range has " + size + " bytes");
      }
      return instance.GetMapping((IntPtr)((long)pointer + offset));
    }

    /// <summary>
    /// Unmaps everything and gives the addresses back, as soon as no work that this binding enqueued can still use them.
    /// Wait for other work first. It may be called repeatedly, and from any thread.
    /// </summary>
    public void Dispose() { handle.DisposeAndSweep(); }

    internal static AddressRange Reserve(GpuInstance instance, long size, RangeOptions options)
    {
      gpumem_range_desc desc = options.Describe();
      desc.size = Sizes.ToNative(size, nameof(size));
      return Handles.Make(new RangeHandle(instance.Handle, size, options.Name), handle =>
      {
        Calls.gpumem_range_reserve(instance.Handle, desc, options.Name, handle);
        return new AddressRange(instance, handle, Calls.gpumem_range_get_info(handle));
      });
    }
  }
}
