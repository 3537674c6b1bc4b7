// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests rings between processes.

using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;
using System.Threading;

namespace GpuMem.Tests
{
  static partial class Sharing
  {
    const int SlotSize = 1000;
    static readonly TimeSpan patience = TimeSpan.FromSeconds(60);

    static void RunRings()
    {
      Tap.Run("rings: the example of the guide", GuideOfRings);
      Tap.Run("rings: slots of a producer alone", Slots);
      Tap.Run("rings: a slot is published behind the work on it", PublishedBehindWork);
      Tap.Run("rings: a message is released behind the work on it", ReleasedBehindWork);
      Tap.Run("rings: two consumers get all messages in order", TwoConsumers);
      Tap.Run("rings: a producer that is disposed finishes", DisposedProducer);
      Tap.Run("rings: a dead consumer holds up nobody", DeadConsumer);
      Tap.Run("rings: a dead producer is reported", DeadProducer);
    }

    static int PartnerOfRing(GpuInstance instance, string role)
    {
      switch (role)
      {
        case "ring-guide": return ConsumeAsInGuide(instance, new ShareHandle(Convert.FromBase64String(Console.In.ReadLine())));
        case "ring-consumer": return Consume(instance, false);
        case "ring-stream-consumer": return Consume(instance, true);
        case "ring-holder": return HoldMessage(instance);
        case "ring-producer": return ProduceAndWait(instance);
        case "ring-reader": return ReadFirst(instance);
        case "ring-writer": return Overwrite(instance);
        default: return 9;
      }
    }

    /// <summary>What a message has: its bytes and its size depend on its number.</summary>
    static byte[] Message(long number)
    {
      return Enumerable.Range(0, SlotSize - (int)(number % 7)).Select(index => (byte)(number * 31 + index)).ToArray();
    }

    static ulong TagOf(long number) { return (ulong)number * 1000003 + 7; }

    static GpuDevice DeviceWithRings(Scope scope)
    {
      GpuDevice device = scope.Device();
      CapabilityInfo answer = device.GetCapability(Capability.ShareEvents);
      if (answer.Value == 0) throw new TestSkipped(answer.Reason);
      return device;
    }

    static void Produce(RingProducer ring, int count, GpuStream stream = null)
    {
      for (; count > 0; --count)
      {
        using (RingSlot slot = ring.Acquire(stream, patience))
        {
          byte[] bytes = Message(slot.Number);
          if (stream == null)
          {
            slot.CopyFrom(bytes);
          }
          else
          {
            stream.Fill(slot.Slice(0, bytes.Length), (byte)slot.Number);
          }
          slot.Publish(bytes.Length, TagOf(slot.Number));
        }
      }
    }

    static void CheckMessage(RingMessage message, byte[] expected)
    {
      var bytes = new byte[message.Size];
      message.CopyTo(bytes);
      Check.That(bytes.SequenceEqual(expected), message + " has other bytes");
      Check.Equal(TagOf(message.Number), message.Tag, "tag");
    }

    static void GuideOfRings(Scope scope)
    {
      GpuDevice device = DeviceWithRings(scope);
      using (var other = new Other("ring-guide"))
      using (RingProducer ring = device.CreateRing(1 << 20, new RingOptions { ConsumersFirst = 1 }))
      {
        ShareHandle share = ring.Export();
        other.Say(Text(share));
        foreach (string text in new[] { "first", "second" })
        {
          using (RingSlot slot = ring.Acquire())
          {
            byte[] bytes = Encoding.UTF8.GetBytes(text);
            slot.CopyFrom(bytes);
            slot.Publish(bytes.Length);
          }
        }
        ring.Finish();  // waits until all consumers have disposed it
        other.Expect("message 0: first");
        other.Expect("message 1: second");
        other.End();
      }
    }

    static int ConsumeAsInGuide(GpuInstance instance, ShareHandle share)
    {
      using (RingConsumer ring = instance.OpenRing(share))
      {
        foreach (RingMessage message in ring)
        {
          var bytes = new byte[message.Size];
          message.CopyTo(bytes);
          Console.WriteLine("message " + message.Number + ": " + Encoding.UTF8.GetString(bytes));
        }
      }
      return 0;
    }

