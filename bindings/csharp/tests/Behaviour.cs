// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests the behaviour of objects: disposal in any order and on any thread, lifetimes, refused calls, copies and queries.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;

namespace GpuMem.Tests
{
  static unsafe class Behaviour
  {
    const int Size = 1 << 16;

    internal static void Run()
    {
      Tap.Run("dispose twice does nothing more", DisposeTwice);
      Tap.Run("dispose from many threads at once frees once", DisposeAtOnce);
      Tap.Run("every object refuses use after dispose", UseAfterDispose);
      Tap.Run("use after dispose on another thread is refused", UseAfterDisposeElsewhere);
      Tap.Run("an instance closes after its last object, in any order", DisposeInAnyOrder);
      Tap.Run("a creation that fails after its call frees what that made", LateFailure);
      Tap.Run("closing refuses or forces", CloseModes);
      Tap.Run("objects of an instance that was closed by force can be disposed", DisposeAfterForce);
      Tap.Run("closing by force refuses while a view lives", ForceWithView);
      Tap.Run("a view that is disposed ends after the accesses of other threads", ViewRaces);
      Tap.Run("closing by force waits for what the CPU does with memory", ForceDuringUse);
      Tap.Run("a view keeps its memory", ViewKeepsMemory);
      Tap.Run("memory is kept for a copy in a stream", CopyKeepsMemory);
      Tap.Run("an event releases the memory of the work before it", EventReleases);
      Tap.Run("an event that was recorded again releases nothing of the first record", EventRecordedAgain);
      Tap.Run("a stream that waited for another one releases the memory of both", WaitReleases);
      Tap.Run("a stream that is disposed with work in it is freed later", StreamDisposedEarly);
      Tap.Run("memory of work that the binding does not know is freed later", UnknownWork);
      Tap.Run("arrays are kept for copies in a stream", CopyArrays);
      Tap.Run("the default instance survives dispose", DefaultInstance);
      Tap.Run("errors carry everything", Errors);
      Tap.Run("lengths that are no lengths", Lengths);
      Tap.Run("arrays that cannot be registered", RegisterRefused);
      Tap.Run("bools are no elements", BoolsRefused);
      Tap.Run("a registered array stays where it is", RegisterArray);
      Tap.Run("elements of pinned memory", Elements);
      Tap.Run("views of pinned memory", Views);
      Tap.Run("ranges check their bounds", Ranges);
      Tap.Run("copies and fills between all kinds", CopiesAndFills);
      Tap.Run("arguments that are wrong have their names", Parameters);
      Tap.Run("fills of elements", FillsOfElements);
      Tap.Run("elements are enums, and structs with a char", EnumsAndLetters);
      Tap.Run("slices of elements", SlicesOfElements);
      Tap.Run("regions are copied in a batch", Regions);
      Tap.Run("a batch that fails names its region and copies nothing", RegionsRefused);
      Tap.Run("memory is kept for regions in a stream", RegionsKeepMemory);
      Tap.Run("memory is kept for a batch that the backend fails midway", RegionsFailMidway);
      Tap.Run("statuses and capabilities can be listed", Lists);
      Tap.Run("probe, devices and peers", DevicesAndPeers);
      Tap.Run("a fallback to the host backend says why", Fallback);
      Tap.Run("contexts of the cuda backend arrive", CudaContexts);
      Tap.Run("pointers", Pointers);
      Tap.Run("access of each processor", AccessOfProcessors);
      Tap.Run("statistics and report", Statistics);
      Tap.Run("options of the host backend arrive", HostOptionsArrive);
      Tap.Run("streams and events have information", StreamsAndEvents);
      Tap.Run("elapsed time is in nanoseconds", ElapsedTime);
      Tap.Run("values in a stream", Values);
    }

    static void DisposeTwice(Scope scope)
    {
      GpuDevice device = scope.Device();
      var all = new IDisposable[]
      {
        device.AllocateDevice(4096), device.AllocatePinned<int>(100), device.Register(new byte[4096]), device.CreateStream(),
        device.CreateEvent(), device.Instance,
      };
      foreach (IDisposable one in all) one.Dispose();
      foreach (IDisposable one in all) one.Dispose();
      Check.That(device.Instance.IsClosed, "the instance is open");
    }

    static void DisposeAtOnce(Scope scope)
    {
      GpuDevice device = scope.Device();
      for (int i = 0; i < 50; ++i)
      {
        PinnedMemory<byte> memory = device.AllocatePinned<byte>(4096);
        var start = new ManualResetEventSlim();
        Task[] tasks = Enumerable.Range(0, 4).Select(n => Task.Run(() =>
        {
          start.Wait();
          memory.Dispose();
        })).ToArray();
        start.Set();
        Task.WaitAll(tasks);
        Check.Equal(0L, device.Instance.Stats.LiveObjects, "live objects");
      }
    }

    static void UseAfterDispose(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      GpuMemory memory = device.AllocateDevice(4096);
      PinnedMemory<int> pinned = device.AllocatePinned<int>(16);
      GpuStream stream = device.CreateStream();
      GpuEvent gpuEvent = device.CreateEvent();
      var live = device.AllocateDevice(64);
      GpuRange range = memory;
      memory.Dispose();
      pinned.Dispose();
      stream.Dispose();
      gpuEvent.Dispose();
      var refused = new Action[]
      {
        () => memory.QueryInfo(), () => memory.CopyFrom(new byte[1]), () => memory.CopyTo(new byte[1]), () => memory.Slice(0, 1),
        () => instance.Copy(range.Slice(0, 64), live), () => instance.Fill(range, 0), () => GC.KeepAlive(memory.DevicePointer),
        () => memory.OpenView(), () => GC.KeepAlive(pinned[0]), () => pinned[0] = 1, () => pinned.ToArray(),
        () => pinned.CopyFrom(new int[1]), () => pinned.Slice(0, 1), () => GC.KeepAlive(pinned.HostPointer),
        () => pinned.OpenView(), () => stream.Query(), () => stream.Synchronize(), () => stream.Launch(() => { }),
        () => stream.Fill(live, 0), () => stream.Copy(live, new byte[64]), () => stream.Wait(gpuEvent),
        () => stream.CopyRegions(), () => instance.CopyRegions(new CopyRegion(range.Slice(0, 64), live, 64)),
        () => GC.KeepAlive(stream.Info), () => stream.WriteValue(live.Slice(0, 4), 1), () => gpuEvent.Query(),
        () => gpuEvent.Synchronize(), () => gpuEvent.Record(stream), () => GC.KeepAlive(gpuEvent.Info),
        () => gpuEvent.GetElapsedNanoseconds(gpuEvent),
      };
      for (int i = 0; i < refused.Length; ++i)
      {
        try
        {
          Check.Throws<ObjectDisposedException>(refused[i]);
        }
        catch (TestFailure failure)
        {
          throw new TestFailure("call " + i + ": " + failure.Message);
        }
      }
      live.Dispose();
      instance.Dispose();
      foreach (Action call in new Action[]
      {
        () => GC.KeepAlive(instance.Info), () => GC.KeepAlive(instance.Stats), () => instance.GetDevice(0),
        () => instance.Report(), () => instance.Close(CloseMode.Check), () => instance.Free(IntPtr.Zero),
        () => device.AllocateDevice(1), () => device.CreateStream(), () => device.CreateEvent(),
        () => device.Register(new byte[1]), () => GC.KeepAlive(device.Info), () => instance.GetPointerInfo((IntPtr)1),
        () => instance.ResetPeaks(), () => instance.GetStats(MemoryKind.Device), () => instance.GetHostAccess((IntPtr)1),
        () => device.GetAccess((IntPtr)1), () => instance.CopyRegions(),
      })
      {
        Check.Throws<ObjectDisposedException>(call);
      }
    }

    static void UseAfterDisposeElsewhere(Scope scope)
    {
      GpuDevice device = scope.Device();
      GpuStream stream = device.CreateStream();
      stream.Dispose();
      Check.Elsewhere(() => Check.Throws<ObjectDisposedException>(() => stream.Synchronize()));
      // One thread disposes the stream while another one uses it: each call works or is refused.
      for (int i = 0; i < 50; ++i)
      {
        GpuStream raced = device.CreateStream();
        int refusals = 0;
        Task user = Task.Run(() =>
        {
          try
          {
            while (true) raced.Query();
          }
          catch (ObjectDisposedException)
          {
            ++refusals;
          }
        });
        Thread.Yield();
        raced.Dispose();
        user.Wait();
        Check.Equal(1, refusals, "refusals");
      }
    }

    static void DisposeInAnyOrder(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      GpuMemory memory = device.AllocateDevice(4096);
      PinnedMemory<byte> pinned = device.AllocatePinned<byte>(1);
      GpuStream stream = device.CreateStream();
      instance.Dispose();
      Check.That(instance.IsClosed, "it says that it is open");
      Check.Throws<ObjectDisposedException>(() => device.AllocateDevice(1));
      // Existing objects still work.
      Check.That(stream.Query(), "the stream has work");
      Check.Equal(4096L, memory.QueryInfo().Size, "size");
      pinned[0] = 5;
      Check.Equal((byte)5, pinned.ToArray()[0], "byte");
      stream.Dispose();
      memory.Dispose();
      pinned.Dispose();
      Check.Equal(0, GpuMemDiagnostics.WaitingObjects, "waiting objects");
    }

    // As where memory for the object is short, which a test cannot bring about.
    static void LateFailure(Scope scope)
    {
      const BindingFlags Inner = BindingFlags.NonPublic | BindingFlags.Instance;
      GpuInstance instance = scope.Open();
      GpuEvent made = instance.GetDevice(0).CreateEvent();
      object handle = typeof(GpuEvent).GetField("handle", Inner).GetValue(made);
      handle.GetType().GetMethod("Abandon", Inner).Invoke(handle, null);
      Check.Equal(0L, instance.Stats.LiveObjects, "live objects");
      made.Dispose();
    }

