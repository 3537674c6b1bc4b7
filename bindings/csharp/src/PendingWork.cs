// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the work in a stream needs until somebody has observed that it is complete.

using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Threading;

namespace GpuMem
{
  /// <summary>Something that is kept for work in a stream.</summary>
  interface IKept
  {
    void LetGo();
  }

  /// <summary>Memory whose handle stays valid.</summary>
  sealed class KeptMemory : IKept
  {
    readonly AllocationHandle handle;

    internal KeptMemory(AllocationHandle handle)
    {
      handle.Hold();
      this.handle = handle;
    }

    public void LetGo() { handle.DangerousRelease(); }
  }

  /// <summary>An array that stays where it is.</summary>
  sealed class KeptArray : IKept
  {
    GCHandle handle;

    internal KeptArray(Array array) { handle = GCHandle.Alloc(array, GCHandleType.Pinned); }

    internal IntPtr Address { get { return handle.AddrOfPinnedObject(); } }

    public void LetGo() { handle.Free(); }
  }

  /// <summary>
  /// What a stream waits for in another one: when the waiting stream is seen complete, so is that work.
  /// </summary>
  sealed class Capture : IKept
  {
    readonly PendingWork work;
    readonly long until;

    internal Capture(PendingWork work, long until)
    {
      this.work = work;
      this.until = until;
    }

    public void LetGo() { work.LetGo(until); }
  }

  /// <summary>
  /// The list of a stream, in the order of its work. Calls that put work into the stream hold its lock, so that the two
  /// orders agree.
  /// </summary>
  sealed class PendingWork
  {
    struct Entry
    {
      internal long Number;
      internal IKept Kept;
    }

    readonly Queue<Entry> queue = new Queue<Entry>();
    // Written under the lock. Read without it, so that asking a stream that has nothing to let go of takes no lock.
    long last;
    long taken;

    internal object Lock { get { return queue; } }

    internal bool Any { get { lock (queue) return queue.Count != 0; } }

    /// <summary>Number of the latest entry.</summary>
    internal long Last { get { return Volatile.Read(ref last); } }

    /// <summary>Keeps something for the work that was just enqueued; the caller holds the lock.</summary>
    internal void Keep(IKept kept)
    {
      if (kept == null) return;
      queue.Enqueue(new Entry { Number = last + 1, Kept = kept });
      Volatile.Write(ref last, last + 1);
    }

    /// <summary>What an event captures now; null if nothing is kept. The caller holds the lock.</summary>
    internal Capture Capture() { return queue.Count == 0 ? null : new Capture(this, last); }

    /// <summary>The work up to a number is complete.</summary>
    internal void LetGo(long until)
    {
      while (Volatile.Read(ref taken) < until)
      {
        Entry entry;
        lock (queue)
        {
          if (queue.Count == 0 || queue.Peek().Number > until) return;
          entry = queue.Dequeue();
          Volatile.Write(ref taken, entry.Number);
        }
        // Outside the lock: it may free memory, or reach another stream's list.
        entry.Kept.LetGo();
      }
    }
  }
}
