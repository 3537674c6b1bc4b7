// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An ordered queue of work of one device.

using System;
using System.Runtime.CompilerServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// A stream. Its calls put work into the queue and return. Memory and arrays that they are given are kept until the work
  /// has been observed complete: by <see cref="Synchronize()"/> or <see cref="Query"/> here, by one of an event that was
  /// recorded after it, or by one of another stream that has waited for such an event. Plain pointers are the caller's to
  /// keep.
  /// </summary>
  public sealed unsafe class GpuStream : IDisposable
  {
    readonly StreamHandle handle;

    GpuStream(GpuDevice device, StreamHandle handle)
    {
      Device = device;
      this.handle = handle;
    }

    /// <summary>Its device.</summary>
    public GpuDevice Device { get; private set; }

    /// <summary>What is known about the stream.</summary>
    public StreamInfo Info { [MethodImpl(GpuMemLibrary.Bound)] get { return GetInfo(); } }

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get { return handle.IsDisposed; } }

    internal StreamHandle Handle { get { return handle; } }

    /// <summary>Whether all work is complete.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public bool Query()
    {
      long last = handle.Pending.Last;
      gpumem_error* error = Error.Detail;
      return Observed(Native.gpumem_stream_query(handle.Value, error), error, last);
    }

    /// <summary>Waits until the work that is in the stream now is complete.</summary>
    public void Synchronize() { Synchronize(Constants.GPUMEM_TIMEOUT_INFINITE); }

    /// <summary>Waits with a limit. False if the time ran out.</summary>
    public bool Synchronize(TimeSpan timeout) { return Synchronize(Timeout.ToNanoseconds(timeout)); }

    /// <summary>Lets later work of this stream wait for what an event has captured.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void Wait(GpuEvent gpuEvent)
    {
      lock (gpuEvent.Lock)
      {
        lock (handle.Pending.Lock)
        {
          gpumem_error* error = Error.Detail;
          Check(Native.gpumem_stream_wait_event(handle.Value, gpuEvent.Handle.Value, error), error);
          handle.Pending.Keep(gpuEvent.Captured);
        }
      }
    }

    /// <summary>Puts a copy into the stream. The two ranges have the same size.</summary>
    public void Copy(GpuRange destination, GpuRange source, CopyOptions options = default(CopyOptions))
    {
      Transfer.Copy(Device.Instance.Handle, handle, destination, source, options);
    }

    /// <summary>Puts a copy from an array into the stream. The array must not change until it is complete.</summary>
    public void Copy<T>(GpuRange destination, T[] source, CopyOptions options = default(CopyOptions))
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      if (source == null) throw new ArgumentNullException(nameof(source));
      ulong size = (ulong)source.LongLength * (ulong)Elements<T>.Size;
      var kept = new KeptArray(source);
      var range = new GpuRange(kept.Address, size);
      Transfer.Copy(Device.Instance.Handle, handle, destination, range, options, kept);
    }

    /// <summary>Puts a copy to an array into the stream. The array has the bytes when it is complete.</summary>
    public void Copy<T>(T[] destination, GpuRange source, CopyOptions options = default(CopyOptions))
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      if (destination == null) throw new ArgumentNullException(nameof(destination));
      ulong size = (ulong)destination.LongLength * (ulong)Elements<T>.Size;
      var kept = new KeptArray(destination);
      var range = new GpuRange(kept.Address, size);
      Transfer.Copy(Device.Instance.Handle, handle, range, source, options, kept);
    }

    /// <summary>Puts a copy of a rectangle of bytes into the stream.</summary>
    public void Copy2D(GpuRange destination, ulong destinationPitch, GpuRange source, ulong sourcePitch, ulong width,
                       ulong height, CopyOptions options = default(CopyOptions))
    {
      Transfer.Copy2D(Device.Instance.Handle, handle, destination, destinationPitch, source, sourcePitch, width, height,
                      options);
    }

    /// <summary>Puts a fill with a repeated number of 1, 2 or 4 bytes into the stream.</summary>
    public void Fill(GpuRange destination, uint value, int valueSize = 1)
    {
      Transfer.Fill(Device.Instance.Handle, handle, destination, value, valueSize);
    }

    /// <summary>Puts a fill of a rectangle of memory into the stream.</summary>
    public void Fill2D(GpuRange destination, ulong pitch, ulong width, ulong height, uint value, int valueSize = 1)
    {
      Transfer.Fill2D(Device.Instance.Handle, handle, destination, pitch, width, height, value, valueSize);
    }

    /// <summary>
    /// Runs a function on another thread, after the work before and before the work behind it. It must not wait for work of
    /// a device, and may call of gpumem only what gives texts and information. What it throws is counted and dropped. It is
    /// not run if the device is lost.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void Launch(Action function)
    {
      if (function == null) throw new ArgumentNullException(nameof(function));
      var callback = new Callback(function);
      Enqueue(callback, error =>
          Native.gpumem_stream_launch_host_function(handle.Value, Callback.HostPointer, callback.UserData, error));
    }

    /// <summary>Writes a number of 4 or 8 bytes to a word of pinned or device memory.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void WriteValue(GpuRange word, ulong value)
    {
      Enqueue(Keep(word), error =>
          Native.gpumem_stream_write_value(handle.Value, word.Pointer, value, (uint)word.Size, error));
    }

    /// <summary>Holds the stream until a word of 4 or 8 bytes of pinned or device memory meets a condition.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void WaitValue(GpuRange word, ulong value, WaitCondition condition)
    {
      Enqueue(Keep(word), error =>
          Native.gpumem_stream_wait_value(handle.Value, word.Pointer, value, (uint)word.Size, (int)condition, error));
    }

    /// <summary>
    /// Destroys the stream, or lets go of an adopted one, as soon as nothing is kept for its work. It never waits, and can be
    /// called again, and from any thread.
    /// </summary>
    public void Dispose()
    {
      Leftovers.Sweep();
      handle.Dispose();
    }

    internal delegate int EnqueueCall(gpumem_error* error);

    internal void Enqueue(IKept kept, EnqueueCall call)
    {
      bool enqueued = false;
      try
      {
        lock (handle.Pending.Lock)
        {
          gpumem_error* error = Error.Detail;
          Check(call(error), error);
          handle.Pending.Keep(kept);
          enqueued = true;
        }
      }
      finally
      {
        if (!enqueued) kept?.LetGo();
      }
    }

    internal static GpuStream Create(GpuDevice device, int priority, string name)
    {
      return Make(device, handle =>
      {
        using (var text = new CText(name)) CreateNative(device, handle, priority, text.Pointer);
      });
    }

    internal static GpuStream Wrap(GpuDevice device, IntPtr nativeStream)
    {
      return Make(device, handle => WrapNative(device, handle, nativeStream));
    }

    static IKept Keep(GpuRange range) { return range.Memory == null ? null : new KeptMemory(range.Memory); }

    static GpuStream Make(GpuDevice device, Action<StreamHandle> make)
    {
      Leftovers.Sweep();
      var handle = new StreamHandle(device.Instance.Handle);
      try
      {
        make(handle);
      }
      catch
      {
        handle.Abandon();
        throw;
      }
      return new GpuStream(device, handle);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static void CreateNative(GpuDevice device, StreamHandle handle, int priority, IntPtr name)
    {
      gpumem_stream_desc desc = default(gpumem_stream_desc);
      desc.struct_size = (UIntPtr)(uint)sizeof(gpumem_stream_desc);
      desc.priority = priority;
      desc.name = name;
      IntPtr value;
      gpumem_error* error = Error.Detail;
      int status = Native.gpumem_stream_create(device.Value, &desc, &value, error);
      Error.Check(status, error, device.Instance.Handle, nameof(GpuInstance));
      handle.Adopt(value);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static void WrapNative(GpuDevice device, StreamHandle handle, IntPtr nativeStream)
    {
      IntPtr value;
      gpumem_error* error = Error.Detail;
      int status = Native.gpumem_stream_wrap(device.Value, nativeStream, &value, error);
      Error.Check(status, error, device.Instance.Handle, nameof(GpuInstance));
      handle.Adopt(value);
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
      // On a lost device nothing runs any more, and everything can be freed.
      if (status == Constants.GPUMEM_SUCCESS || status == Constants.GPUMEM_ERROR_DEVICE_LOST) LetGo(last, status, error);
      Check(status, error);
      GC.KeepAlive(this);
      return true;
    }

    void LetGo(long last, int status, gpumem_error* error)
    {
      // The detail of the failure must not be lost in what freeing calls.
      GpuMemException lost = status < 0 ? new GpuMemException(error) : null;
      handle.Pending.LetGo(last);
      Leftovers.Sweep();
      if (lost != null) throw lost;
    }

    void Check(int status, gpumem_error* error) { Error.Check(status, error, handle, nameof(GpuStream)); }

    [MethodImpl(GpuMemLibrary.Bound)]
    StreamInfo GetInfo()
    {
      gpumem_stream_info info = default(gpumem_stream_info);
      info.struct_size = (UIntPtr)(uint)sizeof(gpumem_stream_info);
      gpumem_error* error = Error.Detail;
      Check(Native.gpumem_stream_get_info(handle.Value, &info, error), error);
      return new StreamInfo(&info);
    }
  }

  static class Timeout
  {
    internal static ulong ToNanoseconds(TimeSpan timeout)
    {
      if (timeout == System.Threading.Timeout.InfiniteTimeSpan) return Constants.GPUMEM_TIMEOUT_INFINITE;
      if (timeout < TimeSpan.Zero) throw new ArgumentOutOfRangeException(nameof(timeout));
      // A tick is 100 ns.
      return timeout.Ticks > long.MaxValue / 100 ? long.MaxValue : (ulong)timeout.Ticks * 100;
    }
  }
}
