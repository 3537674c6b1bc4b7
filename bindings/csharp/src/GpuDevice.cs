// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One processor with its memory.

using System;
using System.Collections.Generic;
using System.Diagnostics.CodeAnalysis;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>A device of an instance. It creates memory, streams and events.</summary>
  public sealed unsafe class GpuDevice : IEquatable<GpuDevice>
  {
    readonly IntPtr value;

    internal GpuDevice(GpuInstance instance, IntPtr value, int ordinal)
    {
      Instance = instance;
      Ordinal = ordinal;
      this.value = value;
    }

    /// <summary>Its instance.</summary>
    public GpuInstance Instance { get; private set; }

    /// <summary>Its number in the instance.</summary>
    public int Ordinal { get; private set; }

    /// <summary>Information about the device. It works after the device was lost.</summary>
    public DeviceInfo Info { get { return Calls.gpumem_device_get_info(this); } }

    /// <summary>The handle for a call.</summary>
    internal IntPtr Value { get { return Instance.Handle.IfUsable(value); } }

    /// <summary>Whether both objects stand for the same device.</summary>
    public bool Equals([AllowNull] GpuDevice other) { return other != null && other.value == value; }

    /// <summary>Whether both objects stand for the same device.</summary>
    public override bool Equals([AllowNull] object other) { return Equals(other as GpuDevice); }

    /// <summary>Agrees with <see cref="Equals(GpuDevice)"/>.</summary>
    public override int GetHashCode() { return value.GetHashCode(); }

    /// <summary>Its number and name.</summary>
    public override string ToString()
    {
      var text = new Printed(nameof(GpuDevice)).Add(nameof(Ordinal), Ordinal);
      if (Instance.IsClosed) return text.Add(nameof(Instance.IsClosed), true).ToString();
      try
      {
        DeviceInfo info = Info;
        return text.Add(nameof(info.Name), info.Name).AddIf(nameof(info.Lost), info.Lost).ToString();
      }
      catch (Exception problem) when (problem is GpuMemException || problem is ObjectDisposedException)
      {
        return text.ToString();
      }
    }

    /// <summary>Gets the free and total bytes. Both are estimates: other processes change them at any time.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void GetMemory(out long free, out long total)
    {
      ulong nativeFree, nativeTotal;
      gpumem_error* error = Error.Detail;
      Instance.Handle.Check(Native.gpumem_device_get_memory(Value, &nativeFree, &nativeTotal, error), error);
      free = Sizes.FromNative(nativeFree);
      total = Sizes.FromNative(nativeTotal);
    }

    /// <summary>Gives back the memory that the device keeps for graphs, such as those that captured cudaMallocAsync, and that no
    /// graph uses.</summary>
    /// <returns>The bytes; 0 on the host backend.</returns>
    public long TrimGraphs() { return Sizes.FromNative(Calls.gpumem_device_trim_graphs(this)); }

    /// <summary>Queries a capability. The first query may run a trial.</summary>
    /// <param name="capability">Capability to query.</param>
    /// <param name="peer">The other device, for the capabilities of a pair; otherwise null.</param>
    public CapabilityInfo GetCapability(Capability capability, [AllowNull] GpuDevice peer = null)
    {
      return Calls.gpumem_device_get_capability(this, (int)capability, peer);
    }

    /// <summary>Lists the capabilities of the loaded library.</summary>
    public static IReadOnlyList<Capability> Capabilities()
    {
      return Error.Enumerate(
          number => (Capability)number, (index, found, error) => Native.gpumem_capability_enumerate(index, found, error));
    }

    /// <summary>Whether this device could access the memory of a peer directly.</summary>
    public bool CanAccessPeer(GpuDevice peer) { return Calls.gpumem_device_can_access_peer(this, Other(peer)) != 0; }

    /// <summary>Lets this device access all device memory of a peer. The access is one-way and counted.</summary>
    public void EnablePeerAccess(GpuDevice peer) { Calls.gpumem_device_enable_peer_access(this, Other(peer)); }

    /// <summary>Undoes one <see cref="EnablePeerAccess"/>. Wait for work that uses the peer's memory first.</summary>
    public void DisablePeerAccess(GpuDevice peer) { Calls.gpumem_device_disable_peer_access(this, Other(peer)); }

    /// <summary>Allocates device, pinned or managed memory. Its contents are indeterminate.</summary>
    public GpuMemory Create(MemoryKind kind, long size, MemoryOptions options = default(MemoryOptions))
    {
      return GpuMemory.Create(this, kind, size, options);
    }

    /// <summary>Allocates device memory, which the CPU must not access.</summary>
    public GpuMemory AllocateDevice(long size, MemoryOptions options = default(MemoryOptions))
    {
      return Create(MemoryKind.Device, size, options);
    }

    /// <summary>
    /// Allocates page-locked host memory for elements of a type. The system locks the pages for devices; this is not
    /// what the garbage collector calls pinned.
    /// </summary>
    /// <param name="length">Number of elements.</param>
    /// <param name="options">Alignment, properties and name.</param>
    /// <exception cref="ArgumentOutOfRangeException">The length is negative, or its bytes exceed 2^63-1.</exception>
    /// <remarks>No elements need no memory: all calls work with the result, and its pointers are zero.</remarks>
    public PinnedMemory<T> AllocatePinned<T>(long length, MemoryOptions options = default(MemoryOptions))
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      return new PinnedMemory<T>(AllocateElements<T>(MemoryKind.Pinned, length, options), length);
    }

    /// <summary>
    /// Allocates managed memory for elements of a type: one address for the CPU and all devices, between which its pages
    /// move. This is CUDA's managed memory, not the garbage collector's.
    /// </summary>
    /// <param name="length">Number of elements.</param>
    /// <param name="options">Alignment, properties and name.</param>
    /// <exception cref="ArgumentOutOfRangeException">The length is negative, or its bytes exceed 2^63-1.</exception>
    /// <remarks>No elements need no memory: all calls work with the result, and its pointer is zero.</remarks>
    public UnifiedMemory<T> AllocateUnified<T>(long length, MemoryOptions options = default(MemoryOptions))
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      return new UnifiedMemory<T>(AllocateElements<T>(MemoryKind.Managed, length, options), length);
    }

    /// <summary>
    /// Makes physical memory, which has no address: map it into an <see cref="AddressRange"/>. Its contents are
    /// indeterminate.
    /// </summary>
    /// <param name="size">Bytes, a multiple of the granularity.</param>
    /// <param name="options">Location, properties and name.</param>
    public PhysicalMemory CreatePhysical(long size, PhysicalOptions options = default(PhysicalOptions))
    {
      return PhysicalMemory.Create(this, size, options);
    }

    /// <summary>
    /// Makes a handle of the physical memory behind a file descriptor, which stays the caller's.
    /// </summary>
    /// <param name="descriptor">
    /// Descriptor of <see cref="PhysicalMemory.ExportFileDescriptor"/>, of this process or another one.
    /// </param>
    /// <param name="size">Bytes, as in the process that exported it.</param>
    /// <param name="options">Location and handle types, as there; no other properties.</param>
    public PhysicalMemory ImportPhysical(
        SafeHandle descriptor, long size, PhysicalOptions options = default(PhysicalOptions))
    {
      return PhysicalMemory.Import(this, descriptor, size, options);
    }

    /// <summary>Makes a handle of the physical memory behind a fabric handle.</summary>
    /// <param name="handle">
    /// Handle of <see cref="PhysicalMemory.ExportFabricHandle"/>, made here or elsewhere on the fabric.
    /// </param>
    /// <param name="size">Bytes, as in the process that exported it.</param>
    /// <param name="options">Location and handle types, as there; no other properties.</param>
    public PhysicalMemory ImportPhysical(
        FabricHandle handle, long size, PhysicalOptions options = default(PhysicalOptions))
    {
      return PhysicalMemory.Import(this, handle, size, options);
    }

    /// <summary>
    /// Gets the units in which physical memory with these properties is made and mapped: the smallest, and the one for
    /// the best performance. Both are powers of two.
    /// </summary>
    public void GetGranularity(
        out long minimum, out long recommended, PhysicalOptions options = default(PhysicalOptions))
    {
      PhysicalMemory.GetGranularity(this, options, out minimum, out recommended);
    }

    /// <summary>
    /// Makes a buffer that grows and shrinks in place, and can sleep. Its contents are indeterminate.
    /// </summary>
    /// <param name="size">Bytes to begin with; may be 0.</param>
    /// <param name="options">Addresses, location, properties, access and name.</param>
    public GrowableBuffer CreateBuffer(long size, BufferOptions options = default(BufferOptions))
    {
      return GrowableBuffer.Create(this, size, options);
    }

    /// <summary>Makes a pool, which allocates and frees blocks fast, in the order of streams.</summary>
    /// <param name="options">Kind, limits, access of other devices and name.</param>
    public MemoryPool CreatePool(PoolOptions options = default(PoolOptions)) { return MemoryPool.Create(this, options); }

    /// <summary>
    /// Page-locks an array, so that devices can use it, until the result is disposed. Until then the array stays alive
    /// and in place. An empty array needs nothing: all calls work with the result, and its pointers are zero.
    /// </summary>
    /// <exception cref="ArgumentException">The elements contain references or bools, or the runtime pins no array of them.</exception>
    public GpuMemory Register<T>(T[] array, RegisterOptions options = default(RegisterOptions))
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      if (array == null) throw new ArgumentNullException(nameof(array));
      long size = array.LongLength * Elements<T>.Size;
      if (size == 0) return GpuMemory.Empty(this, MemoryKind.Registered, options.Require | options.Prefer, options.Name);
      GCHandle pinned = Elements<T>.Pin(array, nameof(array));
      return GpuMemory.Register(this, pinned.AddrOfPinnedObject(), size, options, pinned);
    }

    /// <summary>Page-locks memory at a pointer. It must stay mapped until the result is disposed.</summary>
    public GpuMemory Register(IntPtr pointer, long size, RegisterOptions options = default(RegisterOptions))
    {
      return GpuMemory.Register(this, pointer, size, options);
    }

    /// <summary>Makes a ring, whose messages go to consumers in other processes.</summary>
    /// <param name="slotSize">Bytes that a message has at most.</param>
    /// <param name="options">Numbers of slots and consumers, and name.</param>
    public RingProducer CreateRing(long slotSize, RingOptions options = default(RingOptions))
    {
      return new RingProducer(Ring.Make(Instance, nameof(RingProducer), options.Name,
                                        handle => Ring.Create(this, handle, slotSize, options)));
    }

    /// <summary>Allocates memory and returns only its pointer. Free it with <see cref="GpuInstance.Free"/>.</summary>
    public IntPtr Allocate(MemoryKind kind, long size)
    {
      ulong bytes = Sizes.ToNative(size, nameof(size));
      return Forgotten.Retry(() => Calls.gpumem_malloc(this, (int)kind, bytes));
    }

    /// <summary>Page-locks memory by its pointer. Undo it with <see cref="GpuInstance.UnregisterPointer"/>.</summary>
    public void RegisterPointer(IntPtr pointer, long size, MemoryFlags require = MemoryFlags.None)
    {
      Calls.gpumem_register(this, pointer, Sizes.ToNative(size, nameof(size)), (ulong)require);
    }

    /// <summary>
    /// Gets the address of a byte of host memory for this device. A device pointer is returned unchanged.
    /// </summary>
    public IntPtr GetDevicePointer(IntPtr pointer) { return Calls.gpumem_pointer_get_device_pointer(this, pointer); }

    /// <summary>
    /// Gets what kernels and value words of this device may do, in place, with the memory at an address. Copies and
    /// fills need no such right.
    /// </summary>
    public Access GetAccess(IntPtr pointer)
    {
      return Instance.GetAccess(pointer, Constants.GPUMEM_LOCATION_DEVICE, Ordinal);
    }

    /// <summary>Creates a stream.</summary>
    /// <param name="priority">Lower numbers run first; clamped to the range of the device.</param>
    /// <param name="name">For messages and reports, up to 63 bytes.</param>
    public GpuStream CreateStream(int priority = 0, [AllowNull] string name = null) { return GpuStream.Create(this, priority, name); }

    /// <summary>
    /// Wraps a stream that other code created; zero is the legacy default stream of the device. The native stream must
    /// live until the wrapper is disposed.
    /// </summary>
    public GpuStream WrapStream(IntPtr nativeStream) { return GpuStream.Wrap(this, nativeStream); }

    /// <summary>Creates an event.</summary>
    public GpuEvent CreateEvent(EventFlags flags = EventFlags.None, [AllowNull] string name = null)
    {
      return GpuEvent.Create(this, flags, name);
    }

    /// <summary>Wraps an event that other code created, which must live until the wrapper is disposed.</summary>
    public GpuEvent WrapEvent(IntPtr nativeEvent, EventFlags flags = EventFlags.None)
    {
      return GpuEvent.Wrap(this, nativeEvent, flags);
    }

    /// <summary>
    /// Imports an event of another process. Both can record it, wait for it and query it; a wait is for the latest record at
    /// the time of the call, in whichever process. It has no times.
    /// </summary>
    /// <param name="share">Handle of an event of this device.</param>
    /// <param name="descriptors">
    /// Its descriptors, which stay the caller's; without them, those that came with the handle, or that the exporter has.
    /// </param>
    public GpuEvent ImportEvent(ShareHandle share, [AllowNull] params SafeHandle[] descriptors)
    {
      return GpuEvent.Import(this, share, descriptors);
    }

    GpuMemory AllocateElements<T>(MemoryKind kind, long length, MemoryOptions options)
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      if (length < 0 || length > long.MaxValue / Elements<T>.Size)
      {
        throw new ArgumentOutOfRangeException(
            nameof(length), length, "pass a number of elements from 0 to (2^63-1) / " + Elements<T>.Size);
      }
      return length == 0 ? GpuMemory.Empty(this, kind, options.Require | options.Prefer, options.Name)
                         : GpuMemory.Create(this, kind, length * Elements<T>.Size, options);
    }

    static GpuDevice Other(GpuDevice peer)
    {
      if (peer == null) throw new ArgumentNullException(nameof(peer));
      return peer;
    }
  }
}
