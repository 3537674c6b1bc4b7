// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests how buffers sleep: groups, progress, callbacks, registrations, stores, and memory made ahead.

using System;
using System.Collections;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Threading;

namespace GpuMem.Tests
{
  static class Sleeping
  {
    internal static void Run()
    {
      Tap.Run("sleep: the example of the guide", Guide);
      Tap.Run("sleep: the functions of the guide", GuideFunctions);
      Tap.Run("sleep: a group sleeps and wakes as one", GroupAsOne);
      Tap.Run("sleep: the buffers of a group with one tag", Tags);
      Tap.Run("sleep: a group that cannot wake", GroupWithoutMemory);
      Tap.Run("sleep: a buffer that cannot be woken again has failed", FailedBuffer);
      Tap.Run("sleep: views end through a group", ViewsOfGroup);
      Tap.Run("sleep: no views while a call runs", ViewsInFunctions);
      Tap.Run("sleep: views and new buffers while a group sleeps", ViewsOfGroupAndThreads);
      Tap.Run("sleep: the order in which a group and its buffers are disposed", DisposalOfGroup);
      Tap.Run("sleep: forgotten groups and functions are freed", Forgotten);
      Tap.Run("sleep: groups refuse", GroupRefuses);
      Tap.Run("sleep: progress", ProgressOfCalls);
      Tap.Run("sleep: a progress function ends the call", ProgressEnds);
      Tap.Run("sleep: exceptions of a progress function", ProgressThrows);
      Tap.Run("sleep: nobody else uses the buffer", NobodyElse);
      Tap.Run("sleep: a cancellation token", Token);
      Tap.Run("sleep: a token that is cancelled at any time", TokenAtAnyTime);
      Tap.Run("sleep: functions are called before sleep and after waking", Functions);
      Tap.Run("sleep: a function refuses", FunctionRefuses);
      Tap.Run("sleep: exceptions of functions", FunctionsThrow);
      Tap.Run("sleep: what functions may do", InFunctions);
      Tap.Run("sleep: functions are replaced and kept", FunctionsReplaced);
      Tap.Run("sleep: registrations", Registrations);
      Tap.Run("sleep: content in a file", InFile);
      Tap.Run("sleep: content that was lost", ContentLost);
      Tap.Run("sleep: stores are prepared and kept", Stores);
      Tap.Run("sleep: it waits for work", WaitsForWork);
      Tap.Run("sleep: bad options", BadOptions);
      Tap.Run("sleep: every step of a group may fail", FailingSteps);
      Tap.Run("buffers: memory is made ahead", Ahead);
      Tap.Run("buffers: ordinary allocations where there is no other way", Copyable);
    }

    static GpuDevice WithHostMemory(Scope scope)
    {
      GpuDevice device = scope.Device();
      if (!device.GetCapability(Capability.VmmHost).IsAvailable) throw new TestSkipped("this device maps no memory of the host");
      return device;
    }

    static GpuDevice Small(Scope scope)
    {
      Scope.HostOnly();
      return scope.Open(new InstanceOptions
      {
        Host = new HostOptions { DeviceBytes = 16 << 20, VmmGranularity = 1 << 20 },
      }).GetDevice(0);
    }

    static GrowableBuffer Member(BufferGroup group, GpuDevice device, long size, string tag = null)
    {
      return device.CreateBuffer(size, new BufferOptions { Reserve = 64 << 20, Group = group, Tag = tag });
    }

    static void Expect(GrowableBuffer buffer, byte value)
    {
      byte[] found = Enumerable.Repeat((byte)~value, checked((int)buffer.Size)).ToArray();
      buffer.CopyTo(0, found);
      Check.That(found.All(one => one == value), buffer + " has other bytes than " + value);
    }

    static string States(params GrowableBuffer[] buffers)
    {
      return string.Join(",", buffers.Select(buffer => buffer.State.ToString()));
    }

    static void Guide(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      const long Weights = 4 << 20, Cache = 1 << 20;
      using (BufferGroup model = instance.CreateGroup("model"))
      using (GrowableBuffer weights = device.CreateBuffer(Weights, new BufferOptions { Group = model, Tag = "weights" }))
      using (GrowableBuffer cache = device.CreateBuffer(Cache, new BufferOptions { Group = model, Tag = "cache" }))
      {
        instance.Fill(weights, 1);
        // What a sleep needs on the host is made before it is urgent.
        model.Prepare(new PrepareOptions { Tag = "weights" });
        model.Sleep(new SleepOptions { Content = Content.Drop, Tag = "cache" });
        model.Sleep();
        // All or nothing: if the device is full, both sleep on.
        model.Wake();
        Expect(weights, 1);
        Check.Equal("Awake,Awake", States(weights, cache), "states");
        Check.Equal("1,1", weights.Info.Generation + "," + cache.Info.Generation, "how often they have woken");
      }
    }

    static void GuideFunctions(Scope scope)
    {
      GpuDevice device = scope.Device();
      var source = new CancellationTokenSource();
      var percent = new List<int>();
      using (GrowableBuffer buffer = device.CreateBuffer(1 << 20))
      {
        BufferRegistration card = buffer.NoteRegistration("network card");
        buffer.SetCallbacks(
            one =>
            {
              card.Dispose();
              return true;
            },
            (one, generation) => card = one.NoteRegistration("network card"));
        var options = new SleepOptions
        {
          Cancellation = source.Token,
          Progress = (done, total) =>
          {
            percent.Add((int)(100 * done / total));
            return true;
          },
        };
        buffer.Sleep(options);
        buffer.Wake();
        Check.Equal(1L, buffer.Info.Registrations, "registrations");
        Check.Equal("0,100", string.Join(",", percent), "percent");
        card.Dispose();
      }
    }

