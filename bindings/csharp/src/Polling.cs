// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Waits that hold no thread. The class is apart because an unsafe one cannot await.

using System;
using System.Threading;
using System.Threading.Tasks;

namespace GpuMem
{
  static class Polling
  {
    const int LongestPause = 10;  // Milliseconds.

    /// <summary>Asks again and again, after pauses of 1 ms to <see cref="LongestPause"/>.</summary>
    internal static async Task Until(Func<bool> complete, CancellationToken cancellation)
    {
      cancellation.ThrowIfCancellationRequested();
      for (int pause = 1; !complete(); pause = Math.Min(2 * pause, LongestPause))
      {
        try
        {
          await Task.Delay(pause, cancellation).ConfigureAwait(false);
        }
        catch (TaskCanceledException)
        {
          // A token that was cancelled before, and one that is cancelled during the wait, give the same exception.
        }
        cancellation.ThrowIfCancellationRequested();
      }
    }

    /// <summary>Waits for what is in a stream now. Others may go on to enqueue, so a query of it may never say yes.</summary>
    internal static async Task UntilReached(GpuStream stream, CancellationToken cancellation)
    {
      cancellation.ThrowIfCancellationRequested();
      if (stream.Query()) return;
      using (GpuEvent mark = stream.Device.CreateEvent(EventFlags.DisableTiming))
      {
        mark.Record(stream);
        await Until(mark.Query, cancellation).ConfigureAwait(false);
      }
    }
  }
}
