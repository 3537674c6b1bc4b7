// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A safe handle for each type of object. It keeps its instance open and frees its object once, without throwing.
//
// The library checks handles itself: a call that comes too late fails and touches nothing, so calls take no reference.
// Only what outlives a call holds one: views, copies in a stream, and objects of an instance.

using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;
using GpuMem.Interop;

namespace GpuMem
{
  abstract unsafe class GpuHandle : SafeHandle
  {
    readonly GpuHandle parent;
    readonly string origin;
    bool finalizing;
    volatile bool disposed;

    /// <summary>Creates the handle of an instance.</summary>
    protected GpuHandle(bool owned) : base(IntPtr.Zero, owned)
    {
      origin = GpuMemDiagnostics.TrackOrigins ? Environment.StackTrace : null;
    }

    /// <summary>Creates the handle of an object, which keeps its instance open.</summary>
    protected GpuHandle(GpuHandle parent) : this(true)
    {
      parent.Hold();
      this.parent = parent;
    }

    /// <summary>Name of the type of object, for messages.</summary>
    internal abstract string Noun { get; }

    /// <summary>The object that has the handle, for messages.</summary>
    public override string ToString() { return Print().ToString(); }

    internal virtual Printed Print() { return new Printed(Noun); }

    /// <summary>Throws if a range that was made of the object is no longer part of it.</summary>
    internal virtual void RequireCurrent(GpuRange range) { }

    /// <summary>Destroys the native object; returns the status.</summary>
    protected abstract int Destroy(IntPtr value, gpumem_error* error);

    /// <summary>Releases what the native object needed, after that is destroyed.</summary>
    protected virtual void ReleaseKept() { }

    public override bool IsInvalid { get { return handle == IntPtr.Zero; } }

    /// <summary>
    /// Whether the owner has disposed it. The native object lives on as long as there are references, and
    /// <c>IsClosed</c> is false until it is destroyed.
    /// </summary>
    internal bool IsDisposed { get { return disposed; } }

    /// <summary>The value, unless the owner has disposed it.</summary>
    internal IntPtr Value
    {
      get
      {
        if (disposed) throw new ObjectDisposedException(Noun);
        return handle;
      }
    }

    /// <summary>The value, for holders of a reference.</summary>
    internal IntPtr Raw { get { return handle; } }

    /// <summary>Takes a reference; <c>DangerousRelease</c> releases it.</summary>
    internal void Hold()
    {
      if (disposed) throw new ObjectDisposedException(Noun);
      bool held = false;
      DangerousAddRef(ref held);
    }

    /// <summary>Gives up the native object, which no longer exists.</summary>
    internal void Forget()
    {
      disposed = true;
      SetHandleAsInvalid();
    }

    internal void Attach(IntPtr value) { SetHandle(value); }

    /// <summary>Releases the parent after a failed creation.</summary>
    internal void Abandon()
    {
      Forget();
      GC.SuppressFinalize(this);
      ReleaseParent();
    }

    /// <summary>Keeps the instance open no longer.</summary>
    internal void ReleaseParent()
    {
      if (parent != null) parent.DangerousRelease();
    }

    protected override void Dispose(bool disposing)
    {
      if (!disposing) finalizing = true;
      disposed = true;
      base.Dispose(disposing);
    }

    protected sealed override bool ReleaseHandle()
    {
      try
      {
        // The system frees everything when the process ends, and other threads may still use the memory.
        if (Environment.HasShutdownStarted) return true;
        if (finalizing) GpuMemDiagnostics.Finalized(ToString(), origin);
        if (!TryRelease()) Leftovers.Add(this);
        return true;
      }
      catch (Exception problem)
      {
        GpuMemDiagnostics.ReleaseFailed(ToString(), problem.Message);
        return false;
      }
    }

