// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests managed memory of the GPU: accesses of the CPU, attaching, advice, prefetches and discards.

using System;
using System.IO;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;

namespace GpuMem.Tests
{
  static unsafe class Unified
  {
    const int Length = 1 << 14;

    internal static void Run()
    {
      Tap.Run("managed memory: the example of the guide", Guide);
      Tap.Run("managed memory: one address for the CPU and the devices", OneAddress);
      Tap.Run("managed memory: elements and bounds of a host access", Elements);
      Tap.Run("managed memory: spans of a host access", Spans);
      Tap.Run("managed memory: every member of an access that has ended says so", Ended);
      Tap.Run("managed memory: an access keeps the memory and the instance", AccessKeeps);
      Tap.Run("managed memory: an access waits for the device and keeps it off", AccessWaits);
      Tap.Run("managed memory: other work takes nothing from an access", OtherWork);
      Tap.Run("managed memory: accesses of threads that work on one device", Together);
      Tap.Run("managed memory: accesses in functions in streams", InFunctions);
      Tap.Run("managed memory: an access that was forgotten ends", ForgottenAccess);
      Tap.Run("managed memory: a view is an access", View);
      Tap.Run("managed memory: by its pointer", ByPointer);
      Tap.Run("managed memory: attaching to a stream, to the CPU and to all", Attaching);
      Tap.Run("managed memory: attaching refuses", AttachRefused);
      Tap.Run("managed memory: created for the CPU", AttachedHost);
      Tap.Run("managed memory: advice", Advising);
      Tap.Run("managed memory: prefetches", Prefetching);
      Tap.Run("managed memory: prefetches in a batch", PrefetchingBatch);
      Tap.Run("managed memory: discards", Discarding);
      Tap.Run("managed memory: hints refuse", HintsRefused);
      Tap.Run("managed memory: hints without an effect", NoEffect);
      Tap.Run("managed memory: hints for pageable memory", Pageable);
      Tap.Run("managed memory: kept for work in a stream", Kept);
      Tap.Run("managed memory: an empty array", Empty);
      Tap.Run("managed memory: more than the device has", Oversubscribed);
      Tap.Run("locations", Locations);
    }

    // Of older GPUs, where the CPU and the device may not use the memory at the same time.
    static GpuInstance OpenOld(Scope scope)
    {
      Scope.HostOnly();
      return scope.Open(new InstanceOptions { Host = new HostOptions { Concurrent = Toggle.Off } });
    }

    static void Guide(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (UnifiedMemory<float> table = device.AllocateUnified<float>(1 << 20))
      using (GpuStream stream = device.CreateStream())
      {
        using (HostAccess<float> access = table.BeginHostAccess())
        {
          for (int i = 0; i < 1000; ++i) access[i] = i;
        }
        instance.Advise(table, Advice.SetReadMostly);
        stream.Prefetch(table, device);
        stream.Fill(table.Slice(0, 500), 0);
        stream.Synchronize();
        using (HostAccess<float> access = table.BeginHostAccess())
        {
          Check.Equal(0f, access[499], "what the device wrote");
          Check.Equal(500f, access[500], "what the CPU wrote");
        }
        Check.That(instance.GetUnifiedInfo(table).ReadMostly, "the advice");
        Check.Equal((MemoryLocation)device, instance.GetUnifiedInfo(table).LastPrefetchLocation, "the prefetch");
        bool taken = stream.Prefetch(
            new PrefetchRange(table.Slice(0, 1 << 19), device), new PrefetchRange(table.Slice(1 << 19, 1 << 19), MemoryLocation.Host));
        Check.That(taken, "no effect");
        stream.Synchronize();
      }
    }

    static void OneAddress(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(1);
      int[] numbers = Enumerable.Range(0, Length).ToArray();
      using (UnifiedMemory<int> memory = device.AllocateUnified<int>(Length, new MemoryOptions { Name = "both" }))
      using (GpuMemory there = device.AllocateDevice(Length * 4))
      {
        Check.Equal(MemoryKind.Managed, memory.Allocation.Kind, "kind");
        Check.Equal(memory.Pointer, memory.Allocation.HostPointer, "address for the CPU");
        Check.Equal(memory.Pointer, instance.GetDevice(0).GetDevicePointer(memory.Pointer), "address for the other device");
        Check.Equal((long)Length, memory.Length, "length");
        Check.Equal(Length * 4L, memory.Size, "size");
        PointerInfo info = instance.GetPointerInfo((IntPtr)((long)memory.Pointer + 100));
        Check.Equal(MemoryKind.Managed, info.Kind, "kind of the pointer");
        Check.Equal(memory.Pointer, info.Base, "base");
        Check.Equal(1, info.DeviceOrdinal, "device");
        Check.Equal(1L, instance.GetStats(MemoryKind.Managed).LiveCount, "counted");
        Check.Equal("UnifiedMemory<Int32> { Length = " + Length + ", Device = 1, Name = \"both\" }", memory.ToString(), "text");
        // The CPU writes, the device copies away and back, the CPU reads.
        using (HostAccess<int> access = memory.BeginHostAccess()) access.CopyFrom(numbers);
        using (GpuStream stream = device.CreateStream())
        {
          stream.Copy(there, memory);
          stream.Fill(memory, 0);
          stream.Copy(memory.Slice(0, 1000), there.Slice(0, 4000));
          stream.Synchronize();
        }
        using (HostAccess<int> access = memory.BeginHostAccess())
        {
          Check.That(access.ToArray().SequenceEqual(numbers.Select(n => n < 1000 ? n : 0)), "content");
        }
        Check.Throws<ArgumentOutOfRangeException>(() => memory.Slice(Length, 1));
        Check.Throws<ArgumentOutOfRangeException>(() => memory.Slice(-1, 1));
      }
      Check.Throws<ArgumentOutOfRangeException>(() => device.AllocateUnified<int>(-1));
      Check.Throws<ArgumentOutOfRangeException>(() => device.AllocateUnified<int>(long.MaxValue / 2));
    }

