// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Reserved addresses, and the physical memory that is mapped there.

using System;
using System.Runtime.CompilerServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// Reserved addresses, into which blocks of <see cref="PhysicalMemory"/> are mapped, of several devices and of the
  /// host if wished. Offsets count from the first byte. Mapping, unmapping and changes of access happen at the call, not
  /// in the order of a stream.
  /// </summary>
  public sealed unsafe class AddressRange : IDisposable
  {
    readonly RangeHandle handle;
    readonly GpuInstance instance;
    readonly IntPtr pointer;
    readonly long size;

    AddressRange(GpuInstance instance, RangeHandle handle, AddressRangeInfo info)
    {
      this.instance = instance;
      this.handle = handle;
      pointer = info.Base;
      size = info.Size;
    }

    /// <summary>Its instance.</summary>
    public GpuInstance Instance { get { return handle.IfUsable(instance); } }

    /// <summary>First byte. It never changes.</summary>
    public IntPtr Pointer { get { return handle.IfUsable(pointer); } }

    /// <summary>Bytes reserved.</summary>
    public long Size { get { return handle.IfUsable(size); } }

    /// <summary>Information about the range and what is mapped now.</summary>
    public AddressRangeInfo Info { get { return Calls.gpumem_range_get_info(handle.Usable()); } }

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get { return handle.IsDisposed; } }

    internal RangeHandle Handle { get { return handle; } }

    /// <summary>A part of the range, as an operand of a copy or fill. Every byte must be mapped.</summary>
    public GpuRange Slice(long offset, long size) { return Range.Slice(offset, size); }

    GpuRange Range { get { return handle.IfUsable(new GpuRange(handle, 0, pointer, size)); } }

    /// <summary>Copies an array to the start of the range, and returns when it is copied.</summary>
    public void CopyFrom<T>(T[] source)
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      CopyFrom(0, source);
    }

    /// <summary>Copies from the start of the range to an array, and returns when it is copied.</summary>
    public void CopyTo<T>(T[] destination)
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      CopyTo(0, destination);
    }

    /// <summary>Copies an array to an offset, and returns when it is copied.</summary>
    public void CopyFrom<T>(long offset, T[] source)
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      Transfer.FromArray(instance.Handle, Range, offset, source);
    }

    /// <summary>Copies from an offset to an array, and returns when it is copied.</summary>
    public void CopyTo<T>(long offset, T[] destination)
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      Transfer.ToArray(instance.Handle, destination, Range, offset);
    }

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
      MapNative(begin, Array.ConvertAll(physicals, block => block.Handle.Value));
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
    [MethodImpl(GpuMemLibrary.Bound)]
    public void SetAccess(long offset, long size, params ProcessorAccess[] accesses)
    {
      handle.Usable();
      ulong begin = Sizes.ToNative(offset, nameof(offset)), bytes = Sizes.ToNative(size, nameof(size));
      if (accesses == null) throw new ArgumentNullException(nameof(accesses));
      gpumem_access_desc[] native = Array.ConvertAll(accesses, one => one.Describe(instance));
      gpumem_error* error = Error.Detail;
      fixed (gpumem_access_desc* first = Elements.WithAddress(native))
      {
        handle.Check(Native.gpumem_range_set_access(handle.Value, begin, bytes, first, (ulong)native.Length, error), error);
      }
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

    /// <summary>Its name and size.</summary>
    public override string ToString() { return handle.Text; }

    internal static AddressRange Reserve(GpuInstance instance, long size, RangeOptions options)
    {
      gpumem_range_desc desc = options.Describe();
      desc.size = Sizes.ToNative(size, nameof(size));
      return Handles.Make(new RangeHandle(instance.Handle, size, options.Name), handle =>
      {
        using (var name = new CText(options.Name, nameof(options.Name)))
        {
          desc.name = name.Pointer;
          Calls.gpumem_range_reserve(instance.Handle, desc, handle);
        }
        return new AddressRange(instance, handle, Calls.gpumem_range_get_info(handle));
      });
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    void MapNative(ulong offset, IntPtr[] physicals)
    {
      gpumem_error* error = Error.Detail;
      fixed (IntPtr* first = Elements.WithAddress(physicals))
      {
        handle.Check(Native.gpumem_range_map(handle.Value, offset, first, (ulong)physicals.Length, error), error);
      }
    }
  }
}
