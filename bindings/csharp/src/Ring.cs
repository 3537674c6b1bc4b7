// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Rings: slots of device memory that go from a producer to consumers in other processes, again and again.

using System;
using System.Collections;
using System.Collections.Generic;
using System.Diagnostics.CodeAnalysis;
using System.Runtime.CompilerServices;
using System.Threading;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>The calls of both sides.</summary>
  sealed unsafe class Ring
  {
    internal readonly RingHandle Handle;
    internal readonly GpuInstance Instance;
    readonly RingInfo made;  // what does not change of it

    Ring(GpuInstance instance, RingHandle handle)
    {
      Instance = instance;
      Handle = handle;
      made = Info;
    }

    internal static Ring Make(GpuInstance instance, string noun, string name, Action<RingHandle> make)
    {
      return Handles.Make(new RingHandle(instance.Handle, noun, name), handle =>
      {
        make(handle);
        return new Ring(instance, handle);
      });
    }

    internal static void Create(GpuDevice device, RingHandle handle, long slotSize, RingOptions options)
    {
      gpumem_ring_desc desc = options.Describe();
      desc.slot_size = Sizes.ToNative(slotSize, nameof(slotSize));
      Calls.gpumem_ring_create(device, desc, options.Name, handle);
    }

    internal static void Open(GpuInstance instance, RingHandle handle, ShareHandle share, RingOpenOptions options)
    {
      Calls.gpumem_ring_open(instance.Handle, ShareHandle.ToNative(share), options.Describe(), options.Name, handle);
    }

    /// <summary>Acquires a slot, or waits for a message. Null if there was none in time.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    internal gpumem_ring_slot? Next(bool acquire, StreamUse stream, TimeSpan timeout)
    {
      ulong limit = Timeout.ToNanoseconds(timeout, nameof(timeout));
      gpumem_ring_slot slot = gpumem_ring_slot.Sized();
      IntPtr order = Order(stream);
      gpumem_error* error = Error.Detail;
      int status = acquire ? Native.gpumem_ring_acquire(Handle.Value, order, limit, &slot, error)
                           : Native.gpumem_ring_wait(Handle.Value, order, limit, &slot, error);
      GC.KeepAlive(stream);
      Handle.Check(status, error);
      return status == Constants.GPUMEM_NOT_READY ? (gpumem_ring_slot?)null : slot;
    }

    internal void Publish(gpumem_ring_slot slot, StreamUse stream, ulong size, ulong tag)
    {
      InOrder(slot, stream, false, (order, error) => Native.gpumem_ring_publish(Handle.Value, order, size, tag, error));
    }

    /// <summary>Releases the oldest message.</summary>
    /// <param name="slot">The message.</param>
    /// <param name="stream">Its stream, or null.</param>
    /// <param name="waits">Whether to wait for work of other streams on it, and not refuse.</param>
    internal void Release(gpumem_ring_slot slot, StreamUse stream, bool waits)
    {
      InOrder(slot, stream, waits, (order, error) => Native.gpumem_ring_release(Handle.Value, order, slot.number, error));
    }

    /// <summary>Waits for the work on a slot.</summary>
    internal void Await(gpumem_ring_slot slot, StreamUse stream)
    {
      if (stream != null) stream.Handle.SynchronizeHeld();
      foreach (StreamHandle other in Handle.StreamsOf(slot, stream?.Handle)) Await(other);
    }

    static void Await(StreamHandle stream)
    {
      try
      {
        stream.SynchronizeHeld();
      }
      catch (ObjectDisposedException)
      {
        // It is gone, which it is only once its work is complete.
      }
    }

    delegate int OrderedCall(IntPtr order, gpumem_error* error);

    /// <summary>Makes a call that passes a slot on, in the order of the work on it.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    void InOrder(gpumem_ring_slot slot, StreamUse stream, bool waits, OrderedCall call)
    {
      for (;;)
      {
        StreamHandle order = OrderOf(slot, stream?.Handle, waits);
        gpumem_error* error = Error.Detail;
        int status = call(order == null ? IntPtr.Zero : order.Raw, error);
        GC.KeepAlive(stream);
        GC.KeepAlive(order);
        // A stream that the program has disposed is gone once its work is complete.
        bool gone = status == Constants.GPUMEM_ERROR_STALE_HANDLE && stream == null && order != null && order.IsDisposed;
        if (!gone || Handle.IsDisposed)
        {
          Handle.Check(status, error);
          return;
        }
        Thread.Yield();
      }
    }

    /// <summary>The stream behind whose work a slot can be passed on; null if there is none on it.</summary>
    StreamHandle OrderOf(gpumem_ring_slot slot, StreamHandle named, bool waits)
    {
      List<StreamHandle> others = Handle.StreamsOf(slot, named);
      if (others.Count == 0) return named;
      if (named == null && others.Count == 1 && IsOfDevice(others[0])) return others[0];
      foreach (StreamHandle other in others)
      {
        if (waits) Await(other);
        else if (!other.ReleaseIfIdle()) throw Busy(other);
      }
      return named;
    }

    bool IsOfDevice(StreamHandle stream)
    {
      return stream.Instance.Raw == Handle.Instance.Raw && stream.DeviceOrdinal == made.DeviceOrdinal;
    }

    GpuMemException Busy(StreamHandle stream)
    {
      bool fills = made.IsProducer;
      return new GpuMemException(
          Status.Busy, "work on the " + (fills ? "slot" : "message") + " was not observed complete, in " + stream +
          "; synchronize the stream, or " + (fills ? "acquire the slot" : "wait for the message") + " with it");
    }

    internal RingInfo Info { get { return Calls.gpumem_ring_get_info(Handle); } }

    public override string ToString()
    {
      return Handle.Print().Add(nameof(made.SlotSize), made.SlotSize).Add(nameof(made.SlotCount), made.SlotCount)
          .AddIf(nameof(Handle.IsDisposed), Handle.IsDisposed).ToString();
    }

    /// <summary>No stream is the calling thread.</summary>
    static IntPtr Order(StreamUse stream) { return stream == null ? IntPtr.Zero : stream.Handle.Raw; }
  }

  /// <summary>
  /// The side of a ring that fills slots. Its consumers are in other processes, and each gets every message that is published
  /// after it has opened the ring, in order. The producer gets a slot again when all of them have released it.
  /// </summary>
  /// <remarks>
  /// One thread at a time may call it; another call is refused with <see cref="Status.Busy"/>. Disposing it finishes the ring.
  /// </remarks>
  public sealed class RingProducer : IDisposable
  {
    readonly Ring ring;
    gpumem_ring_slot? spare;  // it was acquired, and not published
    RingSlot held;

    internal RingProducer(Ring ring) { this.ring = ring; }

    /// <summary>Its instance.</summary>
    public GpuInstance Instance { get { return ring.Handle.IfUsable(ring.Instance); } }

    /// <summary>Information about the ring as it is now. Nobody is asked.</summary>
    public RingInfo Info { get { return ring.Info; } }

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get { return ring.Handle.IsDisposed; } }

    /// <summary>
    /// Exports the ring, so that other processes can open it with <see cref="GpuInstance.OpenRing"/>. The handle travels like
    /// one of memory.
    /// </summary>
    public ShareHandle Export() { return Calls.gpumem_ring_export(ring.Handle.Usable()); }

    /// <summary>Waits until all consumers have released the next slot.</summary>
    /// <param name="stream">Stream that will fill the slot, and waits for the work of the consumers; without one, the call
    /// waits for that.</param>
    public RingSlot Acquire([AllowNull] GpuStream stream = null)
    {
      return Timeout.Never(timeout => Acquire(stream, timeout));
    }

    /// <summary>The same with a timeout. Null if the slot was not free in time.</summary>
    [return: MaybeNull]
    public RingSlot Acquire(TimeSpan timeout) { return Acquire(null, timeout); }

    /// <summary>The same for a stream, with a timeout.</summary>
    [return: MaybeNull]
    public RingSlot Acquire([AllowNull] GpuStream stream, TimeSpan timeout)
    {
      ring.Handle.Usable();
      StreamUse order = StreamUse.Of(stream);
      gpumem_ring_slot? found = null;
      try
      {
        found = spare ?? ring.Next(true, order, timeout);
      }
      finally
      {
        if (found == null && order != null) order.Dispose();
      }
      if (found == null) return null;
      spare = null;
      return held = new RingSlot(this, ring, found.Value, order);
    }

    /// <summary>
    /// Says that no message will follow, and waits until all consumers have disposed the ring. They take what is published, and
    /// then get <see cref="Status.Closed"/>. A slot that was not published is dropped.
    /// </summary>
    public void Finish()
    {
      while (!Finish(System.Threading.Timeout.InfiniteTimeSpan)) { }
    }

    /// <summary>The same with a timeout. False if consumers still have the ring, which is finished all the same.</summary>
    public bool Finish(TimeSpan timeout)
    {
      ring.Handle.Usable();
      bool done = Calls.gpumem_ring_finish(ring.Handle, Timeout.ToNanoseconds(timeout, nameof(timeout)));
      spare = null;
      if (held != null) held.End();
      return done;
    }

    /// <summary>
    /// Destroys the ring. If consumers have it, that happens later, when they have left: see <see cref="Finish()"/>. If work of a
    /// stream uses a slot, that work must have been observed complete, too. It may be called repeatedly, and from any thread.
    /// </summary>
    public void Dispose()
    {
      ring.Handle.DisposeAndSweep();
      if (held != null) held.End();
    }

    /// <summary>Its name.</summary>
    public override string ToString() { return ring.ToString(); }

    internal void Keep(gpumem_ring_slot slot) { spare = slot; }
  }

  /// <summary>
  /// A slot to fill. <see cref="Publish"/> passes it on. Disposed without that, it is what the next
  /// <see cref="RingProducer.Acquire(GpuStream)"/> returns.
  /// </summary>
  public sealed partial class RingSlot : IDisposable
  {
    readonly RingProducer producer;
    readonly Ring ring;
    readonly gpumem_ring_slot native;
    readonly StreamUse stream;
    bool ended;

    internal RingSlot(RingProducer producer, Ring ring, gpumem_ring_slot native, StreamUse stream)
    {
      this.producer = producer;
      this.ring = ring;
      this.native = native;
      this.stream = stream;
      ring.Handle.Begin(native);
    }

    /// <summary>The slot, as an operand of a copy or fill.</summary>
    public GpuRange Range
    {
      get
      {
        if (ended) throw new ObjectDisposedException(nameof(RingSlot), "the slot was published or disposed; acquire another one");
        return new GpuRange(ring.Handle, 0, native.pointer, Size);
      }
    }

    /// <summary>Bytes that may be filled.</summary>
    public long Size { get { return Sizes.FromNative(native.size); } }

    /// <summary>Number of the message: 0, 1, 2 and so on since the ring was created.</summary>
    public long Number { get { return Sizes.FromNative(native.number); } }

    /// <summary>Index of the slot.</summary>
    public int Index { get { return (int)native.index; } }

    /// <summary>
    /// Publishes the slot. Consumers see its bytes when the work is complete that is in the slot's stream now; a slot that was
    /// acquired without one takes that of the work that this binding enqueued on it. Without consumers, the message is lost.
    /// <see cref="Status.Busy"/> says that work of another stream on it was not observed complete.
    /// </summary>
    /// <param name="size">Bytes of the message.</param>
    /// <param name="tag">A number for the consumers.</param>
    public void Publish(long size, ulong tag = 0)
    {
      if (ended) throw new ObjectDisposedException(nameof(RingSlot), "the slot was published or disposed; acquire another one");
      ring.Publish(native, stream, Sizes.ToNative(size, nameof(size)), tag);
      End();
    }

    /// <summary>
    /// Drops the slot, unless it was published. Waits for the work in its stream, also if that was disposed, and for the work on
    /// it in others.
    /// </summary>
    public void Dispose()
    {
      if (ended) return;
      bool complete = false;
      try
      {
        ring.Await(native, stream);
        complete = true;
      }
      catch (GpuMemException)
      {
        // As in a function in a stream. The work counts for who acquires the slot next.
      }
      End(complete);
      producer.Keep(native);
    }

    /// <summary>Its number and size.</summary>
    public override string ToString()
    {
      return new Printed(nameof(RingSlot)).Add(nameof(Number), Number).Add(nameof(Size), Size).ToString();
    }

    internal void End(bool complete = true)
    {
      ended = true;
      if (complete) ring.Handle.End(native);
      if (stream != null) stream.Dispose();
    }
  }

  /// <summary>
  /// The side of a ring that uses messages, which the producer waits for it to release. As an enumerable it has the messages
  /// that come until the producer has finished the ring, and releases each when the next one is asked for.
  /// </summary>
  /// <remarks>One thread at a time may call it; another call is refused with <see cref="Status.Busy"/>.</remarks>
  public sealed class RingConsumer : IDisposable, IEnumerable<RingMessage>
  {
    readonly Ring ring;
    readonly LinkedList<RingMessage> held = new LinkedList<RingMessage>();  // the oldest comes first

    internal RingConsumer(Ring ring) { this.ring = ring; }

    /// <summary>Its instance.</summary>
    public GpuInstance Instance { get { return ring.Handle.IfUsable(ring.Instance); } }

    /// <summary>Information about the ring as it is now. Nobody is asked.</summary>
    public RingInfo Info { get { return ring.Info; } }

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get { return ring.Handle.IsDisposed; } }

    /// <summary>
    /// Waits for the next message; several can be held. <see cref="Status.Closed"/> says that the producer has finished the ring
    /// and this was all, <see cref="Status.PeerGone"/> that it has ended.
    /// </summary>
    /// <param name="stream">Stream that will use the message, and waits for the work of the producer; without one, the call
    /// waits for that.</param>
    public RingMessage Wait([AllowNull] GpuStream stream = null)
    {
      return Timeout.Never(timeout => Wait(stream, timeout));
    }

    /// <summary>The same with a timeout. Null if no message came in time.</summary>
    [return: MaybeNull]
    public RingMessage Wait(TimeSpan timeout) { return Wait(null, timeout); }

    /// <summary>The same for a stream, with a timeout.</summary>
    [return: MaybeNull]
    public RingMessage Wait([AllowNull] GpuStream stream, TimeSpan timeout)
    {
      ring.Handle.Usable();
      lock (held) ReleaseMarked();
      StreamUse order = StreamUse.Of(stream);
      gpumem_ring_slot? found = null;
      try
      {
        found = ring.Next(false, order, timeout);
      }
      finally
      {
        if (found == null && order != null) order.Dispose();
      }
      if (found == null) return null;
      var message = new RingMessage(this, ring, found.Value, order);
      lock (held) held.AddLast(message);
      return message;
    }

    /// <summary>The messages that come, each of which a stream will use, until the producer has finished the ring.</summary>
    public IEnumerable<RingMessage> Messages([AllowNull] GpuStream stream = null)
    {
      while (true)
      {
        RingMessage message = WaitUnlessFinished(stream);
        if (message == null) yield break;
        using (message) yield return message;
      }
    }

    /// <summary>The messages that come, without a stream.</summary>
    public IEnumerator<RingMessage> GetEnumerator() { return Messages().GetEnumerator(); }

    IEnumerator IEnumerable.GetEnumerator() { return GetEnumerator(); }

    /// <summary>
    /// Leaves the ring: what was not released is released. It waits for the work on what was. It may be called repeatedly, and
    /// from any thread; a thread that waits gets an <see cref="ObjectDisposedException"/>.
    /// </summary>
    public void Dispose() { ring.Handle.DisposeAndSweep(); }

    /// <summary>Its name.</summary>
    public override string ToString() { return ring.ToString(); }

    RingMessage WaitUnlessFinished(GpuStream stream)
    {
      try
      {
        return Wait(stream);
      }
      catch (GpuMemException problem) when (problem.Status == Status.Closed)
      {
        return null;
      }
    }

    /// <summary>Releases what has no older message before it, and marks what has.</summary>
    internal void Release(RingMessage message, StreamUse stream, bool waits)
    {
      lock (held)
      {
        if (held.First.Value != message)
        {
          Mark(message, stream);
          return;
        }
        ring.Release(message.Native, stream, waits);
        message.End();
        held.RemoveFirst();
        ReleaseMarked();
      }
    }

    /// <summary>Has a message released later, without its stream.</summary>
    internal void Mark(RingMessage message, StreamUse stream)
    {
      lock (held)
      {
        if (message.Released) return;
        ring.Await(message.Native, stream);
        message.End();
      }
    }

    void ReleaseMarked()
    {
      while (held.Count > 0 && held.First.Value.Released)
      {
        ring.Release(held.First.Value.Native, null, false);
        held.RemoveFirst();
      }
    }
  }

  /// <summary>
  /// A message. The producer gets the slots in their order: a message that is released before an older one stays held until
  /// that is released.
  /// </summary>
  public sealed partial class RingMessage : IDisposable
  {
    readonly RingConsumer consumer;
    readonly Ring ring;
    readonly StreamUse stream;
    internal readonly gpumem_ring_slot Native;
    internal bool Released;

    internal RingMessage(RingConsumer consumer, Ring ring, gpumem_ring_slot native, StreamUse stream)
    {
      this.consumer = consumer;
      this.ring = ring;
      this.stream = stream;
      Native = native;
      ring.Handle.Begin(native);
    }

    /// <summary>The message, as an operand of a copy.</summary>
    public GpuRange Range
    {
      get
      {
        if (Released) throw new ObjectDisposedException(nameof(RingMessage));
        return new GpuRange(ring.Handle, 0, Native.pointer, Size);
      }
    }

    /// <summary>Bytes of the message.</summary>
    public long Size { get { return Sizes.FromNative(Native.size); } }

    /// <summary>Number of the message: 0, 1, 2 and so on since the ring was created.</summary>
    public long Number { get { return Sizes.FromNative(Native.number); } }

    /// <summary>The number that the producer passed with it.</summary>
    public ulong Tag { get { return Native.tag; } }

    /// <summary>Index of the slot.</summary>
    public int Index { get { return (int)Native.index; } }

    /// <summary>
    /// Releases the message. The producer fills the slot again when the work is complete that is in the message's stream now; one
    /// that was waited for without a stream takes that of the work that this binding enqueued on it. <see cref="Status.Busy"/>
    /// says that work of another stream on it was not observed complete. A second call does nothing.
    /// </summary>
    public void Release() { Release(false); }

    void Release(bool waits)
    {
      if (!Released && !consumer.IsDisposed) consumer.Release(this, stream, waits);
    }

    /// <summary>
    /// The same, but it waits for work of other streams, and after a failure also for its own; then the next
    /// <see cref="RingConsumer.Wait(GpuStream)"/> tries again, and reports what is wrong.
    /// </summary>
    public void Dispose()
    {
      try
      {
        try
        {
          Release(true);
        }
        catch (GpuMemException)
        {
          consumer.Mark(this, stream);
        }
      }
      catch (GpuMemException)
      {
      }
      catch (ObjectDisposedException)
      {
      }
    }

    internal void End()
    {
      Released = true;
      ring.Handle.End(Native);
      if (stream != null) stream.Dispose();
    }

    /// <summary>Its number, tag and size.</summary>
    public override string ToString()
    {
      return new Printed(nameof(RingMessage)).Add(nameof(Number), Number).Add(nameof(Tag), Tag).Add(nameof(Size), Size)
          .ToString();
    }
  }
}