    static void Elements(Scope scope)
    {
      using (UnifiedMemory<long> memory = scope.Device().AllocateUnified<long>(100))
      using (HostAccess<long> access = memory.BeginHostAccess())
      {
        Check.Equal(100L, access.Length, "length");
        Check.Equal(memory.Pointer, access.Pointer, "pointer");
        access.CopyFrom(Enumerable.Range(0, 100).Select(n => (long)n).ToArray());
        access[99] = -1;
        Check.Equal(98L, access[98], "element");
        Check.Equal(-1L, ((long*)memory.Pointer)[99], "element by the pointer");
        access.CopyFrom(new[] { 7L, 8L, 9L }, 1, 50, 2);
        var found = new long[4];
        access.CopyTo(49, found, 0, 4);
        Check.Equal("49,8,9,52", string.Join(",", found), "elements");
        access.CopyTo(found);
        Check.Equal("0,1,2,3", string.Join(",", found), "first elements");
        foreach (Action call in new Action[]
        {
          () => GC.KeepAlive(access[100]), () => GC.KeepAlive(access[-1]), () => access[100] = 1,
          () => access.CopyFrom(new long[101]), () => access.CopyTo(new long[101]), () => access.CopyTo(99, found, 0, 2),
          () => access.CopyTo(-1, found, 0, 1), () => access.CopyFrom(found, 3, 0, 2), () => access.CopyFrom(found, -1, 0, 1),
        })
        {
          Check.Throws<ArgumentOutOfRangeException>(call);
        }
        Check.Throws<ArgumentNullException>(() => access.CopyFrom(null));
        Check.Throws<ArgumentNullException>(() => access.CopyTo(null));
        Check.Equal("HostAccess<Int64> { Length = 100 }", access.ToString(), "text");
      }
    }

    static void Spans(Scope scope)
    {
#if NETCOREAPP3_0_OR_GREATER
      using (UnifiedMemory<int> memory = scope.Device().AllocateUnified<int>(1000))
      {
        HostAccess<int> access = memory.BeginHostAccess();
        access.GetSpan().Fill(7);
        access.GetSpan(999, 1).Fill(8);
        Check.Equal(7, access[998], "element");
        Check.Equal(8, access[999], "last element");
        Check.Throws<ArgumentOutOfRangeException>(() => access.GetSpan(991, 10));
        access.Dispose();
        Check.Throws<ObjectDisposedException>(() => access.GetSpan());
        Check.Throws<ObjectDisposedException>(() => access.GetSpan(0, 0));
      }
#else
      throw new TestSkipped("this runtime has no System.Memory");
#endif
    }

    static void Ended(Scope scope)
    {
      using (UnifiedMemory<int> memory = scope.Device().AllocateUnified<int>(16))
      {
        HostAccess<int> access = memory.BeginHostAccess();
        access.Dispose();
        access.Dispose();
        Check.That(access.IsDisposed, "it says that it lasts");
        Check.Equal("HostAccess<Int32> { Length = 16, IsDisposed = True }", access.ToString(), "text");
        foreach (Action call in new Action[]
        {
          () => GC.KeepAlive(access[0]), () => access[0] = 1, () => access.CopyFrom(new int[1]), () => access.CopyTo(new int[1]),
          () => access.CopyFrom(new int[1], 0, 0, 1), () => access.CopyTo(0, new int[1], 0, 1), () => access.ToArray(),
          () => GC.KeepAlive(access.Length), () => GC.KeepAlive(access.Pointer), () => GC.KeepAlive(access[99]),
        })
        {
          Check.Throws<ObjectDisposedException>(call);
        }
      }
    }

