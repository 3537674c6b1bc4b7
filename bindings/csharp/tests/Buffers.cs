// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests buffers that grow, shrink and sleep, and the CPU's views of them.

using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Threading;

namespace GpuMem.Tests
{
  static class Buffers
  {
    internal static void Run()
    {
      Tap.Run("buffers: the example of the guide", Guide);
      Tap.Run("buffers: the views of the guide", GuideViews);
      Tap.Run("buffers: one grows and shrinks in place", InPlace);
      Tap.Run("buffers: one grows while a stream uses it", WhileInUse);
      Tap.Run("buffers: memory ahead of growth", CapacityAhead);
      Tap.Run("buffers: the reserved addresses end", AddressesEnd);
      Tap.Run("buffers: one moves without a copy", Moving);
      Tap.Run("buffers: ranges that it left are refused", RangesLeft);
      Tap.Run("buffers: access holds as it grows", AccessHolds);
      Tap.Run("buffers: one sleeps and wakes", Sleeping);
      Tap.Run("buffers: a sleeping one has no memory", SleepFrees);
      Tap.Run("buffers: without memory it sleeps on", SleepsOn);
      Tap.Run("buffers: views are valid until a change", Views);
      Tap.Run("buffers: views that are refused", ViewsRefused);
      Tap.Run("buffers: views while other threads change it", ViewsAndThreads);
      Tap.Run("buffers: a view in a function that a stream runs", ViewInFunction);
#if NETCOREAPP3_0_OR_GREATER
      Tap.Run("buffers: spans", Spans);
#endif
      Tap.Run("buffers: options arrive", OptionsArrive);
      Tap.Run("buffers: bad arguments and wrong times", Refused);
      Tap.Run("buffers: an empty one", Empty);
      Tap.Run("buffers: operands of every kind of work", Operands);
      Tap.Run("buffers: kept for work in a stream", Kept);
      Tap.Run("buffers: work that the binding does not know delays dispose", UnknownWork);
      Tap.Run("buffers: forgotten ones are freed, and make room", Forgotten);
      Tap.Run("buffers: dispose after the instance was closed by force", AfterForce);
      Tap.Run("buffers: every step may fail", FailingSteps);
    }

    static readonly BufferOptions onHost = new BufferOptions { Location = MemoryLocation.Host };

    static GpuDevice WithHostMemory(Scope scope)
    {
      GpuDevice device = scope.Device();
      if (!device.GetCapability(Capability.VmmHost).IsAvailable) throw new TestSkipped("this device maps no memory of the host");
      return device;
    }

    static long Unit(GpuDevice device)
    {
      long minimum, recommended;
      device.GetGranularity(out minimum, out recommended);
      return minimum;
    }

    static void Expect(GrowableBuffer buffer, long offset, int count, byte value)
    {
      byte[] found = Enumerable.Repeat((byte)~value, count).ToArray();
      buffer.CopyTo(offset, found);
      Check.That(found.All(one => one == value), "not " + value + " from offset " + offset);
    }

    static void Guide(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      const long Half = 4 << 20;
      // Addresses for 64 GiB, and memory for the first 4 MiB.
      using (GrowableBuffer buffer = device.CreateBuffer(Half, new BufferOptions { Reserve = 64L << 30 }))
      using (GpuStream stream = device.CreateStream())
      {
        stream.Fill(buffer, 1);
        // It grows while the stream works on it, and its address stays the same.
        buffer.Resize(2 * Half);
        stream.Copy(buffer.Slice(Half, Half), buffer.Slice(0, Half));
        stream.Synchronize();
        // Until it wakes, others have its memory.
        buffer.Sleep(Content.Pinned);
        buffer.Wake();
        Expect(buffer, 2 * Half - 100, 100, 1);
      }
    }

    static void GuideViews(Scope scope)
    {
      GpuDevice device = WithHostMemory(scope);
      using (GrowableBuffer numbers = device.CreateBuffer(4000, new BufferOptions { Location = MemoryLocation.Host }))
      {
        BufferView<int> view = numbers.GetView<int>();
        view[999] = 7;
        numbers.Resize(8000);
        // The old view refuses to be used. A new one has all elements.
        view = numbers.GetView<int>();
        view[1999] = view[999] + 1;
        Check.Equal(8, view[1999], "number");
      }
    }

