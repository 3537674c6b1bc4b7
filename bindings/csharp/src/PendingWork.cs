// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Keeps the operands of a stream's work valid until the work has been observed complete.

using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Threading;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>Something that work in a stream needs.</summary>
  interface IKept
  {
    /// <summary>Releases it; returns what a function of the program has thrown in the work, or null.</summary>
    Exception Release();
  }

  /// <summary>Memory that work in a stream needs, some of which can be freed in the order of the stream.</summary>
  interface IOrdered : IKept
  {
    /// <summary>Releases what can be freed behind the work that the stream has now. False if nothing is left.</summary>
    bool ReleaseOrdered(StreamHandle stream);

    /// <summary>Tells what is kept by which entry of a stream.</summary>
    void Note(StreamHandle stream, long number);

    /// <summary>Adds what the program has disposed, with its bytes.</summary>
    void AddDisposed(Dictionary<GpuHandle, long> found);
  }

  /// <summary>Keeps memory from being freed.</summary>
  sealed class KeptMemory : IOrdered
  {
    readonly GpuRange range;
    readonly GpuHandle handle;

    KeptMemory(GpuRange range)
    {
      this.range = range;
      handle = range.HoldOwner();
    }

    /// <summary>Keeps the memory of a range; null for a pointer.</summary>
    internal static KeptMemory Of(GpuRange range) { return range.Owner == null ? null : new KeptMemory(range); }

    /// <summary>Makes a call of an object that needs a range. False if it was a hint without an effect.</summary>
    internal static unsafe bool While(GpuRange range, GpuHandle handle, NativeCall call)
    {
      KeptMemory kept = Of(range);
      try
      {
        gpumem_error* error = Error.Detail;
        int status = call(error);
        handle.Check(status, error);
        return status == Constants.GPUMEM_SUCCESS;
      }
      finally
      {
        kept?.Release();
      }
    }

    public bool ReleaseOrdered(StreamHandle stream)
    {
      if (!handle.IsOrderedBehind(stream)) return true;
      Release();
      return false;
    }

    public void Note(StreamHandle stream, long number) { handle.NoteWork(range, stream, number); }

    public void AddDisposed(Dictionary<GpuHandle, long> found)
    {
      if (handle.IsDisposed) found[handle] = handle.Bytes;
    }

    public Exception Release()
    {
      handle.EndWork();
      return null;
    }
  }

  /// <summary>Keeps the memory of a batch from being freed.</summary>
  sealed class KeptBatch : IOrdered
  {
    readonly List<GpuRange> held = new List<GpuRange>();

    internal KeptBatch(CopyRegion[] regions)
    {
      try
      {
        foreach (CopyRegion region in regions)
        {
          Hold(region.Destination.Range);
          Hold(region.Source.Range);
        }
      }
      catch
      {
        Release();
        throw;
      }
    }

    internal KeptBatch(PrefetchRange[] ranges)
    {
      try
      {
        foreach (PrefetchRange one in ranges) Hold(one.Range);
      }
      catch
      {
        Release();
        throw;
      }
    }

    public Exception Release()
    {
      foreach (GpuRange range in held) range.Owner.EndWork();
      return null;
    }

    public bool ReleaseOrdered(StreamHandle stream)
    {
      held.RemoveAll(range =>
      {
        if (!range.Owner.IsOrderedBehind(stream)) return false;
        range.Owner.EndWork();
        return true;
      });
      return held.Count != 0;
    }

    public void Note(StreamHandle stream, long number)
    {
      foreach (GpuRange range in held) range.Owner.NoteWork(range, stream, number);
    }

    public void AddDisposed(Dictionary<GpuHandle, long> found)
    {
      foreach (GpuRange range in held)
      {
        if (range.Owner.IsDisposed) found[range.Owner] = range.Owner.Bytes;
      }
    }

    void Hold(GpuRange range)
    {
      if (range.Owner == null) return;
      range.HoldOwner();
      held.Add(range);
    }
  }

  /// <summary>Keeps an array alive and in place.</summary>
  sealed class KeptArray : IKept
  {
    GCHandle handle;

    internal KeptArray(GCHandle pinned) { handle = pinned; }

    internal IntPtr Address { get { return handle.AddrOfPinnedObject(); } }

    public Exception Release()
    {
      handle.Free();
      return null;
    }
  }

  /// <summary>
  /// The work of one stream that another stream waits for. It is complete once the waiting stream is.
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

    public Exception Release() { return work.Release(until); }
  }

  /// <summary>
  /// What the work of a stream needs, in the order of the work. Calls that enqueue work hold the lock, so that the two
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
    // Written under the lock, but read without it, so that querying a stream takes no lock while nothing is kept.
    long last;
    long taken;
    Exception unseen;

    internal object Lock { get { return queue; } }

    internal bool Any { get { lock (queue) return queue.Count != 0; } }

    /// <summary>Adds the memory that the program has disposed, with its bytes.</summary>
    internal void AddDisposed(Dictionary<GpuHandle, long> found)
    {
      lock (queue)
      {
        foreach (Entry entry in queue) (entry.Kept as IOrdered)?.AddDisposed(found);
      }
    }

    /// <summary>Whether an entry was released.</summary>
    internal bool IsReleased(long number) { return Volatile.Read(ref taken) >= number; }

    /// <summary>Number of the latest entry.</summary>
    internal long Last { get { return Volatile.Read(ref last); } }

    /// <summary>
    /// Keeps something until the work that is in the stream now is complete. The caller holds the lock.
    /// </summary>
    internal void Keep(IKept kept, StreamHandle stream)
    {
      var ordered = kept as IOrdered;
      if (ordered != null && !ordered.ReleaseOrdered(stream)) return;
      Keep(kept);
      if (ordered != null) ordered.Note(stream, last);
    }

    /// <summary>The same of what is needed in any case.</summary>
    internal void Keep(IKept kept)
    {
      if (kept == null) return;
      queue.Enqueue(new Entry { Number = last + 1, Kept = kept });
      Volatile.Write(ref last, last + 1);
    }

    /// <summary>
    /// The entries that an event recorded now stands for; null if there are none. The caller holds the lock.
    /// </summary>
    internal Capture Capture() { return queue.Count == 0 ? null : new Capture(this, last); }

    /// <summary>
    /// Releases the entries up to a number, whose work is complete. Returns the first exception of a function of the
    /// program that ran in them, or null.
    /// </summary>
    internal Exception Release(long until)
    {
      Exception first = Volatile.Read(ref unseen) == null ? null : Interlocked.Exchange(ref unseen, null);
      while (Volatile.Read(ref taken) < until)
      {
        Entry entry;
        lock (queue)
        {
          if (queue.Count == 0 || queue.Peek().Number > until) break;
          entry = queue.Dequeue();
          Volatile.Write(ref taken, entry.Number);
        }
        // Outside the lock, because it may free memory or take another stream's lock.
        Exception thrown = entry.Kept.Release();
        first = first ?? thrown;
      }
      return first;
    }

    /// <summary>The same for a call that only needs memory: the next one that observes the work returns the exception.</summary>
    internal void ReleaseUnseen(long until)
    {
      Exception thrown = Release(until);
      if (thrown != null) Interlocked.CompareExchange(ref unseen, thrown, null);
    }
  }
}