    static void AccessKeeps(Scope scope)
    {
      GpuInstance instance = scope.Open();
      UnifiedMemory<int> memory = instance.GetDevice(0).AllocateUnified<int>(16);
      HostAccess<int> access = memory.BeginHostAccess(), second = memory.BeginHostAccess();
      memory.Dispose();
      Check.Throws<ObjectDisposedException>(() => memory.BeginHostAccess());
      access[3] = 4;
      access.Dispose();
      Check.Equal(4, second[3], "element by the other access");
      Check.Equal(1L, instance.GetStats(MemoryKind.Managed).LiveCount, "live during the access");
      Check.Throws<InvalidOperationException>(() => instance.Close(CloseMode.Force));
      second.Dispose();
      Check.Equal(0L, instance.GetStats(MemoryKind.Managed).LiveCount, "live after the access");
    }

    static void AccessWaits(Scope scope)
    {
      GpuInstance instance = OpenOld(scope);
      GpuDevice device = instance.GetDevice(0);
      using (UnifiedMemory<int> memory = device.AllocateUnified<int>(16))
      using (GpuStream stream = device.CreateStream())
      {
        HostSimulation.Launch(stream, kernel =>
        {
          Thread.Sleep(50);
          *(int*)kernel.View(memory.Pointer, 4, Access.ReadWrite) = 42;
        });
        HostAccess<int> access = memory.BeginHostAccess();
        Check.Equal(42, access[0], "what the kernel wrote");
        Check.That(stream.Query(), "the stream has work");
        Check.Fails(Status.Busy, () => stream.Fill(memory, 1));
        Check.Fails(Status.Busy, () => stream.Attach(memory, Attach.Host));
        // Accesses are counted.
        memory.BeginHostAccess().Dispose();
        Check.Fails(Status.Busy, () => stream.Fill(memory, 1));
        access.Dispose();
        stream.Fill(memory, 1);
        using (HostAccess<int> after = memory.BeginHostAccess()) Check.Equal(1, after[15], "what the fill wrote");
        HostSimulation.SetCapturing(stream, true);
        Check.Fails(Status.InvalidState, () => memory.BeginHostAccess());
        HostSimulation.SetCapturing(stream, false);
        stream.Fill(memory, 2);  // the failed access keeps nothing off
        stream.Synchronize();
      }
    }

    /// <summary>Whether a stream can use the memory; fills it with 7 if so.</summary>
    static bool UsedBy(GpuStream stream, UnifiedMemory<int> memory)
    {
      try
      {
        stream.Fill(memory, 7);
        stream.Synchronize();
        return true;
      }
      catch (GpuMemException problem) when (problem.Status == Status.NoAccess)
      {
        return false;
      }
    }

    /// <summary>Without an attachment to the CPU, the other work would make the pages inaccessible.</summary>
    static void OtherWork(Scope scope)
    {
      GpuInstance instance = OpenOld(scope);
      GpuDevice device = instance.GetDevice(0);
      IntPtr pointer = device.Allocate(MemoryKind.Managed, 64);
      using (GpuStream own = device.CreateStream(), other = device.CreateStream())
      using (GpuMemory there = device.AllocateDevice(4096))
      using (UnifiedMemory<int> memory = device.AllocateUnified<int>(16))
      {
        foreach (Attach attach in new[] { Attach.Global, Attach.Single, Attach.Host })
        {
          own.Attach(memory, attach);
          own.Attach(new GpuRange(pointer, 64), attach);
          own.Synchronize();
          using (HostAccess<int> access = memory.BeginHostAccess(), second = memory.BeginHostAccess())
          using (HostAccess<byte> third = instance.BeginHostAccess(new GpuRange(pointer + 8, 8)))
          using (Stream view = memory.Allocation.OpenView())
          using (new Behaviour.Gate(own))
          using (new Behaviour.Gate(other))
          {
            own.Fill(there, 1);
            other.Fill(there.Range.Slice(0, 100), 2);
            access[0] = 0;
            access[1] = 2;
            second[2] = access[1] + 1;
            third[7] = 4;
            view.WriteByte(5);
            Check.Equal("5,2,3", access[0] + "," + access[1] + "," + access[2], "elements");
            access.Dispose();
            view.WriteByte(6);
            second[3] = 7;
          }
          // It is as it was.
          Check.Equal(attach != Attach.Host, UsedBy(own, memory), "the stream uses it after " + attach);
          Check.Equal(attach == Attach.Global, UsedBy(other, memory), "the other stream uses it after " + attach);
          using (HostAccess<int> access = memory.BeginHostAccess()) access[0] = 1;
        }
        // The end of the stream takes it back to the beginning, also during an access.
        GpuStream gone = device.CreateStream();
        gone.Attach(memory, Attach.Single);
        using (HostAccess<int> access = memory.BeginHostAccess())
        {
          gone.Dispose();
          using (new Behaviour.Gate(other))
          {
            other.Fill(there, 1);
            access[0] = 1;
          }
        }
        Check.That(UsedBy(other, memory), "the other stream cannot use it");
      }
      instance.Free(pointer);
    }