    static void InPlace(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(1);
      long unit = Unit(device);
      var options = new BufferOptions { Reserve = 16 * unit, Name = "rows" };
      using (GrowableBuffer buffer = device.CreateBuffer(unit + 1, options))
      {
        BufferInfo first = buffer.Info;
        Check.Equal(unit + 1, first.Size, "size");
        Check.Equal(2 * unit, first.Capacity, "capacity");
        Check.That(first.ReservedSize >= 16 * unit, first.ToString());
        Check.Equal(unit, first.Granularity, "granularity");
        Check.Equal(1L, first.BlockCount, "blocks");
        Check.Equal((MemoryLocation)device, first.Location, "location");
        Check.Equal(1, first.DeviceOrdinal, "device");
        Check.Equal("rows", first.Name, "name");
        Check.That(first.State == BufferState.Awake && first.StoredSize == 0 && first.BufferId != 0, first.ToString());
        Check.Equal(device, buffer.Device, "its device");
        string where = ", Location = MemoryLocation { Kind = Device, Id = 1 }, Name = \"rows\" }";
        Check.Equal("GrowableBuffer { Size = " + (unit + 1) + where, buffer.ToString(), "text");
        instance.Fill(buffer, 1);
        buffer.Resize(5 * unit);
        Check.Equal(5 * unit, buffer.Size, "size");
        Check.Equal(5 * unit, buffer.Capacity, "capacity");
        Check.Equal(first.Base, buffer.Pointer, "address");
        Check.Equal(first.Generation, buffer.Info.Generation, "generation");
        Check.Equal(unit + 1, first.Size, "size of the old information");
        Check.Equal(2L, buffer.Info.BlockCount, "blocks");
        Expect(buffer, 0, (int)unit + 1, 1);
        instance.Fill(buffer.Slice(unit + 1, 4 * unit - 1), 2);
        // Across the seam of the blocks.
        buffer.CopyFrom(2 * unit - 4, new[] { 3, 4 });
        var found = new int[2];
        buffer.CopyTo(2 * unit - 4, found);
        Check.Equal("3,4", string.Join(",", found), "numbers");
        buffer.CopyFrom(new[] { 5, 6 });
        buffer.CopyTo(found);
        Check.Equal("5,6", string.Join(",", found), "numbers at the start");
        instance.Fill(buffer.Slice(0, 8), 1);
        buffer.Resize(unit);
        Check.Equal(2 * unit, buffer.Capacity, "capacity of the block that is used in part");
        Expect(buffer, 0, (int)unit, 1);
        MappingInfo mapping = instance.GetMapping(buffer.Pointer);
        Check.That(mapping.IsIn(buffer), "it is in another buffer");
        using (GrowableBuffer other = device.CreateBuffer(1)) Check.That(!mapping.IsIn(other), "it is in every buffer");
        Check.Throws<ArgumentNullException>(() => mapping.IsIn((GrowableBuffer)null));
        // In the size, and where nothing is mapped.
        foreach (long offset in new[] { 0, first.ReservedSize - 1 })
        {
          PointerInfo at = instance.GetPointerInfo((IntPtr)((long)first.Base + offset));
          Check.That(at.IsOfInstance && at.IsIn(buffer) && at.Buffer == buffer, "the buffer at " + offset);
          Check.That(at.ToString().Contains("Buffer = " + buffer), at.ToString());
          using (GrowableBuffer other = device.CreateBuffer(1)) Check.That(!at.IsIn(other), "it is in every buffer");
          Check.Throws<ArgumentNullException>(() => at.IsIn(null));
        }
        using (GpuMemory memory = device.AllocateDevice(64))
        {
          PointerInfo at = instance.GetPointerInfo(memory.DevicePointer);
          Check.That(at.Buffer == null && at.ToString().Contains("Buffer = null"), at.ToString());
        }
        buffer.Resize(0);
        Check.Equal(0L, buffer.Capacity, "capacity");
        Check.Fails(Status.InvalidState, () => instance.GetMapping(first.Base));
      }
    }

    static void WhileInUse(Scope scope)
    {
      GpuDevice device = scope.Device();
      long unit = Unit(device);
      using (GrowableBuffer buffer = device.CreateBuffer(unit))
      using (GpuStream stream = device.CreateStream())
      {
        using (new Behaviour.Gate(stream))
        {
          stream.Fill(buffer, 5);
          buffer.Resize(3 * unit);
          stream.Fill(buffer.Slice(unit, 2 * unit), 6);
        }
        Expect(buffer, 0, (int)unit, 5);
        Expect(buffer, unit, (int)(2 * unit), 6);
      }
    }

    static void CapacityAhead(Scope scope)
    {
      GpuDevice device = scope.Device();
      long unit = Unit(device);
      using (GrowableBuffer buffer = device.CreateBuffer(unit))
      {
        buffer.CopyFrom(0, new[] { 1234 });
        buffer.SetCapacity(6 * unit - 1);
        Check.Equal(unit, buffer.Size, "size");
        Check.Equal(6 * unit, buffer.Capacity, "capacity");
        buffer.Resize(5 * unit);
        Check.Equal(2L, buffer.Info.BlockCount, "blocks: there was memory enough");
        Check.Fails(Status.InvalidArgument, () => buffer.SetCapacity(5 * unit - 1));
        Check.Throws<ArgumentOutOfRangeException>(() => buffer.SetCapacity(-1));
        buffer.Resize(unit);
        buffer.SetCapacity(3 * unit);
        buffer.Trim();
        Check.Equal(unit, buffer.Capacity, "capacity after the trim");
        var found = new int[1];
        buffer.CopyTo(0, found);
        Check.Equal(1234, found[0], "number");
      }
    }