    /// <summary>Destroys the object. False if it is still in use, or memory is short, which unmapping may need.</summary>
    internal bool TryRelease()
    {
      gpumem_error* error = Error.Detail;
      int status = Destroy(handle, error);
      switch (status)
      {
        case Constants.GPUMEM_ERROR_BUSY:
        case Constants.GPUMEM_ERROR_OUT_OF_HOST_MEMORY:
        case Constants.GPUMEM_ERROR_INVALID_STATE:
        case Constants.GPUMEM_NOT_READY:
          return false;
        case Constants.GPUMEM_SUCCESS:
        case Constants.GPUMEM_ERROR_STALE_HANDLE:
        case Constants.GPUMEM_ERROR_CLOSED:
        case Constants.GPUMEM_ERROR_FORKED:
          break;
        default:
          GpuMemDiagnostics.ReleaseFailed(ToString(), Words.Read(error->message, 512));
          break;
      }
      ReleaseKept();
      ReleaseParent();
      return true;
    }
  }

  sealed unsafe class InstanceHandle : GpuHandle
  {
    int views;

    internal InstanceHandle(bool owned) : base(owned) { }

    internal override string Noun { get { return nameof(GpuInstance); } }

    /// <summary>Number of live views of memory, which prevent a forced close.</summary>
    internal int Views { get { return Volatile.Read(ref views); } }