    static void Together(Scope scope)
    {
      GpuDevice device = OpenOld(scope).GetDevice(0);
      using (UnifiedMemory<int> shared = device.AllocateUnified<int>(16))
      {
        var problems = new Exception[4];
        Thread[] threads = Enumerable.Range(0, problems.Length).Select(number => new Thread(() =>
        {
          try
          {
            using (GpuStream stream = device.CreateStream())
            using (UnifiedMemory<int> memory = device.AllocateUnified<int>(100))
            {
              for (int turn = 0; turn < 200; ++turn)
              {
                stream.Fill(memory, turn);
                using (HostAccess<int> access = memory.BeginHostAccess(), other = shared.BeginHostAccess())
                {
                  for (int i = 0; i < 100; ++i)
                  {
                    Check.Equal(turn, access[i], "element");
                    access[i] = i;
                    other[number] = i;
                  }
                }
              }
            }
          }
          catch (Exception problem)
          {
            problems[number] = problem;
          }
        })).ToArray();
        foreach (Thread thread in threads) thread.Start();
        foreach (Thread thread in threads) thread.Join();
        foreach (Exception problem in problems) Check.That(problem == null, "a thread: " + problem);
      }
    }

    static void InFunctions(Scope scope)
    {
      GpuInstance instance = OpenOld(scope);
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream stream = device.CreateStream(), other = device.CreateStream())
      using (UnifiedMemory<int> memory = device.AllocateUnified<int>(16))
      {
        // It does not wait for the access that waits for it.
        var go = new ManualResetEventSlim();
        stream.Launch(() =>
        {
          go.Wait();
          memory.BeginHostAccess().Dispose();
        });
        var waiting = new Thread(() => memory.BeginHostAccess().Dispose());
        waiting.Start();
        Check.Eventually(() =>
        {
          try
          {
            other.Attach(memory, Attach.Global);
            other.Synchronize();
            return false;
          }
          catch (GpuMemException problem) when (problem.Status == Status.Busy)
          {
            return true;
          }
        }, "the beginning of the access");
        go.Set();
        waiting.Join();
        Check.Fails(Status.InvalidState, () => stream.Synchronize());
        // One that ends there takes the memory back in a later call.
        HostAccess<int> access = memory.BeginHostAccess();
        stream.Launch(access.Dispose);
        stream.Synchronize();
        Check.That(access.IsDisposed, "the access lasts");
        Check.That(UsedBy(other, memory), "no stream can use the memory");
      }
    }

