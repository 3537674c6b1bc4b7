// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One processor with its memory.

using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>A device of an instance, and the place where memory, streams and events are made.</summary>
  public sealed unsafe class GpuDevice : IEquatable<GpuDevice>
  {
    readonly IntPtr value;

    internal GpuDevice(GpuInstance instance, IntPtr value, int ordinal)
    {
      Instance = instance;
      Ordinal = ordinal;
      this.value = value;
    }

    /// <summary>The instance that it belongs to.</summary>
    public GpuInstance Instance { get; private set; }

    /// <summary>Its number in the instance.</summary>
    public int Ordinal { get; private set; }

    /// <summary>What is known about the device; also after it is lost.</summary>
    public DeviceInfo Info { [MethodImpl(GpuMemLibrary.Bound)] get { return GetInfo(); } }

    /// <summary>The value for a call.</summary>
    internal IntPtr Value
    {
      get
      {
        if (Instance.IsClosed) throw new ObjectDisposedException(nameof(GpuInstance));
        return value;
      }
    }

    /// <summary>Two objects can stand for one device.</summary>
    public bool Equals(GpuDevice other) { return other != null && other.value == value; }

    /// <summary>Two objects can stand for one device.</summary>
    public override bool Equals(object other) { return Equals(other as GpuDevice); }

    /// <summary>Follows <see cref="Equals(GpuDevice)"/>.</summary>
    public override int GetHashCode() { return value.GetHashCode(); }

    /// <summary>Free and total bytes; both are estimates.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void GetMemory(out ulong free, out ulong total)
    {
      ulong nativeFree, nativeTotal;
      gpumem_error* error = Error.Detail;
      Check(Native.gpumem_device_get_memory(Value, &nativeFree, &nativeTotal, error), error);
      free = nativeFree;
      total = nativeTotal;
    }

    /// <summary>Asks what the device can do. The first question may try it.</summary>
    /// <param name="capability">What is asked.</param>
    /// <param name="peer">The other device, for the capabilities of a pair.</param>
    [MethodImpl(GpuMemLibrary.Bound)]
    public CapabilityInfo GetCapability(Capability capability, GpuDevice peer = null)
    {
      gpumem_capability_info info = default(gpumem_capability_info);
      info.struct_size = (UIntPtr)(uint)sizeof(gpumem_capability_info);
      gpumem_error* error = Error.Detail;
      IntPtr other = peer == null ? IntPtr.Zero : peer.Value;
      Check(Native.gpumem_device_get_capability(Value, (int)capability, other, &info, error), error);
      return new CapabilityInfo(&info);
    }

    /// <summary>The capabilities that the library in use knows.</summary>
    public static IReadOnlyList<Capability> Capabilities()
    {
      GpuMemLibrary.Load();
      var list = new List<Capability>();
      int capability;
      for (uint index = 0; Enumerate(index, out capability); ++index) list.Add((Capability)capability);
      return list;
    }

    /// <summary>Whether work of this device can be given direct access to the memory of another one.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public bool CanAccessPeer(GpuDevice peer)
    {
      uint possible;
      gpumem_error* error = Error.Detail;
      Check(Native.gpumem_device_can_access_peer(Value, peer.Value, &possible, error), error);
      return possible != 0;
    }

    /// <summary>Lets work of this device use all device memory of another one. One-way and counted.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void EnablePeerAccess(GpuDevice peer)
    {
      gpumem_error* error = Error.Detail;
      Check(Native.gpumem_device_enable_peer_access(Value, peer.Value, error), error);
    }

    /// <summary>Undoes one <see cref="EnablePeerAccess"/>.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void DisablePeerAccess(GpuDevice peer)
    {
      gpumem_error* error = Error.Detail;
      Check(Native.gpumem_device_disable_peer_access(Value, peer.Value, error), error);
    }

    /// <summary>Allocates memory of a kind: device memory, which the CPU must not touch, or pinned memory.</summary>
    public GpuMemory Create(MemoryKind kind, ulong size, MemoryOptions options = default(MemoryOptions))
    {
      return GpuMemory.Create(this, kind, size, IntPtr.Zero, options, default(GCHandle));
    }

    /// <summary>Allocates device memory. The CPU must not touch it.</summary>
    public GpuMemory AllocateDevice(ulong size, MemoryOptions options = default(MemoryOptions))
    {
      return Create(MemoryKind.Device, size, options);
    }

    /// <summary>
    /// Allocates page-locked host memory for elements of a type. Page-locked by the system for devices: not to be confused
    /// with an object that the garbage collector does not move.
    /// </summary>
    /// <param name="length">Number of elements.</param>
    /// <param name="options">What else is wanted.</param>
    /// <exception cref="ArgumentOutOfRangeException">Negative, or more bytes than there can be.</exception>
    public PinnedMemory<T> AllocatePinned<T>(long length, MemoryOptions options = default(MemoryOptions))
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      if (length < 0 || length > long.MaxValue / Elements<T>.Size)
      {
        throw new ArgumentOutOfRangeException(nameof(length), length, "no memory can have so many elements");
      }
      ulong size = (ulong)length * (ulong)Elements<T>.Size;
      return new PinnedMemory<T>(
          GpuMemory.Create(this, MemoryKind.Pinned, size, IntPtr.Zero, options, default(GCHandle)), length);
    }

    /// <summary>
    /// Page-locks an array where it lies, until the result is disposed. The array is kept alive and does not move. It must
    /// not share a byte with another registration. An array of the CLR can be written, so every flag but
    /// <see cref="MemoryFlags.IoMemory"/> is good.
    /// </summary>
    /// <exception cref="ArgumentException">The elements have references, or are not laid out as in C.</exception>
    public GpuMemory Register<T>(T[] array, MemoryOptions options = default(MemoryOptions))
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      if (array == null) throw new ArgumentNullException(nameof(array));
      ulong size = (ulong)array.LongLength * (ulong)Elements<T>.Size;
      GCHandle pinned = GCHandle.Alloc(array, GCHandleType.Pinned);
      return GpuMemory.Create(this, MemoryKind.Registered, size, pinned.AddrOfPinnedObject(), options, pinned);
    }

    /// <summary>Page-locks memory of other code. It must stay mapped until the result is disposed.</summary>
    public GpuMemory Register(IntPtr pointer, ulong size, MemoryOptions options = default(MemoryOptions))
    {
      return GpuMemory.Create(this, MemoryKind.Registered, size, pointer, options, default(GCHandle));
    }

    /// <summary>Allocates memory as a plain pointer, for <see cref="GpuInstance.Free"/>. Nothing frees it by itself.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public IntPtr Allocate(MemoryKind kind, ulong size)
    {
      IntPtr pointer;
      gpumem_error* error = Error.Detail;
      Check(Native.gpumem_malloc(Value, (int)kind, size, &pointer, error), error);
      return pointer;
    }

    /// <summary>Page-locks memory by its pointer, for <see cref="GpuInstance.UnregisterPointer"/>.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void RegisterPointer(IntPtr pointer, ulong size, MemoryFlags require = MemoryFlags.None)
    {
      gpumem_error* error = Error.Detail;
      Check(Native.gpumem_register(Value, pointer, size, (ulong)require, error), error);
    }

    /// <summary>Address of a byte of host memory for this device; a device pointer is returned as it is.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public IntPtr GetDevicePointer(IntPtr pointer)
    {
      IntPtr result;
      gpumem_error* error = Error.Detail;
      Check(Native.gpumem_pointer_get_device_pointer(Value, pointer, &result, error), error);
      return result;
    }

    /// <summary>Creates a stream.</summary>
    /// <param name="priority">Lower numbers run first; cut to the range of the device.</param>
    /// <param name="name">For messages and reports, up to 63 bytes.</param>
    public GpuStream CreateStream(int priority = 0, string name = null) { return GpuStream.Create(this, priority, name); }

    /// <summary>Adopts a stream that other code made; zero is the device's legacy default stream.</summary>
    public GpuStream WrapStream(IntPtr nativeStream) { return GpuStream.Wrap(this, nativeStream); }

    /// <summary>Creates an event.</summary>
    public GpuEvent CreateEvent(EventFlags flags = EventFlags.None, string name = null)
    {
      return GpuEvent.Create(this, flags, name);
    }

    /// <summary>Adopts an event that other code made.</summary>
    public GpuEvent WrapEvent(IntPtr nativeEvent, EventFlags flags = EventFlags.None)
    {
      return GpuEvent.Wrap(this, nativeEvent, flags);
    }

    void Check(int status, gpumem_error* error) { Error.Check(status, error, Instance.Handle, nameof(GpuInstance)); }

    [MethodImpl(GpuMemLibrary.Bound)]
    DeviceInfo GetInfo()
    {
      gpumem_device_info info = default(gpumem_device_info);
      info.struct_size = (UIntPtr)(uint)sizeof(gpumem_device_info);
      gpumem_error* error = Error.Detail;
      Check(Native.gpumem_device_get_info(Value, &info, error), error);
      return new DeviceInfo(&info);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static bool Enumerate(uint index, out int capability)
    {
      int found = 0;
      gpumem_error* error = Error.Detail;
      int result = Native.gpumem_capability_enumerate(index, &found, error);
      capability = found;
      if (result == Constants.GPUMEM_ERROR_NOT_FOUND) return false;
      Error.Check(result, error);
      return true;
    }
  }
}
