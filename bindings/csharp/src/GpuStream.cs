// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An ordered queue of work of one device.

using System;
using System.Runtime.CompilerServices;
using System.Runtime.ExceptionServices;
using System.Threading;
using System.Threading.Tasks;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// An ordered queue of work. Its methods enqueue work and return. They keep their memory and arrays alive until the
  /// work has been observed complete, by <see cref="Synchronize()"/> or <see cref="Query"/> of this stream, of an event
  /// that was recorded after the work, or of another stream that waited for such an event. The caller must keep plain
  /// pointers valid.
  /// </summary>
  public sealed unsafe partial class GpuStream : IDisposable
  {
    /// <summary>The handle of a stream; null for none.</summary>
    internal static StreamHandle HandleOf(GpuStream stream) { return stream == null ? null : stream.handle; }

    /// <summary>Whether all work of the stream is complete.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public bool Query()
    {
      long last = handle.Pending.Last;
      gpumem_error* error = Error.Detail;
      return Observed(Native.gpumem_stream_query(handle.Value, error), error, last);
    }

    /// <summary>Waits until the work that is in the stream now is complete.</summary>
    public void Synchronize() { Synchronize(Constants.GPUMEM_TIMEOUT_INFINITE); }

    /// <summary>Waits until the work is complete or the timeout expires. False if it expired.</summary>
    public bool Synchronize(TimeSpan timeout) { return Synchronize(Timeout.ToNanoseconds(timeout, nameof(timeout))); }

    /// <summary>
    /// Waits until the work that is in the stream now is complete, without a thread: it asks again every 1 to 10 ms. The
    /// task fails with what <see cref="Synchronize()"/> would throw.
    /// </summary>
    /// <param name="cancellation">Ends the wait with an <see cref="OperationCanceledException"/>; the work goes on.</param>
    public Task SynchronizeAsync(CancellationToken cancellation = default(CancellationToken))
    {
      handle.Usable();
      return Polling.UntilReached(this, cancellation);
    }

    /// <summary>For <c>await stream</c>, which is <see cref="SynchronizeAsync"/>.</summary>
    public TaskAwaiter GetAwaiter() { return SynchronizeAsync().GetAwaiter(); }

    /// <summary>Makes later work of this stream wait for the latest record of an event.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void Wait(GpuEvent gpuEvent)
    {
      handle.Usable();
      if (gpuEvent == null) throw new ArgumentNullException(nameof(gpuEvent));
      lock (gpuEvent.Lock)
      {
        lock (handle.Pending.Lock)
        {
          gpumem_error* error = Error.Detail;
          handle.Check(Native.gpumem_stream_wait_event(handle.Value, gpuEvent.Handle.Value, error), error);
          handle.Pending.Keep(gpuEvent.Captured);
        }
      }
    }

    /// <summary>Enqueues a copy from an array, which must not change until the copy is complete.</summary>
    public void Copy<T>(GpuRange destination, T[] source, CopyOptions options = default(CopyOptions))
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      handle.Usable();
      if (source == null) throw new ArgumentNullException(nameof(source));
      long size = source.LongLength * Elements<T>.Size;
      var kept = new KeptArray(Elements<T>.Pin(source, nameof(source)));
      var range = new GpuRange(kept.Address, size);
      Transfer.Copy(null, handle, destination, range, options, kept);
    }

    /// <summary>Enqueues a copy to an array.</summary>
    public void Copy<T>(T[] destination, GpuRange source, CopyOptions options = default(CopyOptions))
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      handle.Usable();
      if (destination == null) throw new ArgumentNullException(nameof(destination));
      long size = destination.LongLength * Elements<T>.Size;
      var kept = new KeptArray(Elements<T>.Pin(destination, nameof(destination)));
      var range = new GpuRange(kept.Address, size);
      Transfer.Copy(null, handle, range, source, options, kept);
    }

    /// <summary>
    /// Enqueues a batch of copies. The batch is ordered against other work of the stream, but its regions are not
    /// ordered among themselves, so no region may write bytes that another one reads or writes. If a region fails its
    /// check, nothing is enqueued. The memory is kept even if the call fails, because the backend may have enqueued a
    /// part.
    /// </summary>
    /// <exception cref="GpuMemException">
    /// <see cref="GpuMemException.FailedRegion"/> is the index of the region that failed. If the backend failed midway,
    /// the regions before it are enqueued, and it may be enqueued in part.
    /// </exception>
    public void CopyRegions(params CopyRegion[] regions) { Transfer.CopyRegions(null, handle.Usable(), regions); }

    /// <summary>
    /// Enqueues a function that runs on another thread, after all earlier and before all later work. It must not wait
    /// for device work, and of gpumem it may call only what returns texts and information. An exception in it comes out
    /// of the call that observes the work complete, such as <see cref="Synchronize()"/>; the work after it runs all the
    /// same. Of several exceptions the first comes out. The function does not run if the device is lost. It runs once, so a
    /// stream that is being captured into a graph refuses it.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void Launch(Action function)
    {
      handle.Usable();
      if (function == null) throw new ArgumentNullException(nameof(function));
      if (CaptureId != 0)
        throw new GpuMemException(
            Status.InvalidState, "the stream is being captured into a graph, which would call the function at each launch; launch it " +
            "outside of the capture") { Function = "GpuStream.Launch()" };
      var callback = new Callback(function);
      Enqueue(callback, error =>
          Native.gpumem_stream_launch_host_function(handle.Value, Callback.HostPointer, callback.UserData, error));
    }

    /// <summary>
    /// Enqueues a write of a value to a word of 4 or 8 bytes of pinned or device memory: of 4 bytes, its lower 32 bits.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void WriteValue(GpuRange word, ulong value)
    {
      handle.Usable();
      Enqueue(KeptMemory.Of(word), error =>
          Native.gpumem_stream_write_value(handle.Value, word.Pointer, value, SizeOf(word), error));
    }

    /// <summary>
    /// Makes later work wait until a word of 4 or 8 bytes of pinned or device memory meets a condition. With one of 4 bytes
    /// the lower 32 bits of the value are compared.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void WaitValue(GpuRange word, ulong value, WaitCondition condition)
    {
      handle.Usable();
      Enqueue(KeptMemory.Of(word), error =>
          Native.gpumem_stream_wait_value(handle.Value, word.Pointer, value, SizeOf(word), (int)condition, error));
    }

    /// <summary>
    /// Attaches managed memory, in stream order: to this stream, to the CPU or to all. It replaces what the memory was
    /// attached to before, and restricts nothing where all devices are concurrent.
    /// </summary>
    /// <param name="memory">A whole allocation; of pageable memory the bytes to attach.</param>
    /// <param name="attach">Who may access it.</param>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void Attach(GpuRange memory, Attach attach)
    {
      handle.Usable();
      if (memory.IsOfNothing) return;
      InstanceHandle instance = device.Instance.Handle;
      gpumem_pointer_info info;
      HostTurn turn = instance.Turns.Of(instance, memory.Pointer, &info);
      Action call = () => Enqueue(KeptMemory.Of(memory), error => Native.gpumem_managed_attach(
          handle.Value, memory.Pointer, (ulong)memory.Size, (int)attach, error));
      if (turn == null) call();
      else turn.Choose(attach, handle, call);
    }

    /// <summary>
    /// Enqueues a move of managed memory to a location. It is never needed for correctness, and the memory may be used
    /// meanwhile.
    /// </summary>
    /// <returns>False if the device or the driver cannot prefetch, so that nothing changed.</returns>
    [MethodImpl(GpuMemLibrary.Bound)]
    public bool Prefetch(GpuRange range, MemoryLocation location)
    {
      handle.Usable();
      int id = location.IdIn(device.Instance);
      if (range.IsOfNothing) return true;
      return Enqueue(KeptMemory.Of(range), error => Native.gpumem_managed_prefetch(
          handle.Value, range.Pointer, (ulong)range.Size, (int)location.Kind, id, error));
    }

    /// <summary>
    /// Enqueues moves of many ranges, each to its location. The batch is ordered against other work of the stream; its
    /// ranges are not ordered among themselves. Every range is checked before any is enqueued.
    /// </summary>
    /// <returns>False if the device or the driver cannot prefetch, so that nothing changed.</returns>
    [MethodImpl(GpuMemLibrary.Bound)]
    public bool Prefetch(params PrefetchRange[] ranges)
    {
      return Enqueue(ranges, (first, count, error) =>
          Native.gpumem_managed_prefetch_batch(handle.Value, first, count, error));
    }

    /// <summary>
    /// Declares the contents of managed memory useless, in stream order: until a byte is written, or prefetched, reading
    /// it gives an indeterminate value. Only pages that lie whole in a range are discarded.
    /// </summary>
    /// <returns>False if the driver cannot discard, or a device is not concurrent, so that nothing changed.</returns>
    [MethodImpl(GpuMemLibrary.Bound)]
    public bool Discard(params GpuRange[] ranges)
    {
      handle.Usable();
      if (ranges == null) throw new ArgumentNullException(nameof(ranges));
      PrefetchRange[] batch = Array.ConvertAll(ranges, range => new PrefetchRange(range, default(MemoryLocation)));
      return Enqueue(batch, (first, count, error) =>
          Native.gpumem_managed_discard_batch(handle.Value, first, count, error));
    }

    /// <summary>Discards managed memory and moves it to its locations, without moving a byte.</summary>
    /// <returns>False if the driver cannot discard, or a device is not concurrent, so that nothing changed.</returns>
    [MethodImpl(GpuMemLibrary.Bound)]
    public bool DiscardAndPrefetch(params PrefetchRange[] ranges)
    {
      return Enqueue(ranges, (first, count, error) =>
          Native.gpumem_managed_discard_and_prefetch_batch(handle.Value, first, count, error));
    }

    /// <summary>
    /// Destroys the stream, or releases a wrapped one, as soon as nothing is kept for its work. It never waits, may be
    /// called repeatedly, and from any thread.
    /// </summary>
    public void Dispose() { handle.DisposeAndSweep(); }

    /// <summary>
    /// Enqueues work; false if it is a hint without an effect. What is kept stays kept after a failure of a batch, of
    /// which some may be enqueued.
    /// </summary>
    internal bool Enqueue(IKept kept, NativeCall call, bool batch = false)
    {
      bool enqueued = false;
      try
      {
        lock (handle.Pending.Lock)
        {
          gpumem_error* error = Error.Detail;
          int status = call(error);
          enqueued = status == Constants.GPUMEM_SUCCESS || (batch && status < 0 && !handle.IsDisposed);
          if (enqueued) handle.Pending.Keep(kept, handle);
          handle.Check(status, error);
          return enqueued;
        }
      }
      finally
      {
        if (!enqueued) kept?.Release();
      }
    }

    delegate int BatchCall(gpumem_managed_range* first, ulong count, gpumem_error* error);

    bool Enqueue(PrefetchRange[] ranges, BatchCall call)
    {
      handle.Usable();
      if (ranges == null) throw new ArgumentNullException(nameof(ranges));
      ranges = Array.FindAll(ranges, one => !one.Range.IsOfNothing);
      gpumem_managed_range[] native = Array.ConvertAll(ranges, one => one.Describe(device.Instance));
      return Enqueue(new KeptBatch(ranges), error =>
      {
        fixed (gpumem_managed_range* first = native) return call(first, (ulong)native.Length, error);
      }, true);
    }

    internal static GpuStream Create(GpuDevice device, int priority, string name)
    {
      return Make(device, name, handle =>
      {
        gpumem_stream_desc desc = gpumem_stream_desc.Sized();
        desc.priority = priority;
        Calls.gpumem_stream_create(device, desc, name, handle);
      });
    }

    internal static GpuStream Wrap(GpuDevice device, IntPtr nativeStream)
    {
      return Make(device, null, handle => Calls.gpumem_stream_wrap(device, nativeStream, handle));
    }

    static uint SizeOf(GpuRange word) { return (uint)Math.Min(word.Size, uint.MaxValue); }

    static GpuStream Make(GpuDevice device, string name, Action<StreamHandle> make)
    {
      return Handles.Make(new StreamHandle(device, name), handle =>
      {
        make(handle);
        handle.Own();
        return new GpuStream(device, handle);
      });
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    bool Synchronize(ulong nanoseconds)
    {
      long last = handle.Pending.Last;
      gpumem_error* error = Error.Detail;
      return Observed(Native.gpumem_stream_synchronize(handle.Value, nanoseconds, error), error, last);
    }

    bool Observed(int status, gpumem_error* error, long last)
    {
      if (status == Constants.GPUMEM_NOT_READY) return false;
      // Nothing runs on a lost device, so everything can be released.
      if (status == Constants.GPUMEM_SUCCESS || status == Constants.GPUMEM_ERROR_DEVICE_LOST) Release(last, status, error);
      handle.Check(status, error);
      GC.KeepAlive(this);
      return true;
    }

    void Release(long last, int status, gpumem_error* error)
    {
      // Releasing makes calls that overwrite the error detail.
      GpuMemException lost = status < 0 ? Error.Failure(error) : null;
      Exception thrown = handle.Pending.Release(last);
      Leftovers.Sweep();
      if (lost != null) throw lost;
      if (thrown != null) ExceptionDispatchInfo.Capture(thrown).Throw();
    }

    /// <summary>
    /// Number of the capture into a graph that the stream is part of, for <see cref="MemoryPool.ReleaseCapture"/>; 0 if it is
    /// not being captured.
    /// </summary>
    public long CaptureId { get { return (long)Calls.gpumem_stream_get_capture_id(handle); } }
  }

  static class Timeout
  {
    /// <summary>Waits without a limit for what a wait with one returns, unless nothing came in time.</summary>
    internal static T Never<T>(Func<TimeSpan, T> wait) where T : class
    {
      while (true)
      {
        T result = wait(System.Threading.Timeout.InfiniteTimeSpan);
        if (result != null) return result;
      }
    }

    internal static ulong ToNanoseconds(TimeSpan timeout, string name)
    {
      if (timeout == System.Threading.Timeout.InfiniteTimeSpan) return Constants.GPUMEM_TIMEOUT_INFINITE;
      if (timeout < TimeSpan.Zero)
      {
        throw new ArgumentOutOfRangeException(name, timeout, "pass zero, a positive time or Timeout.InfiniteTimeSpan");
      }
      // A tick is 100 ns.
      return timeout.Ticks > long.MaxValue / 100 ? long.MaxValue : (ulong)timeout.Ticks * 100;
    }
  }
}