    static void Slots(Scope scope)
    {
      GpuDevice device = DeviceWithRings(scope);
      GpuInstance instance = device.Instance;
      using (RingProducer ring = device.CreateRing(SlotSize, new RingOptions { SlotCount = 3, ConsumersMax = 2, Name = "ours" }))
      {
        ShareHandle share = ring.Export();
        Check.Equal(ShareType.Ring, share.Info.Type, "type");
        RingInfo info = ring.Info;
        Check.Equal("True 1000 3 2 0 False ours", string.Join(" ", info.IsProducer, info.SlotSize, info.SlotCount,
                                                             info.ConsumersMax, info.ConsumerCount, info.Finished, info.Name), "info");
        Check.Equal("RingProducer { Name = \"ours\", SlotSize = 1000, SlotCount = 3 }", ring.ToString(), "text");
        for (long number = 0; number < 10; ++number)  // without consumers, messages are lost
        {
          RingSlot slot = ring.Acquire();
          Check.Equal(number + " " + number % 3 + " 1000", slot.Number + " " + slot.Index + " " + slot.Size, "slot");
          Check.Equal((long)info.Base + slot.Index * info.SlotStride, (long)slot.Range.Pointer, "address");
          GpuRange kept = slot.Slice(10, 20);
          instance.Fill(kept, 1);
          slot.Publish(number);
          Check.Throws<InvalidOperationException>(() => instance.Fill(kept, 2));
          string message = Check.Throws<ObjectDisposedException>(() => slot.Publish(number)).Message;
          Check.That(message.Contains("was published or disposed"), message);
          Check.Throws<ObjectDisposedException>(() => GC.KeepAlive(slot.Range));
        }
        using (GpuStream stream = device.CreateStream())
        using (RingSlot dropped = ring.Acquire(stream))
        {
          Check.Fails(Status.InvalidState, () => ring.Acquire());
          stream.Fill(dropped.Range, 7);
        }
        // A slot waits for its stream also if that was disposed first.
        bool ran = false;
        using (var gate = new ManualResetEventSlim())
        {
          GpuStream early = device.CreateStream();
          RingSlot slot = ring.Acquire(early);
          early.Launch(() =>
          {
            gate.Wait();
            Volatile.Write(ref ran, true);
          });
          early.Dispose();
          var opening = new Thread(() =>
          {
            Thread.Sleep(50);  // so that a slot that does not wait is found out
            gate.Set();
          });
          opening.Start();
          slot.Dispose();
          Check.That(Volatile.Read(ref ran), "the disposed stream was not waited for");
          opening.Join();
        }
        using (RingSlot again = ring.Acquire())
        {
          Check.Equal(10L, again.Number, "number of the slot that was dropped");
            using (PinnedMemory<byte> bytes = device.AllocatePinned<byte>(SlotSize))
          {
            instance.Copy(bytes, again.Range);
            Check.That(bytes.ToArray().All(one => one == 7), "the stream was not waited for");
          }
          Check.Fails(Status.InvalidArgument, () => again.Publish(SlotSize + 1));
          again.Publish(SlotSize);
        }
        Check.Fails(Status.InvalidState, () => instance.OpenRing(share));
        Check.Fails(Status.InvalidArgument, () => instance.OpenRing(new ShareHandle(new byte[256])));
        Check.Fails(Status.InvalidArgument, () => device.CreateRing(0));
        Check.Fails(Status.InvalidArgument, () => device.CreateRing(1, new RingOptions { SlotCount = 257 }));
        ring.Finish();
        Check.Fails(Status.InvalidState, () => ring.Acquire());
        ring.Dispose();
        Check.Throws<ObjectDisposedException>(() => ring.Acquire());
      }
    }

    /// <summary>Opens a gate of a stream later, so that what does not wait for it is found out.</summary>
    sealed class LateGate : IDisposable
    {
      readonly Behaviour.Gate gate;
      readonly Thread opening;

      internal LateGate(GpuStream stream)
      {
        gate = new Behaviour.Gate(stream);
        opening = new Thread(() =>
        {
          Thread.Sleep(50);
          gate.Open();
        });
      }

      internal void Open() { opening.Start(); }

      public void Dispose()
      {
        if ((opening.ThreadState & ThreadState.Unstarted) == 0) opening.Join();
        gate.Dispose();
      }
    }