    static void GroupAsOne(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0), other = instance.GetDevice(1);
      using (BufferGroup group = instance.CreateGroup("model"))
      {
        Check.Equal("BufferGroup { Name = \"model\" }", group.ToString(), "text");
        Check.That(ReferenceEquals(instance, group.Instance), "its instance");
        Check.Equal(0L, group.Info.BufferCount, "buffers of an empty group");
        group.Sleep();
        group.Wake();
        group.Prepare();
        using (GrowableBuffer one = Member(group, device, 100000, "weights"), two = Member(group, other, 200000, "cache"))
        using (GrowableBuffer stranger = device.CreateBuffer(4096))
        {
          Check.That(ReferenceEquals(group, one.Group) && stranger.Group == null, "groups of the buffers");
          Check.Equal("weights", one.Info.Tag, "tag");
          instance.Fill(one, 1);
          instance.Fill(two, 2);
          IntPtr first = one.Pointer, second = two.Pointer;
          long free, before, total;
          device.GetMemory(out before, out total);
          group.Sleep(Content.Pageable);
          device.GetMemory(out free, out total);
          Check.Equal(one.Capacity, free - before, "bytes that became free");
          Check.Equal("Asleep,Asleep,Awake", States(one, two, stranger), "states");
          BufferGroupInfo info = group.Info;
          Check.Equal("2,0,2,0", string.Join(",", info.BufferCount, info.AwakeCount, info.AsleepCount, info.FailedCount), "counts");
          Check.Equal(300000L, info.Size, "size");
          Check.Equal(300000L, info.StoredSize, "stored");
          Check.That(info.StoreCapacity >= 300000, info.ToString());
          Check.Equal("model", info.Name, "name");
          Check.That(one.ToString().Contains("State = Asleep"), one.ToString());
          Check.Fails(Status.InvalidState, () => instance.Fill(one, 9));
          // Those that sleep already stay as they are.
          group.Sleep(Content.Drop);
          two.Wake();
          group.Wake();
          Check.Equal("Awake,Awake", States(one, two), "states");
          Check.That(first == one.Pointer && second == two.Pointer, "addresses");
          Check.Equal("1,1", one.Info.Generation + "," + two.Info.Generation, "generations");
          Expect(one, 1);
          Expect(two, 2);
          Check.Equal("0,0", group.Info.StoredSize + "," + group.Info.StoreCapacity, "stores after waking");
        }
        Check.Equal(0L, group.Info.BufferCount, "buffers after their end");
      }
    }

