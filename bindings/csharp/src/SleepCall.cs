// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What sleeping, waking and preparing have in common for a buffer and a group: options, and functions of the program that
// the library calls on the thread of the call.

using System;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;
using System.Threading;
using GpuMem.Interop;

namespace GpuMem
{
  [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
  delegate int ProgressCallback(IntPtr userData, ulong done, ulong total);

  /// <summary>
  /// A call that sleeps or wakes. What functions of the program throw is kept until the call has returned, so that no
  /// exception passes through the library.
  /// </summary>
  sealed unsafe class SleepCall
  {
    internal delegate int SleepFunction(gpumem_sleep_desc* desc, gpumem_error* error);

    internal delegate int WakeFunction(gpumem_wake_desc* desc, gpumem_error* error);

    internal delegate int FileFunction(gpumem_copy_file_desc* desc, gpumem_copy_file_info* info, gpumem_error* error);

    internal delegate int PrepareFunction(gpumem_prepare_desc* desc, gpumem_error* error);

    static readonly ProgressCallback progressFunction = RunProgress;
    static readonly IntPtr progressPointer = Marshal.GetFunctionPointerForDelegate(progressFunction);

    // A function of the program may put other buffers to sleep, so calls can be nested.
    [ThreadStatic] static SleepCall current;

    readonly Func<ulong, ulong, bool> progress;
    readonly CancellationToken cancellation;
    ExceptionDispatchInfo thrown;
    bool refused, cancelled;

    SleepCall(Func<ulong, ulong, bool> progress, CancellationToken cancellation)
    {
      this.progress = progress;
      this.cancellation = cancellation;
    }

    /// <param name="handle">The buffer or group.</param>
    /// <param name="options">Its options.</param>
    /// <param name="during">Makes the call while no view is used.</param>
    /// <param name="function">The function of the library.</param>
    internal static void Sleep(GpuHandle handle, SleepOptions options, Action<Action> during, SleepFunction function)
    {
      var call = new SleepCall(options.Progress, options.Cancellation);
      using (var directory = new CText(options.Directory, nameof(options.Directory)))
      using (var tag = new CText(options.Tag, nameof(options.Tag)))
      {
        gpumem_sleep_desc desc = options.Describe();
        desc.directory = directory.Pointer;
        desc.tag = tag.Pointer;
        desc.progress = call.ProgressPointer;
        call.Make(handle, during, error =>
        {
          gpumem_sleep_desc given = desc;
          return function(&given, error);
        });
      }
      GC.KeepAlive(options.Stream);
      GC.KeepAlive(options.Event);
    }

    /// <summary>As <see cref="Sleep"/>.</summary>
    internal static void Wake(GpuHandle handle, WakeOptions options, Action<Action> during, WakeFunction function)
    {
      gpumem_wake_desc desc = options.Describe();
      var call = new SleepCall(options.Progress, options.Cancellation);
      using (var tag = new CText(options.Tag, nameof(options.Tag)))
      {
        if (options.Keep == long.MaxValue) desc.keep = ulong.MaxValue;
        desc.tag = tag.Pointer;
        desc.progress = call.ProgressPointer;
        call.Make(handle, during, error =>
        {
          gpumem_wake_desc given = desc;
          return function(&given, error);
        });
      }
    }

    /// <summary>As <see cref="Sleep"/>, for a copy between a file and memory.</summary>
    internal static FileCopied CopyFile(GpuHandle handle, FileCopyOptions options, gpumem_copy_file_desc desc,
                                        Action<Action> during, FileFunction function)
    {
      var call = new SleepCall(options.Progress, options.Cancellation);
      desc.progress = call.ProgressPointer;
      gpumem_copy_file_info info = default(gpumem_copy_file_info);
      try
      {
        call.Make(handle, during, error =>
        {
          gpumem_copy_file_desc given = desc;
          gpumem_copy_file_info written = gpumem_copy_file_info.Sized();
          int status = function(&given, &written, error);
          info = written;
          return status;
        });
      }
      catch (Exception problem)
      {
        GpuMemException failure = problem as GpuMemException ?? problem.InnerException as GpuMemException;
        if (failure != null) failure.Copied = (long)info.copied;
        throw;
      }
      gpumem_copy_file_info all = info;
      return new FileCopied(&all);
    }

    internal static void Prepare(GpuHandle handle, PrepareOptions options, PrepareFunction function)
    {
      gpumem_prepare_desc desc = options.Describe();
      using (var directory = new CText(options.Directory, nameof(options.Directory)))
      using (var tag = new CText(options.Tag, nameof(options.Tag)))
      {
        desc.directory = directory.Pointer;
        desc.tag = tag.Pointer;
        Forgotten.Retry(() =>
        {
          gpumem_prepare_desc given = desc;
          gpumem_error* error = Error.Detail;
          handle.Check(function(&given, error), error);
        });
      }
    }

    /// <summary>Keeps what a function of the program has thrown for the call that runs on this thread.</summary>
    /// <param name="what">The function, for the log.</param>
    /// <param name="problem">The exception.</param>
    /// <param name="refuses">Whether it makes the call fail.</param>
    internal static void Failed(string what, Exception problem, bool refuses)
    {
      GpuMemDiagnostics.CallbackFailed(what, problem);
      SleepCall call = current;
      if (call == null || call.thrown != null) return;
      call.thrown = ExceptionDispatchInfo.Capture(problem);
      call.refused = refuses;
    }

    IntPtr ProgressPointer
    {
      get { return progress == null && !cancellation.CanBeCanceled ? IntPtr.Zero : progressPointer; }
    }

    void Make(GpuHandle handle, Action<Action> during, NativeCall call)
    {
      if (cancellation.IsCancellationRequested)
      {
        throw Cancelled(new GpuMemException(Status.Cancelled, "the token was cancelled before the call"));
      }
      Forgotten.Retry(() => during(() => Try(handle, call)));
      if (thrown != null) thrown.Throw();
    }

    void Try(GpuHandle handle, NativeCall call)
    {
      gpumem_error* error = Error.Detail;
      SleepCall outer = current;
      int status;
      thrown = null;
      refused = cancelled = false;
      current = this;
      try
      {
        status = call(error);
      }
      finally
      {
        current = outer;
      }
      if (status >= 0 || (thrown != null && refused)) return;
      thrown = null;
      if (cancelled && status == Constants.GPUMEM_ERROR_CANCELLED)
      {
        GpuMemException failure = Error.Failure(error);
        failure.Reword("the progress function ended", "the cancelled token ended");
        throw Cancelled(failure);
      }
      handle.Check(status, error);
    }

    OperationCanceledException Cancelled(GpuMemException failure)
    {
      return new OperationCanceledException(failure.Message, failure, cancellation);
    }

    bool IsCancelled()
    {
      cancelled = cancellation.IsCancellationRequested;
      return cancelled;
    }

    [MonoPInvokeCallback(typeof(ProgressCallback))]
    static int RunProgress(IntPtr userData, ulong done, ulong total)
    {
      SleepCall call = current;
      try
      {
        if (call == null) return 0;
        if (call.thrown != null) return 1;
        // Nothing ends the call any more once all is done.
        if (done < total && call.IsCancelled()) return 1;
        if (call.progress != null && !call.progress(done, total)) return 1;
        return call.IsCancelled() ? 1 : 0;
      }
      catch (Exception problem)
      {
        Failed("a progress function", problem, true);
        return 1;
      }
    }
  }
}