    static void PublishedBehindWork(Scope scope)
    {
      GpuDevice device = DeviceWithRings(scope);
      GpuDevice peer = device.Instance.GetDevice(1);
      using (var other = new Other("ring-reader"))
      using (RingProducer ring = device.CreateRing(SlotSize, new RingOptions { SlotCount = 8, ConsumersFirst = 1 }))
      using (GpuStream stream = device.CreateStream(), second = device.CreateStream())
      using (GpuStream distant = peer.CreateStream())
      using (GpuMemory there = peer.AllocateDevice(SlotSize))
      {
        other.Say(Text(ring.Export()));
        // The work of one stream, which may be disposed.
        GpuStream early = device.CreateStream();
        foreach (GpuStream one in new[] { stream, early })
        {
          using (var gate = new LateGate(one))
          using (RingSlot slot = ring.Acquire())
          {
            one.Fill(slot.Range, (uint)slot.Number + 1);
            if (one == early) one.Dispose();
            slot.Publish(SlotSize, TagOf(slot.Number));
            gate.Open();
          }
        }
        other.Expect("message 0: 1");
        other.Expect("message 1: 2");
        // Work that is complete counts no more, also if nobody has seen that.
        using (RingSlot slot = ring.Acquire())
        {
          stream.Fill(slot.Range, 1);
          second.Fill(slot.Range, 1);
          stream.Synchronize();
          second.Fill(slot.Range, 3);
          bool complete = false;
          second.Launch(() => Volatile.Write(ref complete, true));
          Check.Eventually(() => Volatile.Read(ref complete), "the end of the work");
          slot.Publish(SlotSize, TagOf(slot.Number));
        }
        other.Expect("message 2: 3");
        // Work of several streams, of another stream than that of the slot, and of another device.
        foreach (GpuStream named in new[] { null, stream, null })
        {
          bool far = named == null && ring.Info.Published == 5;
          GpuStream last = far ? distant : second;
          using (RingSlot slot = ring.Acquire(named))
          using (var gate = new Behaviour.Gate(last))
          {
            if (far)
            {
              distant.Copy(slot.Range, there);
            }
            else
            {
              stream.Fill(slot.Slice(0, 500), (uint)slot.Number + 1);
              second.Fill(slot.Slice(500, 500), (uint)slot.Number + 1);
            }
            if (named != null) stream.Synchronize();
            string message = Check.Fails(Status.Busy, () => slot.Publish(SlotSize, TagOf(slot.Number))).Message;
            Check.That(message.Contains("synchronize the stream, or acquire the slot with it"), message);
            gate.Open();
            last.Synchronize();
            if (far) device.Instance.Fill(slot.Range, (uint)slot.Number + 1);
            slot.Publish(SlotSize, TagOf(slot.Number));
          }
        }
        for (int number = 3; number < 6; ++number) other.Expect("message " + number + ": " + (number + 1));
        // A slot that is dropped waits.
        using (var gate = new LateGate(second))
        {
          using (RingSlot slot = ring.Acquire())
          {
            second.Fill(slot.Range, 7);
            gate.Open();
          }
          using (RingSlot slot = ring.Acquire()) slot.Publish(SlotSize, TagOf(slot.Number));
        }
        other.Expect("message 6: 7");
        // Where it may not wait, the work counts for the next who acquires it.
        using (var gate = new LateGate(second))
        {
          RingSlot dropped = ring.Acquire();
          second.Fill(dropped.Range, 8);
          stream.Launch(dropped.Dispose);
          stream.Synchronize();
          RingSlot slot = ring.Acquire(stream);
          Check.Equal(dropped.Number, slot.Number, "number");
          Check.Fails(Status.Busy, () => slot.Publish(SlotSize, TagOf(slot.Number)));
          gate.Open();
          second.Synchronize();
          slot.Publish(SlotSize, TagOf(slot.Number));
        }
        other.Expect("message 7: 8");
        Check.That(ring.Finish(patience), "the consumer stays");
        other.End();
        foreach (GpuStream one in new[] { stream, second, distant }) one.Synchronize();
      }
    }

    static int ReadFirst(GpuInstance instance)
    {
      using (RingConsumer ring = instance.OpenRing(ReadHandle()))
      {
        foreach (RingMessage message in ring)
        {
          var bytes = new byte[message.Size];
          message.CopyTo(bytes);
          Check.Equal(TagOf(message.Number), message.Tag, "tag");
          Check.That(bytes.All(one => one == bytes[0]), message + " has different bytes");
          Say("message " + message.Number + ": " + bytes[0]);
        }
      }
      return 0;
    }

