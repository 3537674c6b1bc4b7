// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts events in finalizers, Dispose and callbacks, where no exception can be thrown.

using System.Threading;

namespace GpuMem
{
  /// <summary>
  /// Counts events in finalizers, <c>Dispose</c> and callbacks, where no exception can be thrown. Each event is also
  /// logged (see <see cref="GpuMemLog"/>).
  /// </summary>
  public static class GpuMemDiagnostics
  {
    static long finalized;
    static long releaseFailures;
    static long callbackFailures;

    /// <summary>
    /// Records where each object is created, for the message about one that was not disposed. This is slow.
    /// </summary>
    public static bool TrackOrigins { get; set; }

    /// <summary>Number of objects that the garbage collector freed because they were not disposed.</summary>
    public static long FinalizedObjects { get { return Interlocked.Read(ref finalized); } }

    /// <summary>Number of objects that the library or the driver failed to free.</summary>
    public static long ReleaseFailures { get { return Interlocked.Read(ref releaseFailures); } }

    /// <summary>
    /// Number of exceptions that host functions, kernels, functions of sleeping and waking and the log function have
    /// thrown. Those of functions and kernels also come out of the call that observes their work complete, and the others,
    /// except the log's, out of the call that sleeps or wakes.
    /// </summary>
    public static long CallbackFailures { get { return Interlocked.Read(ref callbackFailures); } }

    /// <summary>
    /// Number of disposed objects that were not freed, because work still used them. What the work of a stream needs waits
    /// with the stream, and is not counted: <see cref="GpuStream.Query"/>, <see cref="GpuStream.Synchronize()"/> or
    /// <see cref="ReleaseWaiting"/> frees it.
    /// </summary>
    public static int WaitingObjects { get { return Leftovers.Count; } }

    /// <summary>
    /// Frees the waiting objects whose work is complete. Creating, waiting and disposing do so too; the end of the work and the
    /// garbage collector do not. It also frees what waits with a stream that is idle, as an allocation does when memory is short.
    /// </summary>
    public static void ReleaseWaiting()
    {
      StreamHandle.ReleaseComplete();
      Leftovers.Sweep();
    }

    internal static void Finalized(string noun, string origin)
    {
      Interlocked.Increment(ref finalized);
      string made = origin == null ? "" : "; it was created" + System.Environment.NewLine + origin;
      GpuMemLog.Write(LogLevel.Warning, "the garbage collector freed " + noun + " that was not disposed" + made);
    }

    internal static void ReleaseFailed(string noun, string reason)
    {
      Interlocked.Increment(ref releaseFailures);
      GpuMemLog.Write(LogLevel.Error, noun + " could not be freed: " + reason);
    }

    internal static void LogFailed() { Interlocked.Increment(ref callbackFailures); }

    internal static void CallbackFailed(string what, System.Exception problem)
    {
      Interlocked.Increment(ref callbackFailures);
      GpuMemLog.Write(LogLevel.Error, what + " threw " + problem);
    }
  }
}