    static void CloseModes(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuMemory memory = instance.GetDevice(0).AllocateDevice(4096, new MemoryOptions { Name = "left over" });
      GpuMemException refused = Check.Fails(Status.Busy, () => instance.Close(CloseMode.Check));
      Check.That(refused.Message.Contains("left over"), refused.Message);
      Check.Fails(Status.InvalidArgument, () => instance.Close((CloseMode)9));
      Check.Equal(1L, instance.Close(CloseMode.Force), "destroyed");
      Check.Throws<ObjectDisposedException>(() => instance.Close(CloseMode.Force));
      memory.Dispose();
    }

    static void DisposeAfterForce(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      GpuMemory memory = device.AllocateDevice(4096);
      PinnedMemory<byte> pinned = device.AllocatePinned<byte>(4096);
      GpuMemory registered = device.Register(new byte[8192]);
      GpuStream stream = device.CreateStream();
      stream.Copy(memory, pinned);
      GpuMemory untyped = pinned.Allocation;
      MemoryPool pool = device.CreatePool();
      PoolBlock block = pool.Allocate(100);
      AddressRange range = instance.ReserveRange(64L << 20);
      GrowableBuffer buffer = device.CreateBuffer(100);
      Check.That(!memory.IsDisposed, "it is disposed");
      GpuEvent recorded = device.CreateEvent();
      recorded.Record(stream);
      Check.That(instance.Close(CloseMode.Force) >= 4, "destroyed");
      Check.Fails(Status.Closed, () => stream.Query());
      Check.Equal("the instance is closed; open a new one", Check.Fails(Status.Closed, () => recorded.Query()).Message, "message");
      foreach (Action use in new Action[]
      {
        () => GC.KeepAlive(pinned[0]), () => pinned[0] = 1, () => pinned.ToArray(), () => pinned.CopyFrom(new byte[1]),
        () => GC.KeepAlive(pinned.Size), () => GC.KeepAlive(pinned.HostPointer), () => pinned.OpenView(),
        () => untyped.OpenView(),
        () => GC.KeepAlive(memory.DevicePointer), () => GC.KeepAlive(memory.Size), () => GC.KeepAlive(memory.Info),
        () => GC.KeepAlive(memory.GrantedFlags), () => memory.Slice(0, 1), () => GC.KeepAlive(memory.Range),
        () => GC.KeepAlive(block.Pointer), () => GC.KeepAlive(block.Size), () => block.Slice(0, 1),
        () => GC.KeepAlive(range.Pointer), () => GC.KeepAlive(range.Size), () => range.Slice(0, 1),
        () => GC.KeepAlive(buffer.Pointer), () => buffer.Slice(0, 1), () => GC.KeepAlive(pool.Device),
      })
      {
        Check.Throws<ObjectDisposedException>(use);
      }
      Check.That(memory.IsDisposed && block.IsDisposed && range.IsDisposed && buffer.IsDisposed && stream.IsDisposed, "not disposed");
      Check.That(memory.ToString().Contains("IsDisposed"), memory.ToString());
      foreach (IDisposable one in new IDisposable[] { stream, recorded, memory, pinned, registered, block, pool, range, buffer, instance })
      {
        one.Dispose();
      }
      Check.Equal(0, GpuMemDiagnostics.WaitingObjects, "waiting objects");
    }

    static void ForceWithView(Scope scope)
    {
      GpuInstance instance = scope.Open();
      PinnedMemory<byte> pinned = instance.GetDevice(0).AllocatePinned<byte>(4096);
      Stream view = pinned.OpenView();
      Check.Equal("MemoryView { Length = " + pinned.Size + " }", view.ToString(), "text of a view");
      bool ended = false;
      Task user = Task.Run(() =>
      {
        while (!Volatile.Read(ref ended)) pinned[1] = 1;
      });
      for (int i = 0; i < 1000; ++i) Check.Throws<InvalidOperationException>(() => instance.Close(CloseMode.Force));
      Volatile.Write(ref ended, true);
      user.Wait();
      view.WriteByte(1);
      view.Dispose();
      instance.Close(CloseMode.Force);
      pinned.Dispose();
    }

    // Each access goes on until it is refused, so that most views are disposed in the middle of one.
    static void ViewRaces(Scope scope)
    {
      GpuDevice device = scope.Device();
      var accesses = new Action<Stream, byte[]>[]
      {
        (view, array) => view.Read(array, 0, array.Length), (view, array) => view.Write(array, 0, array.Length),
        (view, array) => view.ReadByte(), (view, array) => view.WriteByte(1),
        (view, array) =>
        {
          view.SetLength(0);
          view.SetLength(array.Length);
        },
      };
      for (int round = 0; round < 10; ++round)
      {
        foreach (Action<Stream, byte[]> access in accesses)
        {
          PinnedMemory<byte> pinned = device.AllocatePinned<byte>(4 << 20);
          Stream view = pinned.OpenView();
          using (var begun = new ManualResetEventSlim())
          {
            Task user = Task.Run(() =>
            {
              var array = new byte[4 << 20];
              for (;;)
              {
                view.Position = 0;
                access(view, array);
                begun.Set();
              }
            });
            begun.Wait();
            pinned.Dispose();
            view.Dispose();
            view.Dispose();
            Check.Throws<ObjectDisposedException>(() => user.GetAwaiter().GetResult());
          }
          Check.Throws<ObjectDisposedException>(() => view.ReadByte());
          Check.That(!view.CanRead && !view.CanWrite, "it can be used");
        }
      }
    }

    // Each use goes on until it is refused, so that most closes begin in the middle of one.
    static void ForceDuringUse(Scope scope)
    {
      var uses = new Action<PinnedMemory<byte>, BufferView<byte>, byte[]>[]
      {
        (pinned, view, array) => pinned.CopyFrom(array), (pinned, view, array) => pinned.CopyTo(array),
        (pinned, view, array) => pinned[array.Length - 1] = pinned[0], (pinned, view, array) => view.CopyFrom(array),
        (pinned, view, array) => view.CopyTo(array), (pinned, view, array) => view[array.Length - 1] = view[0],
      };
      for (int round = 0; round < 5; ++round)
      {
        foreach (Action<PinnedMemory<byte>, BufferView<byte>, byte[]> use in uses)
        {
          GpuDevice device = scope.Device();
          var array = new byte[4 << 20];
          PinnedMemory<byte> pinned = device.AllocatePinned<byte>(array.Length);
          GrowableBuffer buffer = device.CreateBuffer(array.Length, new BufferOptions { Location = MemoryLocation.Host });
          BufferView<byte> view = buffer.GetView<byte>();
          var begun = new ManualResetEventSlim();
          Task<Exception> user = Task.Run(() =>
          {
            try
            {
              while (true)
              {
                use(pinned, view, array);
                begun.Set();
              }
            }
            catch (Exception problem)
            {
              begun.Set();
              return problem;
            }
          });
          begun.Wait();
          device.Instance.Close(CloseMode.Force);
          Check.That(user.Result is ObjectDisposedException, user.Result.ToString());
          Check.That(!view.IsCurrent, "the view is current");
          pinned.Dispose();
          buffer.Dispose();
        }
      }
    }

    static void ViewKeepsMemory(Scope scope)
    {
      GpuInstance instance = scope.Open();
      PinnedMemory<byte> pinned = instance.GetDevice(0).AllocatePinned<byte>(4096);
      pinned[10] = 42;
      Stream view = pinned.OpenView(FileAccess.Read);
      pinned.Dispose();
      Check.Throws<ObjectDisposedException>(() => GC.KeepAlive(pinned[10]));
      Check.Equal(1L, instance.GetStats(MemoryKind.Pinned).LiveCount, "live while the view lives");
      view.Position = 10;
      Check.Equal(42, view.ReadByte(), "byte");
      Check.Throws<NotSupportedException>(() => view.WriteByte(1));
      view.Dispose();
      view.Dispose();
      Check.Throws<ObjectDisposedException>(() => view.ReadByte());
      Check.Equal(0L, instance.GetStats(MemoryKind.Pinned).LiveCount, "live after the view");
    }

    /// <summary>Holds a stream until <c>Open</c>.</summary>
    internal sealed class Gate : IDisposable
    {
      readonly PinnedMemory<int> word;
      readonly GpuStream stream;

      internal Gate(GpuStream stream)
      {
        this.stream = stream;
        word = stream.Device.AllocatePinned<int>(1);
        word[0] = 0;
        stream.WaitValue(word, 1, WaitCondition.GreaterOrEqual);
      }

      internal void Open() { word[0] = 1; }

      public void Dispose()
      {
        Open();
        if (!stream.IsDisposed) stream.Synchronize();
        word.Dispose();
      }
    }

    static void CopyKeepsMemory(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream stream = device.CreateStream())
      using (var gate = new Gate(stream))
      {
        GpuMemory memory = device.AllocateDevice(Size);
        PinnedMemory<byte> source = device.AllocatePinned<byte>(Size);
        PinnedMemory<byte> target = device.AllocatePinned<byte>(Size);
        for (int i = 0; i < Size; ++i) source[i] = (byte)(i * 3);
        stream.Copy(memory, source);
        stream.Copy(target, memory);
        Check.That(!stream.Query(), "the stream does not wait");
        memory.Dispose();
        source.Dispose();
        Check.Throws<ObjectDisposedException>(() => stream.Copy(memory, target));
        Check.Equal(1L, instance.GetStats(MemoryKind.Device).LiveCount, "device memory that lives");
        Check.Equal(3L, instance.GetStats(MemoryKind.Pinned).LiveCount, "pinned memory that lives");
        Check.That(!stream.Synchronize(TimeSpan.FromMilliseconds(1)), "it is complete");
        Check.Equal(1L, instance.GetStats(MemoryKind.Device).LiveCount, "device memory after a wait that ran out");
        gate.Open();
        stream.Synchronize();
        Check.Equal(0L, instance.GetStats(MemoryKind.Device).LiveCount, "device memory after the end");
        for (int i = 0; i < Size; ++i) Check.Equal((byte)(i * 3), target[i], "byte");
        target.Dispose();
        Check.Equal(1L, instance.GetStats(MemoryKind.Pinned).LiveCount, "pinned memory but the gate's");
      }
    }

