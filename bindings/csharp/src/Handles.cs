// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The handles of objects. Each keeps its instance open and frees its object once, without throwing. HandleClasses.cs has
// what follows from the type of the object.
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
  static class Handles
  {
    /// <summary>The handle, which is refused if the owner of the object has disposed it.</summary>
    /// <param name="handle">The handle.</param>
    /// <param name="noun">Name of the owner's type, if it is not that of the handle's.</param>
    internal static T Usable<T>(this T handle, string noun = null) where T : GpuHandle
    {
      if (handle.IsDisposed) throw new ObjectDisposedException(noun ?? handle.Noun);
      return handle;
    }

    /// <summary>Makes an object with a new handle, which ends if that fails.</summary>
    internal static TObject Make<THandle, TObject>(THandle handle, Func<THandle, TObject> make) where THandle : GpuHandle
    {
      try
      {
        Leftovers.Sweep();
        return make(handle);
      }
      catch
      {
        handle.Abandon();
        throw;
      }
    }
  }

  abstract unsafe class GpuHandle : SafeHandle
  {
    readonly GpuHandle parent;
    readonly string origin;
    long weight;
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

    /// <summary>The handle of its instance or group, which it keeps.</summary>
    protected GpuHandle Parent { get { return parent; } }

    /// <summary>Name of the type of object, for messages.</summary>
    internal abstract string Noun { get; }

    /// <summary>The object that has the handle, for messages.</summary>
    public override string ToString() { return Print().ToString(); }

    internal virtual Printed Print() { return new Printed(Noun); }

    /// <summary>What the object that has the handle prints.</summary>
    internal string Text { get { return Print().AddIf(nameof(IsDisposed), IsDisposed).ToString(); } }

    /// <summary>
    /// Whether the object can be freed behind the work that a stream has now, so that the work need not hold it.
    /// </summary>
    internal virtual bool IsOrderedBehind(StreamHandle stream) { return false; }

    /// <summary>Bytes of memory that it has.</summary>
    internal virtual long Bytes { get { return 0; } }

    /// <summary>Notes that work of a stream needs a range of the object until an entry of the stream is released.</summary>
    internal virtual void NoteWork(GpuRange range, StreamHandle stream, long number) { }

    /// <summary>Throws if a range that was made of the object is no longer part of it.</summary>
    internal virtual void RequireCurrent(GpuRange range) { }

    /// <summary>Destroys the native object; returns the status.</summary>
    protected abstract int Destroy(IntPtr value, gpumem_error* error);

    /// <summary>Whether destroying it may wait for work, so that the finalizer thread must not do it.</summary>
    protected virtual bool MayWait { get { return false; } }

    /// <summary>Reports the bytes of the host behind this object to the collector, to which every object is small.</summary>
    internal void Weigh(long now)
    {
      if (now > weight) GC.AddMemoryPressure(now - weight);
      if (now < weight) GC.RemoveMemoryPressure(weight - now);
      weight = now;
    }

    /// <summary>Releases what the native object needed, after that is destroyed.</summary>
    protected virtual void ReleaseKept() { }

    public override bool IsInvalid { get { return handle == IntPtr.Zero; } }

    /// <summary>
    /// Whether the owner has disposed it, or its instance was closed by force. After <c>Dispose</c> the native object lives on
    /// as long as there are references, and <c>IsClosed</c> is false until it is destroyed.
    /// </summary>
    internal bool IsDisposed { get { return disposed || (parent != null && parent.IsInstanceClosed); } }

    bool IsInstanceClosed { get { return parent == null ? IsClosed : parent.IsInstanceClosed; } }

    /// <summary>Whether the program has dropped it without disposing it, and the collector has found it.</summary>
    internal bool IsForgotten { get { return finalizing; } }

    /// <summary>The value, unless the owner has disposed it.</summary>
    internal IntPtr Value
    {
      get
      {
        if (disposed) this.Usable();  // almost never called, where every call asks for the value
        return handle;
      }
    }

    /// <summary>What only the owner of an object that is not disposed may have.</summary>
    internal T IfUsable<T>(T value)
    {
      this.Usable();
      return value;
    }

    /// <summary>Throws if a call failed. A stale handle means that another thread has disposed the object.</summary>
    internal void Check(int status, gpumem_error* error, int? failedRegion = null)
    {
      if (status >= 0) return;
      if (status == Constants.GPUMEM_ERROR_STALE_HANDLE)
      {
        if (disposed) throw new ObjectDisposedException(Noun, "it was disposed during the call");
        this.Usable();
      }
      throw Error.Failure(error, failedRegion);
    }

    /// <summary>The value, for holders of a reference.</summary>
    internal IntPtr Raw { get { return handle; } }

    /// <summary>Takes a reference; <c>DangerousRelease</c> releases it.</summary>
    internal void Hold(string noun = null)
    {
      this.Usable(noun);
      bool held = false;
      DangerousAddRef(ref held);
    }

    /// <summary>Takes a reference for a call or work that uses it; <see cref="EndWork"/> releases it.</summary>
    internal virtual void BeginWork() { Hold(); }

    internal virtual void EndWork() { DangerousRelease(); }

    /// <summary>Gives up the native object, which no longer exists.</summary>
    internal void Forget()
    {
      disposed = true;
      SetHandleAsInvalid();
    }

    internal void Attach(IntPtr value) { SetHandle(value); }

    /// <summary>Releases everything after a failed creation, also one that fails after the native object was made.</summary>
    internal void Abandon()
    {
      if (!IsInvalid)
      {
        Dispose();
        return;
      }
      Forget();
      GC.SuppressFinalize(this);
      ReleaseParent();
    }

    /// <summary>What the owner does to dispose its object.</summary>
    internal void DisposeAndSweep()
    {
      Leftovers.Sweep();
      Dispose();
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
      // The system frees everything when the process ends, and other threads may still use the memory.
      if (Environment.HasShutdownStarted) return true;
      if (finalizing) GpuMemDiagnostics.Finalized(ToString(), origin);
      if (!finalizing || !MayWait) return ReleaseNow();
      WaitingThread.Release(this);
      return true;
    }

    /// <summary>Destroys the object, or notes that it must be tried again.</summary>
    internal bool ReleaseNow()
    {
      try
      {
        if (Environment.HasShutdownStarted) return true;
        if (!TryRelease()) Leftovers.Add(this);
        return true;
      }
      catch (Exception problem)
      {
        GpuMemDiagnostics.ReleaseFailed(ToString(), problem.Message);
        return false;
      }
    }

    /// <summary>Whether the object must be destroyed later.</summary>
    internal static bool LivesOn(int status)
    {
      return status == Constants.GPUMEM_ERROR_BUSY || status == Constants.GPUMEM_ERROR_OUT_OF_HOST_MEMORY ||
             status == Constants.GPUMEM_ERROR_INVALID_STATE || status == Constants.GPUMEM_NOT_READY;
    }

    /// <summary>Destroys the object. False if it is still in use, or memory is short, which unmapping may need.</summary>
    internal bool TryRelease()
    {
      gpumem_error* error = Error.Detail;
      int status = Destroy(handle, error);
      if (LivesOn(status)) return false;
      switch (status)
      {
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
      Weigh(0);
      ReleaseParent();
      return true;
    }
  }

  sealed unsafe class InstanceHandle : GpuHandle
  {
    // The instance of the process has several handles.
    static readonly OwnedPointers memoriesOfProcess = NewMemories(), blocksOfProcess = NewBlocks();
    static readonly HostTurns turnsOfProcess = new HostTurns();

    int views, uses, closing;

    internal InstanceHandle(bool owned) : base(owned)
    {
      Memories = owned ? NewMemories() : memoriesOfProcess;
      Blocks = owned ? NewBlocks() : blocksOfProcess;
      Turns = owned ? new HostTurns() : turnsOfProcess;
    }

    /// <summary>Addresses of memory that objects own or the CPU accesses.</summary>
    internal OwnedPointers Memories { get; private set; }

    /// <summary>Addresses of blocks of pools that objects own.</summary>
    internal OwnedPointers Blocks { get; private set; }

    /// <summary>Accesses of the CPU to its managed memory.</summary>
    internal HostTurns Turns { get; private set; }

    static OwnedPointers NewMemories()
    {
      return new OwnedPointers(" is the memory of an object, or of a HostAccess; dispose that instead");
    }

    static OwnedPointers NewBlocks() { return new OwnedPointers(" is the block of a PoolBlock; dispose that instead"); }

    internal override string Noun { get { return nameof(GpuInstance); } }

    /// <summary>Throws if there are views of memory, which prevent a close.</summary>
    internal void RequireNoViews()
    {
      int live = Volatile.Read(ref views);
      if (live == 0) return;
      throw new InvalidOperationException(
          "the instance cannot be closed: " + live +
          (live == 1 ? " view of its memory lives; dispose it first" : " views of its memory live; dispose them first"));
    }

    /// <summary>Counts a view until <see cref="EndView"/>.</summary>
    internal void BeginView()
    {
      // In a use, so that a forced close either sees the view or has it refused.
      BeginUse();
      Interlocked.Increment(ref views);
      EndUse();
    }

    internal void EndView() { Interlocked.Decrement(ref views); }

    /// <summary>Throws if the instance was closed by force. One that was disposed stays open while anything in it lives.</summary>
    internal void RequireOpen()
    {
      if (IsClosed) throw new ObjectDisposedException(Noun);
    }

    /// <summary>Begins a use of memory by the CPU; refused if a forced close has begun.</summary>
    internal void BeginUse()
    {
      // Either this sees the close, or the close sees the use. Waiting for the close instead could never end: that waits
      // for the functions that streams run, which may use memory.
      Interlocked.Increment(ref uses);
      if (Volatile.Read(ref closing) == 0 && !IsClosed) return;
      EndUse();
      throw new ObjectDisposedException(Noun);
    }

    internal void EndUse() { Interlocked.Decrement(ref uses); }

    /// <summary>Refuses uses of memory by the CPU until <see cref="EndClose"/>, and waits for those that have begun.</summary>
    internal void BeginClose()
    {
      Interlocked.Increment(ref closing);
      var spin = new SpinWait();
      while (Volatile.Read(ref uses) != 0) spin.SpinOnce();
    }

    internal void EndClose() { Interlocked.Decrement(ref closing); }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      return Native.gpumem_instance_close(value, Constants.GPUMEM_CLOSE_CHECK, null, error);
    }
  }

  sealed unsafe class AllocationHandle : GpuHandle
  {
    readonly string noun;
    GCHandle array;

    internal AllocationHandle(InstanceHandle instance, string noun = nameof(GpuMemory)) : base(instance)
    {
      Instance = instance;
      this.noun = noun;
    }

    internal InstanceHandle Instance { get; private set; }

    /// <summary>What the owner knows of it.</summary>
    internal MemoryInfo Info { get; set; }

    internal override string Noun { get { return noun; } }

    internal override Printed Print()
    {
      return Info == null ? base.Print() : Info.Print(base.Print(), true);
    }

    internal override long Bytes { get { return Info == null ? 0 : Info.GrantedSize; } }

    /// <summary>Has its addresses refused where memory is freed by a pointer.</summary>
    internal void Own()
    {
      Instance.Memories.Add(Info.HostPointer);
      if (Info.DevicePointer != Info.HostPointer) Instance.Memories.Add(Info.DevicePointer);
    }

    void Disown()
    {
      if (Info == null) return;
      Instance.Memories.Remove(Info.HostPointer);
      if (Info.DevicePointer != Info.HostPointer) Instance.Memories.Remove(Info.DevicePointer);
    }

    /// <summary>Begins a use of the memory by the CPU. It is not freed before <see cref="Leave"/>.</summary>
    internal void Enter(string noun) { Begin(noun, false); }

    internal void Leave()
    {
      Instance.EndUse();
      DangerousRelease();
    }

    /// <summary>Begins a view of the memory. It is not freed before <see cref="EndView"/>.</summary>
    internal void BeginView() { Begin(null, true); }

    internal void EndView()
    {
      Instance.EndView();
      DangerousRelease();
    }

    void Begin(string noun, bool view)
    {
      Hold(noun);
      try
      {
        if (view) Instance.BeginView();
        else Instance.BeginUse();
      }
      catch
      {
        DangerousRelease();
        throw;
      }
    }

    /// <summary>Keeps an array in place until it is no longer registered.</summary>
    internal void Keep(GCHandle pinned) { array = pinned; }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      Disown();
      int status = Native.gpumem_memory_destroy(value, error);
      if (Info != null && LivesOn(status)) Own();
      return status;
    }

    protected override void ReleaseKept()
    {
      if (Info != null && Info.Kind == MemoryKind.Managed) Instance.Turns.Remove(Info.BufferId);
      if (array.IsAllocated) array.Free();
    }
  }

  sealed unsafe partial class StreamHandle
  {
    // Of all instances. A strong reference would keep the collector from freeing forgotten streams.
    static readonly List<WeakReference<StreamHandle>> streams = new List<WeakReference<StreamHandle>>();

    internal readonly PendingWork Pending = new PendingWork();

    internal InstanceHandle Instance { get { return (InstanceHandle)Parent; } }

    internal int DeviceOrdinal { get { return device; } }

    /// <summary>Has <see cref="ReleaseComplete"/> find the stream.</summary>
    internal void Own()
    {
      lock (streams)
      {
        StreamHandle found;
        streams.RemoveAll(one => !one.TryGetTarget(out found) || found.IsDisposed);
        streams.Add(new WeakReference<StreamHandle>(this));
      }
    }

    /// <summary>Releases what idle streams keep. It waits for nothing. Whether there was anything.</summary>
    internal static bool ReleaseComplete()
    {
      bool any = false;
      foreach (StreamHandle stream in WithWork()) any |= stream.ReleaseIfIdle();
      return any;
    }

    /// <summary>Bytes of memory that the program has disposed, and that work in its streams needs.</summary>
    internal static long DisposedBytes()
    {
      var found = new Dictionary<GpuHandle, long>();
      foreach (StreamHandle stream in WithWork())
      {
        if (!stream.IsDisposed) stream.Pending.AddDisposed(found);
      }
      long bytes = 0;
      foreach (long size in found.Values) bytes += size;
      return bytes;
    }

    static List<StreamHandle> WithWork()
    {
      WeakReference<StreamHandle>[] all;
      lock (streams) all = streams.ToArray();
      var found = new List<StreamHandle>();
      foreach (WeakReference<StreamHandle> one in all)
      {
        StreamHandle stream;
        if (one.TryGetTarget(out stream) && stream.Pending.Any) found.Add(stream);
      }
      return found;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    internal bool ReleaseIfIdle()
    {
      long last = Pending.Last;
      int status = Native.gpumem_stream_query(Raw, Error.Detail);
      bool idle = status == Constants.GPUMEM_SUCCESS || status == Constants.GPUMEM_ERROR_DEVICE_LOST;
      if (idle) Pending.ReleaseUnseen(last);
      GC.KeepAlive(this);
      return idle;
    }

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

    /// <summary>Waits for its work, for holders of a reference.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    internal void SynchronizeHeld()
    {
      gpumem_error* error = Error.Detail;
      Check(Native.gpumem_stream_synchronize(Raw, Constants.GPUMEM_TIMEOUT_INFINITE, error), error);
    }
  }

  /// <summary>A side of a ring. Work in streams holds it, and so its memory.</summary>
  sealed unsafe class RingHandle : GpuHandle
  {
    /// <summary>A slot to fill or message to read that the program has, and the latest work of each stream on it.</summary>
    sealed class Held
    {
      internal readonly gpumem_ring_slot Slot;
      internal readonly Dictionary<StreamHandle, long> Work = new Dictionary<StreamHandle, long>();

      internal Held(gpumem_ring_slot slot) { Slot = slot; }

      internal bool Has(GpuRange range)
      {
        long offset = unchecked((long)range.Pointer - (long)Slot.pointer);
        return offset >= 0 && offset <= (long)Slot.size - range.Size;
      }
    }

    readonly string noun, name;
    // By their addresses.
    readonly Dictionary<long, Held> slots = new Dictionary<long, Held>();

    internal RingHandle(InstanceHandle instance, string noun, string name) : base(instance)
    {
      this.noun = noun;
      this.name = name;
    }

    internal InstanceHandle Instance { get { return (InstanceHandle)Parent; } }

    /// <summary>Allows ranges of a slot until <see cref="End"/>; one that was dropped before may still have work.</summary>
    internal void Begin(gpumem_ring_slot slot)
    {
      lock (slots)
      {
        if (Find(slot) == null) slots[(long)slot.pointer] = new Held(slot);
      }
    }

    internal void End(gpumem_ring_slot slot)
    {
      lock (slots)
      {
        if (Find(slot) != null) slots.Remove((long)slot.pointer);
      }
    }

    internal override void NoteWork(GpuRange range, StreamHandle stream, long number)
    {
      lock (slots)
      {
        foreach (Held held in slots.Values)
        {
          if (held.Has(range)) held.Work[stream] = number;
        }
      }
    }

    /// <summary>The streams whose work on a slot was not observed complete, but for one of them.</summary>
    internal List<StreamHandle> StreamsOf(gpumem_ring_slot slot, StreamHandle without)
    {
      var streams = new List<StreamHandle>();
      lock (slots)
      {
        Held held = Find(slot);
        if (held == null) return streams;
        foreach (KeyValuePair<StreamHandle, long> work in held.Work)
        {
          if (work.Key != without && !work.Key.Pending.IsReleased(work.Value)) streams.Add(work.Key);
        }
      }
      return streams;
    }

    internal override void RequireCurrent(GpuRange range)
    {
      lock (slots)
      {
        foreach (Held held in slots.Values)
        {
          if (held.Has(range)) return;
        }
      }
      throw new InvalidOperationException(
          "the range is of a slot that was published, or of a message that was released; take it from another one");
    }

    // Under the lock; null if the address has another slot or none.
    Held Find(gpumem_ring_slot slot)
    {
      Held held;
      return slots.TryGetValue((long)slot.pointer, out held) && held.Slot.number == slot.number ? held : null;
    }

    internal override string Noun { get { return noun; } }

    internal override Printed Print() { return base.Print().AddIf("Name", name); }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      // Else the consumers would wait for messages.
      if (noun == nameof(RingProducer)) Native.gpumem_ring_finish(value, 0, error);
      return Native.gpumem_ring_destroy(value, error);
    }
  }

  /// <summary>An access of the CPU to managed memory. It ends once, also if it was forgotten.</summary>
  sealed unsafe class HostAccessHandle : GpuHandle
  {
    readonly InstanceHandle instance;
    IntPtr owned;
    HostTurn turn;  // null if it needs none
    GpuRange whole;  // the memory, with a turn
    bool begun;

    HostAccessHandle(InstanceHandle instance, GpuHandle owner) : base(owner ?? instance)
    {
      this.instance = instance;
    }

    internal override string Noun { get { return "HostAccess"; } }

    internal static HostAccessHandle Begin(InstanceHandle instance, GpuRange range)
    {
      HostAccessHandle handle = null;
      instance.BeginView();
      try
      {
        handle = new HostAccessHandle(instance, range.Owner);
        handle.Begin(range);
      }
      catch
      {
        handle?.Abandon();
        instance.EndView();
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
      gpumem_pointer_info info;
      turn = instance.Turns.Of(instance, pointer, &info);
      if (turn != null) whole = new GpuRange(range.Owner, 0, info.@base, (long)info.size);
      int status = turn == null ? Native.gpumem_managed_begin_host_access(instance.Raw, pointer, error)
                                : turn.Begin(instance, whole, error);
      instance.Check(status, error);
      begun = true;
      Attach(pointer);
      if (range.Owner != null) return;
      info = gpumem_pointer_info.Sized();
      instance.Check(Native.gpumem_pointer_get_info(instance.Raw, pointer, &info, error), error);
      owned = info.@base;
      instance.Memories.Add(owned);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      if (turn != null) return turn.End(instance, whole, ref begun, error);
      int status = begun ? Native.gpumem_managed_end_host_access(instance.Raw, value, error) : Constants.GPUMEM_SUCCESS;
      // There is no access to end after memory that was given by its pointer was freed.
      return status == Constants.GPUMEM_ERROR_INVALID_STATE ? Constants.GPUMEM_SUCCESS : status;
    }

    protected override void ReleaseKept()
    {
      instance.Memories.Remove(owned);
      instance.EndView();
    }
  }

  sealed unsafe partial class PhysicalHandle
  {
    internal PhysicalHandle(InstanceHandle instance) : base(instance) { }

    /// <summary>What the owner knows of it.</summary>
    internal PhysicalInfo Info { get; set; }

    internal override Printed Print() { return Info == null ? base.Print() : Info.Print(base.Print()); }
  }

  sealed unsafe partial class RangeHandle
  {
    // The addresses can be released only when nothing is mapped.
    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      int status = Native.gpumem_range_unmap(value, 0, Constants.GPUMEM_WHOLE_RANGE, error);
      return status != Constants.GPUMEM_SUCCESS ? status : Native.gpumem_range_release(value, error);
    }
  }

  /// <summary>A group of buffers. It knows them so that their views end when it puts them to sleep or wakes them.</summary>
  sealed unsafe partial class GroupHandle
  {
    /// <summary>A call that sleeps or wakes, and the buffers that it may change.</summary>
    sealed class Running
    {
      readonly string tag;
      internal readonly List<BufferHandle> Buffers = new List<BufferHandle>();

      internal Running(string tag) { this.tag = tag; }

      internal void Include(BufferHandle buffer)
      {
        if (!string.IsNullOrEmpty(tag) && tag != buffer.Tag) return;
        buffer.BeginChange();
        Buffers.Add(buffer);
      }
    }

    // A strong reference would keep the collector from freeing forgotten buffers.
    readonly List<WeakReference<BufferHandle>> members = new List<WeakReference<BufferHandle>>();
    readonly List<Running> running = new List<Running>();

    /// <summary>Adds a buffer that is about to be created.</summary>
    internal void Add(BufferHandle buffer)
    {
      lock (members)
      {
        BufferHandle found;
        members.RemoveAll(one => !one.TryGetTarget(out found) || found.IsDisposed);
        members.Add(new WeakReference<BufferHandle>(buffer));
        foreach (Running call in running) call.Include(buffer);
      }
    }

    /// <summary>Makes a call that may change the buffers with a tag, while no view of them is used.</summary>
    internal void Change(string tag, Action change)
    {
      this.Usable();
      var call = new Running(tag);
      BufferHandle[] first;
      lock (members)
      {
        running.Add(call);
        foreach (WeakReference<BufferHandle> member in members)
        {
          BufferHandle buffer;
          if (member.TryGetTarget(out buffer) && !buffer.IsDisposed) call.Include(buffer);
        }
        first = call.Buffers.ToArray();
      }
      try
      {
        foreach (BufferHandle buffer in first) buffer.WaitForViews();
        change();
      }
      finally
      {
        lock (members) running.Remove(call);
        foreach (BufferHandle buffer in call.Buffers) buffer.EndChange(false);
      }
    }
  }

  sealed unsafe partial class BufferHandle
  {
    // Objects of all instances by their handles, which are different in the whole process.
    static readonly Dictionary<IntPtr, WeakReference<GrowableBuffer>> owners =
        new Dictionary<IntPtr, WeakReference<GrowableBuffer>>();

    readonly object gate = new object();
    readonly BufferCallbacks.OfObject callbacks = new BufferCallbacks.OfObject();
    BufferInfo info;
    long changeCount;
    int users, changing;
    bool freed;

    /// <summary>Creates the handle of a buffer, which keeps its group, if it has one, and its instance.</summary>
    internal BufferHandle(InstanceHandle instance, GroupHandle group, string tag) : base((GpuHandle)group ?? instance)
    {
      Instance = instance;
      Tag = tag;
      if (group != null) group.Add(this);
    }

    internal InstanceHandle Instance { get; private set; }

    internal string Tag { get; private set; }

    /// <summary>Has <see cref="OwnerOf"/> find the object that has the handle.</summary>
    internal void Own(GrowableBuffer owner)
    {
      lock (owners) owners[Raw] = new WeakReference<GrowableBuffer>(owner);
    }

    /// <summary>The object with a handle of the library; null if there is none.</summary>
    internal static GrowableBuffer OwnerOf(IntPtr buffer)
    {
      WeakReference<GrowableBuffer> known;
      GrowableBuffer owner;
      lock (owners) return owners.TryGetValue(buffer, out known) && known.TryGetTarget(out owner) ? owner : null;
    }

    /// <summary>Number of its changes, by which a view knows whether it is current.</summary>
    internal long ChangeCount { get { return Volatile.Read(ref changeCount); } }

    /// <summary>Whether a call that changes it has not returned yet.</summary>
    internal bool IsChanging { get { return Volatile.Read(ref changing) != 0; } }

    internal override Printed Print()
    {
      BufferInfo known = Volatile.Read(ref info);
      return known == null ? base.Print() : known.Print(base.Print());
    }

    internal override long Bytes { get { return Volatile.Read(ref info)?.Capacity ?? 0; } }

    internal override void RequireCurrent(GpuRange range)
    {
      gpumem_buffer_info now;
      // The call that wants the range says what is wrong.
      if (Read(&now, Error.Detail) < 0) return;
      long offset = unchecked((long)range.Pointer - (long)now.@base);
      if (offset >= 0 && offset <= (long)now.size - range.Size) return;
      throw new InvalidOperationException(
          "the range is no longer part of the buffer, which was resized or moved; take it from the buffer again");
    }

    /// <summary>Gets what the library knows of it now, and returns the status.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    internal int Read(gpumem_buffer_info* now, gpumem_error* error)
    {
      *now = gpumem_buffer_info.Sized();
      return Native.gpumem_buffer_get_info(Raw, now, error);
    }

    /// <summary>Makes a change while no view is used. Several may run; the library makes one at a time.</summary>
    /// <param name="change">The change.</param>
    /// <param name="endsViews">Whether views are out of date if it succeeds, also if the buffer stays where it is.</param>
    internal void Change(Action change, bool endsViews)
    {
      this.Usable();
      bool done = false;
      BeginChange();
      try
      {
        WaitForViews();
        change();
        done = true;
      }
      finally
      {
        EndChange(done && endsViews);
      }
    }

    /// <summary>Refuses views from now on.</summary>
    internal void BeginChange() { Interlocked.Increment(ref changing); }

    // Waiting for a lock instead could never end: a view may be used in a function that a stream runs, and the driver
    // may wait for that when it unmaps.
    internal void WaitForViews()
    {
      var spin = new SpinWait();
      while (Volatile.Read(ref users) != 0) spin.SpinOnce();
    }

    /// <summary>Ends the views if something has changed, also by a call that failed, and allows those that did not end.</summary>
    internal void EndChange(bool endsViews)
    {
      try
      {
        Refresh(endsViews);
      }
      finally
      {
        Interlocked.Decrement(ref changing);
      }
    }

    /// <summary>Whether nothing has changed, and nothing is about to.</summary>
    internal bool IsCurrent(long knownChanges) { return !IsChanging && ChangeCount == knownChanges && !IsDisposed; }

    /// <summary>Begins a use of the memory by the CPU, until <see cref="Leave"/>. It is neither changed nor freed before.</summary>
    internal void Enter(long knownChanges)
    {
      this.Usable();
      Instance.BeginUse();
      // Either this sees the flag, or the change sees the user.
      Interlocked.Increment(ref users);
      if (IsCurrent(knownChanges)) return;
      Leave();
      this.Usable();
      throw new InvalidOperationException("the buffer was changed after this view was made; get another one");
    }

    internal void Leave()
    {
      Interlocked.Decrement(ref users);
      Instance.EndUse();
    }

    /// <summary>Looks at what has become of the buffer.</summary>
    internal void Refresh(bool endsViews = false)
    {
      lock (gate)
      {
        gpumem_buffer_info native;
        BufferInfo now = Read(&native, Error.Detail) < 0 ? null : new BufferInfo(&native);
        bool same = now != null && info != null && now.State == info.State && now.Generation == info.Generation &&
                    now.Base == info.Base;
        if (endsViews || !same) Volatile.Write(ref changeCount, changeCount + 1);
        if (now == null) return;
        Volatile.Write(ref info, now);
        bool onHost = now.Location.Kind != Location.Device && now.State == BufferState.Awake;
        if (!freed) Weigh(now.StoreCapacity + (onHost ? now.Capacity : 0));
      }
    }

    /// <summary>Replaces the functions that are called when the buffer sleeps and wakes.</summary>
    internal void SetCallbacks(BufferCallbacks functions)
    {
      callbacks.Replace(functions, one => Calls.gpumem_buffer_set_callbacks(this, one.Describe()));
    }

    /// <summary>Forgets a registration, of a buffer that may be gone.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    internal int ForgetRegistration(ulong registration, gpumem_error* error)
    {
      return Native.gpumem_buffer_forget_registration(Raw, registration, error);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      BeginChange();
      WaitForViews();
      return Native.gpumem_buffer_destroy(value, error);
    }

    protected override void ReleaseKept()
    {
      lock (owners) owners.Remove(Raw);
      lock (gate)
      {
        freed = true;
        Weigh(0);
      }
      callbacks.Release();
    }
  }

  /// <summary>Keeps a native object until this is disposed or collected, also when its owner disposes it meanwhile.</summary>
  abstract class Use<T> : IDisposable where T : GpuHandle
  {
    T handle;

    protected Use(T handle)
    {
      Begin(handle);
      this.handle = handle;
    }

    ~Use() { Release(); }

    internal T Handle { get { return handle; } }

    public void Dispose()
    {
      Release();
      GC.SuppressFinalize(this);
    }

    protected virtual void Begin(T handle) { handle.Hold(); }

    protected virtual void End(T held) { held.DangerousRelease(); }

    void Release()
    {
      T held = Interlocked.Exchange(ref handle, null);
      if (held != null) End(held);
    }
  }

  /// <summary>Keeps a stream for what is ordered in it.</summary>
  sealed class StreamUse : Use<StreamHandle>
  {
    StreamUse(StreamHandle handle) : base(handle) { }

    internal static StreamUse Of(GpuStream stream) { return stream == null ? null : new StreamUse(stream.Handle); }
  }

  /// <summary>Keeps memory for a view.</summary>
  sealed class ViewUse : Use<AllocationHandle>
  {
    internal ViewUse(AllocationHandle handle) : base(handle) { }

    protected override void Begin(AllocationHandle handle) { handle.BeginView(); }

    protected override void End(AllocationHandle held) { held.EndView(); }
  }
}