    static void Tags(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 4096, "weights"), two = Member(group, device, 8192, "cache"))
      using (GrowableBuffer three = Member(group, device, 4096))
      {
        group.Sleep(new SleepOptions { Tag = "cache", Content = Content.Zero });
        Check.Equal("Awake,Asleep,Awake", States(one, two, three), "states");
        Check.Equal("1,8192", group.GetInfo("cache").AsleepCount + "," + group.GetInfo("cache").Size, "those with the tag");
        Check.Equal(0L, group.GetInfo("no such").BufferCount, "those with another tag");
        Check.Equal(3L, group.GetInfo(null).BufferCount, "all");
        group.Sleep();
        group.Wake(new WakeOptions { Tag = "weights" });
        Check.Equal("Awake,Asleep,Asleep", States(one, two, three), "states");
        group.Wake();
        group.Prepare(new PrepareOptions { Tag = "weights", Content = Content.Pageable });
        Check.That(one.Info.StoreCapacity >= 4096 && two.Info.StoreCapacity == 0, two.Info.ToString());
        Check.Fails(Status.InvalidArgument, () => group.GetInfo(new string('t', 64)));
        Check.Fails(Status.InvalidArgument, () => group.Sleep(new SleepOptions { Tag = "a\nb" }));
        Check.Throws<ArgumentException>(() => group.GetInfo("a\0b"));
      }
    }

    static void GroupWithoutMemory(Scope scope)
    {
      GpuDevice device = Small(scope);
      GpuInstance instance = device.Instance;
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 6 << 20), two = Member(group, device, 6 << 20))
      {
        instance.Fill(one, 1);
        instance.Fill(two, 2);
        group.Sleep(Content.Pageable);
        using (device.CreatePhysical(8 << 20))
        {
          Check.Fails(Status.OutOfDeviceMemory, () => group.Wake());
          Check.Equal("Asleep,Asleep", States(one, two), "states");
        }
        group.Wake();
        Expect(one, 1);
        Expect(two, 2);
      }
    }

    static void FailedBuffer(Scope scope)
    {
      GpuDevice device = Small(scope);
      GpuInstance instance = device.Instance;
      PhysicalMemory thief = null;
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 6 << 20), two = Member(group, device, 6 << 20))
      {
        instance.Fill(one, 1);
        instance.Fill(two, 2);
        // Once the first has given its memory back, it is taken away.
        var options = new SleepOptions
        {
          Content = Content.Pageable,
          Progress = (done, total) =>
          {
            if (done == 6 << 20) thief = device.CreatePhysical(9 << 20);
            return thief == null;
          },
        };
        string message = Check.Fails(Status.Cancelled, () => group.Sleep(options)).Message;
        Check.That(message.Contains("GrowableBuffer.Wake"), message);
        Check.Equal("Failed,Awake", States(one, two), "states");
        Check.Equal("1,1", group.Info.FailedCount + "," + group.Info.AwakeCount, "counts");
        Check.That(one.ToString().Contains("State = Failed"), one.ToString());
        thief.Dispose();
        group.Wake();
        Check.Equal("Awake,Awake", States(one, two), "states");
        Expect(one, 1);
        Expect(two, 2);
      }
    }

    static void ViewsOfGroup(Scope scope)
    {
      GpuDevice device = WithHostMemory(scope);
      using (BufferGroup group = device.Instance.CreateGroup())
      using (GrowableBuffer one = device.CreateBuffer(4000, new BufferOptions { Location = MemoryLocation.Host, Group = group, Tag = "a" }))
      using (GrowableBuffer two = device.CreateBuffer(4000, new BufferOptions { Location = MemoryLocation.Host, Group = group, Tag = "b" }))
      {
        BufferView<int> first = one.GetView<int>(), second = two.GetView<int>();
        first[0] = 7;
        second[0] = 8;
        // What changes nothing ends nothing.
        group.Wake();
        Check.Fails(Status.InvalidArgument, () => group.Sleep((Content)77));
        Check.Fails(Status.Cancelled, () => group.Sleep(new SleepOptions { Progress = (done, total) => false }));
        group.Prepare();
        one.SetAhead(0);
        one.SetCallbacks(null, null);
        one.NoteRegistration("card").Dispose();
        Check.That(first.IsCurrent && second.IsCurrent && first[0] == 7, "a view ended");
        int usable = 0;
        group.Sleep(new SleepOptions { Tag = "a", Progress = (done, total) => !first.IsCurrent && second[0] == 8 && ++usable > 0 });
        Check.That(!first.IsCurrent && second.IsCurrent, "the view of another tag ended");
        Check.Equal(2, usable, "uses of the view of another tag while the call ran");
        Check.Equal(8, second[0], "number");
        Check.Throws<InvalidOperationException>(() => GC.KeepAlive(first[0]));
        Check.Throws<InvalidOperationException>(() => one.GetView<int>());
        group.Wake();
        Check.That(!first.IsCurrent && second.IsCurrent, "the view of one that was awake ended");
        Check.Throws<InvalidOperationException>(() => first[0] = 1);
        Check.Equal(7, one.GetView<int>()[0], "number after waking");
        first = one.GetView<int>();
        // Not while a call runs either.
        int refused = 0;
        group.Sleep(new SleepOptions
        {
          Progress = (done, total) =>
          {
            if (!first.IsCurrent && !second.IsCurrent) ++refused;
            return true;
          },
        });
        Check.That(refused >= 2, refused + " refusals");
      }
    }

    static void ViewsInFunctions(Scope scope)
    {
      GpuDevice device = WithHostMemory(scope);
      using (BufferGroup group = device.Instance.CreateGroup())
      using (GrowableBuffer buffer = device.CreateBuffer(4000, new BufferOptions { Location = MemoryLocation.Host, Group = group }))
      using (GrowableBuffer other = device.CreateBuffer(4000, new BufferOptions { Location = MemoryLocation.Host }))
      {
        int refused = 0;
        Action refuses = () =>
        {
          string message = Check.Throws<InvalidOperationException>(() => buffer.GetView<int>()).Message;
          Check.That(message.Contains("a call is changing the buffer"), message);
          // That of a buffer which the call is not about can be used.
          other.GetView<int>()[0] = ++refused;
        };
        Func<ulong, ulong, bool> progress = (done, total) =>
        {
          refuses();
          return true;
        };
        buffer.SetCallbacks(one => progress(0, 0), (one, generation) => refuses());
        buffer.Sleep(new SleepOptions { Progress = progress });
        Check.That(refused >= 3, refused + " refusals of a sleep");
        refused = 0;
        buffer.Wake(new WakeOptions { Progress = progress });
        Check.That(refused >= 3, refused + " refusals of a waking");
        refused = 0;
        group.Sleep();
        group.Wake();
        Check.Equal(2, refused, "refusals of the group");
        buffer.GetView<int>()[999] = 5;
        Check.Equal(2, other.GetView<int>()[0], "number");
      }
    }

    // A view that outlived its memory would end the process.
    static void ViewsOfGroupAndThreads(Scope scope)
    {
      GpuDevice device = WithHostMemory(scope);
      GpuInstance instance = device.Instance;
      using (BufferGroup group = instance.CreateGroup())
      {
        var options = new BufferOptions { Location = MemoryLocation.Host, Group = group, Reserve = 1 << 22 };
        GrowableBuffer lasting = device.CreateBuffer(8192, options);
        long used = 0, made = 0;
        bool stop = false;
        var problems = new List<Exception>();
        Thread[] threads = Enumerable.Range(0, 2).Select(number => new Thread(() =>
        {
          while (!Volatile.Read(ref stop))
          {
            GrowableBuffer buffer = number == 0 ? lasting : null;
            try
            {
              if (buffer == null)
              {
                buffer = device.CreateBuffer(8192, options);
                Interlocked.Increment(ref made);
              }
              BufferView<byte> view = buffer.GetView<byte>();
              for (int i = 0; i < 8192; i += 64) view[i] = 1;
              Interlocked.Increment(ref used);
            }
            catch (InvalidOperationException)
            {
              // It sleeps, or the view ended.
            }
            catch (Exception problem)
            {
              lock (problems) problems.Add(problem);
              return;
            }
            finally
            {
              if (buffer != null && buffer != lasting) buffer.Dispose();
            }
          }
        })).ToArray();
        foreach (Thread thread in threads) thread.Start();
        for (int round = 0; round < 5000 && (round < 100 || Volatile.Read(ref used) < 50 || Volatile.Read(ref made) < 20); ++round)
        {
          group.Sleep(Content.Zero);
          group.Wake();
          if (round % 3 == 0) Thread.Sleep(1);
        }
        Volatile.Write(ref stop, true);
        foreach (Thread thread in threads) thread.Join();
        lasting.Dispose();
        Check.Equal("", string.Join("\n", problems), "problems");
        Check.That(used >= 50 && made >= 20, used + " uses, " + made + " buffers");
      }
    }

    static void DisposalOfGroup(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      BufferGroup group = instance.CreateGroup("first");
      GrowableBuffer buffer = Member(group, device, 4096, "tag");
      group.Dispose();
      group.Dispose();
      Check.That(group.IsDisposed && group.ToString().EndsWith("IsDisposed = True }"), group.ToString());
      Check.Throws<ObjectDisposedException>(() => group.Sleep());
      Check.Throws<ObjectDisposedException>(() => Member(group, device, 4096));
      // It lives while a buffer does, which works as before.
      Check.That(instance.Report().Contains("first"), instance.Report());
      instance.Fill(buffer, 3);
      buffer.Sleep();
      buffer.Wake();
      Expect(buffer, 3);
      buffer.Dispose();
      Check.Equal("nothing lives", instance.Report().TrimEnd(), "report");
      // Work in a stream keeps a buffer, and so its group.
      group = instance.CreateGroup();
      buffer = Member(group, device, 4096);
      using (GpuStream stream = device.CreateStream())
      {
        using (new Behaviour.Gate(stream))
        {
          stream.Fill(buffer, 1);
          buffer.Dispose();
          group.Dispose();
          Check.That(instance.Report().Contains("group"), instance.Report());
        }
      }
      Check.Equal("nothing lives", instance.Report().TrimEnd(), "report after the work");
      // Nothing is left of an instance that was closed by force.
      GpuInstance other = scope.Open();
      group = other.CreateGroup();
      buffer = Member(group, other.GetDevice(0), 4096);
      BufferRegistration registration = buffer.NoteRegistration("card");
      buffer.SetCallbacks(one => true, null);
      Check.Fails(Status.Busy, () => other.Close(CloseMode.Check));
      other.Close(CloseMode.Force);
      long failures = GpuMemDiagnostics.ReleaseFailures;
      group.Dispose();
      registration.Dispose();
      buffer.Dispose();
      Check.Equal(0, GpuMemDiagnostics.WaitingObjects, "waiting objects");
      Check.Equal(failures, GpuMemDiagnostics.ReleaseFailures, "failures to free");
    }

    static void Forgotten(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long before = Check.FinalizedObjects(), failures = GpuMemDiagnostics.ReleaseFailures;
      int known = KnownFunctions();
      Check.Elsewhere(() => { for (int i = 0; i < 4; ++i) Forget(instance, device); });
      Check.Eventually(() => GpuMemDiagnostics.FinalizedObjects - before == 12, "the finalizers");
      Check.Equal(failures, GpuMemDiagnostics.ReleaseFailures, "failures to free");
      Check.Equal("nothing lives", instance.Report().TrimEnd(), "report");
      Check.Equal(known, KnownFunctions(), "functions that are kept");
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Forget(GpuInstance instance, GpuDevice device)
    {
      BufferGroup group = instance.CreateGroup();
      GrowableBuffer one = Member(group, device, 4096), two = Member(group, device, 4096);
      // The function refers to its buffer, and to the other one.
      one.SetCallbacks(buffer => one.Size == two.Size, (buffer, generation) => GC.KeepAlive(group));
      group.Sleep(Content.Zero);
      two.Wake();
    }

    static int KnownFunctions()
    {
      Type functions = typeof(GpuInstance).Assembly.GetType("GpuMem.BufferCallbacks");
      return ((ICollection)functions.BaseType.GetField("known", BindingFlags.Static | BindingFlags.NonPublic).GetValue(null)).Count;
    }

    static void GroupRefuses(Scope scope)
    {
      GpuInstance instance = scope.Open(), foreign = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      Check.Fails(Status.InvalidArgument, () => instance.CreateGroup(new string('g', 64)));
      Check.Fails(Status.InvalidArgument, () => device.CreateBuffer(1, new BufferOptions { Tag = "tag" }));
      using (BufferGroup group = instance.CreateGroup(), other = foreign.CreateGroup())
      {
        Check.Fails(Status.InvalidArgument, () => Member(other, device, 1));
        Check.Fails(Status.InvalidArgument, () => Member(group, device, 1, new string('t', 64)));
        Check.Equal("0,0", group.Info.BufferCount + "," + other.Info.BufferCount, "buffers");
        using (GrowableBuffer buffer = Member(group, device, 1))
        {
          Check.Fails(Status.InvalidArgument, () => group.Wake(new WakeOptions { Tag = "a\tb" }));
          Check.Throws<ArgumentOutOfRangeException>(() => group.Wake(new WakeOptions { Keep = -1 }));
          Check.Throws<ArgumentOutOfRangeException>(() => group.Prepare(new PrepareOptions { BytesPerSecond = -1 }));
          buffer.NoteRegistration("card");
          string message = Check.Fails(Status.Busy, () => group.Sleep()).Message;
          Check.That(message.Contains("card"), message);
          Check.Equal(BufferState.Awake, buffer.State, "state");
        }
      }
    }

    static void ProgressOfCalls(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 1000), two = Member(group, device, 2000))
      {
        int thread = Thread.CurrentThread.ManagedThreadId;
        var heard = new List<string>();
        Func<ulong, ulong, bool> progress = (done, total) =>
        {
          heard.Add(done + "/" + total);
          if (Thread.CurrentThread.ManagedThreadId != thread) heard.Add("another thread");
          return true;
        };
        group.Sleep(new SleepOptions { Progress = progress });
        Check.Equal("0/3000,1000/3000,3000/3000", string.Join(",", heard), "sleep");
        heard.Clear();
        one.Wake(new WakeOptions { Progress = progress });
        Check.Equal("0/1000,1000/1000", string.Join(",", heard), "wake of one");
        heard.Clear();
        group.Wake(new WakeOptions { Progress = progress });
        Check.Equal("0/2000,2000/2000", string.Join(",", heard), "wake");
        heard.Clear();
        one.Sleep(new SleepOptions { Progress = progress, Content = Content.Drop });
        Check.Equal("0/1000,1000/1000", string.Join(",", heard), "sleep without content");
      }
    }

    static void ProgressEnds(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 1000), two = Member(group, device, 2000))
      {
        instance.Fill(one, 1);
        instance.Fill(two, 2);
        foreach (ulong end in new ulong[] { 0, 1000 })
        {
          var options = new SleepOptions { Progress = (done, total) => done < end };
          string message = Check.Fails(Status.Cancelled, () => group.Sleep(options)).Message;
          Check.That(message.Contains(end + " of 3000"), message);
          Check.Equal("Awake,Awake", States(one, two), "states");
          Expect(one, 1);
          Expect(two, 2);
        }
        // Once all is done, the value means nothing.
        group.Sleep(new SleepOptions { Progress = (done, total) => done < total });
        Check.Equal("Asleep,Asleep", States(one, two), "states");
        foreach (ulong end in new ulong[] { 0, 1000 })
        {
          Check.Fails(Status.Cancelled, () => group.Wake(new WakeOptions { Progress = (done, total) => done < end }));
          Check.Equal("Asleep,Asleep", States(one, two), "states");
        }
        Check.Fails(Status.Cancelled, () => one.Wake(new WakeOptions { Progress = (done, total) => false }));
        group.Wake();
        Expect(one, 1);
        Expect(two, 2);
        Check.Fails(Status.Cancelled, () => two.Sleep(new SleepOptions { Progress = (done, total) => false }));
        Expect(two, 2);
      }
    }

    static void ProgressThrows(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 1000), two = Member(group, device, 2000))
      {
        instance.Fill(one, 1);
        instance.Fill(two, 2);
        long failures = GpuMemDiagnostics.CallbackFailures;
        int calls = 0;
        Func<ulong, ulong, bool> throws = (done, total) =>
        {
          ++calls;
          if (done >= 1000) throw new FormatException("thrown by the test");
          return true;
        };
        var problem = Check.Throws<FormatException>(() => group.Sleep(new SleepOptions { Progress = throws }));
        Check.Equal("thrown by the test", problem.Message, "message");
        Check.Equal("Awake,Awake", States(one, two), "states");
        Check.Equal(2, calls, "calls");
        Expect(one, 1);
        group.Sleep();
        Check.Throws<FormatException>(() => two.Wake(new WakeOptions { Progress = (done, total) => { throw new FormatException(); } }));
        Check.Equal("Asleep,Asleep", States(one, two), "states");
        // At the end it is too late to undo anything, but the exception comes out.
        Check.Throws<FormatException>(() => one.Wake(new WakeOptions { Progress = throws }));
        Check.Equal("Awake,Asleep", States(one, two), "states");
        Check.Equal(failures + 3, GpuMemDiagnostics.CallbackFailures, "failures");
        // An exception that looks like a failure of the library is not taken for one.
        Check.Fails(Status.OutOfDeviceMemory, () => two.Wake(new WakeOptions
        {
          Progress = (done, total) => { throw new GpuMemException(Status.OutOfDeviceMemory, "thrown by the test"); },
        }));
        group.Wake();
        Expect(two, 2);
      }
    }

    static void NobodyElse(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GrowableBuffer buffer = device.CreateBuffer(1 << 20))
      {
        device.Instance.Fill(buffer, 1);
        int calls = 0;
        Exception failure = null;
        Func<ulong, ulong, bool> refused = (done, total) =>
        {
          ++calls;
          var other = new Thread(() =>
          {
            try
            {
              foreach (Action use in new Action[]
              {
                () => buffer.CopyTo(0, new byte[8]), () => buffer.CopyFrom(0, new byte[8]), () => device.Instance.Fill(buffer, 2),
              })
              {
                string message = Check.Fails(Status.InvalidState, use).Message;
                Check.That(message.Contains("in a buffer that is asleep"), message);
              }
            }
            catch (Exception caught)
            {
              failure = caught;
            }
          });
          other.Start();
          other.Join();
          return failure == null;
        };
        buffer.Sleep(new SleepOptions { Progress = refused });
        refused(0, 0);
        buffer.Wake(new WakeOptions { Progress = refused });
        if (failure != null) throw failure;
        Check.That(calls >= 5, "calls: " + calls);
        Expect(buffer, 1);
      }
    }

    static void Token(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 1000), two = Member(group, device, 2000))
      {
        instance.Fill(one, 1);
        instance.Fill(two, 2);
        var source = new CancellationTokenSource();
        group.Sleep(new SleepOptions { Cancellation = source.Token });
        // A function that cancels the token while it runs.
        var options = new WakeOptions
        {
          Cancellation = source.Token,
          Progress = (done, total) =>
          {
            if (done == 0) source.Cancel();
            return true;
          },
        };
        var problem = Check.Throws<OperationCanceledException>(() => group.Wake(options));
        Check.Equal(source.Token, problem.CancellationToken, "token");
        var failure = problem.InnerException as GpuMemException;
        Check.That(failure != null && failure.Status == Status.Cancelled, problem.ToString());
        Check.Equal("Asleep,Asleep", States(one, two), "states");
        // One that is cancelled already prevents the call.
        int calls = 0;
        Check.Throws<OperationCanceledException>(() => one.Wake(new WakeOptions
        {
          Cancellation = source.Token, Progress = (done, total) => ++calls > 0,
        }));
        Check.Equal(0, calls, "calls");
        group.Wake();
        Expect(one, 1);
        Expect(two, 2);
        // Of two calls of the function only the first can end the call.
        foreach (bool early in new[] { true, false })
        {
          var late = new CancellationTokenSource();
          var told = new List<ulong>();
          var sleep = new SleepOptions
          {
            Cancellation = late.Token,
            Progress = (done, total) =>
            {
              told.Add(done);
              if (early || done == total) late.Cancel();
              return true;
            },
          };
          if (early)
          {
            Check.Throws<OperationCanceledException>(() => one.Sleep(sleep));
            Check.Equal("0", string.Join(",", told), "told");
            Check.Equal(BufferState.Awake, one.State, "state");
          }
          else
          {
            one.Sleep(sleep);
            Check.Equal("0," + one.Info.Size, string.Join(",", told), "told");
            one.Wake();
          }
        }
        // Without a token it is the status.
        Check.Fails(Status.Cancelled, () => group.Sleep(new SleepOptions { Progress = (done, total) => false }));
      }
    }

    // Either the call is undone, or the function is told of its end.
    static void TokenAtAnyTime(Scope scope)
    {
      const ulong Size = 4 << 20;
      GpuDevice device = scope.Open().GetDevice(0);
      using (GrowableBuffer buffer = device.CreateBuffer((long)Size))
      {
        for (int round = 0; round < 30; ++round)
        {
          ulong last = 0;
          bool slept = false;
          var source = new CancellationTokenSource();
          using (var begun = new ManualResetEventSlim())
          {
            var other = new Thread(() =>
            {
              begun.Wait();
              source.Cancel();
            });
            other.Start();
            try
            {
              buffer.Sleep(new SleepOptions
              {
                Cancellation = source.Token,
                Progress = (done, total) =>
                {
                  last = done;
                  begun.Set();
                  return true;
                },
              });
              slept = true;
            }
            catch (OperationCanceledException)
            {
            }
            finally
            {
              begun.Set();
              other.Join();
            }
          }
          Check.Equal(slept ? Size : 0, last, "what was told last");
          Check.Equal(slept ? BufferState.Asleep : BufferState.Awake, buffer.State, "state");
          if (slept) buffer.Wake();
        }
      }
    }

    static void Functions(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 1000), two = Member(group, device, 2000))
      {
        var heard = new List<string>();
        int thread = Thread.CurrentThread.ManagedThreadId;
        Action<string, GrowableBuffer> hear = (text, buffer) =>
        {
          heard.Add(text + (ReferenceEquals(buffer, one) ? 1 : ReferenceEquals(buffer, two) ? 2 : 0));
          if (Thread.CurrentThread.ManagedThreadId != thread) heard.Add("another thread");
        };
        foreach (GrowableBuffer each in new[] { one, two })
        {
          each.SetCallbacks(
              buffer =>
              {
                hear("sleep ", buffer);
                return true;
              },
              (buffer, generation) =>
              {
                hear("wake to " + generation + " ", buffer);
                if (buffer.Info.Generation != generation || buffer.State != BufferState.Awake) heard.Add("not awake");
              });
        }
        Check.Collect();
        group.Sleep();
        Check.Equal("sleep 1,sleep 2", string.Join(",", heard), "group sleeps");
        heard.Clear();
        two.Wake();
        group.Wake();
        Check.Equal("wake to 1 2,wake to 1 1", string.Join(",", heard), "they wake");
        heard.Clear();
        // A sleep that did not happen.
        Check.Fails(Status.Cancelled, () => two.Sleep(new SleepOptions { Progress = (done, total) => false }));
        Check.Equal("sleep 2,wake to 1 2", string.Join(",", heard), "a sleep that did not happen");
        heard.Clear();
        one.SetCallbacks(null, (buffer, generation) => hear("wake ", buffer));
        two.SetCallbacks(null, null);
        group.Sleep(Content.Drop);
        group.Wake();
        Check.Equal("wake 1", string.Join(",", heard), "one of the functions");
      }
    }

    static void FunctionRefuses(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 1000), two = Member(group, device, 2000))
      {
        var heard = new List<string>();
        one.SetCallbacks(
            buffer =>
            {
              heard.Add("one sleeps");
              return true;
            },
            (buffer, generation) => heard.Add("one wakes to " + generation));
        two.SetCallbacks(buffer => false, (buffer, generation) => heard.Add("two wakes to " + generation));
        Check.Fails(Status.Busy, () => group.Sleep());
        Check.Equal("Awake,Awake", States(one, two), "states");
        Check.That(heard.Contains("one sleeps") && heard.Contains("one wakes to 0"), string.Join(",", heard));
        Check.Fails(Status.Busy, () => two.Sleep());
        one.Sleep();
        Check.Equal("Asleep,Awake", States(one, two), "states");
      }
    }

    static void FunctionsThrow(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 1000), two = Member(group, device, 2000))
      {
        long failures = GpuMemDiagnostics.CallbackFailures;
        instance.Fill(two, 2);
        two.SetCallbacks(buffer => { throw new FormatException("before"); }, null);
        Check.Equal("before", Check.Throws<FormatException>(() => group.Sleep()).Message, "message");
        Check.Equal("Awake,Awake", States(one, two), "states");
        // Of several the first comes out, and all are counted.
        one.SetCallbacks(null, (buffer, generation) => { throw new FormatException("after " + generation); });
        two.SetCallbacks(null, (buffer, generation) => { throw new TimeoutException(); });
        group.Sleep();
        Check.Equal("after 1", Check.Throws<FormatException>(() => group.Wake()).Message, "message");
        Check.Equal("Awake,Awake", States(one, two), "states");
        Check.Equal(failures + 3, GpuMemDiagnostics.CallbackFailures, "failures");
        Expect(two, 2);
        // The reason why a sleep did not happen is worth more than what was thrown after it.
        Check.Fails(Status.Cancelled, () => one.Sleep(new SleepOptions { Progress = (done, total) => false }));
      }
    }

    static void InFunctions(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 1000), other = device.CreateBuffer(2000))
      {
        var heard = new List<string>();
        one.SetCallbacks(
            buffer =>
            {
              heard.Add(buffer.Info.Size + " " + buffer.State + " " + group.Info.BufferCount);
              foreach (Action change in new Action[]
              {
                () => buffer.Resize(2000), () => buffer.Sleep(), () => buffer.SetCapacity(0), () => buffer.SetCallbacks(null, null),
                () => buffer.SetAhead(1), () => buffer.Prepare(),
              })
              {
                Check.Fails(Status.InvalidState, change);
              }
              // Another buffer is no part of this, nor is what its own functions do.
              Check.Fails(Status.Cancelled, () => other.Sleep(new SleepOptions { Progress = (done, total) => false }));
              var throws = new SleepOptions { Progress = (done, total) => { throw new FormatException(); } };
              Check.Throws<FormatException>(() => other.Sleep(throws));
              other.Sleep();
              buffer.NoteRegistration("card");
              return true;
            },
            (buffer, generation) =>
            {
              heard.Add(buffer.Info.Registrations + " at " + generation);
              Check.Fails(Status.InvalidState, () => buffer.Wake());
            });
        // The failure is that of the sleep, not of a call that a function made.
        string message = Check.Fails(Status.Busy, () => group.Sleep()).Message;
        Check.That(message.Contains("card"), message);
        Check.Equal("1000 Awake 1,1 at 0", string.Join(",", heard), "what the functions saw");
        Check.Equal("Awake,Asleep", States(one, other), "states");
        // Nor is its progress.
        var inner = new List<ulong>();
        var outer = new List<ulong>();
        using (GrowableBuffer two = Member(group, device, 3000))
        {
          two.SetCallbacks(
              buffer =>
              {
                other.Wake(new WakeOptions { Progress = (done, total) => AddTo(inner, done) });
                return true;
              },
              null);
          two.Sleep(new SleepOptions { Progress = (done, total) => AddTo(outer, done) });
        }
        Check.Equal("0,2000 0,3000", string.Join(",", inner) + " " + string.Join(",", outer), "progress");
      }
    }

    static bool AddTo(List<ulong> list, ulong number)
    {
      list.Add(number);
      return true;
    }

    static void FunctionsReplaced(Scope scope)
    {
      GpuDevice device = scope.Device();
      int known = KnownFunctions(), first = 0, second = 0;
      using (GrowableBuffer buffer = device.CreateBuffer(64))
      {
        for (int i = 0; i < 10; ++i) buffer.SetCallbacks(one => ++first > 0, null);
        Check.Equal(known + 1, KnownFunctions(), "functions that are kept");
        Check.Collect();
        buffer.Sleep();
        buffer.Wake();
        buffer.SetCallbacks(one => ++second > 0, null);
        buffer.Sleep();
        Check.Equal("1,1", first + "," + second, "calls");
        // From several threads at once: those of one call stay.
        buffer.Wake();
        var calls = new int[8];
        Thread[] threads = Enumerable.Range(0, calls.Length).Select(number => new Thread(() =>
        {
          for (int i = 0; i < 20; ++i) buffer.SetCallbacks(one => ++calls[number] > 0, null);
        })).ToArray();
        foreach (Thread thread in threads) thread.Start();
        foreach (Thread thread in threads) thread.Join();
        buffer.Sleep();
        Check.Equal(1, calls.Sum(), "calls after a race");
      }
      Check.Equal(known, KnownFunctions(), "functions after dispose");
    }

    static void Registrations(Scope scope)
    {
      GpuDevice device = scope.Device();
      GrowableBuffer buffer = device.CreateBuffer(64), other = device.CreateBuffer(64);
      BufferRegistration card = buffer.NoteRegistration("network card"), peer = buffer.NoteRegistration("peer");
      Check.Equal("BufferRegistration { Name = \"network card\" }", card.ToString(), "text");
      Check.Equal(2L, buffer.Info.Registrations, "registrations");
      string message = Check.Fails(Status.Busy, () => buffer.Sleep()).Message;
      Check.That(message.Contains("network card") && message.Contains("peer"), message);
      Check.Throws<ArgumentException>(() => other.ForgetRegistration(card));
      Check.Throws<ArgumentNullException>(() => buffer.ForgetRegistration(null));
      Check.Throws<ArgumentNullException>(() => buffer.NoteRegistration(null));
      foreach (string name in new[] { "", new string('n', 64), "a\nb" })
      {
        Check.Fails(Status.InvalidArgument, () => buffer.NoteRegistration(name));
      }
      Check.Equal(2L, buffer.Info.Registrations, "registrations after the refusals");
      buffer.ForgetRegistration(card);
      Check.That(card.IsDisposed && card.ToString().EndsWith("IsDisposed = True }"), card.ToString());
      card.Dispose();
      Check.Fails(Status.NotFound, () => buffer.ForgetRegistration(card));
      Check.Fails(Status.Busy, () => buffer.Sleep());
      peer.Dispose();
      peer.Dispose();
      buffer.Sleep();
      Check.Fails(Status.InvalidState, () => buffer.NoteRegistration("card"));
      buffer.Wake();
      // One that the program forgets stays: only the program knows when the memory is no longer used.
      Check.Elsewhere(() => buffer.NoteRegistration("forgotten"));
      Check.Collect();
      Check.Fails(Status.Busy, () => buffer.Sleep());
      card = buffer.NoteRegistration("outlives its buffer");
      buffer.Dispose();
      card.Dispose();
      Check.Throws<ObjectDisposedException>(() => buffer.ForgetRegistration(card));
      other.Dispose();
    }

    static string TemporaryFolder()
    {
      string folder = Path.Combine(Path.GetTempPath(), "gpumem-" + Guid.NewGuid().ToString("N"));
      Directory.CreateDirectory(folder);
      return folder;
    }

    static void InFile(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      string folder = TemporaryFolder();
      try
      {
        var options = new SleepOptions { Content = Content.File, Directory = folder };
        using (BufferGroup group = instance.CreateGroup())
        using (GrowableBuffer one = Member(group, device, 100000), two = Member(group, device, 200000))
        {
          instance.Fill(one, 1);
          instance.Fill(two, 2);
          group.Sleep(options);
          Check.Equal(0L, instance.GetStats(MemoryKind.Pinned).LiveBytes, "pinned");
          Check.Equal(300000L, group.Info.StoredSize, "stored");
          // The file has no name.
          Check.Equal(0, Directory.GetFileSystemEntries(folder).Length, "files");
          group.Wake();
          Expect(one, 1);
          Expect(two, 2);
          options.Directory = Path.Combine(folder, "no such");
          Check.Fails(Status.NotFound, () => one.Sleep(options));
          options.Directory = null;
          Check.Fails(Status.InvalidArgument, () => one.Sleep(options));
          Check.Fails(Status.InvalidArgument, () => one.Sleep(new SleepOptions { Directory = folder }));
          Check.Fails(Status.InvalidArgument, () => one.Sleep(Content.File));
          options.Directory = Path.Combine(folder, "file");
          File.WriteAllText(options.Directory, "");
          Check.Fails(Status.InvalidArgument, () => one.Sleep(options));
          Expect(one, 1);
        }
      }
      finally
      {
        Directory.Delete(folder, true);
      }
    }

    static void ContentLost(Scope scope)
    {
      GpuDevice device = scope.Device();
      string folder = TemporaryFolder();
      try
      {
        using (GrowableBuffer buffer = device.CreateBuffer(100000))
        {
          buffer.Sleep(new SleepOptions { Content = Content.File, Directory = folder });
          string file = Directory.GetFileSystemEntries("/proc/self/fd").First(
              link => Libc.ReadLink(link).StartsWith(folder + "/", StringComparison.Ordinal));
          Check.Equal(0, Libc.truncate(file, (IntPtr)5000), "truncate");
          Check.Fails(Status.ContentLost, () => buffer.Wake());
          Check.That(buffer.State != BufferState.Awake, "it is awake");
        }
      }
      finally
      {
        Directory.Delete(folder, true);
      }
    }

    static void Stores(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (BufferGroup group = instance.CreateGroup())
      using (GrowableBuffer one = Member(group, device, 1 << 20), two = Member(group, device, 2 << 20))
      {
        one.Prepare();
        Check.That(one.Info.StoreCapacity >= 1 << 20 && one.Info.StoredSize == 0, one.Info.ToString());
        Check.Equal(one.Info.StoreCapacity, instance.GetStats(MemoryKind.Pinned).LiveBytes, "pinned");
        one.Prepare(new PrepareOptions { Content = Content.Pageable });
        Check.Equal(0L, instance.GetStats(MemoryKind.Pinned).LiveBytes, "pinned after another content");
        Check.That(one.Info.StoreCapacity >= 1 << 20, one.Info.ToString());
        one.Prepare(new PrepareOptions { Content = Content.Drop });
        Check.Equal(0L, one.Info.StoreCapacity, "store for nothing");
        // At a pace the call returns at once.
        group.Prepare(new PrepareOptions { BytesPerSecond = 1L << 40 });
        Check.Eventually(() => group.Info.StoreCapacity >= 3 << 20, "the stores");
        instance.Fill(two, 2);
        group.Sleep();
        group.Wake(new WakeOptions { Keep = long.MaxValue });
        Check.That(group.Info.StoreCapacity >= 3 << 20 && group.Info.StoredSize == 0, group.Info.ToString());
        two.Sleep();
        two.Wake();
        Check.Equal(0L, two.Info.StoreCapacity, "store after waking");
        Expect(two, 2);
        one.Sleep(Content.Drop);
        Check.Equal(0L, one.Info.StoreCapacity, "store of what is not kept");
        Check.Fails(Status.InvalidState, () => one.Prepare());
        group.Prepare();
      }
      Check.Equal(0L, instance.GetStats(MemoryKind.Pinned).LiveBytes, "pinned after dispose");
    }

    static void WaitsForWork(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GrowableBuffer buffer = device.CreateBuffer(4096))
      using (GpuStream stream = device.CreateStream(), idle = device.CreateStream())
      using (GpuEvent done = device.CreateEvent())
      {
        foreach (SleepOptions options in new[]
        {
          default(SleepOptions), new SleepOptions { Stream = stream }, new SleepOptions { Event = done },
          new SleepOptions { Stream = idle, Event = done },
        })
        {
          using (var gate = new Behaviour.Gate(stream))
          {
            stream.Fill(buffer, 5);
            done.Record(stream);
            bool opened = false;
            var opener = new Thread(() =>
            {
              Thread.Sleep(20);
              Volatile.Write(ref opened, true);
              gate.Open();
            });
            opener.Start();
            buffer.Sleep(options);
            Check.That(Volatile.Read(ref opened), "it did not wait with " + options);
            opener.Join();
          }
          buffer.Wake();
          Expect(buffer, 5);
          instance.Fill(buffer, 0);
        }
        buffer.Sleep(new SleepOptions { Flags = SleepFlags.Idle });
      }
    }

    static void BadOptions(Scope scope)
    {
      GpuInstance instance = scope.Open(), foreign = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GrowableBuffer buffer = device.CreateBuffer(4096))
      using (GpuStream stream = device.CreateStream(), strange = foreign.GetDevice(0).CreateStream())
      using (GpuEvent never = device.CreateEvent(), strangeEvent = foreign.GetDevice(0).CreateEvent())
      {
        foreach (SleepOptions options in new[]
        {
          new SleepOptions { Tag = "tag" }, new SleepOptions { Flags = (SleepFlags)(1UL << 40) }, new SleepOptions { Stream = strange },
          new SleepOptions { Event = strangeEvent }, new SleepOptions { Flags = SleepFlags.Idle, Stream = stream },
          new SleepOptions { Content = (Content)(-1) },
        })
        {
          Check.Fails(Status.InvalidArgument, () => buffer.Sleep(options));
        }
        Check.Fails(Status.InvalidState, () => buffer.Sleep(new SleepOptions { Event = never }));
        Check.Fails(Status.InvalidArgument, () => buffer.Prepare(new PrepareOptions { Tag = "tag" }));
        Check.Fails(Status.InvalidArgument, () => buffer.Prepare(new PrepareOptions { Content = (Content)9 }));
        Check.Fails(Status.InvalidArgument, () => buffer.Prepare(new PrepareOptions { Content = Content.File }));
        Check.Throws<ArgumentOutOfRangeException>(() => buffer.Prepare(new PrepareOptions { BytesPerSecond = -1 }));
        Check.Throws<ArgumentException>(() => buffer.Sleep(new SleepOptions { Directory = "a\0b" }));
        Check.Equal(BufferState.Awake, buffer.State, "state");
        buffer.Sleep();
        Check.Fails(Status.InvalidArgument, () => buffer.Wake(new WakeOptions { Tag = "tag" }));
        Check.Throws<ArgumentOutOfRangeException>(() => buffer.Wake(new WakeOptions { Keep = -1 }));
        Check.Equal(BufferState.Asleep, buffer.State, "state");
        buffer.Wake();
        GpuStream gone = device.CreateStream();
        gone.Dispose();
        Check.Throws<ObjectDisposedException>(() => buffer.Sleep(new SleepOptions { Stream = gone }));
      }
    }

    static void FailingSteps(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      int failures = 0, before = -1;
      for (long step = 1; failures != before; ++step)
      {
        before = failures;
        using (BufferGroup group = instance.CreateGroup())
        using (GrowableBuffer one = Member(group, device, 5000), two = Member(group, device, 6000))
        {
          one.CopyFrom(0, new[] { 77 });
          two.CopyFrom(0, new[] { 88 });
          HostSimulation.FailStep(instance, step);
          foreach (Action change in new Action[] { () => group.Prepare(), () => group.Sleep(), () => group.Wake() })
          {
            string states = States(one, two);
            try
            {
              change();
            }
            catch (GpuMemException problem)
            {
              ++failures;
              Check.That(problem.Message.Length != 0, "no message");
              Check.Equal(states, States(one, two), "states after the failure of step " + step);
              change();
            }
          }
          HostSimulation.FailStep(instance, 0);
          var found = new int[2];
          one.CopyTo(0, found);
          Check.Equal(77, found[0], "number of the first");
          two.CopyTo(0, found);
          Check.Equal(88, found[0], "number of the second");
        }
        GpuMemDiagnostics.ReleaseWaiting();
        Check.Equal("nothing lives", instance.Report().TrimEnd(), "report after step " + step);
      }
      Check.That(failures >= 5, "only " + failures + " steps failed");
    }

    static void Ahead(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long unit, best;
      device.GetGranularity(out unit, out best);
      using (GrowableBuffer buffer = device.CreateBuffer(unit, new BufferOptions { Reserve = 64 * unit }))
      {
        Check.Equal(0L, buffer.Info.Ahead, "ahead at creation");
        buffer.SetAhead(4 * unit);
        Check.Equal(4 * unit, buffer.Info.Ahead, "ahead");
        Check.Eventually(() => buffer.Capacity >= 5 * unit, "memory ahead");
        Check.Equal(unit, buffer.Size, "size");
        long blocks = buffer.Info.BlockCount;
        buffer.Resize(3 * unit + unit / 2);
        Check.Eventually(() => buffer.Capacity >= 7 * unit, "more memory ahead");
        Check.That(buffer.Info.BlockCount > blocks, buffer.Info.ToString());
        instance.Fill(buffer, 6);
        buffer.SetAhead(0);
        // Whole blocks behind the size go.
        long capacity = buffer.Capacity;
        buffer.Trim();
        Check.That(buffer.Capacity >= buffer.Size && buffer.Capacity < capacity, buffer.Info.ToString());
        Expect(buffer, 6);
        Check.Throws<ArgumentOutOfRangeException>(() => buffer.SetAhead(-1));
        Check.Equal(0L, buffer.Info.Ahead, "ahead after the end");
      }
    }

    static void Copyable(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GrowableBuffer buffer = device.CreateBuffer(4096, new BufferOptions { Flags = BufferFlags.Copyable }))
      {
        instance.Fill(buffer, 4);
        GpuRange old = buffer.Slice(0, 64);
        IntPtr before = buffer.Pointer;
        buffer.Resize(1 << 20);
        Check.Equal(1L << 20, buffer.Size, "size");
        if (buffer.Pointer != before) Check.Throws<InvalidOperationException>(() => instance.Fill(old, 1));
        var found = new byte[4096];
        buffer.CopyTo(0, found);
        Check.That(found.All(one => one == 4), "content after growth");
        buffer.Sleep();
        buffer.Wake();
        buffer.CopyTo(0, found);
        Check.That(found.All(one => one == 4), "content after sleep");
        if (device.GetCapability(Capability.VmmDevice).IsAvailable) buffer.SetAhead(1);
        else Check.Fails(Status.Unsupported, () => buffer.SetAhead(1));
      }
    }
  }
}