    static void EventReleases(Scope scope)
    {
      // A CUDA driver that frees memory waits for the whole device, and so for the closed gate.
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream stream = device.CreateStream())
      using (GpuEvent gpuEvent = device.CreateEvent(EventFlags.DisableTiming))
      {
        GpuMemory before = device.AllocateDevice(Size), after = device.AllocateDevice(Size);
        stream.Fill(before, 1);
        gpuEvent.Record(stream);
        using (var gate = new Gate(stream))
        {
          stream.Fill(after, 1);
          before.Dispose();
          after.Dispose();
          gpuEvent.Synchronize();
          Check.Equal(1L, instance.GetStats(MemoryKind.Device).LiveCount, "the fill behind the event is not done");
        }
        Check.Equal(0L, instance.GetStats(MemoryKind.Device).LiveCount, "all is done");
      }
    }

    static void EventRecordedAgain(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream slow = device.CreateStream())
      using (GpuStream fast = device.CreateStream())
      using (GpuEvent gpuEvent = device.CreateEvent(EventFlags.DisableTiming))
      using (new Gate(slow))
      {
        GpuMemory memory = device.AllocateDevice(Size);
        slow.Fill(memory, 1);
        memory.Dispose();
        gpuEvent.Record(slow);
        Check.That(!gpuEvent.Query(), "it is complete");
        gpuEvent.Record(fast);
        gpuEvent.Synchronize();
        Check.Equal(1L, instance.GetStats(MemoryKind.Device).LiveCount, "the slow stream still uses it");
      }
    }

    static void WaitReleases(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream first = device.CreateStream())
      using (GpuStream second = device.CreateStream())
      using (GpuEvent gpuEvent = device.CreateEvent(EventFlags.DisableTiming))
      {
        GpuMemory memory = device.AllocateDevice(Size);
        first.Fill(memory, 1);
        gpuEvent.Record(first);
        second.Wait(gpuEvent);
        memory.Dispose();
        second.Synchronize();
        Check.Equal(0L, instance.GetStats(MemoryKind.Device).LiveCount, "device memory after the second stream's end");
        first.Synchronize();
      }
    }

    static void StreamDisposedEarly(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      PinnedMemory<int> word = device.AllocatePinned<int>(1);
      word[0] = 0;
      GpuStream stream = device.CreateStream();
      GpuMemory memory = device.AllocateDevice(Size);
      stream.WaitValue(word, 1, WaitCondition.Equal);
      stream.Fill(memory, 1);
      memory.Dispose();
      stream.Dispose();
      Check.Equal(1, GpuMemDiagnostics.WaitingObjects, "waiting objects");
      Check.Equal(1L, instance.Stats.Streams, "streams that live");
      string alive = Check.Fails(Status.Busy, () => instance.Close(CloseMode.Check)).Message;
      Check.That(alive.EndsWith("; what is disposed lives until its work is complete: see GpuMemDiagnostics.WaitingObjects"), alive);
      word[0] = 1;
      Check.Eventually(() =>
      {
        GpuMemDiagnostics.ReleaseWaiting();
        return GpuMemDiagnostics.WaitingObjects == 0;
      }, "the stream's end");
      Check.Equal(0L, instance.GetStats(MemoryKind.Device).LiveCount, "device memory");
      word.Dispose();
    }

    static void UnknownWork(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream stream = device.CreateStream())
      using (var gate = new Gate(stream))
      {
        GpuMemory memory = device.AllocateDevice(Size);
        stream.Fill(new GpuRange(memory.DevicePointer, Size), 1);
        memory.Dispose();
        Check.Equal(1, GpuMemDiagnostics.WaitingObjects, "waiting objects");
        Check.Equal(1L, instance.GetStats(MemoryKind.Device).LiveCount, "the library refused to free it");
        gate.Open();
        stream.Synchronize();
        Check.Equal(0, GpuMemDiagnostics.WaitingObjects, "waiting objects after the end");
        Check.Equal(0L, instance.GetStats(MemoryKind.Device).LiveCount, "device memory");
      }
    }

    static void CopyArrays(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream())
      using (GpuMemory memory = device.AllocateDevice(Size * 4))
      {
        int[] target = new int[Size];
        SendGarbage(stream, memory);
        Check.Collect();
        stream.Copy(target, memory);
        for (int i = 0; i < 20; ++i) GC.KeepAlive(new byte[1 << 16]);
        Check.Collect();
        stream.Synchronize();
        for (int i = 0; i < Size; ++i) Check.Equal(i * 5, target[i], "element " + i);
        Check.Throws<ArgumentException>(() => stream.Copy(target, memory.Slice(0, 8)));
        Check.Throws<ArgumentNullException>(() => stream.Copy((int[])null, memory));
      }
    }

    // When this returns, only the stream refers to the array.
    [MethodImpl(MethodImplOptions.NoInlining)]
    static void SendGarbage(GpuStream stream, GpuMemory memory)
    {
      stream.Copy(memory, Enumerable.Range(0, Size).Select(i => i * 5).ToArray());
    }

    static void DefaultInstance(Scope scope)
    {
      GpuInstance instance = GpuInstance.Default;
      Check.Equal(Scope.Backend, instance.Info.Backend, "backend, as GPUMEM_BACKEND says");
      Check.Fails(Status.InvalidState, () => instance.Close(CloseMode.Force));
      GpuMemory memory = instance.GetDevice(0).AllocateDevice(4096);
      instance.Dispose();
      memory.Dispose();
      GpuInstance again = GpuInstance.Default;
      Check.That(again.GetDevice(0).Equals(instance.GetDevice(0)), "another instance");
      Check.Equal(0L, again.Stats.LiveObjects, "live objects");
    }

    static void Errors(Scope scope)
    {
      GpuDevice device = scope.Device();
      GpuMemException problem = Check.Fails(Status.InvalidArgument, () => device.AllocateDevice(0));
      Check.Equal("GPUMEM_ERROR_INVALID_ARGUMENT", problem.StatusName, "name");
      Check.Equal("gpumem_memory_create", problem.Function, "function");
      Check.Equal(NativeDomain.None, problem.NativeDomain, "domain");
      Check.Equal("", problem.EntryPoint, "entry point");
      Check.That(problem.Message.Contains("size is 0"), problem.Message);
      Check.That(problem.ToString().Contains("InvalidArgument: ") && problem.ToString().Contains("[GpuDevice.Create()]"), problem.ToString());
      problem = Check.Fails(Status.OutOfDeviceMemory, () => device.AllocateDevice(1L << 62));
      Check.That(problem.Message.Length != 0, "no message");
      if (Scope.IsHost)
      {
        HostSimulation.FailStep(device.Instance, 1);
        problem = Check.Throws<GpuMemException>(() => device.AllocatePinned<byte>(Size));
        HostSimulation.FailStep(device.Instance, 0);
        Check.Equal(NativeDomain.Errno, problem.NativeDomain, "domain of a system call that failed");
        Check.That(problem.NativeCode > 0 && problem.NativeName.StartsWith("E") && problem.EntryPoint.Length != 0,
                   problem.ToString());
        Check.That(problem.ToString().Contains(problem.NativeName), problem.ToString());
      }
      else
      {
        problem = Check.Throws<GpuMemException>(() => device.AllocateDevice(1L << 40));
        Check.Equal(NativeDomain.Cuda, problem.NativeDomain, "domain of a driver call that failed");
        Check.Equal("CUDA_ERROR_OUT_OF_MEMORY", problem.NativeName, "native name");
        Check.Equal(2, problem.NativeCode, "native code");
        Check.That(problem.EntryPoint.StartsWith("cuMem"), problem.EntryPoint);
      }
      StatusInfo busy = StatusInfo.Of(Status.Busy);
      Check.That(busy.Name == "GPUMEM_ERROR_BUSY" && busy.Cause.Length != 0 && busy.Remedy.Length != 0, "status info");
      Check.Fails(Status.NotFound, () => StatusInfo.Of((Status)(-12345)));
      Check.Throws<ArgumentException>(() => device.AllocateDevice(1, new MemoryOptions { Name = "a\0b" }));
      Check.Fails(Status.InvalidArgument, () => device.AllocateDevice(1, new MemoryOptions { Name = new string('x', 64) }));
      using (GpuMemory named = device.AllocateDevice(1, new MemoryOptions { Name = "Bär" })) Check.Equal("Bär", named.Info.Name, "name");
    }

    static void Lengths(Scope scope)
    {
      GpuDevice device = scope.Device();
      Check.Throws<ArgumentOutOfRangeException>(() => device.AllocatePinned<int>(-1));
      Check.Throws<ArgumentOutOfRangeException>(() => device.AllocatePinned<long>(long.MaxValue / 4));
      Check.Throws<ArgumentOutOfRangeException>(() => device.AllocatePinned<int>(long.MinValue));
      Check.Fails(Status.InvalidArgument, () => device.AllocateDevice(0));
      Check.Throws<GpuMemException>(() => device.AllocateDevice(long.MaxValue));
      foreach (Action call in new Action[]
      {
        () => device.AllocateDevice(-1), () => device.Allocate(MemoryKind.Device, -1), () => new GpuRange(IntPtr.Zero, -1),
        () => device.Register(IntPtr.Zero, -1), () => device.RegisterPointer(IntPtr.Zero, -1),
        () => device.AllocateDevice(1, new MemoryOptions { Alignment = -1 }),
        () => GpuInstance.Open(new InstanceOptions { PinBudget = -1 }),
        () => GpuInstance.Open(new InstanceOptions { Host = new HostOptions { DeviceBytes = -1 } }),
      })
      {
        Check.Throws<ArgumentOutOfRangeException>(call);
      }
      Check.Throws<GpuMemException>(() => device.AllocatePinned<byte>(long.MaxValue));
      using (GpuMemory memory = device.AllocateDevice(16))
      using (GpuStream stream = device.CreateStream())
      {
        device.Instance.Copy(memory.Slice(16, 0), memory.Slice(0, 0));
        device.Instance.Fill(memory.Slice(3, 0), 1);
        memory.CopyFrom(new byte[0]);
        memory.CopyTo(new long[0]);
        stream.Copy(memory.Slice(0, 0), new short[0]);
        stream.Synchronize();
        Check.Throws<ArgumentException>(() => device.Instance.Copy(memory, memory.Slice(0, 8)));
        Check.Throws<ArgumentOutOfRangeException>(() => memory.CopyFrom(new byte[17]));
      }
    }

    struct WithReference
    {
      internal string Text;
    }

    struct Flagged
    {
#pragma warning disable 649  // never assigned to
      internal int Number;
      internal Inner Part;

      internal struct Inner { internal bool Flag; }
#pragma warning restore 649
    }

    static void BoolsRefused(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream())
      using (GpuMemory memory = device.AllocateDevice(64))
      using (GrowableBuffer buffer = device.CreateBuffer(64, new BufferOptions { Location = MemoryLocation.Host }))
      {
        foreach (Action call in new Action[]
        {
          () => device.AllocatePinned<bool>(4), () => device.AllocatePinned<Flagged>(4), () => device.AllocateUnified<bool>(4),
          () => device.Register(new bool[5]), () => device.Register(new Flagged[0]), () => buffer.GetView<bool>(),
          () => memory.CopyTo(new bool[4]), () => memory.CopyFrom(new Flagged[1]), () => stream.Copy(memory, new bool[64]),
          () => stream.Copy(new Flagged[1], memory),
        })
        {
          string message = Check.Throws<ArgumentException>(call).Message;
          Check.That(message.EndsWith(" is or has a bool, which a device could make neither true nor false; use byte in its place"), message);
        }
        using (device.AllocatePinned<char>(1))
        using (device.AllocatePinned<IntPtr>(1))
        using (device.AllocatePinned<Guid>(1))
        {
        }
      }
    }

    static void RegisterRefused(Scope scope)
    {
      GpuDevice device = scope.Device();
      Check.Throws<ArgumentNullException>(() => device.Register((byte[])null));
      Check.Fails(Status.InvalidArgument, () => device.Register(
          new byte[64], new RegisterOptions { Require = MemoryFlags.WriteCombined }));
#if GPUMEM_MCS
      // Other compilers reject the type.
      Check.Throws<ArgumentException>(() => device.Register(new[] { new WithReference { Text = "a" } }));
      // Mono does not mind the layout.
      if (Type.GetType("Mono.Runtime") == null) Check.Throws<ArgumentException>(() => device.Register(new DateTimeOffset[2]));
#endif
      var array = new int[1000];
      using (device.Register(array))
      {
        Check.Fails(Status.AlreadyExists, () => device.Register(array));
        Check.Equal(1L, device.Instance.GetStats(MemoryKind.Registered).LiveCount, "registrations");
      }
      device.Register(array).Dispose();
      // Memory that the CPU may only read needs the flag. Arrays of .NET can always be written.
      IntPtr page = Libc.mmap(IntPtr.Zero, (UIntPtr)4096, 1, 0x22, -1, IntPtr.Zero);
      try
      {
        if (Scope.IsHost) Check.Fails(Status.PermissionDenied, () => device.Register(page, 4096));
        if (device.GetCapability(Capability.PinRegisterReadOnly).IsAvailable)
        {
          var readOnly = new RegisterOptions { Require = MemoryFlags.ReadOnly };
          using (GpuMemory memory = device.Register(page, 4096, readOnly))
          {
            Check.That((memory.GrantedFlags & MemoryFlags.ReadOnly) != 0, "not granted");
          }
        }
      }
      finally
      {
        Libc.munmap(page, (UIntPtr)4096);
      }
    }

    static void RegisterArray(Scope scope)
    {
      GpuDevice device = scope.Device();
      var array = new int[5000];
      IntPtr address;
      using (GpuMemory memory = device.Register(array, new RegisterOptions { Require = MemoryFlags.Mapped | MemoryFlags.Portable }))
      {
        Check.Equal(MemoryKind.Registered, memory.Kind, "kind");
        Check.Equal(20000L, memory.Size, "size");
        address = memory.HostPointer;
        for (int i = 0; i < 30; ++i)
        {
          GC.KeepAlive(new byte[100000]);
          if (i % 10 == 0) Check.Collect();
        }
        device.Instance.Fill(memory, 0x01020304, 4);
        fixed (int* first = array) Check.Equal(address, (IntPtr)first, "address");
        Check.That(array.All(number => number == 0x01020304), "content");
        Check.That(memory.DevicePointer != IntPtr.Zero, "no device pointer");
      }
    }

    struct Pair
    {
      internal byte Small;
      internal double Large;
    }

    static void Elements(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (PinnedMemory<Pair> pairs = device.AllocatePinned<Pair>(10))
      {
        Check.Equal(160L, pairs.Size, "size");
        pairs[9] = new Pair { Small = 7, Large = 0.5 };
        Check.Equal(7, pairs[9].Small, "small");
        Check.Equal(0.5, pairs[9].Large, "large");
        Check.Equal(0.5, ((double*)pairs.HostPointer)[19], "place of the large one");
        foreach (long index in new[] { -1, 10, long.MinValue, long.MaxValue })
        {
          Check.Throws<ArgumentOutOfRangeException>(() => GC.KeepAlive(pairs[index]));
          Check.Throws<ArgumentOutOfRangeException>(() => pairs[index] = default(Pair));
        }
      }
      using (PinnedMemory<short> numbers = device.AllocatePinned<short>(100))
      {
        numbers.CopyFrom(Enumerable.Range(0, 100).Select(i => (short)(i * i)).ToArray());
        Check.Equal((short)81, numbers[9], "number");
        var part = new short[10];
        numbers.CopyTo(5, part, 3, 4);
        Check.Equal("0 0 0 25 36 49 64 0 0 0", string.Join(" ", part), "part");
        string outside = Check.Throws<ArgumentOutOfRangeException>(() => numbers.CopyFrom(part, -1, 0, 2)).Message;
        Check.That(outside.StartsWith("a start of -1 is outside of the array, which has 10 elements"), outside);
        outside = Check.Throws<ArgumentOutOfRangeException>(() => numbers.CopyTo(0, part, 9, 2)).Message;
        Check.That(outside.StartsWith("a count of 2 is outside of the array, which has 10 elements"), outside);
        numbers.CopyFrom(new short[] { -1, -2, -3 }, 1, 98, 2);
        Check.Equal("-2 -3", numbers[98] + " " + numbers[99], "end");
        Check.Equal((short)-3, numbers.ToArray()[99], "array");
        foreach (Action call in new Action[]
        {
          () => numbers.CopyTo(99, part, 0, 2), () => numbers.CopyTo(0, part, 9, 2), () => numbers.CopyTo(-1, part, 0, 1),
          () => numbers.CopyTo(0, part, 0, -1), () => numbers.CopyFrom(part, -1, 0, 1), () => numbers.CopyFrom(part, 0, 95, 10),
          () => numbers.Slice(100, 1), () => numbers.Slice(-1, 1), () => numbers.CopyFrom(new short[101]),
        })
        {
          Check.Throws<ArgumentOutOfRangeException>(call);
        }
        Check.Throws<ArgumentNullException>(() => numbers.CopyTo(null));
        Check.Equal(4L, numbers.Slice(98, 2).Size, "bytes of a slice");
      }
      using (PinnedMemory<char> text = device.AllocatePinned<char>(3))
      {
        text.CopyFrom("abc".ToCharArray());
        Check.Equal("abc", new string(text.ToArray()), "text");
      }
    }

    static void Views(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (PinnedMemory<int> memory = device.AllocatePinned<int>(4))
      {
        using (var writer = new BinaryWriter(memory.OpenView(FileAccess.Write)))
        {
          for (int i = 0; i < 4; ++i) writer.Write(i + 100);
          Check.Throws<NotSupportedException>(() => writer.Write((byte)1));
        }
        Check.Equal("100 101 102 103", string.Join(" ", memory.ToArray()), "elements");
        using (Stream view = memory.OpenView())
        {
          Check.Equal(16L, view.Length, "length");
          view.Position = 4;
          Check.Equal(101, view.ReadByte(), "byte");
        }
      }
      using (GpuMemory far = device.AllocateDevice(64)) Check.Throws<InvalidOperationException>(() => far.OpenView());
    }

    static void Ranges(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuMemory memory = device.AllocateDevice(100))
      {
        GpuRange range = memory;
        Check.Equal((long)range.Pointer + 40, (long)range.Slice(40, 60).Pointer, "pointer");
        Check.Equal(5L, range.Slice(40, 60).Slice(55, 5).Size, "size");
        Check.Throws<ArgumentOutOfRangeException>(() => range.Slice(101, 0));
        Check.Throws<ArgumentOutOfRangeException>(() => range.Slice(50, 51));
        Check.Throws<ArgumentOutOfRangeException>(() => range.Slice(1, long.MaxValue));
        Check.Throws<ArgumentOutOfRangeException>(() => range.Slice(-1, 1));
        Check.Throws<ArgumentOutOfRangeException>(() => range.Slice(1, -1));
        Check.Throws<ArgumentOutOfRangeException>(() => device.Instance.Copy2D(range, -1, range, 30, 20, 4));
        Check.Throws<ArgumentOutOfRangeException>(() => device.Instance.Fill2D(range, 20, -1, 2, 0));
        Check.Throws<ArgumentOutOfRangeException>(() => device.Instance.CopyRegions(new CopyRegion(range, range, 1, -1)));
        Check.Throws<ArgumentOutOfRangeException>(() => device.Instance.CopyRegions(
            new CopyRegion(new CopyOperand(range, -1), range, 1)));
        Check.Throws<ArgumentException>(() => device.Instance.Copy2D(range, 30, range, 30, 20, 4));
        Check.Throws<ArgumentException>(() => device.Instance.Fill2D(range, long.MaxValue, 20, 2, 0));
        Check.Throws<ArgumentNullException>(() => device.Instance.Fill((GpuMemory)null, 0));
      }
    }

    static void CopiesAndFills(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice first = instance.GetDevice(0), second = instance.GetDevice(1);
      using (GpuMemory here = first.AllocateDevice(4096))
      using (GpuMemory there = second.AllocateDevice(4096))
      using (PinnedMemory<byte> pinned = first.AllocatePinned<byte>(4096))
      using (GpuStream stream = second.CreateStream())
      {
        var sent = new byte[4096];
        new Random(1).NextBytes(sent);
        here.CopyFrom(sent);
        instance.Copy(there, here);
        stream.Copy(pinned, there, new CopyOptions { Direction = Direction.DeviceToHost });
        stream.Synchronize();
        Check.That(pinned.ToArray().SequenceEqual(sent), "content");
        var received = new byte[4096];
        there.CopyTo(received);
        Check.That(received.SequenceEqual(sent), "content");
        Check.Fails(Status.InvalidArgument, () => instance.Copy(pinned, here, new CopyOptions { Direction = Direction.HostToDevice }));
        stream.Fill(there, 0x1234, 2);
        stream.Fill2D(there, 64, 16, 64, 0xffffffff, 4);
        stream.Copy2D(pinned, 32, there, 64, 32, 64);
        stream.Synchronize();
        Check.Equal(0xff, pinned[0], "filled");
        Check.Equal(0x34, pinned[16], "not filled");
        instance.Fill2D(there, 64, 16, 64, 0);
        instance.Copy2D(pinned, 32, there, 64, 32, 64);
        Check.Equal(0, pinned[0], "filled anew");
      }
    }

    enum Small : ushort { One = 1 }
    struct Twice { public float A, B; }

    struct Lettered { public int Number; public char Letter; }

    // .NET Core 3.1 pins no such array.
    static bool PinsEnums()
    {
      try
      {
        GCHandle.Alloc(new Small[1], GCHandleType.Pinned).Free();
        return true;
      }
      catch (ArgumentException)
      {
        return false;
      }
    }

    static void EnumsAndLetters(Scope scope)
    {
      GpuDevice device = scope.Device();
      InOut(device, new[] { Small.One, default(Small), Small.One });
      InOut(device, new[] { new Lettered { Number = 1, Letter = 'x' }, new Lettered { Number = 2, Letter = 'y' } });
    }

    static void InOut<T>(GpuDevice device, T[] values)
        where T : struct
    {
      long size;
      using (PinnedMemory<T> one = device.AllocatePinned<T>(1)) size = one.Size * values.Length;
      using (PinnedMemory<T> pinned = device.AllocatePinned<T>(values.Length))
      using (GpuMemory memory = device.AllocateDevice(size))
      using (MemoryPool pool = device.CreatePool())
      using (PoolBlock block = pool.Allocate(size))
      using (GpuStream stream = device.CreateStream())
      {
        pinned.CopyFrom(values);
        pinned[0] = values[1];
        Check.Equal(values[1], pinned[0], "element");
        Check.That(pinned.ToArray().Skip(1).SequenceEqual(values.Skip(1)), "pinned");
        var back = new T[values.Length];
        memory.CopyFrom(values);
        memory.CopyTo(back);
        Check.That(back.SequenceEqual(values), "device memory");
        back = new T[values.Length];
        block.CopyFrom(values);
        block.CopyTo(back);
        Check.That(back.SequenceEqual(values), "block");
        foreach (Action keeps in new Action[]
        {
          () => device.Register(values).Dispose(), () => stream.Copy(memory, values), () => stream.Copy(back, memory),
        })
        {
          if (PinsEnums())
          {
            keeps();
            continue;
          }
          var refused = Check.Throws<ArgumentException>(keeps);
          Check.That(refused.Message.Contains("use a PinnedMemory of it") && refused.ParamName != null, refused.Message);
        }
        stream.Synchronize();
      }
    }

    static void FillsOfElements(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream stream = device.CreateStream())
      {
        Filled<byte>(stream, 7, memory => instance.Fill(memory, 7));
        Filled<sbyte>(stream, -7, memory => instance.Fill(memory, (sbyte)-7));
        Filled<short>(stream, -7, memory => stream.Fill(memory, (short)-7));
        Filled<ushort>(stream, 700, memory => instance.Fill(memory, 700));
        Filled<char>(stream, 'x', memory => instance.Fill(memory, 'x'));
        Filled<Small>(stream, Small.One, memory => instance.Fill(memory, Small.One));
        Filled<int>(stream, -7, memory => instance.Fill(memory, -7));
        Filled<uint>(stream, 7, memory => instance.Fill(memory, 7));
        Filled<uint>(stream, 300, memory => stream.Fill(memory, 300u));
        Filled<uint>(stream, 300, memory => instance.Fill2D(memory, 16, 16, 1, 300));
        Filled<uint>(stream, 300, memory => stream.Fill2D(memory, 16, 16, 1, 300));
        Filled<float>(stream, 1, memory => instance.Fill(memory, 1));
        Filled<float>(stream, 1.5f, memory => stream.Fill(memory.Slice(0, 4), 1.5f));
        Filled<double>(stream, 0, memory => instance.Fill(memory, 0));
        Filled<long>(stream, -1, memory => stream.Fill(memory, -1));
        Filled<ulong>(stream, 0, memory => stream.Fill2D(memory, 32, 32, 1, 0));
        Filled<Twice>(stream, default(Twice), memory => instance.Fill(memory, 0));
        // 300 as 2 bytes of its own, which are half an element.
        Filled<uint>(stream, 0x012c012c, memory => instance.Fill(memory, 300, 2));
      }
      using (PinnedMemory<float> numbers = device.AllocatePinned<float>(8))
      using (GpuMemory bytes = device.AllocateDevice(4))
      {
        instance.Fill(numbers, 1.5f);
        instance.Fill(numbers.Slice(2, 4).Slice(1, 2), 2);  // a slice counts in elements, as its memory does
        instance.Fill(bytes, 0x1234, 2);
        Check.That(numbers.ToArray().SequenceEqual(new[] { 1.5f, 1.5f, 1.5f, 2, 2, 1.5f, 1.5f, 1.5f }), "numbers");
      }
      using (PinnedMemory<double> doubles = device.AllocatePinned<double>(4))
      using (PinnedMemory<float> floats = device.AllocatePinned<float>(4))
      using (UnifiedMemory<uint> unified = device.AllocateUnified<uint>(4))
      using (GpuMemory bytes = device.AllocateDevice(64))
      using (GpuStream stream = device.CreateStream())
      {
        instance.Fill(unified, 300u);
        stream.Fill(unified.Slice(1, 2), 301);
        stream.Synchronize();
        using (HostAccess<uint> access = unified.BeginHostAccess())
        {
          Check.That(access.ToArray().SequenceEqual(new uint[] { 300, 301, 301, 300 }), "unified");
        }
        var problem = Check.Throws<ArgumentException>(() => instance.Fill(doubles, 1));
        Check.That(problem.ParamName == "value" && problem.Message.Contains("copy an array"), problem.Message);
        problem = Check.Throws<ArgumentException>(() => stream.Fill2D(floats, 16, 16, 1, 1));
        Check.That(problem.ParamName == "value" && problem.Message.Contains("are of Single"), problem.Message);
        instance.Fill(bytes, 255);
        foreach (Action wrong in new Action[]
        {
          () => instance.Fill(bytes, 256), () => stream.Fill(bytes, 300), () => instance.Fill(bytes, 0x10000, 2),
          () => stream.Fill2D(bytes, 8, 8, 2, 256), () => instance.Fill2D(bytes, 8, 8, 2, 0x10000, 2),
          () => instance.Fill(floats, 256, 1),
        })
        {
          var refused = Check.Throws<ArgumentOutOfRangeException>(wrong);
          Check.That(refused.ParamName == "valueSize" && refused.Message.Contains("does not fit into"), refused.Message);
        }
        Check.Equal("destination", Check.Throws<ArgumentNullException>(() => stream.Fill((PinnedMemory<uint>)null, 1u)).ParamName, "null");
      }
    }

    // What is wrong with an argument is said of that argument.
    static void Parameters(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      var array = new byte[101];
      long granule, best;
      device.GetGranularity(out granule, out best);
      using (GpuMemory memory = device.AllocateDevice(100))
      using (AddressRange range = instance.ReserveRange(granule))
      using (GrowableBuffer buffer = device.CreateBuffer(100))
      using (MemoryPool pool = device.CreatePool())
      using (PoolBlock block = pool.Allocate(100))
      using (GpuStream stream = device.CreateStream())
      {
        foreach (Action wrong in new Action[] { () => instance.Fill(memory, 3, -1), () => stream.Fill2D(memory, 10, 10, 10, 3, -1) })
        {
          Check.Equal("valueSize", Check.Throws<ArgumentOutOfRangeException>(wrong).ParamName, "valueSize");
        }
        foreach (Action wrong in new Action[]
        {
          () => memory.CopyFrom(array), () => buffer.CopyFrom(array), () => buffer.CopyFrom(50, new byte[51]),
          () => block.CopyFrom(array),
        })
        {
          Check.Equal("source", Check.Throws<ArgumentOutOfRangeException>(wrong).ParamName, "source");
        }
        foreach (Action wrong in new Action[]
        {
          () => memory.CopyTo(array), () => buffer.CopyTo(array), () => block.CopyTo(array),
        })
        {
          Check.Equal("destination", Check.Throws<ArgumentOutOfRangeException>(wrong).ParamName, "destination");
        }
        Check.Equal("size", Check.Throws<ArgumentOutOfRangeException>(() => memory.Slice(0, 101)).ParamName, "slice");
        foreach (Action wrong in new Action[]
        {
          () => instance.Copy(memory.Slice(0, 10), memory.Slice(50, 20)),
          () => stream.Copy(memory.Slice(0, 10), memory.Slice(50, 20)),
        })
        {
          Check.Equal("source", Check.Throws<ArgumentException>(wrong).ParamName, "different sizes");
        }
        Check.Equal("name", Check.Throws<ArgumentException>(() => device.CreateStream(0, "a\0b")).ParamName, "name");
        var named = new MemoryOptions { Name = "a\0b" };
        Check.Equal("Name", Check.Throws<ArgumentException>(() => device.AllocateDevice(1, named)).ParamName, "option");
        foreach (Action wrong in new Action[] { () => buffer.SetAccess(), () => range.SetAccess(0, granule), () => range.Map(0) })
        {
          string refused = Check.Fails(Status.InvalidArgument, wrong).Message;
          Check.That(refused.StartsWith("pass at least one of "), refused);
        }
        TimeSpan past = TimeSpan.FromTicks(-5);
        var times = new Dictionary<string, Action>
        {
          { "timeout", () => stream.Synchronize(past) }, { "idle", () => instance.SetImportCache(past) },
          { "Timeout", () => instance.Connect(new LinkOptions { Timeout = past }) },
        };
        foreach (KeyValuePair<string, Action> one in times)
        {
          ArgumentOutOfRangeException refused = Check.Throws<ArgumentOutOfRangeException>(one.Value);
          Check.Equal(one.Key, refused.ParamName, "time");
          Check.That(refused.Message.Contains("pass zero, a positive time"), refused.Message);
        }
      }
    }

    static void Filled<T>(GpuStream stream, T expected, Action<PinnedMemory<T>> fill)
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      using (PinnedMemory<T> memory = stream.Device.AllocatePinned<T>(4))
      {
        fill(memory);
        stream.Synchronize();
        foreach (T value in memory.ToArray()) Check.Equal(expected, value, typeof(T).Name);
      }
    }

    static void SlicesOfElements(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (PinnedMemory<int> pinned = device.AllocatePinned<int>(8))
      using (UnifiedMemory<int> unified = device.AllocateUnified<int>(8))
      {
        pinned.CopyFrom(new[] { 0, 1, 2, 3, 4, 5, 6, 7 });
        instance.Copy(pinned.Slice(0, 2), pinned.Slice(2, 4).Slice(1, 2));
        Check.That(pinned.ToArray().Take(3).SequenceEqual(new[] { 3, 4, 2 }), "a part of a part");
        GpuRange<int> part = unified.Slice(2, 4).Slice(1, 3);
        Check.Equal(3L, part.Length, "elements");
        Check.Equal(12L, part.Size, "bytes");
        Check.Equal((long)unified.Pointer + 12, (long)part.Pointer, "address");
        instance.CopyRegions(new CopyRegion(part, pinned.Slice(5, 3), 12));
        instance.Copy(pinned.Slice(0, 2), part.Slice(1, 2));
        Check.That(pinned.ToArray().Take(3).SequenceEqual(new[] { 6, 7, 2 }), "a region");
        Check.Equal(((GpuRange)part).ToString().Replace("GpuRange", "GpuRange<Int32>").Replace(" }", ", Length = 3 }").Replace("Size = 12, Length = 3", "Length = 3, Size = 12"), part.ToString(), "text");
        foreach (Action wrong in new Action[] { () => part.Slice(-1, 1), () => part.Slice(4, 0), () => part.Slice(1, 3), () => part.Slice(0, -1) })
        {
          string message = Check.Throws<ArgumentOutOfRangeException>(wrong).Message;
          Check.That(message.Contains(" elements"), message);
        }
      }
    }

    static void Regions(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuMemory image = device.AllocateDevice(64 * 256))
      using (GpuMemory table = device.AllocateDevice(1024))
      using (PinnedMemory<byte> tile = device.AllocatePinned<byte>(64 * 128))
      using (PinnedMemory<byte> lookup = device.AllocatePinned<byte>(1024))
      using (GpuStream stream = device.CreateStream())
      {
        var pixels = new byte[64 * 256];
        var entries = new byte[1024];
        new Random(2).NextBytes(pixels);
        new Random(3).NextBytes(entries);
        image.CopyFrom(pixels);
        table.CopyFrom(entries);
        // The left half of an image with 64 rows of 256 bytes, and a table, in one batch.
        stream.CopyRegions(
            new CopyRegion(tile, new CopyOperand(image, 256), 128, 64),
            new CopyRegion(lookup, table, 1024));
        stream.Synchronize();
        for (int i = 0; i < 64 * 128; ++i) Check.Equal(pixels[i / 128 * 256 + i % 128], tile[i], "byte " + i + " of the tile");
        Check.That(lookup.ToArray().SequenceEqual(entries), "content of the table");
        // A box of 2 x 3 x 5 bytes, into the middle of a slice and from a plain pointer.
        var box = new byte[2 * 32];
        new Random(4).NextBytes(box);
        instance.Fill(table, 0);
        fixed (byte* first = box)
        {
          var source = new CopyOperand { Range = new GpuRange((IntPtr)first, 64), RowPitch = 8, SlicePitch = 32 };
          var destination = new CopyOperand { Range = table.Slice(100, 400), RowPitch = 10, SlicePitch = 100 };
          instance.CopyRegions(new CopyRegion(destination, source, 5, 3, 2)
          {
            Options = new CopyOptions { Direction = Direction.HostToDevice, SourceOrder = SourceOrder.DuringCall },
          });
        }
        table.CopyTo(entries);
        var expected = new byte[1024];
        for (int z = 0; z < 2; ++z)
        {
          for (int y = 0; y < 3; ++y) Array.Copy(box, z * 32 + y * 8, expected, 100 + z * 100 + y * 10, 5);
        }
        Check.That(entries.SequenceEqual(expected), "content of the box");
        instance.CopyRegions();
        stream.CopyRegions(new CopyRegion(), new CopyRegion { Destination = table, Source = tile.Range });
        stream.Synchronize();
      }
    }

    static void RegionsRefused(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuMemory memory = device.AllocateDevice(4096))
      using (PinnedMemory<byte> pinned = device.AllocatePinned<byte>(4096))
      using (GpuStream stream = device.CreateStream())
      {
        instance.Fill(pinned, 1);
        instance.Fill(memory, 2);
        var good = new CopyRegion(pinned, memory, 4096);
        var narrow = new CopyRegion(pinned, new CopyOperand(memory, 8), 16, 4);
        var backward = new CopyRegion(pinned, memory, 1) { Options = new CopyOptions { Direction = Direction.HostToDevice } };
        foreach (CopyRegion bad in new[] { narrow, backward, new CopyRegion(new GpuRange(IntPtr.Zero, 1), memory, 1) })
        {
          CopyRegion region = bad;
          Check.Equal(1, Check.Fails(Status.InvalidArgument, () => instance.CopyRegions(good, region)).FailedRegion, "region");
          GpuMemException problem = Check.Fails(Status.InvalidArgument, () => stream.CopyRegions(good, good, region, good));
          Check.Equal(2, problem.FailedRegion, "region of the stream");
          Check.Equal("gpumem_copy_regions_async", problem.Function, "function");
          Check.That(problem.ToString().Contains("[region 2]"), problem.ToString());
        }
        stream.Synchronize();
        Check.That(pinned.ToArray().All(value => value == 1), "a region of a refused batch was copied");
        Check.Equal(null, Check.Fails(Status.InvalidArgument, () => instance.Copy(pinned.Slice(0, 1), memory.Slice(0, 1),
            new CopyOptions { Direction = (Direction)99 })).FailedRegion, "region of a single copy");
        foreach (CopyRegion outside in new[]
        {
          new CopyRegion(pinned, memory, 4097), new CopyRegion(pinned, memory, 64, 65),
          new CopyRegion(pinned, new CopyOperand(memory, 128), 64, 33), new CopyRegion(pinned, memory, 64, 32, 3),
          new CopyRegion(pinned, new CopyOperand(memory, 64, 4000), 64, 1, 3), new CopyRegion(pinned, memory.Slice(1, 63), 64),
          new CopyRegion(pinned, memory, 2, long.MaxValue), new CopyRegion(pinned, memory, 1, 2, long.MaxValue),
          new CopyRegion(pinned, new CopyOperand(memory, long.MaxValue), 1, 2),
          new CopyRegion(pinned, new CopyOperand(memory, 0, long.MaxValue), 1, 1, 2),
          new CopyRegion(pinned, new CopyOperand(memory, 1L << 62), 1, 3), new CopyRegion(default(GpuRange), memory, 1),
        })
        {
          CopyRegion region = outside;
          string said = Check.Throws<ArgumentException>(() => instance.CopyRegions(good, region)).Message;
          Check.That(said.Contains("region 1"), said);
        }
        Check.Throws<ArgumentNullException>(() => instance.CopyRegions(null));
        Check.Throws<ArgumentNullException>(() => stream.CopyRegions(null));
      }
    }

    static void RegionsKeepMemory(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream stream = device.CreateStream())
      using (PinnedMemory<byte> target = device.AllocatePinned<byte>(2 * Size))
      using (var gate = new Gate(stream))
      {
        GpuMemory one = device.AllocateDevice(Size), two = device.AllocateDevice(Size);
        stream.Fill(one, 1);
        stream.Fill(two, 2);
        stream.CopyRegions(new CopyRegion(target.Slice(0, Size), one, Size), new CopyRegion(target.Slice(Size, Size), two, Size));
        one.Dispose();
        two.Dispose();
        Check.Throws<ObjectDisposedException>(() => stream.CopyRegions(new CopyRegion(target, one, 1)));
        Check.Equal(2L, instance.GetStats(MemoryKind.Device).LiveCount, "device memory of the batch");
        gate.Open();
        stream.Synchronize();
        Check.Equal(0L, instance.GetStats(MemoryKind.Device).LiveCount, "device memory after the end");
        Check.Equal("1 2", target[Size - 1] + " " + target[Size], "content");
      }
    }

    static void RegionsFailMidway(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      int failures = 0;
      bool done = false;
      for (long step = 1; !done; ++step)
      {
        using (GpuStream stream = device.CreateStream())
        {
          GpuMemory[] memories = Enumerable.Range(0, 6).Select(i => device.AllocateDevice(4096)).ToArray();
          CopyRegion[] regions = Enumerable.Range(0, 3).Select(i => new CopyRegion(memories[i], memories[i + 3], 4096)).ToArray();
          using (new Gate(stream))
          {
            HostSimulation.FailStep(instance, step);
            try
            {
              stream.CopyRegions(regions);
              done = true;
            }
            catch (GpuMemException problem)
            {
              ++failures;
              Check.That(problem.FailedRegion == null || problem.FailedRegion < 3, "region " + problem.FailedRegion);
            }
            HostSimulation.FailStep(instance, 0);
            foreach (GpuMemory memory in memories) memory.Dispose();
            Check.Equal(6L, instance.GetStats(MemoryKind.Device).LiveCount, "device memory that is kept");
            Check.Equal(0, GpuMemDiagnostics.WaitingObjects, "objects that the library refused to free");
          }
        }
        Check.Equal(0L, instance.Stats.LiveObjects, "live objects after step " + step);
      }
      Check.That(failures != 0, "no step failed");
    }

    static void Lists(Scope scope)
    {
      IReadOnlyList<Status> statuses = StatusInfo.All();
      Check.Equal("", string.Join(",", statuses.Where(status => !Enum.IsDefined(typeof(Status), status))), "unknown statuses");
      Check.Equal(Enum.GetValues(typeof(Status)).Length, statuses.Count, "statuses");
      IReadOnlyList<Capability> capabilities = GpuDevice.Capabilities();
      Check.Equal(Enum.GetValues(typeof(Capability)).Length, capabilities.Count, "capabilities");
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0), peer = instance.GetDevice(1);
      foreach (Capability capability in capabilities)
      {
        bool pair = capability == Capability.PeerAccess || capability == Capability.PeerAtomics;
        CapabilityInfo info = device.GetCapability(capability, pair ? peer : null);
        Check.That(info.Name.Length != 0 && info.Reason.Length != 0, capability + " says nothing");
        Check.Equal(info.Type == AnswerType.YesNo, info.Answer != null, capability + ": answer");
        Check.Equal(info.Answer != CapabilityAnswer.No, info.Status == Status.Success, capability + ": status");
        Check.Equal(info.Value != 0, info.IsAvailable, capability + ": available");
        Check.That(Enum.IsDefined(typeof(AnswerSource), info.Source), capability + ": source");
      }
      Check.Fails(Status.InvalidArgument, () => device.GetCapability(Capability.PeerAccess));
      Check.Equal(AnswerType.Bytes, device.GetCapability(Capability.DeviceBytes).Type, "type of a number of bytes");
    }

    static void DevicesAndPeers(Scope scope)
    {
      ProbeInfo probe = GpuInstance.Probe(Scope.Backend);
      Check.Equal(Scope.Backend, probe.Backend, "backend");
      Check.Equal(2, probe.DeviceCount, "devices");
      Check.That(probe.Name.Length != 0, "no name");
      Check.Fails(Status.InvalidArgument, () => GpuInstance.Probe((Backend)77));
      GpuInstance instance = scope.Open(new InstanceOptions { Name = "mine", PinBudget = 1 << 20 });
      Check.Equal("mine", instance.Info.Name, "name");
      Check.Equal(1L << 20, instance.Info.PinBudget, "budget");
      Check.Equal(2, instance.Devices.Count, "devices");
      GpuDevice first = instance.Devices[0], second = instance.Devices[1];
      Check.That(first.Equals(instance.GetDevice(0)) && !first.Equals(second), "equality");
      Check.Equal(first.GetHashCode(), instance.GetDevice(0).GetHashCode(), "hash");
      Check.Equal(1, second.Info.Ordinal, "ordinal");
      Check.That(first.Info.Name.Length != 0 && first.Info.TotalBytes != 0 && !first.Info.Lost, "info");
      Check.That(!first.Info.Uuid.SequenceEqual(second.Info.Uuid), "uuids");
      long free, total;
      first.GetMemory(out free, out total);
      Check.That(free <= total && total == first.Info.TotalBytes, "memory");
      Check.Equal(0L, first.TrimGraphs(), "memory of graphs");
      Check.That(first.CanAccessPeer(second), "no link");
      first.EnablePeerAccess(second);
      first.DisablePeerAccess(second);
      Check.Fails(Status.InvalidState, () => first.DisablePeerAccess(second));
      Check.Fails(Status.InvalidArgument, () => first.CanAccessPeer(first));
      Check.Fails(Status.InvalidArgument, () => instance.GetDevice(2));
      Check.Throws<ArgumentOutOfRangeException>(() => instance.GetDevice(-1));
      Check.Fails(Status.LimitExceeded, () => first.AllocatePinned<byte>((1 << 20) + 1));
    }

    static void Fallback(Scope scope)
    {
      Check.Equal(Status.Success, GpuInstance.Probe(Scope.Backend).FallbackStatus, "status of a named backend");
      Check.Equal("", GpuInstance.Probe(Scope.Backend).FallbackReason, "reason of a named backend");
      Check.Equal(Status.Success, scope.Open().Info.FallbackStatus, "status of a named backend that is open");
      GpuMemException missing = null;
      try
      {
        GpuInstance.Probe(Backend.Cuda);
      }
      catch (GpuMemException problem)
      {
        missing = problem;
      }
      var warnings = new List<string>();
      GpuMemLog.SetFunction((level, message) => { lock (warnings) warnings.Add(message); }, LogLevel.Warning);
      ProbeInfo probe = GpuInstance.Probe(Backend.Any);
      InstanceInfo info;
      using (GpuInstance instance = GpuInstance.Open(Backend.Any)) info = instance.Info;
      GpuMemLog.SetFunction(null, LogLevel.Error);
      Check.Equal(missing == null ? Backend.Cuda : Backend.Host, info.Backend, "backend");
      Check.Equal(info.Backend, probe.Backend, "backend of the probe");
      Check.Equal(missing == null ? Status.Success : missing.Status, info.FallbackStatus, "status");
      Check.Equal(info.FallbackStatus, probe.FallbackStatus, "status of the probe");
      Check.Equal(missing == null, info.FallbackReason.Length == 0, "reason: " + info.FallbackReason);
      Check.Equal(missing == null, probe.FallbackReason.Length == 0, "reason of the probe: " + probe.FallbackReason);
      lock (warnings) Check.Equal(missing != null, warnings.Count != 0, "a warning: " + string.Join("; ", warnings));
    }

    static void CudaContexts(Scope scope)
    {
      var options = new InstanceOptions { Cuda = new CudaOptions { Contexts = new[] { (IntPtr)8 } } };
      if (Scope.IsHost)
      {
        Check.Equal(2, scope.Open(options).Info.DeviceCount, "devices; the host backend ignores the options");
        return;
      }
      Check.Equal(2, scope.Open(new InstanceOptions { Cuda = new CudaOptions() }).Info.DeviceCount, "devices");
      IntPtr context;
      Check.Equal(0, Libcuda.cuDevicePrimaryCtxRetain(&context, 0), "context");
      options.Cuda.Contexts = new[] { context };
      using (GpuMemory memory = scope.Open(options).GetDevice(0).AllocateDevice(64)) memory.CopyFrom(new byte[64]);
      options.Cuda.Contexts = new[] { context, context };
      Check.Fails(Status.InvalidArgument, () => GpuInstance.Open(options));
      Check.Equal(0, Libcuda.cuDevicePrimaryCtxRelease_v2(0), "release");
    }

    static void AccessOfProcessors(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0), peer = instance.GetDevice(1);
      using (GpuMemory memory = device.AllocateDevice(4096))
      using (PinnedMemory<byte> pinned = device.AllocatePinned<byte>(4096))
      {
        IntPtr inside = (IntPtr)((long)memory.DevicePointer + 4095);
        Check.Equal(Access.ReadWrite, device.GetAccess(inside), "its device");
        Check.Equal(Access.None, peer.GetAccess(inside), "a peer");
        Check.Equal(Access.None, instance.GetHostAccess(inside), "the CPU");
        peer.EnablePeerAccess(device);
        Check.Equal(Access.ReadWrite, peer.GetAccess(inside), "a peer with access");
        peer.DisablePeerAccess(device);
        Check.Equal(Access.None, peer.GetAccess(inside), "a peer without access");
        Check.Equal(Access.ReadWrite, instance.GetHostAccess(pinned.HostPointer), "the CPU to pinned memory");
        Check.Equal(Access.ReadWrite, peer.GetAccess(pinned.HostPointer), "a device to pinned memory");
      }
      int local = 0;
      Check.Equal(Access.ReadWrite, instance.GetHostAccess((IntPtr)(&local)), "the CPU to a local variable");
      Check.Fails(Status.InvalidArgument, () => instance.GetHostAccess(IntPtr.Zero));
      Check.Fails(Status.InvalidArgument, () => device.GetAccess(IntPtr.Zero));
    }

    static void Pointers(Scope scope)
    {
      GpuDevice device = scope.Device();
      GpuInstance instance = device.Instance;
      using (PinnedMemory<byte> memory = device.AllocatePinned<byte>(4096))
      {
        PointerInfo info = instance.GetPointerInfo((IntPtr)((long)memory.HostPointer + 7));
        Check.Equal(MemoryKind.Pinned, info.Kind, "kind");
        Check.Equal(memory.HostPointer, info.Base, "base");
        Check.Equal(memory.Allocation.Info.BufferId, info.BufferId, "id");
        Check.That(info.IsOfInstance, "owner");
        Check.Equal(memory.DevicePointer, device.GetDevicePointer(memory.HostPointer), "device pointer");
      }
      int local = 0;
      PointerInfo ordinary = instance.GetPointerInfo((IntPtr)(&local));
      Check.That(ordinary.Kind == MemoryKind.Pageable && !ordinary.IsOfInstance, "a local variable");
      Check.Fails(Status.InvalidArgument, () => instance.GetPointerInfo(IntPtr.Zero));
      IntPtr pointer = device.Allocate(MemoryKind.Device, 100);
      Check.Equal(100L, instance.GetPointerInfo(pointer).Size, "size");
      instance.Free(pointer);
      Check.Fails(Status.NotFound, () => instance.Free(pointer));
      using (PinnedMemory<int> pinned = device.AllocatePinned<int>(1000))
      using (GpuMemory there = device.AllocateDevice(100))
      using (GpuMemory registered = device.Register(new byte[8192]))
      {
        foreach (IntPtr owned in new[] { pinned.HostPointer, there.DevicePointer })
        {
          var refused = Check.Throws<ArgumentException>(() => instance.Free(owned));
          Check.That(refused.Message.Contains("dispose that instead") && refused.ParamName == "pointer", refused.Message);
        }
        Check.Throws<ArgumentException>(() => instance.UnregisterPointer(registered.HostPointer));
        pinned[0] = 3;
        using (Stream view = pinned.OpenView())
        {
          IntPtr owned = pinned.HostPointer;
          pinned.Dispose();
          Check.Throws<ArgumentException>(() => instance.Free(owned));
          Check.Equal(3, view.ReadByte(), "byte");
        }
      }
      IntPtr block = Marshal.AllocHGlobal(8192);
      device.RegisterPointer(block, 8192, MemoryFlags.Mapped);
      Check.Fails(Status.WrongKind, () => instance.Free(block));
      instance.UnregisterPointer(block);
      Marshal.FreeHGlobal(block);
    }

    static void Statistics(Scope scope)
    {
      GpuDevice device = scope.Device();
      GpuInstance instance = device.Instance;
      GpuMemory memory = device.AllocateDevice(1000, new MemoryOptions { Name = "counted" });
      device.AllocateDevice(500).Dispose();
      PinnedMemory<byte> pinned = device.AllocatePinned<byte>(300);
      GpuStream stream = device.CreateStream();
      InstanceStats all = instance.Stats;
      Check.Equal(2L, all.LiveCount, "live memory");
      Check.Equal(1300L, all.LiveBytes, "bytes of live memory");
      Check.Equal(1L, all.Streams, "streams");
      Check.Equal(0L, all.Events, "events");
      Check.Equal(3L, all.LiveObjects, "live objects");
      KindStats stats = instance.GetStats(MemoryKind.Device);
      Check.Equal(1L, stats.LiveCount, "live");
      Check.Equal(1000L, stats.LiveBytes, "bytes");
      Check.Equal(2L, stats.PeakCount, "peak");
      Check.Equal(1500L, stats.PeakBytes, "peak bytes");
      Check.Equal(2L, stats.TotalCount, "total");
      Check.Equal(1500L, stats.TotalBytes, "total bytes");
      Check.Equal(300L, instance.GetStats(MemoryKind.Pinned).PeakBytes, "peak of pinned bytes");
      Check.Equal(0L, instance.GetStats(MemoryKind.Registered).TotalCount, "registrations");
      foreach (MemoryKind kind in new[] { MemoryKind.Unknown, MemoryKind.Pageable, MemoryKind.Foreign, (MemoryKind)77 })
      {
        Check.Fails(Status.InvalidArgument, () => instance.GetStats(kind));
      }
      stream.Dispose();
      pinned.Dispose();
      instance.ResetPeaks();
      Check.Equal(1L, instance.GetStats(MemoryKind.Device).PeakCount, "peak after reset");
      Check.That(instance.Report().Contains("counted"), instance.Report());
      Check.That(instance.Snapshot().Contains("\"name\":\"counted\",\"kind\":\"device\""), instance.Snapshot());
      memory.Dispose();
    }

    static void HostOptionsArrive(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open(new InstanceOptions
      {
        Backend = Backend.Host,
        Host = new HostOptions
        {
          DeviceCount = 3, DeviceBytes = 8 << 20, Granularity = 1 << 16, Strict = Toggle.Off, Peers = "0>1", Pageable = Toggle.On,
          Masked = "write_value", RegisterCountMax = 1, LockMode = HostLock.Off, NumaNodes = 2, Fill = Toggle.On, Quarantine = 3,
          SamePointer = Toggle.On, LockPiece = 1 << 20,
        },
      });
      IReadOnlyList<GpuDevice> devices = instance.Devices;
      Check.Equal(3, devices.Count, "devices");
      Check.Equal(8L << 20, devices[0].Info.TotalBytes, "bytes");
      Check.That(!instance.Info.Strict, "strict");
      Check.That(devices[0].CanAccessPeer(devices[1]) && !devices[1].CanAccessPeer(devices[0]), "peers");
      Check.That(devices[0].GetCapability(Capability.Pageable).IsAvailable, "pageable");
      using (GpuMemory one = devices[0].AllocateDevice(1)) Check.Equal(1L << 16, one.Info.GrantedSize, "granularity");
      using (GpuStream stream = devices[0].CreateStream())
      using (PinnedMemory<int> word = devices[0].AllocatePinned<int>(1))
      {
        Check.Fails(Status.SymbolMissing, () => stream.WriteValue(word, 1));
      }
      using (GpuMemory registered = devices[0].Register(new byte[64], new RegisterOptions { Require = MemoryFlags.Mapped }))
      {
        Check.Equal(registered.HostPointer, registered.DevicePointer, "same pointer");
        Check.That((registered.GrantedFlags & MemoryFlags.PageLocked) == 0, "locked");
        Check.Fails(Status.LimitExceeded, () => devices[0].Register(new byte[64]));
      }
      var node = new MemoryOptions { Require = MemoryFlags.NumaNode, NumaNode = 1 };
      using (PinnedMemory<byte> placed = devices[0].AllocatePinned<byte>(1, node)) Check.Equal(1, placed.Allocation.Info.NumaNode, "node");
      Check.Fails(Status.InvalidArgument, () => GpuInstance.Open(
          new InstanceOptions { Backend = Backend.Host, Host = new HostOptions { DeviceCount = 65 } }));
      Check.Throws<ArgumentNullException>(() => GpuInstance.Open((InstanceOptions)null));
    }

    static void StreamsAndEvents(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream(0, "mine"))
      using (GpuEvent start = device.CreateEvent())
      using (GpuEvent end = device.CreateEvent(EventFlags.BlockingSync, "end"))
      using (GpuEvent untimed = device.CreateEvent(EventFlags.DisableTiming))
      {
        Check.Equal("mine", stream.Info.Name, "name");
        Check.Equal(0, stream.Info.DeviceOrdinal, "device");
        Check.That(!stream.Info.Wrapped && stream.Info.NativeStream != IntPtr.Zero, "native stream");
        Check.Equal("end", end.Info.Name, "name");
        Check.Equal(EventFlags.BlockingSync, end.Info.Flags, "flags");
        Check.Equal(!Scope.IsHost, end.Info.NativeEvent != IntPtr.Zero, "native event");
        Check.That(end.Query(), "never recorded is complete");
        Check.Fails(Status.InvalidState, () => start.GetElapsedNanoseconds(end));
        start.Record(stream);
        end.Record(stream);
        using (new Gate(stream))
        {
          untimed.Record(stream);
          Check.That(end.Synchronize(TimeSpan.FromSeconds(60)), "no end");
          Check.That(!untimed.Query() && !untimed.Synchronize(TimeSpan.Zero), "it is complete");
          Check.That(!untimed.Synchronize(TimeSpan.FromMilliseconds(1)), "it is complete");
        }
        Check.That(untimed.Synchronize(System.Threading.Timeout.InfiniteTimeSpan), "not complete");
        Check.Throws<ArgumentOutOfRangeException>(() => end.Synchronize(TimeSpan.FromTicks(-5)));
        Check.That(stream.Synchronize(TimeSpan.MaxValue), "a limit of ages");
        if (Scope.IsHost)
        {
          Check.Fails(Status.Unsupported, () => device.WrapEvent((IntPtr)8));
        }
        else
        {
          using (GpuEvent again = device.WrapEvent(end.Info.NativeEvent))
          using (GpuStream other = device.WrapStream(stream.Info.NativeStream))
          {
            Check.That(again.Info.Wrapped && other.Info.Wrapped, "not wrapped");
            again.Record(other);
            again.Synchronize();
          }
        }
      }
    }

    static void ElapsedTime(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream())
      using (GpuEvent start = device.CreateEvent())
      using (GpuEvent end = device.CreateEvent())
      {
        start.Record(stream);
        start.Synchronize();
        using (new Gate(stream))
        {
          end.Record(stream);
          Check.Equal(null, start.GetElapsedNanoseconds(end), "time of a record that is not complete");
          Thread.Sleep(20);
        }
        long? time = start.GetElapsedNanoseconds(end);
        Check.That(time >= 0, "the time is " + time);
        Check.Equal(-time, end.GetElapsedNanoseconds(start), "time back");
        // The fake driver has its own clock.
        if (Scope.IsHost) Check.That(time >= 20 * 1000 * 1000 && time < 100L * 1000 * 1000 * 1000, "the time is " + time);
      }
    }

    static void Values(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuStream stream = device.CreateStream())
      using (PinnedMemory<long> words = device.AllocatePinned<long>(2))
      {
        words[0] = words[1] = 0;
        stream.WriteValue(words.Slice(0, 1), 0x123456789a);
        stream.WriteValue(words.Range.Slice(12, 4), 7);
        stream.WaitValue(words.Slice(0, 1), 0x9a, WaitCondition.And);
        stream.Synchronize();
        Check.Equal(0x123456789a, words[0], "8 bytes");
        Check.Equal(7L << 32, words[1], "4 bytes");
        Check.Fails(Status.InvalidArgument, () => stream.WriteValue(words, 1));
      }
    }
  }
}
