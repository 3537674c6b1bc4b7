// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests objects under the garbage collector, other threads, callbacks and the simulation of the host backend.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace GpuMem.Tests
{
  static unsafe class Collection
  {
    internal static void Run()
    {
      Tap.Run("forgotten memory is freed and counted", ForgottenMemory);
      Tap.Run("a forgotten instance with all its objects is closed", ForgottenInstance);
      Tap.Run("a forgotten stream with work in it keeps what the work needs", ForgottenStream);
      Tap.Run("a forgotten view releases its memory", ForgottenView);
      Tap.Run("a forgotten object reports where it was created", Origins);
      Tap.Run("collections at any time harm nothing", CollectionStorm);
      Tap.Run("many threads make, use and dispose", ThreadStorm);
      Tap.Run("host functions run in order, once, and survive collections", HostFunctions);
      Tap.Run("what a host function throws comes out of the call that observes its work", HostFunctionThrows);
      Tap.Run("what a host function throws comes out of queries, events and other streams", HostFunctionThrowsElsewhere);
      Tap.Run("an allocation frees what idle streams keep", ShortMemory);
      Tap.Run("a host function may not use the device", HostFunctionLimits);
      Tap.Run("the log function is kept, and what it throws goes no further", LogFunction);
      Tap.Run("kernels see memory through views", Kernels);
      Tap.Run("a lost device releases everything", LostDevice);
      Tap.Run("every step may fail", FailingSteps);
      Tap.Run("streams, memory and peers of other code", OtherCode);
      Tap.Run("simulation needs the host backend", SimulationElsewhere);
    }

    static void ForgottenMemory(Scope scope)
    {
      GpuDevice device = scope.Device();
      long before = Check.FinalizedObjects();
      Check.Elsewhere(() => Forget(device));
      Check.Eventually(() => device.Instance.Stats.LiveObjects == 0, "the finalizers");
      Check.Equal(50L, GpuMemDiagnostics.FinalizedObjects - before, "finalized objects");
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Forget(GpuDevice device)
    {
      for (int i = 0; i < 10; ++i)
      {
        device.AllocateDevice(4096);
        device.AllocatePinned<int>(10);
        device.Register(new long[100]);
        device.CreateStream();
        device.CreateEvent();
      }
    }

    static void ForgottenInstance(Scope scope)
    {
      long before = Check.FinalizedObjects();
      Check.Elsewhere(() =>
      {
        for (int i = 0; i < 5; ++i)
        {
          GpuDevice device = GpuInstance.Open(Scope.Backend).GetDevice(0);
          device.AllocateDevice(4096);
          device.CreateStream();
        }
      });
      // Finalizers run in any order, but no instance closes before its objects are destroyed.
      Check.Eventually(() => GpuMemDiagnostics.FinalizedObjects - before == 15, "the finalizers");
      Check.Equal(0, GpuMemDiagnostics.WaitingObjects, "waiting objects");
    }

    static void ForgottenStream(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      PinnedMemory<int> word = device.AllocatePinned<int>(1);
      word[0] = 0;
      Check.Elsewhere(() =>
      {
        GpuStream stream = device.CreateStream();
        stream.WaitValue(word, 1, WaitCondition.Equal);
        stream.Fill(device.AllocateDevice(4096), 1);
        stream.Copy(device.AllocateDevice(1 << 16), new byte[1 << 16],
                    new CopyOptions { SourceOrder = SourceOrder.DuringCall });
      });
      Check.Eventually(() => GpuMemDiagnostics.WaitingObjects == 1, "the finalizer of the stream");
      Check.Equal(2L, instance.GetStats(MemoryKind.Device).LiveCount, "memory of the work");
      word[0] = 1;
      Check.Eventually(() =>
      {
        GpuMemDiagnostics.ReleaseWaiting();
        return instance.Stats.Streams == 0 && instance.GetStats(MemoryKind.Device).LiveCount == 0;
      }, "the end of the stream");
      word.Dispose();
    }

    static void ShortMemory(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open(new InstanceOptions
      {
        PinBudget = 8 << 20, Host = new HostOptions { DeviceCount = 1, DeviceBytes = 8 << 20 }
      });
      GpuDevice device = instance.GetDevice(0);
      using (GrowableBuffer buffer = device.CreateBuffer(0, new BufferOptions { Reserve = 16 << 20 }))
      using (MemoryPool pool = device.CreatePool())
      {
        ShortMemory(device, MemoryKind.Device, () => device.AllocateDevice(4 << 20).Dispose());
        ShortMemory(device, MemoryKind.Device, () => instance.Free(device.Allocate(MemoryKind.Device, 4 << 20)));
        ShortMemory(device, MemoryKind.Pinned, () => device.AllocatePinned<byte>(4 << 20).Dispose());
        ShortMemory(device, MemoryKind.Device, () => device.CreateBuffer(4 << 20).Dispose());
        ShortMemory(device, MemoryKind.Device, () =>
        {
          buffer.Resize(4 << 20);
          buffer.Resize(0);
          buffer.Trim();
        });
        ShortMemory(device, MemoryKind.Device, () => device.CreatePool(new PoolOptions { InitialSize = 4 << 20 }).Dispose());
        ShortMemory(device, MemoryKind.Device, () =>
        {
          pool.Allocate(4 << 20).Dispose();
          pool.Trim();
        });
      }
    }

    /// <summary>Tries an allocation while and after a stream works on memory that was disposed.</summary>
    static void ShortMemory(GpuDevice device, MemoryKind kind, Action allocate)
    {
      using (PinnedMemory<int> word = device.AllocatePinned<int>(1))
      using (GpuStream stream = device.CreateStream())
      {
        word[0] = 0;
        stream.WaitValue(word, 1, WaitCondition.Equal);
        stream.Launch(() => { throw new InvalidOperationException("late"); });
        FillAndDispose(stream, kind);
        Status status = kind == MemoryKind.Pinned ? Status.LimitExceeded : Status.OutOfDeviceMemory;
        string message = Check.Fails(status, allocate).Message;
        Check.That(message.EndsWith("; 6291456 bytes that were disposed wait for work in streams: synchronize those"), message);
        word[0] = 1;
        Check.Eventually(() => Succeeds(allocate), "the end of the work");
        // What the function threw is for the call that waits for it.
        Check.Equal("late", Check.Throws<InvalidOperationException>(() => stream.Synchronize()).Message, "exception");
        FillAndDispose(stream, kind);
        long before = device.Instance.GetStats(kind).LiveBytes;
        Check.Eventually(() =>
        {
          GpuMemDiagnostics.ReleaseWaiting();
          return before - device.Instance.GetStats(kind).LiveBytes == 6 << 20;
        }, "the memory that waits with the stream");
      }
    }

    static void FillAndDispose(GpuStream stream, MemoryKind kind)
    {
      GpuMemory memory = kind == MemoryKind.Device ? stream.Device.AllocateDevice(6 << 20)
                                                   : stream.Device.AllocatePinned<byte>(6 << 20).Allocation;
      stream.Fill(memory, 1);
      memory.Dispose();
    }

    static bool Succeeds(Action allocate)
    {
      try
      {
        allocate();
        return true;
      }
      catch (GpuMemException)
      {
        return false;
      }
    }

    static void ForgottenView(Scope scope)
    {
      GpuInstance instance = scope.Open();
      PinnedMemory<int> memory = instance.GetDevice(0).AllocatePinned<int>(100);
      Check.Elsewhere(() => memory.OpenView().WriteByte(1));
      memory.Dispose();
      Check.Eventually(() => instance.GetStats(MemoryKind.Pinned).LiveCount == 0, "the finalizer of the view");
    }

    static void Origins(Scope scope)
    {
      var messages = new List<string>();
      GpuDevice device = scope.Device();
      GpuMemLog.SetFunction((level, message) => { lock (messages) messages.Add(level + ": " + message); }, LogLevel.Warning);
      GpuMemDiagnostics.TrackOrigins = true;
      Check.Elsewhere(() => MakeTraced(device));
      GpuMemDiagnostics.TrackOrigins = false;
      Check.Eventually(() => device.Instance.Stats.LiveObjects == 0, "the finalizer");
      GpuMemLog.SetFunction(null, LogLevel.Error);
      lock (messages)
      {
        Check.That(messages.Any(text => text.StartsWith("Warning") && text.Contains("MakeTraced") &&
                                         text.Contains("GpuMemory { Kind = Device, Size = 1, Device = 0, Name = \"lost\" }")),
                   "not told: " + string.Join("\n", messages));
      }
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void MakeTraced(GpuDevice device) { device.AllocateDevice(1, new MemoryOptions { Name = "lost" }); }

    static void CollectionStorm(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      bool stop = false;
      Task collector = Task.Run(() => { while (!Volatile.Read(ref stop)) Check.Collect(); });
      try
      {
        using (GpuStream stream = device.CreateStream())
        {
          for (int round = 0; round < 100; ++round)
          {
            var sent = Enumerable.Range(round, 1000).ToArray();
            var received = new int[1000];
            GpuMemory memory = device.AllocateDevice(4000);
            GpuMemory registered = device.Register(received);
            stream.Copy(memory, (int[])sent.Clone());
            stream.Copy(registered, memory);
            // The device has room for 32, which is enough for all forgotten ones if the finalizers fall behind.
            if (round % 4 != 0) memory.Dispose();
            memory = null;
            stream.Launch(() => GC.KeepAlive(new byte[1000]));
            stream.Synchronize();
            Check.That(received.SequenceEqual(sent), "round " + round);
            if (round % 2 == 0) registered.Dispose();
          }
        }
      }
      finally
      {
        Volatile.Write(ref stop, true);
        collector.Wait();
      }
      // The stack may still refer to the last objects of the loop, so close by force.
      instance.Close(CloseMode.Force);
    }

    static void ThreadStorm(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0), other = instance.GetDevice(1);
      var problems = new List<Exception>();
      Thread[] threads = Enumerable.Range(0, 8).Select(number => new Thread(() =>
      {
        try
        {
          var random = new Random(number);
          for (int i = 0; i < 60; ++i)
          {
            using (GpuStream stream = (i % 2 == 0 ? device : other).CreateStream())
            using (GpuEvent gpuEvent = stream.Device.CreateEvent())
            using (GpuMemory memory = stream.Device.AllocateDevice(4096))
            using (PinnedMemory<byte> pinned = device.AllocatePinned<byte>(4096, Portable))
            {
              byte value = (byte)random.Next(256);
              stream.Fill(memory, value);
              stream.Copy(pinned, memory);
              gpuEvent.Record(stream);
              if (i % 3 == 0) stream.Synchronize();
              else gpuEvent.Synchronize();
              Check.Equal(value, pinned[random.Next(4096)], "byte");
              Check.Fails(Status.InvalidArgument, () => device.AllocateDevice(0));
            }
          }
        }
        catch (Exception problem)
        {
          lock (problems) problems.Add(problem);
        }
      })).ToArray();
      foreach (Thread thread in threads) thread.Start();
      foreach (Thread thread in threads) thread.Join();
      if (problems.Count != 0) throw new TestFailure(problems.Count + " threads failed: " + problems[0]);
    }

    static readonly MemoryOptions Portable = new MemoryOptions { Require = MemoryFlags.Portable };

    static void HostFunctions(Scope scope)
    {
      GpuDevice device = scope.Device();
      var order = new List<int>();
      using (GpuStream stream = device.CreateStream())
      {
        LaunchMany(stream, order);
        Check.Collect();
        stream.Synchronize();
        lock (order) Check.Equal(string.Join(",", Enumerable.Range(0, 100)), string.Join(",", order), "order");
        Check.Throws<ArgumentNullException>(() => stream.Launch(null));
      }
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void LaunchMany(GpuStream stream, List<int> order)
    {
      for (int i = 0; i < 100; ++i)
      {
        int number = i;
        stream.Launch(() =>
        {
          GC.KeepAlive(new byte[10000]);
          lock (order) order.Add(number);
        });
      }
    }

    static void HostFunctionThrows(Scope scope)
    {
      GpuDevice device = scope.Device();
      long before = GpuMemDiagnostics.CallbackFailures;
      var messages = new List<string>();
      GpuMemLog.SetFunction((level, message) => { lock (messages) messages.Add(message); }, LogLevel.Error);
      using (GpuStream stream = device.CreateStream())
      {
        bool after = false;
        stream.Launch(() => { throw new FormatException("thrown by the test"); });
        stream.Launch(() => { throw new InvalidOperationException("the second one"); });
        stream.Launch(() => after = true);
        FormatException thrown = Check.Throws<FormatException>(() => stream.Synchronize());
        Check.Equal("thrown by the test", thrown.Message, "message");
        Check.That(thrown.StackTrace.Contains("HostFunctionThrows"), thrown.StackTrace);
        Check.That(after, "the stream did not go on");
        stream.Synchronize();
      }
      GpuMemLog.SetFunction(null, LogLevel.Error);
      Check.Equal(2L, GpuMemDiagnostics.CallbackFailures - before, "failures");
      lock (messages) Check.That(messages.Any(text => text.Contains("thrown by the test")), "not told");
    }

    // Out of a query, an event, another stream that waited for it, and a wait that runs out before.
    static void HostFunctionThrowsElsewhere(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream())
      using (GpuStream other = device.CreateStream())
      using (GpuEvent gpuEvent = device.CreateEvent())
      {
        Action launch = () => stream.Launch(() => { throw new FormatException(); });
        launch();
        Check.Throws<FormatException>(() => { while (!stream.Query()) Thread.Yield(); });
        launch();
        gpuEvent.Record(stream);
        Check.Throws<FormatException>(() => gpuEvent.Synchronize());
        gpuEvent.Synchronize();
        stream.Synchronize();
        launch();
        gpuEvent.Record(stream);
        other.Wait(gpuEvent);
        Check.Throws<FormatException>(() => other.Synchronize());
        stream.Synchronize();
        using (new Behaviour.Gate(other))
        {
          launch();
          gpuEvent.Record(other);
          Check.That(!gpuEvent.Synchronize(TimeSpan.FromMilliseconds(1)), "it is complete");
          Check.Throws<FormatException>(() => stream.Synchronize(TimeSpan.FromSeconds(60)));
        }
        // Nobody observes this one.
        launch();
      }
      Check.Eventually(() =>
      {
        GpuMemDiagnostics.ReleaseWaiting();
        return device.Instance.Stats.Streams == 0;
      }, "the end of the stream");
    }

    static void HostFunctionLimits(Scope scope)
    {
      GpuDevice device = scope.Device();
      GpuMemory memory = device.AllocateDevice(64);
      var found = new List<object>();
      using (GpuStream stream = device.CreateStream())
      {
        stream.Launch(() =>
        {
          found.Add(StatusInfo.NameOf(Status.Busy));
          found.Add(Check.Fails(Status.InvalidState, () => device.AllocateDevice(1)).Function);
          // It cannot be freed here, so it waits.
          memory.Dispose();
          found.Add(GpuMemDiagnostics.WaitingObjects);
        });
        stream.Synchronize();
      }
      Check.Equal("GPUMEM_ERROR_BUSY,gpumem_memory_create,1", string.Join(",", found), "found");
    }

    static void LogFunction(Scope scope)
    {
      GpuDevice device = scope.Device();
      var messages = new List<string>();
      SetLog(messages);
      Check.Collect();
      Check.Throws<GpuMemException>(() => device.AllocateDevice(0));
      lock (messages)
      {
        Check.That(messages.Any(text => text.StartsWith("Debug") && text.Contains("size is 0")), string.Join("\n", messages));
        messages.Clear();
      }
      long before = GpuMemDiagnostics.CallbackFailures;
      GpuMemLog.SetFunction((level, message) => { throw new FormatException(); }, LogLevel.Debug);
      Check.Throws<GpuMemException>(() => device.AllocateDevice(0));
      Check.That(GpuMemDiagnostics.CallbackFailures > before, "not counted");
      GpuMemLog.SetFunction(null, LogLevel.Debug);
      Check.Throws<GpuMemException>(() => device.AllocateDevice(0));
      lock (messages) Check.Equal(0, messages.Count, "messages of a function that was replaced");
      Check.Fails(Status.InvalidArgument, () => GpuMemLog.SetFunction((level, message) => { }, (LogLevel)99));
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void SetLog(List<string> messages)
    {
      GpuMemLog.SetFunction((level, message) => { lock (messages) messages.Add(level + ": " + message); }, LogLevel.Debug);
    }

    static void Kernels(Scope scope)
    {
      Scope.HostOnly();
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream())
      using (GpuMemory memory = device.AllocateDevice(400))
      {
        stream.Fill(memory, 3, 4);
        IntPtr address = memory.DevicePointer;
        HostSimulation.Launch(stream, kernel =>
        {
          int* numbers = (int*)kernel.View(address, 400, Access.ReadWrite);
          for (int i = 0; i < 100; ++i) numbers[i] *= i;
        });
        var result = new int[100];
        stream.Copy(result, memory);
        stream.Synchronize();
        Check.That(result.SequenceEqual(Enumerable.Range(0, 100).Select(i => 3 * i)), "content");
        long before = GpuMemDiagnostics.CallbackFailures;
        HostSimulation.Launch(stream, kernel => { throw new FormatException(); });
        Check.Throws<FormatException>(() => stream.Synchronize());
        Check.Equal(1L, GpuMemDiagnostics.CallbackFailures - before, "failures");
        Check.Throws<ArgumentNullException>(() => HostSimulation.Launch(stream, null));
      }
    }

    static void LostDevice(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      GpuStream stream = device.CreateStream();
      PinnedMemory<int> word = device.AllocatePinned<int>(1);
      GpuMemory memory = device.AllocateDevice(4096);
      bool ran = false;
      word[0] = 0;
      stream.WaitValue(word, 1, WaitCondition.Equal);
      stream.Fill(memory, 1);
      stream.Copy(memory, new byte[4096], new CopyOptions { SourceOrder = SourceOrder.DuringCall });
      stream.Launch(() => ran = true);
      memory.Dispose();
      HostSimulation.LoseDevice(device);
      Check.That(device.Info.Lost, "not lost");
      Check.Fails(Status.DeviceLost, () => stream.Synchronize());
      Check.Fails(Status.DeviceLost, () => device.AllocateDevice(1));
      Check.Equal(0L, instance.GetStats(MemoryKind.Device).LiveCount, "device memory");
      word.Dispose();
      stream.Dispose();
      Check.That(!ran, "the host function ran");
    }

    static void FailingSteps(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      var array = new byte[4096];
      int failures = 0;
      bool done = false;
      for (long step = 1; !done; ++step)
      {
        HostSimulation.FailStep(instance, step);
        try
        {
          using (GpuMemory memory = device.AllocateDevice(4096))
          using (PinnedMemory<byte> pinned = device.AllocatePinned<byte>(4096))
          using (device.Register(array))
          using (GpuStream stream = device.CreateStream())
          using (device.CreateEvent())
          {
            stream.Copy(memory, pinned);
            stream.Synchronize();
          }
          done = true;
        }
        catch (GpuMemException problem)
        {
          ++failures;
          Check.That(problem.Message.Length != 0, "no message");
        }
        HostSimulation.FailStep(instance, 0);
        GpuMemDiagnostics.ReleaseWaiting();
        Check.Equal(0L, instance.Stats.LiveObjects, "live objects after step " + step);
      }
      Check.That(failures >= 4, "only " + failures + " steps failed");
    }

    static void OtherCode(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0), peer = instance.GetDevice(1);
      IntPtr native = HostSimulation.CreateNativeStream(device);
      using (GpuStream stream = device.WrapStream(native))
      {
        Check.That(stream.Info.Wrapped, "not wrapped");
        Check.Fails(Status.Busy, () => HostSimulation.DestroyNativeStream(device, native));
        HostSimulation.SetCapturing(stream, true);
        Check.Fails(Status.InvalidState, () => stream.Launch(() => { }));
        HostSimulation.SetCapturing(stream, false);
        stream.Launch(() => { });
        stream.Synchronize();
      }
      HostSimulation.DestroyNativeStream(device, native);
      IntPtr foreign = HostSimulation.AllocateForeign(device, MemoryKind.Device, 4096);
      PointerInfo info = instance.GetPointerInfo(foreign);
      Check.Equal(MemoryKind.Foreign, info.Kind, "kind");
      Check.That(!info.IsOfInstance, "owner");
      instance.Fill(new GpuRange(foreign, 4096), 1);
      HostSimulation.FreeForeign(device, foreign);
      Check.Fails(Status.NotFound, () => HostSimulation.FreeForeign(device, foreign));
      HostSimulation.SetForeignPeerAccess(device, peer, true);
      HostSimulation.SetForeignPeerAccess(device, peer, false);
      int before = HostSimulation.SetCurrentDevice(1);
      Check.Equal(1, HostSimulation.SetCurrentDevice(before), "current device");
      Check.Fails(Status.InvalidArgument, () => HostSimulation.SetCurrentDevice(-2));
    }

    static void SimulationElsewhere(Scope scope)
    {
      if (Scope.IsHost) throw new TestSkipped("this is the host backend");
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream())
      {
        foreach (Action call in new Action[]
        {
          () => HostSimulation.Launch(stream, kernel => { }), () => HostSimulation.CreateNativeStream(device),
          () => HostSimulation.SetCapturing(stream, true), () => HostSimulation.LoseDevice(device),
          () => HostSimulation.FailStep(device.Instance, 1),
          () => HostSimulation.AllocateForeign(device, MemoryKind.Device, 1),
          () => HostSimulation.FreeForeign(device, (IntPtr)8),
          () => HostSimulation.DestroyNativeStream(device, (IntPtr)8),
          () => HostSimulation.SetForeignPeerAccess(device, device.Instance.GetDevice(1), true),
        })
        {
          Check.Fails(Status.Unsupported, call);
        }
      }
    }
  }
}
