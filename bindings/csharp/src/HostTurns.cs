// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Accesses of the CPU to managed memory where a device is not concurrent.

using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Threading;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// Attaches a managed memory to the CPU while that accesses it, and afterwards to what the program attached it to. Otherwise
  /// any other work of the device, even of other code, would take the pages from the CPU, and a touch would end the process.
  /// </summary>
  sealed unsafe class HostTurn
  {
    readonly object gate = new object();
    readonly int device;
    readonly Attach initial;
    // What the program attached it to, and the stream if it is one.
    Attach chosen;
    WeakReference<StreamHandle> owner;
    // Attaches the memory to the CPU and back, and does nothing else; it lives during the accesses.
    IntPtr stream;
    int accesses;
    bool attached;
    bool begins;  // a thread begins the first access; it does not hold the lock while it waits for work

    internal HostTurn(gpumem_pointer_info* memory)
    {
      device = memory->device_ordinal;
      bool forHost = (memory->granted_flags & (ulong)MemoryFlags.AttachHost) != 0;
      chosen = initial = forHost ? Attach.Host : Attach.Global;
    }

    /// <summary>Whether an access has attached the memory to the CPU.</summary>
    internal bool IsAccessed { get { lock (gate) return accesses != 0 && attached; } }

    /// <summary>Makes a call that attaches the memory for the program.</summary>
    internal void Choose(Attach attach, StreamHandle stream, Action call)
    {
      lock (gate)
      {
        call();
        chosen = attach;
        owner = new WeakReference<StreamHandle>(stream);
        attached = false;
      }
    }

    /// <summary>
    /// Begins an access, and attaches the memory for the first one. Only one thread does that at a time: the access of another
    /// one would keep the memory from being attached.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    internal int Begin(InstanceHandle instance, GpuRange range, gpumem_error* error)
    {
      IntPtr memory = range.Pointer;
      int status;
      lock (gate)
      {
        while (begins)
        {
          // Fails where nothing may be waited for: in a function in a stream, for which the first access may wait.
          status = NeedStream(instance, error);
          if (status >= 0) status = Native.gpumem_stream_query(stream, error);
          if (status < 0) return status;
          Monitor.Wait(gate);
        }
        if (attached)
        {
          status = Native.gpumem_managed_begin_host_access(instance.Raw, memory, error);
          if (status >= 0) ++accesses;
          return status;
        }
        begins = true;
      }
      status = Native.gpumem_managed_begin_host_access(instance.Raw, memory, error);
      lock (gate)
      {
        begins = false;
        Monitor.PulseAll(gate);
        if (status >= 0 && chosen != Attach.Host)
        {
          // It cannot be attached during an access.
          Native.gpumem_managed_end_host_access(instance.Raw, memory, error);
          status = AttachNow(instance, memory, Attach.Host, error);
          attached = status >= 0;
          if (attached) status = Native.gpumem_managed_begin_host_access(instance.Raw, memory, error);
          if (attached && status < 0)
          {
            gpumem_error unused = gpumem_error.Sized();
            Return(instance, range, &unused);
            attached = false;
          }
        }
        if (status >= 0) ++accesses;
        else DropStream();
      }
      return status;
    }

    /// <summary>Ends an access. After the last one it attaches the memory as it was; that may fail, and be tried again.</summary>
    /// <param name="instance">The instance.</param>
    /// <param name="range">The whole memory.</param>
    /// <param name="counted">Whether the access is still counted; false afterwards.</param>
    /// <param name="error">Detail of a failure.</param>
    [MethodImpl(GpuMemLibrary.Bound)]
    internal int End(InstanceHandle instance, GpuRange range, ref bool counted, gpumem_error* error)
    {
      lock (gate)
      {
        int status = Constants.GPUMEM_SUCCESS;
        if (counted)
        {
          counted = false;
          --accesses;
          status = Native.gpumem_managed_end_host_access(instance.Raw, range.Pointer, error);
        }
        if (accesses != 0) return status;
        if (attached)
        {
          status = Return(instance, range, error);
          if (GpuHandle.LivesOn(status)) return status;
          attached = false;
        }
        DropStream();
        // What is gone, with its memory or its device, needs no attachment.
        return Constants.GPUMEM_SUCCESS;
      }
    }

    int Return(InstanceHandle instance, GpuRange range, gpumem_error* error)
    {
      if (chosen == Attach.Single)
      {
        StreamHandle stream;
        if (owner.TryGetTarget(out stream) && !stream.IsDisposed && ReturnTo(stream, range, error)) return Constants.GPUMEM_SUCCESS;
        // The end of the stream has taken the memory back to the beginning.
        chosen = initial;
      }
      return chosen == Attach.Host ? Constants.GPUMEM_SUCCESS : AttachNow(instance, range.Pointer, chosen, error);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static bool ReturnTo(StreamHandle stream, GpuRange range, gpumem_error* error)
    {
      KeptMemory kept;
      try
      {
        kept = KeptMemory.Of(range);
      }
      catch (ObjectDisposedException)
      {
        return true;  // no work can come
      }
      bool enqueued;
      lock (stream.Pending.Lock)
      {
        enqueued = Native.gpumem_managed_attach(stream.Raw, range.Pointer, 0, (int)Attach.Single, error) >= 0;
        if (enqueued) stream.Pending.Keep(kept);
      }
      if (!enqueued) kept?.Release();
      return enqueued;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    int AttachNow(InstanceHandle instance, IntPtr memory, Attach attach, gpumem_error* error)
    {
      int status = NeedStream(instance, error);
      if (status >= 0) status = Native.gpumem_managed_attach(stream, memory, 0, (int)attach, error);
      if (status >= 0) status = Native.gpumem_stream_synchronize(stream, Constants.GPUMEM_TIMEOUT_INFINITE, error);
      return status;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    int NeedStream(InstanceHandle instance, gpumem_error* error)
    {
      if (stream != IntPtr.Zero) return Constants.GPUMEM_SUCCESS;
      IntPtr found, made;
      int status = Native.gpumem_device_get(instance.Raw, (uint)device, &found, error);
      if (status < 0) return status;
      gpumem_stream_desc desc = gpumem_stream_desc.Sized();
      status = Native.gpumem_stream_create(found, &desc, &made, error);
      if (status >= 0) stream = made;
      return status;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    void DropStream()
    {
      if (stream == IntPtr.Zero || accesses != 0) return;
      gpumem_error unused = gpumem_error.Sized();  // that of a failure is still wanted
      Native.gpumem_stream_destroy(stream, &unused);
      stream = IntPtr.Zero;
    }
  }

  /// <summary>The managed memory of an instance that was accessed or attached, by its number.</summary>
  sealed unsafe class HostTurns
  {
    readonly Dictionary<ulong, HostTurn> turns = new Dictionary<ulong, HostTurn>();
    int exclusive = -1;  // whether a device is not concurrent, once that is known

    /// <summary>The turn of a memory; null if it needs none, or is no managed memory of the instance.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    internal HostTurn Of(InstanceHandle instance, IntPtr pointer, gpumem_pointer_info* info)
    {
      if (pointer == IntPtr.Zero || !IsExclusive(instance)) return null;
      *info = gpumem_pointer_info.Sized();
      if (Native.gpumem_pointer_get_info(instance.Raw, pointer, info, Error.Detail) < 0) return null;
      if (info->kind != Constants.GPUMEM_KIND_MANAGED || info->memory == IntPtr.Zero) return null;
      lock (turns)
      {
        HostTurn turn;
        if (!turns.TryGetValue(info->buffer_id, out turn)) turns.Add(info->buffer_id, turn = new HostTurn(info));
        return turn;
      }
    }

    /// <summary>Forgets a memory that was freed.</summary>
    internal void Remove(ulong number)
    {
      if (exclusive != 1) return;
      lock (turns) turns.Remove(number);
    }

    /// <summary>The number of the memory at a pointer, for <see cref="Remove"/>; 0 if that is not needed.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    internal ulong NumberOf(InstanceHandle instance, IntPtr pointer)
    {
      if (exclusive != 1 || pointer == IntPtr.Zero) return 0;
      gpumem_pointer_info info = gpumem_pointer_info.Sized();
      return Native.gpumem_pointer_get_info(instance.Raw, pointer, &info, Error.Detail) < 0 ? 0 : info.buffer_id;
    }

    /// <summary>Whether an access has attached a range to the CPU, so that no device may use it.</summary>
    internal bool IsAccessed(InstanceHandle instance, GpuRange range)
    {
      gpumem_pointer_info info;
      HostTurn turn = exclusive == 1 ? Of(instance, range.Pointer, &info) : null;
      return turn != null && turn.IsAccessed;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    bool IsExclusive(InstanceHandle instance)
    {
      if (exclusive >= 0) return exclusive == 1;
      int found = 0;
      gpumem_error* error = Error.Detail;
      for (uint ordinal = 0; ; ++ordinal)
      {
        IntPtr device;
        gpumem_capability_info answer = gpumem_capability_info.Sized();
        int status = Native.gpumem_device_get(instance.Raw, ordinal, &device, error);
        if (status == Constants.GPUMEM_ERROR_INVALID_ARGUMENT) break;  // that was the last device
        if (status >= 0)
        {
          status = Native.gpumem_device_get_capability(
              device, Constants.GPUMEM_CAPABILITY_MANAGED_CONCURRENT, IntPtr.Zero, &answer, error);
        }
        if (status < 0) return false;  // what follows says what is wrong
        if (answer.value == Constants.GPUMEM_ANSWER_NO) found = 1;
      }
      exclusive = found;
      return found == 1;
    }
  }
}
