// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts of what went on where no exception can be thrown: in finalizers, in Dispose and in callbacks.

using System.Threading;

namespace GpuMem
{
  /// <summary>
  /// What went on where no exception can be thrown. Each of it is also a message of <see cref="GpuMemLog"/>.
  /// </summary>
  public static class GpuMemDiagnostics
  {
    static long finalized;
    static long releaseFailures;
    static long callbackFailures;

    /// <summary>Remembers where each object is made, for the message about one that was not disposed. Slow.</summary>
    public static bool TrackOrigins { get; set; }

    /// <summary>Objects that the garbage collector had to free, because nobody disposed them.</summary>
    public static long FinalizedObjects { get { return Interlocked.Read(ref finalized); } }

    /// <summary>Objects that the library or driver refused to free.</summary>
    public static long ReleaseFailures { get { return Interlocked.Read(ref releaseFailures); } }

    /// <summary>Exceptions that left a host function, a kernel or the log function of the program.</summary>
    public static long CallbackFailures { get { return Interlocked.Read(ref callbackFailures); } }

    /// <summary>Objects that were disposed and wait for work on them to be complete.</summary>
    public static int WaitingObjects { get { return Leftovers.Count; } }

    /// <summary>Frees what can be freed of the objects that wait. Each creation and wait does it, too.</summary>
    public static void ReleaseWaiting() { Leftovers.Sweep(); }

    internal static void Finalized(string noun, string origin)
    {
      Interlocked.Increment(ref finalized);
      string made = origin == null ? "" : "; it was made" + System.Environment.NewLine + origin;
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
