// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A point in a stream that can be waited for and timed.

using System;
using System.Runtime.CompilerServices;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>A point in a stream. Until it is recorded, it counts as complete.</summary>
  public sealed unsafe partial class GpuEvent : IDisposable
  {
    // Whether other processes may record it. Then its answers may be about their work, and release nothing.
    readonly bool shared;

    GpuEvent(GpuDevice device, EventHandle handle, bool shared) : this(device, handle) { this.shared = shared; }

    /// <summary>
    /// Held while the event is recorded or waited for, so that <see cref="Captured"/> agrees with the library.
    /// </summary>
    internal object Lock { get { return handle; } }

    /// <summary>The work of the latest record; null if nothing is kept for it.</summary>
    internal Capture Captured { get; private set; }

    /// <summary>
    /// Records the work that is in a stream now. A later record replaces it. To have waited for an event of several
    /// processes does not release what the work uses: wait for the stream as well.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void Record(GpuStream stream)
    {
      handle.Usable();
      if (stream == null) throw new ArgumentNullException(nameof(stream));
      lock (Lock)
      {
        lock (stream.Handle.Pending.Lock)
        {
          gpumem_error* error = Error.Detail;
          handle.Check(Native.gpumem_event_record(handle.Value, stream.Handle.Value, error), error);
          Captured = shared ? null : stream.Handle.Pending.Capture();
        }
      }
    }

    /// <summary>Whether the work of the latest record is complete.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public bool Query()
    {
      Capture before = ReadCaptured();
      gpumem_error* error = Error.Detail;
      return Observed(Native.gpumem_event_query(handle.Value, error), error, before);
    }

    /// <summary>Waits until the work of the latest record is complete.</summary>
    public void Synchronize() { Synchronize(Constants.GPUMEM_TIMEOUT_INFINITE); }

    /// <summary>Waits until the work is complete or the timeout expires. False if it expired.</summary>
    public bool Synchronize(TimeSpan timeout) { return Synchronize(Timeout.ToNanoseconds(timeout, nameof(timeout))); }

    /// <summary>
    /// Waits until the work of the latest record is complete, without a thread: it asks again every 1 to 10 ms. The task fails
    /// with what <see cref="Synchronize()"/> would throw. If the event is recorded again meanwhile, it waits for that.
    /// </summary>
    /// <param name="cancellation">Ends the wait with an <see cref="OperationCanceledException"/>; the work goes on.</param>
    public Task SynchronizeAsync(CancellationToken cancellation = default(CancellationToken))
    {
      handle.Usable();
      return Polling.Until(Query, cancellation);
    }

    /// <summary>For <c>await gpuEvent</c>, which is <see cref="SynchronizeAsync"/>.</summary>
    public TaskAwaiter GetAwaiter() { return SynchronizeAsync().GetAwaiter(); }

    /// <summary>Gets the time from the record of this event to that of a later one of the same device.</summary>
    /// <returns>
    /// Nanoseconds, negative if the other event was recorded first; null if one of the records is not complete. The
    /// resolution on cuda is about half a microsecond.
    /// </returns>
    public long? GetElapsedNanoseconds(GpuEvent end)
    {
      handle.Usable();
      if (end == null) throw new ArgumentNullException(nameof(end));
      return Calls.gpumem_event_get_elapsed_time(handle, end.handle);
    }

    /// <summary>
    /// Exports the event, which was created with <see cref="EventFlags.Interprocess"/>. Exporting it again gives the same
    /// bytes. The export ends when the event is disposed, and with <see cref="GpuInstance.Revoke"/>.
    /// </summary>
    public ShareHandle Export() { return Calls.gpumem_event_export(handle.Usable()); }

    /// <summary>
    /// Destroys the event, or releases a wrapped one. Work that waits for it is not affected, nor is a thread in
    /// <see cref="Synchronize()"/>. It may be called repeatedly, and from any thread.
    /// </summary>
    public void Dispose() { handle.DisposeAndSweep(); }

    internal static GpuEvent Create(GpuDevice device, EventFlags flags, string name)
    {
      return Make(device, name, flags, handle =>
      {
        gpumem_event_desc desc = gpumem_event_desc.Sized();
        desc.flags = (ulong)flags;
        Calls.gpumem_event_create(device, desc, name, handle);
      });
    }

    internal static GpuEvent Wrap(GpuDevice device, IntPtr nativeEvent, EventFlags flags)
    {
      return Make(device, null, flags, handle => Calls.gpumem_event_wrap(device, nativeEvent, (ulong)flags, handle));
    }

    internal static GpuEvent Import(GpuDevice device, ShareHandle share, SafeHandle[] descriptors)
    {
      gpumem_share_handle native = ShareHandle.ToNative(share);
      return Make(device, null, EventFlags.Interprocess, handle =>
      {
        using (var held = new HeldDescriptors(descriptors)) Calls.gpumem_event_import(device, native, held.Numbers, handle);
      });
    }

    static GpuEvent Make(GpuDevice device, string name, EventFlags flags, Action<EventHandle> make)
    {
      return Handles.Make(new EventHandle(device, name), handle =>
      {
        make(handle);
        return new GpuEvent(device, handle, (flags & EventFlags.Interprocess) != 0);
      });
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    bool Synchronize(ulong nanoseconds)
    {
      // It is destroyed after the wait: destroying it would wait for that.
      handle.Hold();
      try
      {
        Capture before = ReadCaptured();
        gpumem_error* error = Error.Detail;
        return Observed(Native.gpumem_event_synchronize(handle.Raw, nanoseconds, error), error, before);
      }
      finally
      {
        handle.DangerousRelease();
      }
    }

    Capture ReadCaptured() { lock (Lock) return Captured; }

    bool Observed(int status, gpumem_error* error, Capture before)
    {
      if (status == Constants.GPUMEM_NOT_READY) return false;
      handle.Check(status, error);
      // If another thread has recorded the event meanwhile, the answer may be about that record.
      Exception thrown = null;
      if (before != null && before == ReadCaptured())
      {
        thrown = before.Release();
        Leftovers.Sweep();
      }
      GC.KeepAlive(this);
      if (thrown != null) ExceptionDispatchInfo.Capture(thrown).Throw();
      return true;
    }
  }
}