    static void AddressesEnd(Scope scope)
    {
      GpuDevice device = scope.Device();
      long unit = Unit(device);
      using (GrowableBuffer buffer = device.CreateBuffer(unit, new BufferOptions { Reserve = 2 * unit }))
      {
        buffer.Resize(buffer.Info.ReservedSize);
        string before = buffer.Info.ToString();
        string message = Check.Fails(Status.OutOfAddressSpace, () => buffer.Resize(buffer.Size + 1)).Message;
        Check.That(message.Contains("BufferFlags.Movable"), message);
        Check.Fails(Status.OutOfAddressSpace, () => buffer.SetCapacity(buffer.Size + 1));
        Check.Equal(before, buffer.Info.ToString(), "information");
      }
      // More than any process has addresses for.
      using (GrowableBuffer buffer = device.CreateBuffer(unit, new BufferOptions { Reserve = 1L << 62 }))
      {
        Check.That(buffer.Info.ReservedSize >= unit && buffer.Info.ReservedSize < 1L << 62, buffer.Info.ToString());
      }
    }

    static GrowableBuffer Full(GpuDevice device, BufferFlags flags)
    {
      long unit = Unit(device);
      GrowableBuffer buffer = device.CreateBuffer(unit, new BufferOptions { Reserve = unit, Flags = flags });
      buffer.Resize(buffer.Info.ReservedSize);
      return buffer;
    }

    static void Moving(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GrowableBuffer buffer = Full(device, BufferFlags.Movable))
      {
        instance.Fill(buffer, 7);
        BufferInfo before = buffer.Info;
        ulong block = instance.GetMapping(before.Base).BlockId;
        buffer.Resize(before.Size + 1);
        BufferInfo now = buffer.Info;
        Check.That(now.Base != before.Base && now.BufferId != before.BufferId, now.ToString());
        Check.Equal(now.Base, buffer.Pointer, "address");
        Check.Equal(before.Generation + 1, now.Generation, "generation");
        Check.Equal(block, instance.GetMapping(now.Base).BlockId, "block");
        Expect(buffer, 0, (int)before.Size, 7);
      }
    }

