// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Objects that cannot be freed when they are disposed or collected, and those that the program has forgotten.

using System;
using System.Collections.Generic;
using System.Threading;

namespace GpuMem
{
  /// <summary>
  /// Objects that were disposed or collected before their work was complete. Creating, waiting and disposing try to
  /// free them again.
  /// </summary>
  static class Leftovers
  {
    static readonly List<GpuHandle> list = new List<GpuHandle>();
    static volatile int count;

    internal static int Count { get { return count; } }

    internal static void Add(GpuHandle handle)
    {
      lock (list)
      {
        list.Add(handle);
        count = list.Count;
      }
    }

    internal static void Sweep()
    {
      if (count != 0) SweepAll();
    }

    /// <summary>Tries one of them again.</summary>
    internal static void Retry(GpuHandle handle)
    {
      lock (list)
      {
        if (!list.Remove(handle)) return;
        count = list.Count;
      }
      if (!handle.TryRelease()) Add(handle);
    }

    static void SweepAll()
    {
      GpuHandle[] candidates;
      lock (list)
      {
        candidates = list.ToArray();
        list.Clear();
        count = 0;
      }
      foreach (GpuHandle candidate in candidates)
      {
        if (!candidate.TryRelease()) Add(candidate);
      }
    }
  }

  /// <summary>Frees forgotten objects whose end may wait for work, one at a time, apart from the finalizers of the process.</summary>
  static class WaitingThread
  {
    static readonly Queue<GpuHandle> queue = new Queue<GpuHandle>();
    static bool running;

    internal static void Release(GpuHandle handle)
    {
      lock (queue)
      {
        queue.Enqueue(handle);
        if (running) return;
        running = true;
      }
      try
      {
        new Thread(Run) { IsBackground = true }.Start();
      }
      catch (Exception)
      {
        // No thread can be had, least of all at the end of the process, and a finalizer must not throw. A later call frees them.
        lock (queue)
        {
          running = false;
          while (queue.Count != 0) Leftovers.Add(queue.Dequeue());
        }
      }
    }

    static void Run()
    {
      for (;;)
      {
        GpuHandle handle;
        lock (queue)
        {
          running = queue.Count != 0;
          if (!running) return;
          handle = queue.Dequeue();
        }
        handle.ReleaseNow();
      }
    }
  }

  /// <summary>Objects that the program has dropped without disposing them.</summary>
  static class Forgotten
  {
    /// <summary>Calls a function; if memory is short, frees what idle streams keep and what was forgotten, and calls it again.</summary>
    internal static T Retry<T>(Func<T> call)
    {
      try
      {
        return call();
      }
      catch (GpuMemException problem) when (MadeRoom(problem))
      {
        return Again(call);
      }
    }

    /// <summary>Calls it for the second time; if memory is short still, the failure says what would help.</summary>
    internal static T Again<T>(Func<T> call)
    {
      try
      {
        return call();
      }
      catch (GpuMemException problem) when (IsShortage(problem.Status))
      {
        Explain(problem);
        throw;
      }
    }

    internal static void Retry(Action call)
    {
      Retry(() =>
      {
        call();
        return true;
      });
    }

    /// <summary>Whether a call that failed should be made again, because something was freed.</summary>
    internal static bool MadeRoom(GpuMemException problem)
    {
      if (!IsShortage(problem.Status)) return false;
      if (StreamHandle.ReleaseComplete() | FreeAny()) return true;
      Explain(problem);
      return false;
    }

    static void Explain(GpuMemException problem)
    {
      long bytes = StreamHandle.DisposedBytes();
      if (bytes != 0) problem.Add("; " + bytes + " bytes that were disposed wait for work in streams: synchronize those");
    }

    static bool IsShortage(Status status)
    {
      return status == Status.OutOfDeviceMemory || status == Status.OutOfHostMemory || status == Status.LimitExceeded;
    }

    static bool FreeAny()
    {
      long before = GpuMemDiagnostics.FinalizedObjects;
      int waiting = Leftovers.Count;
      GC.Collect();
      GC.WaitForPendingFinalizers();
      Leftovers.Sweep();
      return GpuMemDiagnostics.FinalizedObjects != before || Leftovers.Count < waiting;
    }
  }
}