    static void ForgottenAccess(Scope scope)
    {
      GpuInstance instance = OpenOld(scope);
      GpuDevice device = instance.GetDevice(0);
      using (UnifiedMemory<int> memory = device.AllocateUnified<int>(16))
      {
        Check.Elsewhere(() => Forget(memory));
        Check.Eventually(() =>
        {
          try
          {
            instance.Fill(memory, 1);
            return true;
          }
          catch (GpuMemException problem) when (problem.Status == Status.Busy)
          {
            return false;
          }
        }, "the end of the access");
      }
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Forget(UnifiedMemory<int> memory) { memory.BeginHostAccess()[0] = 1; }

    static void View(Scope scope)
    {
      GpuInstance instance = OpenOld(scope);
      using (UnifiedMemory<int> memory = instance.GetDevice(0).AllocateUnified<int>(16))
      {
        Stream view = memory.Allocation.OpenView();
        view.WriteByte(77);
        Check.Fails(Status.Busy, () => instance.Fill(memory, 1));
        view.Dispose();
        var bytes = new byte[4];
        memory.Allocation.CopyTo(bytes);
        Check.Equal(77, bytes[0], "byte");
        instance.Fill(memory, 1);
      }
    }

    static void ByPointer(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      IntPtr pointer = device.Allocate(MemoryKind.Managed, 4096);
      using (HostAccess<byte> access = instance.BeginHostAccess(new GpuRange(pointer, 4096)))
      {
        access[4095] = 5;
        Check.Equal(5, ((byte*)pointer)[4095], "byte");
        Check.Equal(4096L, access.Length, "length");
        using (instance.BeginHostAccess(new GpuRange(pointer + 100, 10))) Check.Throws<ArgumentException>(() => instance.Free(pointer));
        Check.Throws<ArgumentException>(() => instance.Free(pointer));
        Check.Throws<InvalidOperationException>(() => instance.Close(CloseMode.Force));
      }
      Check.That(instance.Advise(new GpuRange(pointer, 4096), Advice.SetReadMostly), "no effect");
      Check.That(instance.GetUnifiedInfo(new GpuRange(pointer, 1)).ReadMostly, "not advised");
      instance.Free(pointer);
      Check.Fails(Status.NotFound, () => instance.BeginHostAccess(new GpuRange(pointer, 4096)));
      Check.Fails(Status.InvalidArgument, () => instance.BeginHostAccess(new GpuRange(IntPtr.Zero, 1)));
      using (GpuMemory other = device.AllocateDevice(64))
      {
        Check.Fails(Status.WrongKind, () => instance.BeginHostAccess(other));
      }
      // A failed access keeps no instance open.
      instance.Close(CloseMode.Check);
    }

    static void Attaching(Scope scope)
    {
      GpuInstance instance = OpenOld(scope);
      GpuDevice device = instance.GetDevice(0);
      using (UnifiedMemory<int> memory = device.AllocateUnified<int>(1024))
      using (GpuStream mine = device.CreateStream())
      using (GpuStream other = device.CreateStream())
      using (var gate = new Behaviour.Gate(other))
      {
        mine.Attach(memory, Attach.Single);
        mine.Synchronize();
        Check.Fails(Status.NoAccess, () => other.Fill(memory, 1));
        mine.Fill(memory, 3);
        // The access waits for this stream only, not for the other one.
        using (HostAccess<int> access = memory.BeginHostAccess()) Check.Equal(3, access[1023], "element");
        mine.Attach(memory, Attach.Host);
        mine.Synchronize();
        Check.Fails(Status.NoAccess, () => mine.Fill(memory, 1));
        mine.Attach(memory, Attach.Global);
        mine.Synchronize();
        other.Fill(memory, 4);
        gate.Open();
        other.Synchronize();
        using (HostAccess<int> access = memory.BeginHostAccess()) Check.Equal(4, access[0], "element");
      }
    }

    static void AttachRefused(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (UnifiedMemory<int> memory = device.AllocateUnified<int>(1024))
      using (GpuMemory wrong = device.AllocateDevice(64))
      using (GpuStream stream = device.CreateStream())
      using (GpuStream unspecific = device.WrapStream(IntPtr.Zero))
      {
        foreach (Attach attach in new[] { Attach.Single, Attach.Host, Attach.Global }) stream.Attach(memory, attach);
        Check.Fails(Status.InvalidArgument, () => stream.Attach(memory.Slice(0, 512), Attach.Host));
        Check.Fails(Status.InvalidArgument, () => stream.Attach(memory, (Attach)3));
        Check.Fails(Status.InvalidArgument, () => unspecific.Attach(memory, Attach.Single));
        Check.Fails(Status.WrongKind, () => stream.Attach(wrong, Attach.Host));
        stream.Synchronize();
        unspecific.Synchronize();
      }
    }

    static void AttachedHost(Scope scope)
    {
      GpuInstance instance = OpenOld(scope);
      GpuDevice device = instance.GetDevice(0);
      var options = new MemoryOptions { Require = MemoryFlags.AttachHost };
      using (UnifiedMemory<int> memory = device.AllocateUnified<int>(16, options))
      {
        Check.That((memory.Allocation.GrantedFlags & MemoryFlags.AttachHost) != 0, "not granted");
        Check.Fails(Status.NoAccess, () => instance.Fill(memory, 1));
      }
      Check.Fails(Status.InvalidArgument, () => device.AllocateDevice(64, options));
    }

    static void Advising(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0), peer = instance.GetDevice(1);
      const int Page = 1 << 16;
      using (UnifiedMemory<byte> memory = device.AllocateUnified<byte>(4 * Page))
      {
        UnifiedInfo info = instance.GetUnifiedInfo(memory);
        Check.Equal("UnifiedInfo { ReadMostly = False, PreferredLocation = MemoryLocation { Kind = None, Id = -1 }, " +
                    "LastPrefetchLocation = MemoryLocation { Kind = None, Id = -1 }, AccessedByHost = False, AccessedByDevices = [] }",
                    info.ToString(), "text");
        // Half of it: the whole has only what all pages share.
        Check.That(instance.Advise(memory.Slice(0, 2 * Page), Advice.SetReadMostly), "no effect");
        Check.That(instance.Advise(memory, Advice.SetPreferredLocation, peer), "no effect");
        Check.That(instance.Advise(memory, Advice.SetAccessedBy, device), "no effect");
        Check.That(instance.Advise(memory, Advice.SetAccessedBy, peer), "no effect");
        Check.That(instance.Advise(memory, Advice.SetAccessedBy, MemoryLocation.Host), "no effect");
        Check.That(instance.GetUnifiedInfo(memory.Slice(0, 2 * Page)).ReadMostly, "the advised half");
        info = instance.GetUnifiedInfo(memory);
        Check.That(!info.ReadMostly, "the whole");
        Check.Equal((MemoryLocation)peer, info.PreferredLocation, "preferred location");
        Check.Equal("0,1", string.Join(",", info.AccessedByDevices), "devices that access it");
        Check.That(info.AccessedByHost, "not accessed by the CPU");
        Check.That(instance.Advise(memory, Advice.UnsetReadMostly), "no effect");
        Check.That(instance.Advise(memory, Advice.UnsetPreferredLocation), "no effect");
        Check.That(instance.Advise(memory, Advice.UnsetAccessedBy, device), "no effect");
        Check.That(instance.Advise(memory, Advice.UnsetAccessedBy, MemoryLocation.Host), "no effect");
        info = instance.GetUnifiedInfo(memory);
        Check.Equal(default(MemoryLocation), info.PreferredLocation, "preferred location after all");
        Check.Equal("1", string.Join(",", info.AccessedByDevices), "devices after all");
        Check.That(!info.AccessedByHost && !instance.GetUnifiedInfo(memory.Slice(0, 1)).ReadMostly, "advice after all");
        Check.That(instance.Advise(memory, Advice.SetPreferredLocation, MemoryLocation.Host), "no effect");
        Check.Equal(MemoryLocation.Host, instance.GetUnifiedInfo(memory).PreferredLocation, "the host");
        if (device.GetCapability(Capability.ManagedNumaLocations).IsAvailable)
        {
          // Some drivers ignore the node.
          bool taken = instance.Advise(memory, Advice.SetPreferredLocation, MemoryLocation.HostNode(0));
          Check.That(taken || !Scope.IsHost, "no effect");
          Check.Equal(taken, instance.GetUnifiedInfo(memory).PreferredLocation == MemoryLocation.HostNode(0), "a node");
        }
      }
    }

