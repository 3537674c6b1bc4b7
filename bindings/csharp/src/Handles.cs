// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One safe handle for each type of object. A handle keeps its instance open, frees its object once, and never throws
// while it does so.
//
// The values of handles are checked by the library at each call, so a call needs no reference of its own: one that comes
// too late gets an error and touches nothing. References are held by what would outlive the call: views, copies in a
// stream, and children of an instance.

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

    /// <summary>For an instance.</summary>
    protected GpuHandle(bool owned) : base(IntPtr.Zero, owned)
    {
      origin = GpuMemDiagnostics.TrackOrigins ? Environment.StackTrace : null;
    }

    /// <summary>For an object of an instance, which stays open as long as this one lives.</summary>
    protected GpuHandle(GpuHandle parent) : this(true)
    {
      // A failure leaves nothing behind: a handle without a value is not released.
      parent.Hold();
      this.parent = parent;
    }

    /// <summary>What it is, for messages.</summary>
    internal abstract string Noun { get; }

    /// <summary>Destroys the native object; returns the status.</summary>
    protected abstract int Destroy(IntPtr value, gpumem_error* error);

    /// <summary>Gives back what was kept for the native object, after that is gone.</summary>
    protected virtual void LetGo() { }

    public override bool IsInvalid { get { return handle == IntPtr.Zero; } }

    /// <summary>
    /// Whether its owner gave it up. The object itself stays as long as there are references, and a safe handle is not
    /// closed before it is gone.
    /// </summary>
    internal bool IsDisposed { get { return disposed; } }

    /// <summary>The value for a call of the owner.</summary>
    internal IntPtr Value
    {
      get
      {
        if (disposed) throw new ObjectDisposedException(Noun);
        return handle;
      }
    }

    /// <summary>The value for those who hold a reference.</summary>
    internal IntPtr Raw { get { return handle; } }

    /// <summary>Takes a reference, which ends with <c>DangerousRelease</c>.</summary>
    internal void Hold()
    {
      if (disposed) throw new ObjectDisposedException(Noun);
      bool held = false;
      DangerousAddRef(ref held);
    }

    /// <summary>The native object is gone already.</summary>
    internal void Forget()
    {
      disposed = true;
      SetHandleAsInvalid();
    }

    internal void Adopt(IntPtr value) { SetHandle(value); }

    /// <summary>Takes back the promise to the parent after a creation that failed.</summary>
    internal void Abandon()
    {
      Forget();
      GC.SuppressFinalize(this);
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
        // The system takes back everything when the process ends; other threads may still use the memory.
        if (Environment.HasShutdownStarted) return true;
        if (finalizing) GpuMemDiagnostics.Finalized(Noun, origin);
        if (!TryRelease()) Leftovers.Add(this);
        return true;
      }
      catch (Exception problem)
      {
        GpuMemDiagnostics.ReleaseFailed(Noun, problem.Message);
        return false;
      }
    }

    /// <summary>Destroys the object unless it is still in use. True if there is nothing left to do.</summary>
    internal bool TryRelease()
    {
      gpumem_error* error = Error.Detail;
      int status = Destroy(handle, error);
      switch (status)
      {
        case Constants.GPUMEM_ERROR_BUSY:
        case Constants.GPUMEM_ERROR_INVALID_STATE:
        case Constants.GPUMEM_NOT_READY:
          return false;
        case Constants.GPUMEM_SUCCESS:
        case Constants.GPUMEM_ERROR_STALE_HANDLE:
        case Constants.GPUMEM_ERROR_CLOSED:
        case Constants.GPUMEM_ERROR_FORKED:
          break;
        default:
          GpuMemDiagnostics.ReleaseFailed(Noun, Text.Read(error->message, 512));
          break;
      }
      LetGo();
      if (parent != null) parent.DangerousRelease();
      return true;
    }
  }

  sealed unsafe class InstanceHandle : GpuHandle
  {
    int views;

    internal InstanceHandle(bool owned) : base(owned) { }

    internal override string Noun { get { return "instance"; } }

    /// <summary>Views of memory that live; memory is not taken away under them.</summary>
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

    internal AllocationHandle(InstanceHandle instance) : base(instance) { Instance = instance; }

    internal InstanceHandle Instance { get; private set; }

    internal override string Noun { get { return "memory"; } }

    /// <summary>Keeps a registered array where it is until it is no longer registered.</summary>
    internal void Keep(GCHandle pinned) { array = pinned; }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      return Native.gpumem_memory_destroy(value, error);
    }

    protected override void LetGo()
    {
      if (array.IsAllocated) array.Free();
    }
  }

  sealed unsafe class StreamHandle : GpuHandle
  {
    internal StreamHandle(InstanceHandle instance) : base(instance) { Pending = new PendingWork(); }

    internal PendingWork Pending { get; private set; }

    internal override string Noun { get { return "stream"; } }

    // While operands of copies are kept for the stream, it has to stay: only through it can their end be observed.
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

    protected override void LetGo() { Pending.LetGo(long.MaxValue); }
  }

  sealed unsafe class EventHandle : GpuHandle
  {
    internal EventHandle(InstanceHandle instance) : base(instance) { }

    internal override string Noun { get { return "event"; } }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      return Native.gpumem_event_destroy(value, error);
    }
  }

  /// <summary>
  /// Objects that were disposed or collected while work on them was not complete. They are freed later: each creation,
  /// wait and dispose of the binding looks after them.
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

  /// <summary>Keeps memory for a view; a view that is forgotten lets go when it is collected.</summary>
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
