// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A point in a stream that can be waited for and timed.

using System;
using System.Runtime.CompilerServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>An event. Until it is recorded it counts as complete.</summary>
  public sealed unsafe class GpuEvent : IDisposable
  {
    readonly EventHandle handle;

    GpuEvent(GpuDevice device, EventHandle handle)
    {
      Device = device;
      this.handle = handle;
    }

    /// <summary>Its device.</summary>
    public GpuDevice Device { get; private set; }

    /// <summary>What is known about the event.</summary>
    public EventInfo Info { [MethodImpl(GpuMemLibrary.Bound)] get { return GetInfo(); } }

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get { return handle.IsDisposed; } }

    internal EventHandle Handle { get { return handle; } }

    /// <summary>Held while the event is recorded or waited for, so that <see cref="Captured"/> is what the library has.</summary>
    internal object Lock { get { return handle; } }

    /// <summary>What the latest record stands for; null if nothing was kept.</summary>
    internal Capture Captured { get; private set; }

    /// <summary>Captures the work that is in a stream now; a later record replaces it.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void Record(GpuStream stream)
    {
      lock (Lock)
      {
        lock (stream.Handle.Pending.Lock)
        {
          gpumem_error* error = Error.Detail;
          Check(Native.gpumem_event_record(handle.Value, stream.Handle.Value, error), error);
          Captured = stream.Handle.Pending.Capture();
        }
      }
    }

    /// <summary>Whether the captured work is complete.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public bool Query()
    {
      Capture before = ReadCaptured();
      gpumem_error* error = Error.Detail;
      return Observed(Native.gpumem_event_query(handle.Value, error), error, before);
    }

    /// <summary>Waits until the captured work is complete.</summary>
    public void Synchronize() { Synchronize(Constants.GPUMEM_TIMEOUT_INFINITE); }

    /// <summary>Waits with a limit. False if the time ran out.</summary>
    public bool Synchronize(TimeSpan timeout) { return Synchronize(Timeout.ToNanoseconds(timeout)); }

    /// <summary>Time from an earlier event of the same device to this one; both complete and made with timing.</summary>
    /// <returns>Milliseconds, or null if one of them is not complete.</returns>
    [MethodImpl(GpuMemLibrary.Bound)]
    public float? GetElapsedSince(GpuEvent start)
    {
      float milliseconds;
      gpumem_error* error = Error.Detail;
      int status = Native.gpumem_event_get_elapsed_time(start.handle.Value, handle.Value, &milliseconds, error);
      Check(status, error);
      return status == Constants.GPUMEM_NOT_READY ? (float?)null : milliseconds;
    }

    /// <summary>
    /// Destroys the event, or lets go of an adopted one. Work that waits for it goes on. It can be called again, and from
    /// any thread.
    /// </summary>
    public void Dispose()
    {
      Leftovers.Sweep();
      handle.Dispose();
    }

    internal static GpuEvent Create(GpuDevice device, EventFlags flags, string name)
    {
      return Make(device, handle =>
      {
        using (var text = new CText(name)) CreateNative(device, handle, flags, text.Pointer);
      });
    }

    internal static GpuEvent Wrap(GpuDevice device, IntPtr nativeEvent, EventFlags flags)
    {
      return Make(device, handle => WrapNative(device, handle, nativeEvent, flags));
    }

    static GpuEvent Make(GpuDevice device, Action<EventHandle> make)
    {
      Leftovers.Sweep();
      var handle = new EventHandle(device.Instance.Handle);
      try
      {
        make(handle);
      }
      catch
      {
        handle.Abandon();
        throw;
      }
      return new GpuEvent(device, handle);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static void CreateNative(GpuDevice device, EventHandle handle, EventFlags flags, IntPtr name)
    {
      gpumem_event_desc desc = default(gpumem_event_desc);
      desc.struct_size = (UIntPtr)(uint)sizeof(gpumem_event_desc);
      desc.flags = (uint)flags;
      desc.name = name;
      IntPtr value;
      gpumem_error* error = Error.Detail;
      int status = Native.gpumem_event_create(device.Value, &desc, &value, error);
      Error.Check(status, error, device.Instance.Handle, nameof(GpuInstance));
      handle.Adopt(value);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static void WrapNative(GpuDevice device, EventHandle handle, IntPtr nativeEvent, EventFlags flags)
    {
      IntPtr value;
      gpumem_error* error = Error.Detail;
      int status = Native.gpumem_event_wrap(device.Value, nativeEvent, (uint)flags, &value, error);
      Error.Check(status, error, device.Instance.Handle, nameof(GpuInstance));
      handle.Adopt(value);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    bool Synchronize(ulong nanoseconds)
    {
      Capture before = ReadCaptured();
      gpumem_error* error = Error.Detail;
      return Observed(Native.gpumem_event_synchronize(handle.Value, nanoseconds, error), error, before);
    }

    Capture ReadCaptured() { lock (Lock) return Captured; }

    bool Observed(int status, gpumem_error* error, Capture before)
    {
      if (status == Constants.GPUMEM_NOT_READY) return false;
      Check(status, error);
      // If the event was recorded meanwhile, the answer may be about that record.
      if (before != null && before == ReadCaptured())
      {
        before.LetGo();
        Leftovers.Sweep();
      }
      GC.KeepAlive(this);
      return true;
    }

    void Check(int status, gpumem_error* error) { Error.Check(status, error, handle, nameof(GpuEvent)); }

    [MethodImpl(GpuMemLibrary.Bound)]
    EventInfo GetInfo()
    {
      gpumem_event_info info = default(gpumem_event_info);
      info.struct_size = (UIntPtr)(uint)sizeof(gpumem_event_info);
      gpumem_error* error = Error.Detail;
      Check(Native.gpumem_event_get_info(handle.Value, &info, error), error);
      return new EventInfo(&info);
    }
  }
}