    static void Prefetching(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0), peer = instance.GetDevice(1);
      const int Page = 1 << 16;
      using (UnifiedMemory<byte> memory = device.AllocateUnified<byte>(4 * Page))
      using (GpuStream stream = device.CreateStream())
      {
        using (HostAccess<byte> access = memory.BeginHostAccess()) access[Page] = 9;
        Check.That(stream.Prefetch(memory, peer), "no effect");
        Check.Equal((MemoryLocation)peer, instance.GetUnifiedInfo(memory).LastPrefetchLocation, "the other device");
        Check.That(stream.Prefetch(memory.Slice(0, Page), MemoryLocation.Host), "no effect");
        Check.Equal(MemoryLocation.Host, instance.GetUnifiedInfo(memory.Slice(0, Page)).LastPrefetchLocation, "the host");
        Check.Equal((MemoryLocation)peer, instance.GetUnifiedInfo(memory.Slice(Page, Page)).LastPrefetchLocation, "the rest");
        Check.Equal(default(MemoryLocation), instance.GetUnifiedInfo(memory).LastPrefetchLocation, "the whole");
        if (device.GetCapability(Capability.ManagedNumaLocations).IsAvailable)
        {
          Check.That(stream.Prefetch(memory, MemoryLocation.CurrentHostNode), "no effect");
          Check.That(stream.Prefetch(memory, MemoryLocation.HostNode(0)), "no effect");
          Check.Equal(MemoryLocation.HostNode(0), instance.GetUnifiedInfo(memory).LastPrefetchLocation, "a node");
        }
        stream.Synchronize();
        using (HostAccess<byte> access = memory.BeginHostAccess()) Check.Equal(9, access[Page], "byte");
      }
    }

    static void PrefetchingBatch(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0), peer = instance.GetDevice(1);
      using (UnifiedMemory<double> weights = device.AllocateUnified<double>(Length))
      using (UnifiedMemory<float> results = device.AllocateUnified<float>(Length))
      using (GpuStream stream = device.CreateStream())
      using (GpuStream unspecific = device.WrapStream(IntPtr.Zero))
      {
        Check.That(stream.Prefetch(new PrefetchRange(weights, peer), new PrefetchRange(results, MemoryLocation.Host)), "no effect");
        Check.Equal((MemoryLocation)peer, instance.GetUnifiedInfo(weights).LastPrefetchLocation, "weights");
        Check.Equal(MemoryLocation.Host, instance.GetUnifiedInfo(results).LastPrefetchLocation, "results");
        // One bad range, and none is enqueued.
        string said = Check.Fails(Status.InvalidArgument, () => stream.Prefetch(
            new PrefetchRange(weights, device), new PrefetchRange(results, default(MemoryLocation)))).Message;
        Check.That(said.Contains("1"), "the message does not name the range: " + said);
        Check.Equal((MemoryLocation)peer, instance.GetUnifiedInfo(weights).LastPrefetchLocation, "weights after the failure");
        Check.Fails(Status.InvalidArgument, () => unspecific.Prefetch(new PrefetchRange(weights, device)));
        Check.That(stream.Prefetch(), "nothing has no effect");
        Check.Throws<ArgumentNullException>(() => stream.Prefetch(null));
        stream.Synchronize();
      }
    }

    static void Discarding(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0), peer = instance.GetDevice(1);
      bool possible = device.GetCapability(Capability.ManagedDiscard).IsAvailable;
      using (UnifiedMemory<int> one = device.AllocateUnified<int>(1 << 18))
      using (UnifiedMemory<int> two = device.AllocateUnified<int>(1 << 18))
      using (GpuMemory wrong = device.AllocateDevice(64))
      using (GpuStream stream = device.CreateStream())
      {
        instance.Advise(one, Advice.SetReadMostly);
        Check.Equal(possible, stream.Discard(one, two), "discard");
        Check.Equal(possible, stream.DiscardAndPrefetch(
            new PrefetchRange(one, peer), new PrefetchRange(two, MemoryLocation.Host)), "discard and prefetch");
        stream.Fill(two, 6);
        stream.Synchronize();
        Check.Equal(possible ? peer : default(MemoryLocation), instance.GetUnifiedInfo(one).LastPrefetchLocation, "location");
        Check.Equal(possible ? MemoryLocation.Host : default(MemoryLocation), instance.GetUnifiedInfo(two).LastPrefetchLocation,
                    "the other location");
        Check.That(instance.GetUnifiedInfo(one).ReadMostly, "the advice is gone");
        using (HostAccess<int> access = two.BeginHostAccess()) Check.Equal(6, access[1 << 17], "what was written after it");
        Check.Fails(Status.WrongKind, () => stream.Discard(wrong));
        Check.Fails(Status.WrongKind, () => stream.DiscardAndPrefetch(new PrefetchRange(wrong, device)));
        Check.Fails(Status.InvalidArgument, () => stream.DiscardAndPrefetch(new PrefetchRange(one, default(MemoryLocation))));
        Check.Throws<ArgumentNullException>(() => stream.Discard(null));
        Check.Throws<ArgumentNullException>(() => stream.DiscardAndPrefetch(null));
      }
    }

    static void HintsRefused(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      GpuDevice stranger = scope.Open().GetDevice(1);
      using (UnifiedMemory<byte> memory = device.AllocateUnified<byte>(4096))
      using (GpuMemory wrong = device.AllocateDevice(64))
      using (GpuStream stream = device.CreateStream())
      {
        var none = new MemoryLocation(Location.Device, 77);
        var negative = new MemoryLocation(Location.Device, -1);
        foreach (Action call in new Action[]
        {
          () => instance.Advise(memory, (Advice)9), () => instance.Advise(memory, Advice.SetPreferredLocation),
          () => instance.Advise(memory, Advice.SetPreferredLocation, none),
          () => instance.Advise(memory, Advice.SetPreferredLocation, negative), () => stream.Prefetch(memory, negative),
          () => instance.Advise(memory, Advice.SetPreferredLocation, MemoryLocation.HostNode(-5)),
          () => instance.Advise(memory, Advice.SetAccessedBy, MemoryLocation.HostNode(0)),
          () => instance.Advise(memory.Slice(0, 0), Advice.SetReadMostly),
          () => instance.Advise(new GpuRange(memory.Pointer, 1 << 30), Advice.SetReadMostly),
          () => instance.Advise(new GpuRange(IntPtr.Zero, 1), Advice.SetReadMostly), () => stream.Prefetch(memory, none),
          () => stream.Prefetch(memory, default(MemoryLocation)), () => stream.Prefetch(memory.Slice(0, 0), device),
          () => stream.Prefetch(new PrefetchRange(memory, none)), () => instance.GetUnifiedInfo(memory.Slice(0, 0)),
          () => instance.GetUnifiedInfo(new GpuRange(memory.Pointer, 1 << 30)),
        })
        {
          Check.Fails(Status.InvalidArgument, call);
        }
        Check.Fails(Status.WrongKind, () => instance.Advise(wrong, Advice.SetReadMostly));
        Check.Fails(Status.WrongKind, () => stream.Prefetch(wrong, device));
        Check.Fails(Status.WrongKind, () => instance.GetUnifiedInfo(wrong));
        // Devices of another instance have numbers of their own.
        foreach (Action call in new Action[]
        {
          () => instance.Advise(memory, Advice.SetPreferredLocation, stranger), () => stream.Prefetch(memory, stranger),
          () => stream.Prefetch(new PrefetchRange(memory, stranger)),
        })
        {
          Check.Throws<ArgumentException>(call);
        }
        stream.Synchronize();
      }
    }

    static void NoEffect(Scope scope)
    {
      GpuInstance instance = OpenOld(scope);
      GpuDevice device = instance.GetDevice(0);
      using (UnifiedMemory<byte> memory = device.AllocateUnified<byte>(4096))
      using (GpuStream stream = device.CreateStream())
      {
        Check.That(!device.GetCapability(Capability.ManagedConcurrent).IsAvailable, "the device is concurrent");
        Check.That(!stream.Prefetch(memory, device), "a prefetch has an effect");
        Check.That(!stream.Prefetch(new PrefetchRange(memory, device)), "a batch has an effect");
        Check.That(!stream.Discard(memory), "a discard has an effect");
        Check.That(!stream.DiscardAndPrefetch(new PrefetchRange(memory, device)), "a discard with a prefetch has an effect");
        Check.That(!instance.Advise(memory, Advice.SetPreferredLocation, device), "advice has an effect");
        Check.Equal(default(MemoryLocation), instance.GetUnifiedInfo(memory).LastPrefetchLocation, "last prefetch");
        // Bad arguments are refused all the same.
        Check.Fails(Status.InvalidArgument, () => stream.Prefetch(memory, default(MemoryLocation)));
        Check.Fails(Status.InvalidArgument, () => instance.Advise(memory, (Advice)9));
        // Nothing is kept for work that was not enqueued.
        memory.Dispose();
        Check.Equal(0L, instance.GetStats(MemoryKind.Managed).LiveCount, "live");
      }
    }

    static void Pageable(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open(new InstanceOptions { Host = new HostOptions { Pageable = Toggle.On } });
      GpuInstance without = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      IntPtr block = Marshal.AllocHGlobal(1 << 16);
      var range = new GpuRange(block, 1 << 16);
      using (GpuStream stream = device.CreateStream())
      {
        Check.That(instance.Advise(range, Advice.SetReadMostly), "no effect");
        Check.That(stream.Prefetch(range, device) && stream.Prefetch(new PrefetchRange(range, device)), "no effect");
        stream.Attach(range, Attach.Global);
        stream.Synchronize();
        Check.Fails(Status.WrongKind, () => instance.GetUnifiedInfo(range));
        Check.Fails(Status.WrongKind, () => stream.Discard(range));
        Check.Fails(Status.WrongKind, () => stream.DiscardAndPrefetch(new PrefetchRange(range, device)));
        Check.Fails(Status.Unsupported, () => without.Advise(range, Advice.SetReadMostly));
      }
      Marshal.FreeHGlobal(block);
    }

    static void Kept(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream stream = device.CreateStream())
      {
        UnifiedMemory<byte> one = device.AllocateUnified<byte>(4096), two = device.AllocateUnified<byte>(4096),
                            three = device.AllocateUnified<byte>(4096), four = device.AllocateUnified<byte>(4096);
        using (var gate = new Behaviour.Gate(stream))
        {
          stream.Prefetch(one, device);
          stream.Prefetch(new PrefetchRange(two, device));
          stream.Attach(three, Attach.Global);
          stream.Fill(four, 1);
          foreach (IDisposable memory in new[] { one, two, three, four }) memory.Dispose();
          Check.Equal(4L, instance.GetStats(MemoryKind.Managed).LiveCount, "live while the work waits");
          Check.Throws<ObjectDisposedException>(() => stream.Prefetch(one, device));
        }
        Check.Equal(0L, instance.GetStats(MemoryKind.Managed).LiveCount, "live after the work");
      }
    }

    static void Empty(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (UnifiedMemory<int> none = device.AllocateUnified<int>(0))
      using (UnifiedMemory<int> some = device.AllocateUnified<int>(16))
      using (GpuStream stream = device.CreateStream())
      {
        Check.Equal(1L, instance.GetStats(MemoryKind.Managed).LiveCount, "the library knows only the other memory");
        using (HostAccess<int> access = none.BeginHostAccess())
        {
          Check.Equal(0, access.ToArray().Length, "elements");
          Check.Throws<ArgumentOutOfRangeException>(() => GC.KeepAlive(access[0]));
        }
        // An empty part at the end is in the memory all the same.
        using (HostAccess<byte> access = instance.BeginHostAccess(some.Slice(16, 0))) Check.Equal(0L, access.Length, "length");
        Check.That(instance.Advise(none, Advice.SetReadMostly), "advice");
        Check.That(stream.Prefetch(none, device), "prefetch");
        Check.That(stream.Prefetch(new PrefetchRange(none, device), new PrefetchRange(some, device)), "batch");
        Check.Equal((MemoryLocation)device, instance.GetUnifiedInfo(some).LastPrefetchLocation, "the other memory");
        stream.Discard(none);
        stream.Attach(none, Attach.Single);
        Check.Equal(default(MemoryLocation), instance.GetUnifiedInfo(none).PreferredLocation, "information");
        instance.Copy(none, none);
        stream.Synchronize();
      }
    }

    static void Oversubscribed(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open(new InstanceOptions { Host = new HostOptions { DeviceBytes = 1 << 20 } });
      GpuDevice device = instance.GetDevice(0);
      Check.Fails(Status.OutOfDeviceMemory, () => device.AllocateUnified<byte>(2 << 20));
      var options = new MemoryOptions { Require = MemoryFlags.Oversubscribe };
      using (UnifiedMemory<byte> memory = device.AllocateUnified<byte>(2 << 20, options))
      {
        Check.That((memory.Allocation.GrantedFlags & MemoryFlags.Oversubscribe) != 0, "not granted");
      }
    }

    static void Locations(Scope scope)
    {
      GpuDevice device = scope.Open().GetDevice(1);
      MemoryLocation location = device;
      Check.Equal("MemoryLocation { Kind = Device, Id = 1 }", location.ToString(), "text");
      Check.That(location == new MemoryLocation(Location.Device, 1) && location != MemoryLocation.HostNode(1), "equality");
      Check.Equal(location.GetHashCode(), new MemoryLocation(Location.Device, 1).GetHashCode(), "hash code");
      // Only a device and a node have a number.
      Check.Equal(new MemoryLocation(Location.Host, 5), MemoryLocation.Host, "the host");
      Check.Equal(-1, MemoryLocation.CurrentHostNode.Id, "number");
      Check.Equal(Location.None, default(MemoryLocation).Kind, "default");
      Check.That(!location.Equals("text") && location.Equals((object)location), "equality of objects");
      Check.Throws<ArgumentNullException>(() => GC.KeepAlive((MemoryLocation)(GpuDevice)null));
    }
  }
}