    static void RangesLeft(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GrowableBuffer buffer = Full(device, BufferFlags.Movable))
      using (GpuMemory target = device.AllocateDevice(64))
      using (GpuStream stream = device.CreateStream())
      {
        long half = buffer.Size / 2;
        GpuRange start = buffer.Slice(0, 64), end = buffer.Slice(2 * half - 64, 64);
        buffer.Resize(half);
        instance.Fill(start, 1);
        Check.Throws<InvalidOperationException>(() => instance.Fill(end, 1));
        buffer.Resize(2 * half);
        instance.Fill(end, 2);
        // It moves away from both.
        buffer.Resize(4 * half);
        foreach (GpuRange old in new[] { start, end })
        {
          foreach (Action call in new Action[]
          {
            () => instance.Fill(old, 1), () => instance.Copy(target, old), () => stream.Copy(old, target), () => stream.Fill(old, 1),
            () => instance.Copy2D(target, 8, old, 8, 8, 8), () => stream.CopyRegions(new CopyRegion(target, old, 8, 8)),
            () => instance.CopyRegions(new CopyRegion(old, target, 8, 8)), () => stream.WriteValue(old.Slice(0, 4), 1),
          })
          {
            Check.Throws<InvalidOperationException>(call);
          }
        }
        Expect(buffer, 0, 64, 1);
        Expect(buffer, 2 * half - 64, 64, 2);
      }
    }

    static void AccessHolds(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0), peer = instance.GetDevice(1);
      long unit = Unit(device);
      using (GrowableBuffer buffer = device.CreateBuffer(unit))
      {
        Check.Equal(Access.ReadWrite, device.GetAccess(buffer.Pointer), "its device");
        Check.Equal(Access.None, peer.GetAccess(buffer.Pointer), "a peer");
        buffer.SetAccess(peer, Access.Read);
        buffer.Resize(2 * unit);
        Check.Equal(Access.Read, peer.GetAccess((IntPtr)((long)buffer.Pointer + 2 * unit - 1)), "a peer after growth");
        buffer.SetAccess(new ProcessorAccess(peer, Access.ReadWrite), new ProcessorAccess(device, Access.Read));
        buffer.Sleep(Content.Drop);
        buffer.Wake();
        Check.Equal(Access.ReadWrite, peer.GetAccess(buffer.Pointer), "a peer after waking");
        Check.Equal(Access.Read, device.GetAccess(buffer.Pointer), "its device after waking");
        buffer.SetAccess(peer, Access.None);
        Check.Fails(Status.NoAccess, () => instance.Fill(buffer, 1));
        Check.Fails(Status.Unsupported, () => buffer.SetAccess(MemoryLocation.Host, Access.Read));
        Check.Fails(Status.InvalidArgument, () => buffer.SetAccess());
        Check.Throws<ArgumentNullException>(() => buffer.SetAccess(null));
        GpuDevice stranger = scope.Open().GetDevice(0);
        Check.Throws<ArgumentException>(() => buffer.SetAccess(stranger, Access.Read));
      }
    }

    static void Sleeping(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long unit = Unit(device);
      using (GrowableBuffer buffer = device.CreateBuffer(unit + 3))
      {
        buffer.Resize(2 * unit + 3);
        instance.Fill(buffer, 8);
        foreach (Content content in new[] { Content.Pinned, Content.Pageable })
        {
          BufferInfo before = buffer.Info;
          buffer.Sleep(content);
          BufferInfo asleep = buffer.Info;
          Check.That(buffer.State == BufferState.Asleep && asleep.State == BufferState.Asleep, asleep.ToString());
          Check.Equal(before.Size, asleep.StoredSize, "stored");
          Check.That(asleep.StoreCapacity >= before.Size, asleep.ToString());
          long pinned = content == Content.Pinned ? asleep.StoreCapacity : 0;
          Check.Equal(pinned, instance.GetStats(MemoryKind.Pinned).LiveBytes, "pinned");
          Check.Equal(pinned, instance.Stats.LiveBytes, "memory of a buffer that sleeps");
          Check.Equal(asleep.ReservedSize, instance.Stats.ReservedBytes, "addresses");
          Check.That(buffer.ToString().Contains("State = Asleep"), buffer.ToString());
          Check.Fails(Status.InvalidState, () => instance.Fill(buffer, 1));
          buffer.Wake();
          Check.Equal(BufferState.Awake, buffer.State, "state");
          Check.Equal(before.Base, buffer.Pointer, "address");
          Check.Equal(before.Capacity, buffer.Capacity, "capacity");
          Check.Equal(before.Capacity, instance.Stats.LiveBytes, "memory");
          Check.Equal(before.Generation + 1, buffer.Info.Generation, "generation");
          Check.Equal(0L, buffer.Info.StoredSize, "stored after waking");
          Expect(buffer, 0, (int)(2 * unit) + 3, 8);
        }
        buffer.Sleep(Content.Zero);
        Check.Equal(0L, buffer.Info.StoredSize, "stored of what is not kept");
        buffer.Wake();
        Expect(buffer, 0, (int)(2 * unit) + 3, 0);
        buffer.Sleep();
        Check.Equal(buffer.Info.StoreCapacity, instance.GetStats(MemoryKind.Pinned).LiveBytes, "pinned by default");
        // Disposed asleep.
      }
      Check.Equal(0L, instance.GetStats(MemoryKind.Pinned).LiveBytes, "pinned after dispose");
    }

    static void SleepFrees(Scope scope)
    {
      GpuDevice device = scope.Device();
      long unit = Unit(device), awake, asleep, again, total;
      using (GrowableBuffer buffer = device.CreateBuffer(8 * unit))
      {
        device.GetMemory(out awake, out total);
        buffer.Sleep(Content.Pageable);
        device.GetMemory(out asleep, out total);
        buffer.Wake();
        device.GetMemory(out again, out total);
        Check.Equal(8 * unit, asleep - awake, "bytes that became free");
        Check.Equal(awake, again, "free bytes after waking");
      }
    }

    static void SleepsOn(Scope scope)
    {
      Scope.HostOnly();
      GpuDevice device = scope.Open(new InstanceOptions
      {
        Host = new HostOptions { DeviceBytes = 16 << 20, VmmGranularity = 1 << 20 },
      }).GetDevice(0);
      using (GrowableBuffer buffer = device.CreateBuffer(12 << 20, new BufferOptions { Reserve = 1 << 30 }))
      {
        Check.Fails(Status.OutOfDeviceMemory, () => buffer.Resize(20 << 20));
        Check.Equal(12L << 20, buffer.Size, "size after the failure");
        device.Instance.Fill(buffer, 9);
        buffer.Sleep(Content.Pageable);
        using (device.CreatePhysical(8 << 20))
        {
          Check.Fails(Status.OutOfDeviceMemory, () => buffer.Wake());
          Check.Equal(BufferState.Asleep, buffer.State, "state");
        }
        buffer.Wake();
        Expect(buffer, 0, 12 << 20, 9);
      }
    }

    static void Views(Scope scope)
    {
      GpuDevice device = WithHostMemory(scope);
      GpuInstance instance = device.Instance;
      using (GrowableBuffer buffer = device.CreateBuffer(4002, onHost))
      {
        BufferView<int> view = buffer.GetView<int>();
        Check.Equal(1000L, view.Length, "length");
        Check.Equal(buffer.Pointer, view.Pointer, "address");
        Check.Equal("BufferView<Int32> { Length = 1000, IsCurrent = True }", view.ToString(), "text");
        int[] numbers = Enumerable.Range(0, 1000).ToArray();
        view.CopyFrom(numbers);
        view[5] = 55;
        var found = new int[1000];
        buffer.CopyTo(0, found);
        numbers[5] = 55;
        Check.That(found.SequenceEqual(numbers), "what the device sees");
        instance.Fill(buffer.Slice(0, 8), 1, 4);
        Check.Equal(1, view[1], "what the device wrote");
        Check.Equal(999, view.ToArray()[999], "array");
        view.CopyFrom(new[] { 7, 8, 9 }, 1, 998, 2);
        var two = new int[3];
        view.CopyTo(998, two, 1, 2);
        Check.Equal("0,8,9", string.Join(",", two), "part");
        foreach (Action call in new Action[]
        {
          () => GC.KeepAlive(view[1000]), () => GC.KeepAlive(view[-1]), () => view[1000] = 1, () => view.CopyFrom(new int[1001]),
          () => view.CopyTo(999, new int[2], 0, 2), () => view.CopyTo(-1, new int[2], 0, 1),
          () => view.CopyTo(0, new int[2], 1, 2),
        })
        {
          Check.Throws<ArgumentOutOfRangeException>(call);
        }
        Check.Throws<ArgumentNullException>(() => view.CopyFrom(null));
        Check.Throws<ArgumentNullException>(() => view.CopyTo(null));
        // A failed change leaves it valid.
        Check.Fails(Status.InvalidState, () => buffer.Wake());
        Check.That(view.IsCurrent && view[999] == 9, "the view ended");
        foreach (Action change in new Action[]
        {
          () => buffer.Resize(8000), () => buffer.Resize(4000), () => buffer.SetCapacity(0), () => buffer.Trim(),
          () => buffer.SetAccess(device, Access.Read), () => buffer.SetAccess(device, Access.ReadWrite),
          () => buffer.Sleep(Content.Pageable), () => buffer.Wake(),
        })
        {
          view = buffer.State == BufferState.Asleep ? view : buffer.GetView<int>();
          change();
          Check.That(!view.IsCurrent && view.ToString().Contains("IsCurrent = False"), view.ToString());
          foreach (Action call in new Action[]
          {
            () => GC.KeepAlive(view[0]), () => view[0] = 1, () => view.CopyFrom(new[] { 1 }), () => view.CopyTo(new int[1]),
            () => view.ToArray(), () => GC.KeepAlive(view.Length), () => GC.KeepAlive(view.Pointer), () => GC.KeepAlive(view[1 << 30]),
          })
          {
            Check.Throws<InvalidOperationException>(call);
          }
        }
        view = buffer.GetView<int>();
        Check.Equal(9, view[999], "number after sleep");
        buffer.Dispose();
        Check.Throws<ObjectDisposedException>(() => GC.KeepAlive(view[0]));
        Check.That(!view.IsCurrent, "the view outlives the buffer");
      }
    }

    static void ViewsRefused(Scope scope)
    {
      GpuDevice device = WithHostMemory(scope);
      using (GrowableBuffer there = device.CreateBuffer(4000))
      using (GrowableBuffer here = device.CreateBuffer(4000, onHost))
      {
        string message = Check.Throws<InvalidOperationException>(() => there.GetView<int>()).Message;
        Check.That(message.Contains("memory of a device"), message);
        foreach (Access access in new[] { Access.Read, Access.None })
        {
          here.SetAccess(MemoryLocation.Host, access);
          message = Check.Throws<InvalidOperationException>(() => here.GetView<int>()).Message;
          Check.That(message.Contains("SetAccess"), message);
        }
        here.SetAccess(MemoryLocation.Host, Access.ReadWrite);
        here.GetView<int>()[0] = 1;
        here.Sleep();
        message = Check.Throws<InvalidOperationException>(() => here.GetView<int>()).Message;
        Check.That(message.Contains("asleep"), message);
      }
    }

    // A view that outlived its memory would end the process.
    static void ViewsAndThreads(Scope scope)
    {
      GpuDevice device = WithHostMemory(scope);
      using (GrowableBuffer buffer = device.CreateBuffer(0, onHost))
      {
        long unit = buffer.Info.Granularity, used = 0, refused = 0;
        bool stop = false;
        var problems = new List<Exception>();
        Thread[] threads = Enumerable.Range(0, 3).Select(number => new Thread(() =>
        {
          var bytes = new byte[(int)unit];
          while (!Volatile.Read(ref stop))
          {
            try
            {
              BufferView<byte> view = buffer.GetView<byte>();
              for (long at = 0; at + unit <= view.Length; at += unit)
              {
                view[at + number] = (byte)number;
                view.CopyTo(at, bytes, 0, bytes.Length);
                Interlocked.Increment(ref used);
              }
            }
            catch (InvalidOperationException)
            {
              Interlocked.Increment(ref refused);
            }
            catch (Exception problem)
            {
              lock (problems) problems.Add(problem);
              return;
            }
          }
        })).ToArray();
        foreach (Thread thread in threads) thread.Start();
        for (int round = 0; round < 5000 && (round < 200 || Volatile.Read(ref used) < 50 || Volatile.Read(ref refused) < 10); ++round)
        {
          buffer.Resize(round % 2 == 0 ? 3 * unit : 0);
          if (round % 5 == 4)
          {
            buffer.Sleep(Content.Zero);
            buffer.Wake();
          }
          if (round % 2 == 0) Thread.Sleep(round % 3);
        }
        Volatile.Write(ref stop, true);
        foreach (Thread thread in threads) thread.Join();
        Check.Equal("", string.Join("\n", problems), "problems");
        Check.That(used >= 50 && refused >= 10, used + " uses, " + refused + " refusals");
      }
    }

    static void ViewInFunction(Scope scope)
    {
      GpuDevice device = WithHostMemory(scope);
      using (GrowableBuffer buffer = device.CreateBuffer(4000, onHost))
      using (GpuStream stream = device.CreateStream())
      {
        BufferView<int> view = buffer.GetView<int>();
        stream.Launch(() => view[0] = 12);
        stream.Synchronize();
        Check.Equal(12, view[0], "number");
        buffer.Resize(8000);
        stream.Launch(() => view[0] = 13);
        Check.Throws<InvalidOperationException>(() => stream.Synchronize());
        Check.Equal(12, buffer.GetView<int>()[0], "number after the refusal");
      }
    }

