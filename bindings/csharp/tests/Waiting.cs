// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests the waits that hold no thread.

using System;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;
using Gate = GpuMem.Tests.Behaviour.Gate;

namespace GpuMem.Tests
{
  static class Waiting
  {
    internal static void Run()
    {
      Tap.Run("a stream is awaited", AwaitStream);
      Tap.Run("awaiting a stream does not wait for what comes later", AwaitNow);
      Tap.Run("an event is awaited", AwaitEvent);
      Tap.Run("disposing an event does not wait for a thread that waits for it", DisposeEvent);
      Tap.Run("a wait without a thread can be cancelled", Cancel);
      Tap.Run("a wait without a thread fails as Synchronize does", Fail);
    }

    // The code is part of the guide.
    static async Task<byte[]> FillAndRead(GpuDevice device, GpuStream stream)
    {
      using (PinnedMemory<byte> pinned = device.AllocatePinned<byte>(4))
      {
        stream.Fill(pinned, 7);
        await stream;
        return pinned.ToArray();
      }
    }

    static T Result<T>(Task<T> task)
    {
      End(task);
      return task.Result;
    }

    static void End(Task task) { Check.That(task.Wait(TimeSpan.FromSeconds(120)), "the wait does not end"); }

    static void AwaitStream(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream())
      {
        using (var gate = new Gate(stream))
        {
          Task<byte[]> filled = FillAndRead(device, stream);
          Check.That(!filled.IsCompleted, "it did not wait");
          gate.Open();
          Check.Equal("7777", string.Concat(Result(filled)), "bytes");
        }
        stream.Synchronize();
        Check.That(stream.SynchronizeAsync().IsCompleted, "there is nothing to wait for");
        Check.That(stream.SynchronizeAsync(new CancellationToken(true)).IsCanceled, "it was cancelled before");
      }
    }

    static void AwaitNow(Scope scope)
    {
      Scope.HostOnly();  // A CUDA driver that frees memory waits for the whole device.
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream stream = device.CreateStream())
      using (var gate = new Gate(stream))
      {
        GpuMemory memory = device.AllocateDevice(64);
        stream.Fill(memory, 1);
        memory.Dispose();
        Task reached = stream.SynchronizeAsync();
        using (new Gate(stream))
        {
          gate.Open();
          End(reached);
          Check.That(!stream.Query(), "the later work is complete");
          Check.Equal(0L, instance.GetStats(MemoryKind.Device).LiveCount, "memory that is kept for complete work");
        }
      }
    }

    static async Task<bool> Reached(GpuEvent gpuEvent)
    {
      await gpuEvent;
      return gpuEvent.Query();
    }

    static void AwaitEvent(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream())
      using (GpuEvent gpuEvent = device.CreateEvent())
      using (var gate = new Gate(stream))
      {
        Check.That(gpuEvent.SynchronizeAsync().IsCompleted, "it was never recorded");
        Check.That(gpuEvent.SynchronizeAsync(new CancellationToken(true)).IsCanceled, "it was cancelled before");
        gpuEvent.Record(stream);
        Task<bool> reached = Reached(gpuEvent);
        Check.That(!reached.IsCompleted, "it did not wait");
        gate.Open();
        Check.That(Result(reached), "it is not complete");
      }
    }

    static void DisposeEvent(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream())
      using (var gate = new Gate(stream))
      {
        GpuEvent reached = device.CreateEvent();
        reached.Record(stream);
        bool waited = false;
        var waiting = new Thread(() =>
        {
          reached.Synchronize();
          Volatile.Write(ref waited, true);
        });
        waiting.Start();
        Thread.Sleep(50);  // a wait in the library cannot be seen from here
        var disposing = new Thread(reached.Dispose);
        disposing.Start();
        bool disposed = disposing.Join(TimeSpan.FromSeconds(20));
        gate.Open();
        disposing.Join();
        waiting.Join();
        Check.That(disposed, "Dispose waits");
        Check.That(Volatile.Read(ref waited), "the wait failed");
        Check.Throws<ObjectDisposedException>(() => reached.Query());
        Check.Equal(0L, device.Instance.Stats.Events, "events");
      }
    }

    static void Cancel(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream())
      using (GpuEvent gpuEvent = device.CreateEvent())
      using (new Gate(stream))
      using (var source = new CancellationTokenSource())
      {
        gpuEvent.Record(stream);
        Task[] waits = { stream.SynchronizeAsync(source.Token), gpuEvent.SynchronizeAsync(source.Token) };
        source.Cancel();
        Task[] late = { stream.SynchronizeAsync(source.Token), gpuEvent.SynchronizeAsync(source.Token) };
        foreach (Task wait in waits.Concat(late))
        {
          Check.That(Task.WaitAny(new[] { wait }, TimeSpan.FromSeconds(120)) == 0, "the wait does not end");
          var problem = Check.Throws<OperationCanceledException>(() => wait.GetAwaiter().GetResult());
          Check.Equal(typeof(OperationCanceledException), problem.GetType(), "type");
          Check.Equal(source.Token, problem.CancellationToken, "token");
          Check.That(wait.IsCanceled, "it was not cancelled");
        }
        Check.That(!stream.Query(), "the work has ended");
      }
    }

    static void Fail(Scope scope)
    {
      GpuDevice device = scope.Device();
      GpuStream stream = device.CreateStream();
      GpuEvent gpuEvent = device.CreateEvent();
      using (var gate = new Gate(stream))
      {
        stream.Launch(() => { throw new FormatException("thrown by the test"); });
        gpuEvent.Record(stream);
        Task reached = stream.SynchronizeAsync(), recorded = gpuEvent.SynchronizeAsync();
        gpuEvent.Dispose();
        Check.Throws<ObjectDisposedException>(() => recorded.GetAwaiter().GetResult());
        gate.Open();
        Check.Throws<FormatException>(() => reached.GetAwaiter().GetResult());
      }
      stream.Dispose();
      Check.Throws<ObjectDisposedException>(() => stream.SynchronizeAsync());
      Check.Throws<ObjectDisposedException>(() => gpuEvent.SynchronizeAsync());
    }
  }
}