    static void ReleasedBehindWork(Scope scope)
    {
      GpuInstance instance = DeviceWithRings(scope).Instance;
      GpuDevice device = instance.GetDevice(0);
      using (var other = new Other("ring-writer"))
      using (RingConsumer ring = instance.OpenRing(other.HearHandle()))
      using (GpuStream stream = device.CreateStream(), second = device.CreateStream())
      {
        var copies = new List<KeyValuePair<long, PinnedMemory<byte>>>();
        Func<RingMessage, GpuStream, PinnedMemory<byte>> read = (message, one) =>
        {
          PinnedMemory<byte> copy = device.AllocatePinned<byte>(message.Size);
          one.Copy(copy, message.Range);
          copies.Add(new KeyValuePair<long, PinnedMemory<byte>>(message.Number, copy));
          return copy;
        };
        foreach (RingMessage message in ring)
        {
          stream.Launch(() => Thread.Sleep(5));
          read(message, stream);
          if (message.Number == 19) break;
        }
        // Two streams: refused, but when disposed, waited for.
        using (var gate = new LateGate(stream))
        {
          using (RingMessage message = ring.Wait(null, patience))
          {
            read(message, stream);
            read(message, second);
            string said = Check.Fails(Status.Busy, message.Release).Message;
            Check.That(said.Contains("synchronize the stream, or wait for the message with it"), said);
            gate.Open();
          }
          Check.Equal("0 21", ring.Info.HeldCount + " " + ring.Info.Released, "held and released");
        }
        // One stream, and another one is named.
        using (var gate = new LateGate(second))
        using (RingMessage message = ring.Wait(stream, patience))
        {
          read(message, second);
          Check.Fails(Status.Busy, message.Release);
          gate.Open();
        }
        // Before an older one: waited for.
        using (var gate = new LateGate(second))
        {
          RingMessage older = ring.Wait(null, patience), newer = ring.Wait(null, patience);
          read(newer, second);
          gate.Open();
          newer.Release();
          older.Release();
        }
        Check.Equal("0 24", ring.Info.HeldCount + " " + ring.Info.Released, "held and released");
        other.Say("end");
        try
        {
          // Whatever was released too early has other bytes by now.
          while (ring.Wait(null, patience) != null) { }
        }
        catch (GpuMemException problem) when (problem.Status == Status.InvalidState || problem.Status == Status.Closed)
        {
        }
        stream.Synchronize();
        second.Synchronize();
        foreach (KeyValuePair<long, PinnedMemory<byte>> copy in copies)
        {
          Check.That(copy.Value.ToArray().SequenceEqual(Message(copy.Key)), "message " + copy.Key + " has other bytes");
          copy.Value.Dispose();
        }
      }
    }

    static int Overwrite(GpuInstance instance)
    {
      using (RingProducer ring = instance.GetDevice(0).CreateRing(SlotSize, new RingOptions { SlotCount = 3, ConsumersFirst = 1 }))
      {
        Say(Text(ring.Export()));
        Produce(ring, 26);
        Wait("end");
        ring.Finish(patience);
      }
      return 0;
    }

    /// <summary>One consumer orders its work by a stream, the other waits on the CPU.</summary>
    static void TwoConsumers(Scope scope)
    {
      GpuDevice device = DeviceWithRings(scope);
      using (RingProducer ring = device.CreateRing(SlotSize, new RingOptions { ConsumersMax = 2, ConsumersFirst = 2 }))
      using (GpuStream stream = device.CreateStream())
      using (var one = new Other("ring-consumer"))
      using (var two = new Other("ring-stream-consumer"))
      {
        Check.That(ring.Acquire(TimeSpan.FromMilliseconds(1)) == null, "a slot without consumers");
        one.Say(Text(ring.Export()));
        two.Say(Text(ring.Export()));
        Produce(ring, 50);
        Produce(ring, 50, stream);
        Check.That(ring.Finish(patience), "the consumers stay");
        one.Expect("100 messages");
        two.Expect("100 messages");
        one.End();
        two.End();
        stream.Synchronize();
      }
    }

    static void DisposedProducer(Scope scope)
    {
      GpuDevice device = DeviceWithRings(scope);
      using (var other = new Other("ring-consumer"))
      {
        using (RingProducer ring = device.CreateRing(SlotSize, new RingOptions { SlotCount = 100, ConsumersFirst = 1 }))
        using (GpuStream stream = device.CreateStream())
        {
          other.Say(Text(ring.Export()));
          Produce(ring, 50);
          Produce(ring, 50, stream);
          stream.Synchronize();
        }
        other.Expect("100 messages");
        other.End();
      }
    }