    internal void CountView(int change) { Interlocked.Add(ref views, change); }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      return Native.gpumem_instance_close(value, Constants.GPUMEM_CLOSE_CHECK, null, error);
    }
  }

  sealed unsafe class AllocationHandle : GpuHandle
  {
    GCHandle array;
    long weight;

    internal AllocationHandle(InstanceHandle instance) : base(instance) { Instance = instance; }

    internal InstanceHandle Instance { get; private set; }

    /// <summary>What the owner knows of it.</summary>
    internal MemoryInfo Info { get; set; }

    internal override string Noun { get { return nameof(GpuMemory); } }

    internal override Printed Print()
    {
      return Info == null ? base.Print() : Info.Print(base.Print(), true);
    }

    /// <summary>Keeps an array in place until it is no longer registered.</summary>
    internal void Keep(GCHandle pinned) { array = pinned; }

    /// <summary>Lets the collector, to which every object is small, know the bytes behind this one.</summary>
    internal void Weigh(long bytes)
    {
      weight = bytes;
      GC.AddMemoryPressure(bytes);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      return Native.gpumem_memory_destroy(value, error);
    }

    protected override void ReleaseKept()
    {
      if (array.IsAllocated) array.Free();
      if (weight != 0) GC.RemoveMemoryPressure(weight);
      weight = 0;
    }
  }

  sealed unsafe class StreamHandle : GpuHandle
  {
    readonly int device;
    readonly string name;

    internal StreamHandle(GpuDevice device, string name) : base(device.Instance.Handle)
    {
      this.device = device.Ordinal;
      this.name = name;
      Pending = new PendingWork();
    }

    internal PendingWork Pending { get; private set; }

    internal override string Noun { get { return nameof(GpuStream); } }

    internal override Printed Print() { return base.Print().Add("Device", device).AddIf("Name", name); }

    // While operands are kept for the stream it must live, because only it can observe the work complete.
    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      if (Pending.Any)
      {
        int status = Native.gpumem_stream_query(value, error);
        if (status == Constants.GPUMEM_NOT_READY || status == Constants.GPUMEM_ERROR_INVALID_STATE) return status;
      }
      return Native.gpumem_stream_destroy(value, error);
    }

    protected override void ReleaseKept() { Pending.Release(long.MaxValue); }
  }

  sealed unsafe class EventHandle : GpuHandle
  {
    readonly int device;
    readonly string name;

    internal EventHandle(GpuDevice device, string name) : base(device.Instance.Handle)
    {
      this.device = device.Ordinal;
      this.name = name;
    }

    internal override string Noun { get { return nameof(GpuEvent); } }

    internal override Printed Print() { return base.Print().Add("Device", device).AddIf("Name", name); }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      return Native.gpumem_event_destroy(value, error);
    }
  }

  /// <summary>An access of the CPU to managed memory. It ends once, also if it was forgotten.</summary>
  sealed unsafe class HostAccessHandle : GpuHandle
  {
    readonly InstanceHandle instance;
    bool begun;

    HostAccessHandle(InstanceHandle instance, GpuHandle owner) : base(owner ?? instance)
    {
      this.instance = instance;
      instance.CountView(1);
    }

    internal override string Noun { get { return "HostAccess"; } }

    internal static HostAccessHandle Begin(InstanceHandle instance, GpuRange range)
    {
      var handle = new HostAccessHandle(instance, range.Owner);
      try
      {
        handle.Begin(range);
      }
      catch
      {
        handle.Abandon();
        instance.CountView(-1);
        throw;
      }
      return handle;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    void Begin(GpuRange range)
    {
      // A slice may be empty and lie at the end, where the library would find nothing.
      IntPtr pointer = (IntPtr)unchecked((long)range.Pointer - range.Offset);
      if (range.IsOfNothing)
      {
        Attach((IntPtr)(-1));
        return;
      }
      gpumem_error* error = Error.Detail;
      int status = Native.gpumem_managed_begin_host_access(instance.Raw, pointer, error);
      Error.Check(status, error, instance, nameof(GpuInstance));
      begun = true;
      Attach(pointer);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      int status = begun ? Native.gpumem_managed_end_host_access(instance.Raw, value, error) : Constants.GPUMEM_SUCCESS;
      // There is no access to end after memory that was given by its pointer was freed.
      return status == Constants.GPUMEM_ERROR_INVALID_STATE ? Constants.GPUMEM_SUCCESS : status;
    }

    protected override void ReleaseKept() { instance.CountView(-1); }
  }

  sealed unsafe class PhysicalHandle : GpuHandle
  {
    long weight;

    internal PhysicalHandle(InstanceHandle instance) : base(instance) { }

    /// <summary>What the owner knows of it.</summary>
    internal PhysicalInfo Info { get; set; }

    internal override string Noun { get { return nameof(PhysicalMemory); } }

    internal override Printed Print() { return Info == null ? base.Print() : Info.Print(base.Print()); }

    /// <summary>Lets the collector, to which every object is small, know the bytes behind this one.</summary>
    internal void Weigh(long bytes)
    {
      weight = bytes;
      GC.AddMemoryPressure(bytes);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      return Native.gpumem_physical_release(value, error);
    }

    protected override void ReleaseKept()
    {
      if (weight != 0) GC.RemoveMemoryPressure(weight);
      weight = 0;
    }
  }

  sealed unsafe class RangeHandle : GpuHandle
  {
    readonly SortedDictionary<long, long> mappings = new SortedDictionary<long, long>();
    readonly long size;
    readonly string name;

    internal RangeHandle(InstanceHandle instance, long size, string name) : base(instance)
    {
      this.size = size;
      this.name = name;
    }

    internal override string Noun { get { return nameof(AddressRange); } }

    internal override Printed Print() { return base.Print().Add("Size", size).AddIf("Name", name); }

    /// <summary>Held during calls that map or unmap, so that the list of mappings is right.</summary>
    internal object Lock { get { return mappings; } }

    /// <summary>Notes a mapping. The caller holds the lock.</summary>
    internal void Mapped(long offset, long bytes)
    {
      mappings[offset] = bytes;
      GC.AddMemoryPressure(bytes);
    }

    /// <summary>Forgets the mappings that lie in a part, one behind the other. The caller holds the lock.</summary>
    internal void Unmapped(long offset, long bytes)
    {
      long end = offset + bytes, length;
      for (; offset < end && mappings.TryGetValue(offset, out length); offset += length)
      {
        mappings.Remove(offset);
        GC.RemoveMemoryPressure(length);
      }
    }

    // The addresses can be released only when nothing is mapped.
    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      lock (mappings)
      {
        long begin = 0, end;
        while (NextRun(ref begin, out end))
        {
          int status = Native.gpumem_range_unmap(value, (ulong)begin, (ulong)(end - begin), error);
          if (status != Constants.GPUMEM_SUCCESS) return status;
          Unmapped(begin, end - begin);
        }
      }
      return Native.gpumem_range_release(value, error);
    }

    protected override void ReleaseKept()
    {
      // Of an instance that was closed by force.
      foreach (long bytes in mappings.Values) GC.RemoveMemoryPressure(bytes);
      mappings.Clear();
    }

    /// <summary>Finds the first mappings that lie one behind the other.</summary>
    bool NextRun(ref long begin, out long end)
    {
      bool any = false;
      end = 0;
      foreach (KeyValuePair<long, long> mapping in mappings)
      {
        if (any && mapping.Key != end) break;
        if (!any) begin = mapping.Key;
        any = true;
        end = mapping.Key + mapping.Value;
      }
      return any;
    }
  }

  sealed unsafe class BufferHandle : GpuHandle
  {
    readonly object changes = new object();
    volatile BufferInfo info;
    long changeCount, weight;
    int users, changing;

    internal BufferHandle(InstanceHandle instance) : base(instance) { Instance = instance; }

    internal InstanceHandle Instance { get; private set; }

    /// <summary>What was known of it after its last change; null while it is created.</summary>
    internal BufferInfo Info { get { return info; } }

    /// <summary>Held during changes.</summary>
    internal object Lock { get { return changes; } }

    /// <summary>Number of its changes, by which a view knows whether it is current.</summary>
    internal long ChangeCount { get { return Volatile.Read(ref changeCount); } }

    internal override string Noun { get { return nameof(GrowableBuffer); } }

    internal override Printed Print() { return info == null ? base.Print() : info.Print(base.Print()); }

    internal override void RequireCurrent(GpuRange range)
    {
      BufferInfo now = info;
      long offset = unchecked((long)range.Pointer - (long)now.Base);
      if (offset >= 0 && offset <= now.Size - range.Size) return;
      throw new InvalidOperationException(
          "the range is no longer part of the buffer, which was resized; take it from the buffer again");
    }

    /// <summary>Makes a change, one at a time and while no view is used. If it throws, nothing has changed.</summary>
    internal void Change(Action change, Func<BufferInfo> query)
    {
      lock (changes)
      {
        if (IsDisposed) throw new ObjectDisposedException(Noun);
        RefuseViews();
        try
        {
          change();
          Volatile.Write(ref changeCount, changeCount + 1);
          info = query();
          Weigh();
        }
        finally
        {
          Volatile.Write(ref changing, 0);
        }
      }
    }

    /// <summary>Begins a use of the memory by the CPU. False if something has changed, or is about to.</summary>
    internal bool TryEnter(long knownChanges)
    {
      // Either this sees the flag, or the change sees the user.
      Interlocked.Increment(ref users);
      if (Volatile.Read(ref changing) == 0 && ChangeCount == knownChanges && !IsDisposed && !Instance.IsClosed) return true;
      Leave();
      return false;
    }

    internal void Leave() { Interlocked.Decrement(ref users); }

    // Waiting for a lock instead could never end: a view may be used in a function that a stream runs, and the driver
    // may wait for that when it unmaps.
    void RefuseViews()
    {
      Interlocked.Exchange(ref changing, 1);
      var spin = new SpinWait();
      while (Volatile.Read(ref users) != 0) spin.SpinOnce();
    }

    // The collector, to which every object is small, should know the bytes behind this one.
    void Weigh()
    {
      long now = info.Asleep ? info.StoredSize : info.Capacity;
      if (now > weight) GC.AddMemoryPressure(now - weight);
      if (now < weight) GC.RemoveMemoryPressure(weight - now);
      weight = now;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      lock (changes)
      {
        RefuseViews();
        return Native.gpumem_buffer_destroy(value, error);
      }
    }

    protected override void ReleaseKept()
    {
      if (weight != 0) GC.RemoveMemoryPressure(weight);
      weight = 0;
    }
  }

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

  /// <summary>Objects that the program has dropped without disposing them.</summary>
  static class Forgotten
  {
    /// <summary>Calls a function; if memory is short, frees what was forgotten and calls it again.</summary>
    internal static T Retry<T>(Func<T> call)
    {
      try
      {
        return call();
      }
      catch (GpuMemException problem) when (IsShortage(problem.Status) && FreeAny())
      {
        return call();
      }
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

  /// <summary>Keeps memory alive for a view, until the view is disposed or collected.</summary>
  sealed class Use : IDisposable
  {
    AllocationHandle handle;

    internal Use(AllocationHandle handle)
    {
      handle.Hold();
      handle.Instance.CountView(1);
      this.handle = handle;
    }

    ~Use() { Release(); }

    public void Dispose()
    {
      Release();
      GC.SuppressFinalize(this);
    }

    void Release()
    {
      AllocationHandle held = Interlocked.Exchange(ref handle, null);
      if (held == null) return;
      held.Instance.CountView(-1);
      held.DangerousRelease();
    }
  }
}