#if NETCOREAPP3_0_OR_GREATER
    static void Spans(Scope scope)
    {
      GpuDevice device = WithHostMemory(scope);
      using (GrowableBuffer buffer = device.CreateBuffer(4000, onHost))
      {
        BufferView<int> view = buffer.GetView<int>();
        Span<int> all = view.GetSpan();
        Check.Equal(1000, all.Length, "length");
        all.Fill(3);
        view.GetSpan(990, 10).Fill(4);
        Check.That(view[989] == 3 && view[990] == 4, "numbers");
        Check.Throws<ArgumentOutOfRangeException>(() => view.GetSpan(991, 10));
        buffer.Resize(8000);
        Check.Throws<InvalidOperationException>(() => view.GetSpan());
        Check.Throws<InvalidOperationException>(() => view.GetSpan(0, 1));
        Check.Equal(2000, buffer.GetView<int>().GetSpan().Length, "length after growth");
        view = buffer.GetView<int>();
        buffer.Dispose();
        Check.Throws<ObjectDisposedException>(() => view.GetSpan());
      }
    }
#endif

    static void OptionsArrive(Scope scope)
    {
      GpuInstance instance = scope.Open(new InstanceOptions { Host = new HostOptions { NumaNodes = 2 } });
      GpuDevice device = instance.GetDevice(0), peer = instance.GetDevice(1);
      long unit = Unit(device);
      var accesses = new[] { new ProcessorAccess(device, Access.Read), new ProcessorAccess(peer, Access.ReadWrite) };
      using (GrowableBuffer buffer = device.CreateBuffer(unit, new BufferOptions { Accesses = accesses, Location = device }))
      {
        Check.Equal(Access.Read, device.GetAccess(buffer.Pointer), "access of its device");
        Check.Equal(Access.ReadWrite, peer.GetAccess(buffer.Pointer), "access of a peer");
      }
      if (device.GetCapability(Capability.VmmHandlePosixFd).IsAvailable)
      {
        using (GrowableBuffer buffer = device.CreateBuffer(unit, new BufferOptions { HandleTypes = HandleTypes.PosixFd }))
        using (PhysicalMemory block = instance.RetainPhysical(buffer.Pointer))
        {
          Check.Equal(HandleTypes.PosixFd, block.Info.HandleTypes, "handle types");
        }
      }
      bool can = device.GetCapability(Capability.VmmCompressible).IsAvailable;
      using (GrowableBuffer buffer = device.CreateBuffer(unit, new BufferOptions { Prefer = PhysicalFlags.Compressible }))
      using (PhysicalMemory block = instance.RetainPhysical(buffer.Pointer))
      {
        Check.Equal(can ? PhysicalFlags.Compressible : PhysicalFlags.None, block.Info.GrantedFlags, "granted");
      }
      var required = new BufferOptions { Require = PhysicalFlags.Compressible };
      if (can) device.CreateBuffer(unit, required).Dispose();
      else Check.Fails(Status.Unsupported, () => device.CreateBuffer(unit, required));
      Check.That(new BufferOptions { Accesses = accesses }.ToString().Contains("Accesses = [ProcessorAccess {"), "text of the options");
      if (!Scope.IsHost) return;
      var node = new BufferOptions { Location = MemoryLocation.HostNode(1) };
      using (GrowableBuffer buffer = device.CreateBuffer(64, node))
      {
        Check.Equal(MemoryLocation.HostNode(1), buffer.Info.Location, "node");
        buffer.GetView<byte>()[63] = 1;
      }
    }

    static void Refused(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long unit = Unit(device);
      foreach (BufferOptions options in new[]
      {
        new BufferOptions { Reserve = unit - 1 }, new BufferOptions { Location = MemoryLocation.HostNode(77) },
        new BufferOptions { Location = MemoryLocation.CurrentHostNode }, new BufferOptions { Flags = (BufferFlags)(1UL << 40) },
        new BufferOptions { Require = (PhysicalFlags)(1UL << 40) }, new BufferOptions { HandleTypes = (HandleTypes)(1UL << 40) },
        new BufferOptions { Name = new string('n', 64) },
        new BufferOptions { Accesses = new[] { new ProcessorAccess(device, (Access)9) } },
      })
      {
        Check.Fails(Status.InvalidArgument, () => device.CreateBuffer(unit, options));
      }
      Check.Throws<ArgumentOutOfRangeException>(() => device.CreateBuffer(-1));
      Check.Throws<ArgumentOutOfRangeException>(() => device.CreateBuffer(1, new BufferOptions { Reserve = -1 }));
      Check.Throws<ArgumentException>(() => device.CreateBuffer(1, new BufferOptions { Location = instance.GetDevice(1) }));
      GpuDevice stranger = scope.Open().GetDevice(0);
      Check.Throws<ArgumentException>(() => device.CreateBuffer(1, new BufferOptions
      {
        Accesses = new[] { new ProcessorAccess(stranger, Access.Read) },
      }));
      using (GrowableBuffer buffer = device.CreateBuffer(unit))
      {
        string before = buffer.Info.ToString();
        Check.Fails(Status.InvalidState, () => buffer.Wake());
        Check.Fails(Status.InvalidArgument, () => buffer.Sleep((Content)5));
        Check.Throws<ArgumentOutOfRangeException>(() => buffer.Resize(-1));
        foreach (Action call in new Action[]
        {
          () => buffer.Slice(-1, 1), () => buffer.Slice(unit, 1), () => buffer.Slice(0, unit + 1),
          () => buffer.CopyFrom(unit - 3, new int[1]), () => buffer.CopyTo(unit - 3, new int[1]),
        })
        {
          Check.Throws<ArgumentOutOfRangeException>(call);
        }
        Check.Throws<ArgumentNullException>(() => buffer.CopyFrom<int>(0, null));
        Check.Equal(before, buffer.Info.ToString(), "information");
        // Its range is its own.
        Check.Equal(unit, instance.GetMapping(buffer.Pointer).Size, "mapping");
        buffer.Sleep(Content.Drop);
        before = buffer.Info.ToString();
        foreach (Action call in new Action[]
        {
          () => buffer.Sleep(Content.Drop), () => buffer.Resize(2 * unit), () => buffer.Resize(0), () => buffer.SetCapacity(2 * unit),
          () => buffer.Trim(), () => buffer.SetAccess(device, Access.Read),
        })
        {
          GpuMemException problem = Check.Fails(Status.InvalidState, call);
          Check.That(problem.Message.Contains("GrowableBuffer.Wake"), problem.Message);
        }
        Check.Equal(before, buffer.Info.ToString(), "information asleep");
      }
    }

    static void Empty(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GrowableBuffer buffer = device.CreateBuffer(0, onHost))
      using (GrowableBuffer other = device.CreateBuffer(0))
      {
        Check.Equal(0L, buffer.Size + buffer.Capacity + buffer.Info.BlockCount, "sizes");
        Check.That(buffer.Pointer != IntPtr.Zero, "no address");
        instance.Fill(buffer, 1);
        instance.Copy(buffer, other);
        buffer.CopyFrom(0, new int[0]);
        BufferView<int> view = buffer.GetView<int>();
        Check.Equal(0, view.ToArray().Length, "elements");
        Check.Throws<ArgumentOutOfRangeException>(() => GC.KeepAlive(view[0]));
        Check.Throws<ArgumentOutOfRangeException>(() => buffer.Slice(0, 1));
        buffer.Sleep();
        buffer.Wake();
        buffer.Resize(4);
        buffer.GetView<int>()[0] = 1;
      }
    }

    static void Operands(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GrowableBuffer buffer = device.CreateBuffer(4096), other = device.CreateBuffer(4096))
      using (GpuStream stream = device.CreateStream())
      {
        instance.Fill(buffer, 1);
        instance.Fill2D(buffer.Slice(8, 4088), 64, 8, 4, 2);
        stream.Copy(other, buffer);
        stream.Copy2D(other.Slice(16, 4080), 64, buffer.Slice(8, 4088), 64, 8, 4);
        stream.Synchronize();
        // Regions: rows of 8 bytes, 64 apart, to rows that follow one another.
        stream.CopyRegions(new CopyRegion(other, new CopyOperand(buffer.Slice(8, 4088), 64), 8, 4));
        stream.Synchronize();
        var found = new byte[40];
        other.CopyTo(0, found);
        Check.Equal("32,8", found.Count(one => one == 2) + "," + found.Count(one => one == 1), "bytes");
        instance.CopyRegions(new CopyRegion(other, buffer, 4096));
        stream.WriteValue(other.Slice(0, 4), 0x03030303);
        stream.Synchronize();
        other.CopyTo(0, found);
        Check.That(found[3] == 3 && found[4] == 1 && found[8] == 2, string.Join(",", found));
        Check.Throws<ArgumentException>(() => instance.CopyRegions(new CopyRegion(other, buffer, 4097)));
      }
      Check.Throws<ArgumentNullException>(() => instance.Fill((GrowableBuffer)null, 1));
    }

    static void Kept(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      GrowableBuffer buffer = device.CreateBuffer(4096);
      IntPtr pointer = buffer.Pointer;
      using (GpuStream stream = device.CreateStream())
      using (PinnedMemory<byte> target = device.AllocatePinned<byte>(64))
      {
        using (new Behaviour.Gate(stream))
        {
          stream.Fill(buffer, 5);
          stream.CopyRegions(new CopyRegion(target, buffer, 64));
          buffer.Dispose();
          buffer.Dispose();
          Check.Throws<ObjectDisposedException>(() => stream.Fill(buffer, 1));
          Check.Equal(pointer, instance.GetMapping(pointer).Base, "mapped while the work waits");
        }
        Check.Equal(5, target[63], "byte");
        Check.Fails(Status.NotFound, () => instance.GetMapping(pointer));
      }
      Check.That(buffer.IsDisposed && buffer.ToString().EndsWith("IsDisposed = True }"), buffer.ToString());
    }

    static void UnknownWork(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      GrowableBuffer buffer = device.CreateBuffer(4096);
      using (GpuStream stream = device.CreateStream())
      {
        using (new Behaviour.Gate(stream))
        {
          stream.Fill(new GpuRange(buffer.Pointer, 64), 1);
          Check.Fails(Status.Busy, () => buffer.Sleep(new SleepOptions { Flags = SleepFlags.Idle }));
          Check.Fails(Status.Busy, () => buffer.Resize(0));
          Check.Equal(4096L, buffer.Size, "size");
          buffer.Dispose();
          Check.Equal(1, GpuMemDiagnostics.WaitingObjects, "waiting objects");
        }
        GpuMemDiagnostics.ReleaseWaiting();
        Check.Equal(0, GpuMemDiagnostics.WaitingObjects, "waiting objects after the work");
      }
    }

    static void Forgotten(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long before = Check.FinalizedObjects(), failures = GpuMemDiagnostics.ReleaseFailures;
      Check.Elsewhere(() => Forget(device, 5));
      Check.Eventually(() => GpuMemDiagnostics.FinalizedObjects - before == 10, "the finalizers");
      Check.Equal(failures, GpuMemDiagnostics.ReleaseFailures, "failures to free");
      Check.Equal("nothing lives", instance.Report().TrimEnd(), "report");
      if (!Scope.IsHost) return;
      // Growth that finds no memory collects what was forgotten, and tries again.
      GpuDevice small = scope.Open(new InstanceOptions
      {
        Host = new HostOptions { DeviceBytes = 16 << 20, VmmGranularity = 1 << 20 },
      }).GetDevice(0);
      using (GrowableBuffer buffer = small.CreateBuffer(0))
      {
        Check.Elsewhere(() => Forget(small, 1));
        buffer.Resize(15 << 20);
        Check.Equal(15L << 20, buffer.Capacity, "capacity");
      }
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Forget(GpuDevice device, int count)
    {
      for (int i = 0; i < count; ++i)
      {
        device.CreateBuffer(8 << 20).Sleep(Content.Zero);
        device.CreateBuffer(4 << 20);
      }
    }

    static void AfterForce(Scope scope)
    {
      GpuDevice device = WithHostMemory(scope);
      GrowableBuffer awake = device.CreateBuffer(64, onHost), asleep = device.CreateBuffer(64);
      BufferView<byte> view = awake.GetView<byte>();
      asleep.Sleep();
      Check.Fails(Status.Busy, () => device.Instance.Close(CloseMode.Check));
      device.Instance.Close(CloseMode.Force);
      Check.Throws<ObjectDisposedException>(() => GC.KeepAlive(view[0]));
      Check.That(!view.IsCurrent, "the view outlives its memory");
      long failures = GpuMemDiagnostics.ReleaseFailures;
      awake.Dispose();
      asleep.Dispose();
      Check.Equal(0, GpuMemDiagnostics.WaitingObjects, "waiting objects");
      Check.Equal(failures, GpuMemDiagnostics.ReleaseFailures, "failures to free");
    }

    static void FailingSteps(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long unit = Unit(device);
      int failures = 0, before = -1;
      for (long step = 1; failures != before; ++step)
      {
        before = failures;
        HostSimulation.FailStep(instance, step);
        try
        {
          using (GrowableBuffer buffer = device.CreateBuffer(unit, new BufferOptions { Reserve = unit, Flags = BufferFlags.Movable }))
          {
            foreach (Action change in new Action[]
            {
              () => buffer.Resize(2 * unit), () => buffer.CopyFrom(0, new[] { 77 }), () => buffer.Sleep(), () => buffer.Wake(),
              () => buffer.Resize(64), () => buffer.Trim(),
            })
            {
              string info = buffer.Info.ToString();
              try
              {
                change();
              }
              catch (GpuMemException)
              {
                Check.Equal(info, buffer.Info.ToString(), "information after the failure of step " + step);
                ++failures;
                change();
              }
            }
            var found = new int[1];
            buffer.CopyTo(0, found);
            Check.Equal(77, found[0], "number");
          }
        }
        catch (GpuMemException problem)
        {
          ++failures;
          Check.That(problem.Message.Length != 0, "no message");
        }
        HostSimulation.FailStep(instance, 0);
        GpuMemDiagnostics.ReleaseWaiting();
        Check.Equal("nothing lives", instance.Report().TrimEnd(), "report after step " + step);
      }
      Check.That(failures >= 10, "only " + failures + " steps failed");
    }
  }
}