    static int Consume(GpuInstance instance, bool streams)
    {
      using (RingConsumer ring = instance.OpenRing(ReadHandle(), new RingOpenOptions { Timeout = patience, Name = "theirs" }))
      using (GpuStream stream = streams ? instance.GetDevice(0).CreateStream() : null)
      {
        long next = 0;
        foreach (RingMessage message in ring.Messages(stream))
        {
          Check.Equal(next, message.Number, "number");
          if (streams) stream.Synchronize();
          byte[] expected = Message(next);
          if (next >= 50) expected = Enumerable.Repeat((byte)next, expected.Length).ToArray();
          CheckMessage(message, expected);
          ++next;
        }
        Check.Fails(Status.Closed, () => ring.Wait());
        var logged = new List<string>();
        GpuMemLog.SetFunction((level, message) => { lock (logged) logged.Add(message); }, LogLevel.Debug);
        ring.Dispose();
        GpuMemLog.SetFunction(null, LogLevel.Error);
        Check.Equal("", string.Join("\n", logged.Where(message => message.Contains("RingProducer"))), "what is no matter of a consumer");
        Say(next + " messages");
      }
      return 0;
    }

    static void DeadConsumer(Scope scope)
    {
      GpuDevice device = DeviceWithRings(scope);
      using (RingProducer ring = device.CreateRing(SlotSize, new RingOptions { SlotCount = 2, ConsumersFirst = 1 }))
      using (var other = new Other("ring-holder"))
      {
        other.Say(Text(ring.Export()));
        Produce(ring, 2);
        other.Expect("holds 0");
        Check.That(ring.Acquire(null, TimeSpan.FromMilliseconds(20)) == null, "a slot that is held");
        other.Kill();
        Produce(ring, 10);
        Check.That(ring.Finish(patience), "the dead consumer stays");
      }
    }

    static int HoldMessage(GpuInstance instance)
    {
      RingConsumer ring = instance.OpenRing(ReadHandle());
      RingMessage message = ring.Wait(patience);
      CheckMessage(message, Message(0));
      Say("holds " + message.Number);
      Wait("never");
      return 1;
    }

    static void DeadProducer(Scope scope)
    {
      GpuInstance instance = DeviceWithRings(scope).Instance;
      using (var other = new Other("ring-producer"))
      using (RingConsumer ring = instance.OpenRing(other.HearHandle()))
      {
        other.Expect("published");
        var messages = new List<RingMessage>();
        for (long number = 0; number < 3; ++number)
        {
          // The stream of the oldest is gone when that is released.
          using (GpuStream stream = number == 0 ? instance.GetDevice(0).CreateStream() : null)
          {
            RingMessage message = ring.Wait(stream, patience);
            if (stream != null) stream.Synchronize();
            Check.Equal(number, message.Number, "number");
            CheckMessage(message, Message(number));
            messages.Add(message);
          }
        }
        // In the reverse order, as nested using statements do it.
        GpuRange range = messages[1].Range;
        messages[2].Dispose();
        instance.Copy(new GpuRange(range.Pointer, 0), range.Slice(0, 0));
        messages[1].Dispose();
        var gone = Check.Throws<InvalidOperationException>(() => instance.Copy(new GpuRange(range.Pointer, 0), range.Slice(0, 0)));
        Check.That(gone.Message.Contains("of a message that was released"), gone.Message);
        Check.Throws<ObjectDisposedException>(() => GC.KeepAlive(messages[1].Range));
        Check.Equal(3, ring.Info.HeldCount, "held");
        messages[0].Dispose();
        Check.Equal("0 3", ring.Info.HeldCount + " " + ring.Info.Released, "held and released");
        RingMessage last = ring.Wait(null, patience);
        other.Kill();
        Check.Fails(Status.PeerGone, () => ring.Wait());
        Check.Fails(Status.PeerGone, () => last.Release());
        last.Dispose();
      }
    }

    static int ProduceAndWait(GpuInstance instance)
    {
      RingProducer ring = instance.GetDevice(0).CreateRing(SlotSize, new RingOptions { ConsumersFirst = 1 });
      Say(Text(ring.Export()));
      Produce(ring, 4);
      Say("published");
      Wait("never");
      return 1;
    }
  }
}
