// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests memory and events of several processes. A test starts this program again as its partner; the two write lines to
// each other.

using System;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Net;
using System.Net.Sockets;
using System.Reflection;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace GpuMem.Tests
{
  static partial class Sharing
  {
    const int Count = 1 << 19;

    internal static void Run()
    {
      Tap.Run("sharing: handles are bytes", HandleBytes);
      Tap.Run("sharing: the example of the guide", Guide);
      Tap.Run("sharing: a name that is followed, as in the guide", GuideFollows);
      Tap.Run("sharing: a program that begins again, as in the guide", GuideRestarts);
      Tap.Run("sharing: an event that is recorded here, as in the guide", GuideRecords);
      Tap.Run("sharing: memory by a handle", ByHandle);
      Tap.Run("sharing: memory that was sent with its descriptors", ByDescriptors);
      Tap.Run("sharing: with descriptors that came another way", ByOwnDescriptors);
      Tap.Run("sharing: blocks of pools", BlocksOfPools);
      Tap.Run("sharing: what an exporter leaves", ExporterEnds);
      Tap.Run("sharing: events", Events);
      Tap.Run("sharing: imports are kept", Kept);
      Tap.Run("sharing: ways are what an export does", Ways);
      Tap.Run("sharing: a dma-buf is a descriptor", DmaBuf);
      Tap.Run("sharing: sockets that are none", NoSockets);
      Tap.Run("sharing: a socket that was disposed gets nothing", DisposedSocket);
      RunRings();
      Tap.Run("hubs: memory has a name", Names);
      Tap.Run("hubs: versions that are replaced are passed over", Replaced);
      Tap.Run("hubs: a waiting thread is woken when its link is disposed", WokenByDispose);
      Tap.Run("hubs: a keeper holds what others leave", Keeper);
    }

    /// <summary>An abstract address that no other process uses.</summary>
    internal static string Address(string name) { return "@gpumem-" + name + "-" + Process.GetCurrentProcess().Id; }

    /// <summary>The other process of a test.</summary>
    sealed class Other : IDisposable
    {
      static readonly TimeSpan patience = TimeSpan.FromSeconds(60);

      readonly Process process;
      readonly StringBuilder errors = new StringBuilder();

      internal Other(string role, string argument = "")
      {
        string runtime = Process.GetCurrentProcess().MainModule.FileName;
        string program = Assembly.GetEntryAssembly().Location;
        process = Process.Start(new ProcessStartInfo(runtime, "\"" + program + "\" child partner " + role + " " + argument)
        {
          UseShellExecute = false, RedirectStandardInput = true, RedirectStandardOutput = true, RedirectStandardError = true,
        });
        process.ErrorDataReceived += (sender, line) => { lock (errors) errors.AppendLine(line.Data); };
        process.BeginErrorReadLine();
      }

      internal void Say(string line)
      {
        process.StandardInput.WriteLine(line);
        process.StandardInput.Flush();
      }

      internal string Hear()
      {
        Task<string> line = process.StandardOutput.ReadLineAsync();
        if (line.Wait(patience) && line.Result != null) return line.Result;
        process.WaitForExit(1000);
        lock (errors) throw new TestFailure("the other process did not do the next step: " + errors);
      }

      internal void Expect(string line) { Check.Equal(line, Hear(), "line of the other process"); }

      internal ShareHandle HearHandle() { return new ShareHandle(Convert.FromBase64String(Hear())); }

      internal void Kill()
      {
        process.Kill();
        process.WaitForExit();
      }

      /// <summary>Waits for a good end.</summary>
      internal void End()
      {
        process.StandardInput.Close();
        Check.That(process.WaitForExit((int)patience.TotalMilliseconds), "the other process does not end");
        process.WaitForExit();
        lock (errors) Check.That(process.ExitCode == 0, "exit status " + process.ExitCode + ": " + errors);
      }

      public void Dispose()
      {
        if (!process.HasExited) Kill();
        process.Dispose();
      }
    }

    /// <summary>The partner of a test.</summary>
    internal static int Partner(string role, string argument)
    {
      using (GpuInstance instance = GpuInstance.Open(Scope.Backend))
      {
        switch (role)
        {
          case "guide": return ImportOfGuide(instance, argument);
          case "guide-follow":
            Follow(instance, argument);
            return 0;
          case "guide-run":
            Run(instance, argument);
            return 0;
          case "guide-wait": return WaitOfGuide(instance);
          case "handle": return ImportByHandle(instance);
          case "descriptors": return ImportByDescriptors(instance, argument);
          case "own-descriptors": return ImportWithOwn(instance, argument);
          case "exporter": return ExportAndWait(instance);
          case "event": return ImportEvent(instance);
          case "cache": return ImportAndKeep(instance);
          case "names": return FollowName(instance, argument);
          case "keeper": return PublishAndWait(instance, argument);
          default: return PartnerOfRing(instance, role);
        }
      }
    }

    static void Say(string line)
    {
      Console.WriteLine(line);
      Console.Out.Flush();
    }

    static void Wait(string line) { Check.Equal(line, Console.In.ReadLine(), "line of the other process"); }

    static ShareHandle ReadHandle() { return new ShareHandle(Convert.FromBase64String(Console.In.ReadLine())); }

    static string Text(ShareHandle share) { return Convert.ToBase64String(share.ToArray()); }

    static GpuMemory Shareable(GpuDevice device)
    {
      GpuMemory memory = device.AllocateDevice(4L * Count, new MemoryOptions { Require = MemoryFlags.Shareable });
      memory.CopyFrom(Enumerable.Range(0, Count).ToArray());
      return memory;
    }

    static readonly PhysicalOptions posix = new PhysicalOptions { HandleTypes = HandleTypes.PosixFd };

    /// <summary>Two blocks that can be shared by descriptors, with four numbers across their seam.</summary>
    static AddressRange TwoBlocks(GpuDevice device, out long seam)
    {
      long minimum, unit;
      device.GetGranularity(out minimum, out unit, posix);
      AddressRange range = device.Instance.ReserveRange(4 * unit);
      using (PhysicalMemory one = device.CreatePhysical(unit, posix))
      using (PhysicalMemory two = device.CreatePhysical(unit, posix))
      {
        range.Map(0, one, two);
      }
      range.SetAccess(0, 2 * unit, device, Access.ReadWrite);
      seam = unit - 8;
      range.CopyFrom(seam, new[] { 1, 2, 3, 4 });
      return range;
    }

    static string Read(ImportedMemory imported, long offset = 0)
    {
      var found = new int[4];
      using (var array = new KeptNumbers(found)) imported.Instance.Copy(array.Range, imported.Slice(offset, 16));
      return string.Join(",", found);
    }

    /// <summary>An array that stays in place, as an operand.</summary>
    sealed class KeptNumbers : IDisposable
    {
      System.Runtime.InteropServices.GCHandle handle;
      readonly long size;

      internal KeptNumbers(int[] numbers)
      {
        handle = System.Runtime.InteropServices.GCHandle.Alloc(numbers, System.Runtime.InteropServices.GCHandleType.Pinned);
        size = 4L * numbers.Length;
      }

      internal GpuRange Range { get { return new GpuRange(handle.AddrOfPinnedObject(), size); } }

      public void Dispose() { handle.Free(); }
    }

    /// <summary>A Unix socket of the runtime, on the abstract address of another process.</summary>
    sealed class AbstractEndPoint : EndPoint
    {
      readonly byte[] bytes;

      internal AbstractEndPoint(string name) { bytes = SocketAddress(name); }

      public override AddressFamily AddressFamily { get { return AddressFamily.Unix; } }

      public override SocketAddress Serialize()
      {
        var address = new SocketAddress(AddressFamily.Unix, bytes.Length);
        for (int i = 2; i < bytes.Length; ++i) address[i] = bytes[i];
        return address;
      }

      public override EndPoint Create(SocketAddress address) { return this; }

      /// <summary>A <c>sockaddr_un</c> with an abstract name.</summary>
      internal static byte[] SocketAddress(string name)
      {
        return new byte[] { 1, 0, 0 }.Concat(Encoding.ASCII.GetBytes(name)).ToArray();
      }
    }

    /// <summary>A socket on which one partner can connect.</summary>
    static FileDescriptorHandle Listen(string name)
    {
      const int UnixStreams = 1, CloseOnExec = 0x80000;
      var socket = new FileDescriptorHandle(Libc.socket(1, UnixStreams | CloseOnExec, 0));
      byte[] address = AbstractEndPoint.SocketAddress(name);
      Check.Equal(0, Libc.bind(socket.Descriptor, address, (uint)address.Length), "bind");
      Check.Equal(0, Libc.listen(socket.Descriptor, 1), "listen");
      return socket;
    }

    static Socket Connect(string name)
    {
      var socket = new Socket(AddressFamily.Unix, SocketType.Stream, ProtocolType.Unspecified);
      socket.Connect(new AbstractEndPoint(name));
      return socket;
    }

    static void HandleBytes(Scope scope)
    {
      GpuInstance instance = scope.Open();
      using (GpuMemory memory = Shareable(instance.GetDevice(0)))
      {
        ShareHandle share = instance.Export(memory);
        byte[] bytes = share.ToArray();
        Check.Equal(ShareHandle.Size, bytes.Length, "bytes");
        var same = new ShareHandle(bytes);
        Check.That(same.Equals(share) && same.Equals((object)share) && same.GetHashCode() == share.GetHashCode(), "the copy differs");
        Check.That(instance.Export(memory).Equals(share), "another export differs");
        ShareInfo info = same.Info;
        Check.Equal("ShareHandle { Type = Memory, Way = Legacy, Size = " + 4 * Count + ", ExporterProcess = " + info.ExporterProcess +
                    ", BufferId = 0x" + info.BufferId.ToString("x") + " }", share.ToString(), "text");
        Check.Equal(ShareType.Memory, info.Type, "type");
        Check.Equal(ShareWay.Legacy, info.Way, "way");
        Check.Equal(Scope.Backend, info.Backend, "backend");
        Check.Equal(Access.ReadWrite, info.Access, "access");
        Check.Equal(4L * Count, info.Size, "size");
        Check.Equal(0L, info.Offset, "offset");
        Check.Equal(memory.Info.BufferId, info.BufferId, "buffer");
        Check.Equal(Process.GetCurrentProcess().Id, info.ExporterProcess, "exporter");
        Check.That(info.Uuid.SequenceEqual(instance.GetDevice(0).Info.Uuid), "device");
        Check.Equal(info.DescriptorCount, instance.GetDescriptors(share).Length, "descriptors");
        Check.That(info.ToString().StartsWith("ShareInfo { Type = Memory, Way = Legacy, "), info.ToString());
        bytes[99] ^= 1;
        // The handle has its own copy.
        Check.That(same.Equals(share), "the handle has changed");
        var damaged = new ShareHandle(bytes);
        Check.That(!damaged.Equals(share) && !damaged.Equals(null), "the damaged one is equal");
        Check.Fails(Status.InvalidArgument, () => GC.KeepAlive(damaged.Info));
        Check.Equal("ShareHandle { Status = InvalidArgument }", damaged.ToString(), "text of the damaged one");
        Check.Fails(Status.InvalidArgument, () => instance.Import(damaged));
        Check.Fails(Status.InvalidState, () => instance.Import(share));
        instance.Revoke(share);
        Check.Fails(Status.NotFound, () => instance.Revoke(share));
        Check.Fails(Status.NotFound, () => instance.GetDescriptors(share));
        foreach (int size in new[] { 0, 255, 257 }) Check.Throws<ArgumentException>(() => new ShareHandle(new byte[size]));
      }
    }

    static void Guide(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      string path = Address("guide");
      var options = new MemoryOptions { Require = MemoryFlags.Shareable };
      using (GpuMemory batch = device.AllocateDevice(4 << 20, options))
      using (Hub hub = instance.OpenHub(path))
      using (var other = new Other("guide", path))
      {
        instance.Fill(batch, 7);
        ShareHandle share = instance.Export(batch);
        hub.Publish("batch", share);
        other.Expect("7");
        other.End();
        // Now nobody has it any more.
        Check.Eventually(() => Freed(batch), "the memory can be freed");
      }
    }

    // By its number, because a memory that is disposed waits until it can be freed.
    static bool Freed(GpuMemory memory)
    {
      memory.Dispose();
      GpuMemDiagnostics.ReleaseWaiting();
      return GpuMemDiagnostics.WaitingObjects == 0;
    }

    static int ImportOfGuide(GpuInstance instance, string path)
    {
      using (Link link = instance.Connect(path))
      {
        HubEntry entry = link.Wait("batch");
        // That very version: there may be a newer one by now.
        ShareHandle share = link.Fetch("batch", new FetchOptions { Version = entry.Version });
        using (ImportedMemory batch = instance.Import(share))
        {
          var first = new byte[16];
          batch.CopyTo(first);
          Console.WriteLine(first[0]);
        }
        Check.Equal(4L << 20, entry.Size, "size");
      }
      return 0;
    }

    static GrowableBuffer Filled(GpuInstance instance, byte value)
    {
      var options = new BufferOptions { HandleTypes = HandleTypes.PosixFd };
      GrowableBuffer buffer = instance.GetDevice(0).CreateBuffer(4000, options);
      instance.Fill(buffer, value);
      return buffer;
    }

    // A hub that is closed and opened again.
    static void GuideFollows(Scope scope)
    {
      GpuInstance instance = scope.Open();
      string path = Address("follow");
      using (var other = new Other("guide-follow", path))
      {
        for (byte value = 1; value <= 2; ++value)
        {
          using (GrowableBuffer model = Filled(instance, value))
          using (Hub hub = instance.OpenHub(path))
          {
            hub.Publish("model", instance.Export(model));
            other.Expect("version 1 is " + value);
          }
        }
        other.End();
      }
    }

    // Null if no hub is there yet.
    static Link TryConnect(GpuInstance instance, string path)
    {
      try
      {
        return instance.Connect(path);
      }
      catch (GpuMemException problem) when (problem.Status == Status.NotFound)
      {
        return null;
      }
    }

    // Uses each new version of a name, also when its hub was restarted.
    static void Follow(GpuInstance instance, string path)
    {
      ImportedMemory current = null;
      for (;;)
      {
        using (Link link = TryConnect(instance, path))
        {
          if (link == null)
          {
            Thread.Sleep(10);
            continue;
          }
          try
          {
            // Another hub counts anew.
            for (long seen = 0;;)
            {
              HubEntry entry;
              ImportedMemory model = link.ImportNext("model", seen, Timeout.InfiniteTimeSpan, out entry);
              seen = entry.Version;
              // The new one is used from here on, and the old one is not needed.
              if (current != null) current.Dispose();
              current = model;
              if (!Use(current, entry)) break;
            }
            current.Dispose();
            return;
          }
          catch (GpuMemException problem) when (problem.Status == Status.PeerGone)
          {
            // The hub has ended: connect again.
          }
        }
      }
    }

    static bool Use(ImportedMemory model, HubEntry entry)
    {
      var values = new byte[4000];
      model.CopyTo(values);
      Say("version " + entry.Version + " is " + values[3999]);
      return values[3999] != 2;
    }

    // Runs of a program that finds again what its last run had.
    static void GuideRestarts(Scope scope)
    {
      GpuInstance instance = scope.Open();
      string path = Address("restart");
      // In place of "gpumem keep".
      using (Hub keeper = instance.OpenHub(new HubOptions { Path = path, Flags = HubFlags.Keeper }))
      {
        for (int run = 1; run <= 3; ++run)
        {
          using (var other = new Other("guide-run", path))
          {
            other.Expect("run " + run);
            other.End();
          }
        }
        Check.Equal(1, keeper.Info.NameCount, "names");
      }
    }

    static void Run(GpuInstance instance, string path)
    {
      var count = new byte[1];
      using (Link link = instance.Connect(path))
      {
        ShareHandle share = null;
        try
        {
          share = link.Fetch("state");
        }
        catch (GpuMemException problem) when (problem.Status == Status.NotFound)
        {
          // The first run. The next one may write too.
          count[0] = 1;
          using (GrowableBuffer state = Filled(instance, count[0]))
          {
            link.Publish("state", instance.Export(state), new PublishOptions { Access = Access.ReadWrite });
          }
        }
        if (share != null)
        {
          // What the last run left.
          using (ImportedMemory state = instance.Import(share))
          {
            state.CopyTo(count);
            ++count[0];
            state.CopyFrom(count);
          }
        }
      }
      Say("run " + count[0]);
    }

    static void GuideRecords(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuMemory memory = Shareable(device))
      using (GpuStream stream = device.CreateStream())
      using (var other = new Other("guide-wait"))
      {
        using (GpuEvent filled = device.CreateEvent(EventFlags.Interprocess | EventFlags.DisableTiming))
        {
          stream.Fill(memory, 7);
          filled.Record(stream);
          // The record is made, so now the other process may wait for it.
          other.Say(Text(filled.Export()));
          other.Say(Text(instance.Export(memory)));
          other.Expect("7");
          stream.Synchronize();
          other.End();
        }
      }
    }

    static int WaitOfGuide(GpuInstance instance)
    {
      GpuDevice device = instance.GetDevice(0);
      var first = new byte[16];
      using (GpuStream stream = device.CreateStream())
      using (GpuEvent filled = device.ImportEvent(ReadHandle()))
      using (ImportedMemory memory = instance.Import(ReadHandle()))
      {
        // On the device: what comes behind it in the stream sees the bytes.
        stream.Wait(filled);
        stream.Synchronize();
        memory.CopyTo(first);
      }
      Say(first[15].ToString());
      return 0;
    }

    static void ByHandle(Scope scope)
    {
      GpuInstance instance = scope.Open();
      using (GpuMemory memory = Shareable(instance.GetDevice(0)))
      using (var other = new Other("handle"))
      {
        ShareHandle share = instance.Export(memory.Slice(4000, 16), new ExportOptions { Way = ShareWay.Legacy });
        Check.Equal(4000L, share.Info.Offset, "offset");
        other.Say(Text(share));
        other.Expect("imported");
        var found = new int[1004];
        memory.CopyTo(found);
        Check.Equal("7,8,-1,1003", string.Join(",", found.Skip(1000)), "what the other process wrote");
        // It is not freed before the importer has ended its import.
        memory.Dispose();
        Check.Equal(1, GpuMemDiagnostics.WaitingObjects, "objects that wait");
        other.Say("end it");
        other.Expect("ended");
        Check.Eventually(() => Freed(memory), "the memory can be freed");
        other.Say("again");
        other.Expect("stale");
        other.End();
      }
    }

    static int ImportByHandle(GpuInstance instance)
    {
      GpuDevice device = instance.GetDevice(0);
      ShareHandle share = ReadHandle();
      using (ImportedMemory imported = instance.Import(share))
      {
        Check.Equal(4000L, imported.Offset, "offset");
        Check.Equal(4L * Count - 4000, imported.Size, "size");
        ImportInfo info = imported.Info;
        Check.Equal(ShareWay.Legacy, info.Way, "way");
        Check.Equal(Access.ReadWrite, info.Access, "access");
        Check.Equal(ImportState.Live, info.State, "state");
        Check.Equal(1L, info.Count, "count");
        Check.Equal(share.Info.ExporterProcess, info.ExporterProcess, "exporter");
        Check.Equal(share.Info.BufferId, info.ExporterBufferId, "buffer");
        Check.That(info.ToString().Contains("State = Live"), info.ToString());
        Check.Equal(MemoryKind.Imported, imported.MemoryInfo.Kind, "kind");
        Check.Equal((long)imported.MemoryInfo.DevicePointer + 4000, (long)imported.DevicePointer, "pointer");
        Check.Equal(MemoryKind.Imported, instance.GetPointerInfo(imported.DevicePointer).Kind, "kind at the pointer");
        Check.That(imported.ToString().StartsWith("ImportedMemory { "), imported.ToString());
        // It is mapped once.
        var options = new ImportOptions { Device = device, Access = Access.ReadWrite, Name = "again", Timeout = TimeSpan.FromSeconds(9) };
        using (ImportedMemory again = instance.Import(share, options))
        {
          Check.Equal(imported.DevicePointer, again.DevicePointer, "pointer of the second import");
          Check.Equal(2L, imported.Info.Count, "count");
        }
        Check.Equal(1L, imported.Info.Count, "count");
        // Copies in all forms.
        var found = new int[4];
        imported.CopyTo(found);
        Check.Equal("1000,1001,1002,1003", string.Join(",", found), "content");
        using (GpuStream stream = device.CreateStream())
        using (GpuMemory copied = device.AllocateDevice(12))
        {
          stream.Copy(copied, imported.Slice(4, 12));
          stream.Synchronize();
          found = new int[3];
          copied.CopyTo(found);
          Check.Equal("1001,1002,1003", string.Join(",", found), "copied in a stream");
          copied.CopyFrom(new[] { 7, 8 });
          instance.CopyRegions(new CopyRegion(imported, copied, 8));
        }
        instance.Fill(imported.Slice(8, 4), 0xff);
        Check.Throws<ArgumentOutOfRangeException>(() => imported.Slice(0, imported.Size + 1));
        Check.Fails(Status.Unsupported, () => instance.Import(share, new ImportOptions { Access = Access.Read }));
        Check.Fails(Status.InvalidArgument, () => device.ImportEvent(share));
        Say("imported");
        Wait("end it");
        imported.Dispose();
        Check.Throws<ObjectDisposedException>(() => GC.KeepAlive(imported.Info));
        Check.That(imported.ToString().EndsWith("IsDisposed = True }"), imported.ToString());
        Check.Equal(0L, instance.Stats.LiveCount, "live");
      }
      Say("ended");
      Wait("again");
      Check.Fails(Status.StaleHandle, () => instance.Import(share));
      Say("stale");
      return 0;
    }

    static void ByDescriptors(Scope scope)
    {
      GpuInstance instance = scope.Open();
      string name = "gpumem-socket-" + Process.GetCurrentProcess().Id;
      long seam;
      using (AddressRange range = TwoBlocks(instance.GetDevice(0), out seam))
      using (FileDescriptorHandle listening = Listen(name))
      using (var other = new Other("descriptors", name))
      using (var socket = new FileDescriptorHandle(Libc.accept(listening.Descriptor, IntPtr.Zero, IntPtr.Zero)))
      {
        ShareHandle share = instance.Export(range.Slice(seam, 16), new ExportOptions { Access = Access.Read });
        Check.Equal(ShareWay.PosixFd, share.Info.Way, "way");
        Check.Equal(2, share.Info.DescriptorCount, "descriptors");
        other.Expect("nothing came");
        instance.Send(share, socket, new SendOptions { Lease = TimeSpan.FromSeconds(60), Timeout = TimeSpan.FromSeconds(9) });
        other.Expect("1,2,3,4");
        instance.Revoke(share);
        other.Expect("withdrawn");
        range.Dispose();
        other.Say("freed");
        other.Expect("1,2,3,4");
        // What it exports comes over its socket.
        ShareHandle theirs = instance.Receive(socket);
        using (ImportedMemory imported = instance.Import(theirs)) Check.Equal("0,1,2,3", Read(imported), "content");
        other.Say("end");
        Check.Fails(Status.PeerGone, () => instance.Receive(socket));
        other.End();
      }
    }

    static int ImportByDescriptors(GpuInstance instance, string name)
    {
      using (Socket socket = Connect(name))
      {
        Check.That(instance.Receive(socket, TimeSpan.FromMilliseconds(5)) == null, "something came");
        Say("nothing came");
        ShareHandle share = instance.Receive(socket);
        Check.Fails(Status.NoAccess, () => instance.Import(share, new ImportOptions { Access = Access.ReadWrite }));
        using (ImportedMemory imported = instance.Import(share))
        using (GpuMemory memory = Shareable(instance.GetDevice(0)))
        {
          Check.Equal(Access.Read, imported.Info.Access, "access");
          Check.Fails(Status.NoAccess, () => instance.Fill(imported.Slice(0, 1), 1));
          Say(Read(imported));
          Check.Eventually(() => imported.Info.State == ImportState.Withdrawn, "the export ends");
          Say("withdrawn");
          Wait("freed");
          Say(Read(imported));
          instance.Send(instance.Export(memory), socket);
          Wait("end");
        }
      }
      return 0;
    }

    static void ByOwnDescriptors(Scope scope)
    {
      if (!Scope.IsHost) throw new TestSkipped("a descriptor of the driver cannot be opened by its path");
      GpuInstance instance = scope.Open();
      long seam;
      using (AddressRange range = TwoBlocks(instance.GetDevice(0), out seam))
      {
        ShareHandle share = instance.Export(range.Slice(seam, 16));
        FileDescriptorHandle[] descriptors = instance.GetDescriptors(share);
        Check.Equal(2, descriptors.Length, "descriptors");
        string folder = "/proc/" + Process.GetCurrentProcess().Id + "/fd/";
        using (var other = new Other("own-descriptors", string.Join(":", descriptors.Select(one => folder + one.Descriptor))))
        {
          other.Say(Text(share));
          other.Expect("1,2,3,4");
          other.End();
        }
        foreach (FileDescriptorHandle one in descriptors) one.Dispose();
      }
    }

    static int ImportWithOwn(GpuInstance instance, string files)
    {
      ShareHandle share = ReadHandle();
      FileDescriptorHandle[] descriptors = files.Split(':').Select(file => new FileDescriptorHandle(Libc.open(file, 2))).ToArray();
      using (var wrong = new FileDescriptorHandle(Libc.open("/dev/null", 2)))
      {
        Check.Fails(Status.InvalidArgument, () => instance.Import(share, new[] { descriptors[0] }));
        Check.Fails(Status.InvalidArgument, () => instance.Import(share, new[] { descriptors[0], wrong }));
      }
      using (ImportedMemory imported = instance.Import(share, descriptors, new ImportOptions { Name = "mine" }))
      {
        foreach (FileDescriptorHandle one in descriptors) one.Dispose();
        Say(Read(imported));
      }
      Check.Throws<ObjectDisposedException>(() => instance.Import(share, descriptors));
      return 0;
    }

    static void BlocksOfPools(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      var options = new PoolOptions { HandleTypes = HandleTypes.PosixFd };
      var together = new ExportOptions { Flags = ExportFlags.Neighbours };
      using (MemoryPool pool = device.CreatePool(options))
      using (PoolBlock first = pool.Allocate(16))
      using (PoolBlock second = pool.Allocate(16))
      {
        Check.Equal(HandleTypes.PosixFd, pool.Info.HandleTypes, "handle types");
        first.CopyFrom(new[] { 1, 2, 3, 4 });
        second.CopyFrom(new[] { 5, 6, 7, 8 });
        Check.Fails(Status.Unsupported, () => instance.Export(second));
        ShareHandle share = instance.Export(second, together);
        Check.Equal(ShareWay.PosixFd, share.Info.Way, "way");
        Check.Equal(1, share.Info.DescriptorCount, "descriptors");
        using (ImportedMemory imported = instance.Import(share))
        {
          Check.Equal("5,6,7,8", Read(imported), "content");
          imported.CopyFrom(new[] { 9, 10 });
        }
        var found = new int[4];
        second.CopyTo(found);
        Check.Equal("9,10,7,8", string.Join(",", found), "what was written through the import");
        first.CopyTo(found);
        Check.Equal("1,2,3,4", string.Join(",", found), "the other block");
        Check.Equal(share.Info.Offset + 4, instance.Export(second.Slice(4, 12), together).Info.Offset, "offset of a part");
      }
      using (MemoryPool pool = device.CreatePool())
      using (PoolBlock block = pool.Allocate(16))
      {
        Check.Equal(HandleTypes.None, pool.Info.HandleTypes, "handle types of a pool without options");
        Check.Fails(Status.Unsupported, () => instance.Export(block, together));
      }
      options.Kind = MemoryKind.Pinned;
      Check.Fails(Status.InvalidArgument, () => device.CreatePool(options));
    }

    static void ExporterEnds(Scope scope)
    {
      GpuInstance instance = scope.Open();
      using (var other = new Other("exporter"))
      using (ImportedMemory byDescriptor = instance.Import(other.HearHandle()))
      {
        ShareHandle legacy = other.HearHandle();
        using (ImportedMemory byHandle = instance.Import(legacy))
        {
          Check.Equal("0,1,2,3", Read(byHandle), "content");
          other.Kill();
          Check.Eventually(() => byHandle.Info.State == ImportState.PeerGone && byDescriptor.Info.State == ImportState.PeerGone,
                           "the exporter ends");
          // The descriptors keep the memory alive. Without them it may be gone.
          Check.Equal("1,2,3,4", Read(byDescriptor), "content after the end of the exporter");
          Check.Fails(Status.PeerGone, () => Read(byHandle));
        }
        Check.Fails(Status.PeerGone, () => instance.Import(legacy));
      }
    }

    static int ExportAndWait(GpuInstance instance)
    {
      long seam;
      using (AddressRange range = TwoBlocks(instance.GetDevice(0), out seam))
      using (GpuMemory memory = Shareable(instance.GetDevice(0)))
      {
        Say(Text(instance.Export(range.Slice(seam, 16))));
        Say(Text(instance.Export(memory)));
        Wait("never");
      }
      return 0;
    }

    static void Events(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      Check.Fails(Status.InvalidArgument, () => device.CreateEvent(EventFlags.Interprocess));
      using (GpuEvent plain = device.CreateEvent()) Check.Fails(Status.Unsupported, () => plain.Export());
      using (GpuEvent gpuEvent = device.CreateEvent(EventFlags.Interprocess | EventFlags.DisableTiming, "batch"))
      using (GpuStream stream = device.CreateStream())
      using (PinnedMemory<int> gate = device.AllocatePinned<int>(1))
      using (var other = new Other("event"))
      {
        ShareHandle share = gpuEvent.Export();
        Check.That(gpuEvent.Export().Equals(share), "another export differs");
        Check.Equal(ShareType.Event, share.Info.Type, "type");
        Check.Fails(Status.InvalidState, () => device.ImportEvent(share));
        gate[0] = 0;
        stream.WaitValue(gate.Slice(0, 1), 1, WaitCondition.Equal);
        using (GpuMemory memory = device.AllocateDevice(64)) stream.Fill(memory, 1);
        gpuEvent.Record(stream);
        other.Say(Text(share));
        other.Expect("recorded");
        // The latest record is that of the other process, so it says nothing about the fill.
        gpuEvent.Synchronize();
        Check.That(!stream.Query(), "the stream is complete");
        Check.Equal(1L, instance.GetStats(MemoryKind.Device).LiveCount, "the memory of the fill");
        gpuEvent.Record(stream);
        other.Say("recorded");
        other.Expect("waiting");
        gate[0] = 1;
        stream.Synchronize();
        Check.Equal(0L, instance.GetStats(MemoryKind.Device).LiveCount, "the memory of the fill");
        other.Expect("complete");
        other.End();
      }
    }

    static int ImportEvent(GpuInstance instance)
    {
      GpuDevice device = instance.GetDevice(0);
      ShareHandle share = ReadHandle();
      Check.Fails(Status.InvalidArgument, () => instance.Import(share));
      using (GpuEvent gpuEvent = device.ImportEvent(share))
      using (GpuStream stream = device.CreateStream())
      {
        Check.That((gpuEvent.Info.Flags & EventFlags.Interprocess) != 0, gpuEvent.Info.ToString());
        Check.That(!gpuEvent.Query(), "the event is complete");
        Check.Fails(Status.Unsupported, () => gpuEvent.Export());
        gpuEvent.Record(stream);
        gpuEvent.Synchronize();
        Say("recorded");
        Wait("recorded");
        Check.That(!gpuEvent.Synchronize(TimeSpan.FromMilliseconds(5)), "the event is complete");
        stream.Wait(gpuEvent);
        Check.That(!stream.Query(), "the stream does not wait");
        Say("waiting");
        stream.Synchronize();
        Check.That(gpuEvent.Query(), "the event is not complete");
        Say("complete");
      }
      return 0;
    }

    static void Kept(Scope scope)
    {
      GpuInstance instance = scope.Open();
      long seam;
      using (AddressRange range = TwoBlocks(instance.GetDevice(0), out seam))
      using (var other = new Other("cache"))
      {
        other.Say(Text(instance.Export(range.Slice(0, 16))));
        other.Expect("kept");
        other.End();
      }
    }

    static int ImportAndKeep(GpuInstance instance)
    {
      ShareHandle share = ReadHandle();
      instance.SetImportCache(TimeSpan.FromHours(1));
      IntPtr pointer;
      using (ImportedMemory imported = instance.Import(share)) pointer = imported.DevicePointer;
      using (ImportedMemory again = instance.Import(share))
      {
        Check.Equal(pointer, again.DevicePointer, "address");
        Check.Equal(1L, again.Info.Count, "count");
      }
      instance.FlushImportCache();
      Check.Equal(0L, instance.GetStats(MemoryKind.Imported).LiveCount, "live");
      instance.SetImportCache(TimeSpan.Zero, 4096);
      instance.Import(share).Dispose();
      Check.Throws<ArgumentOutOfRangeException>(() => instance.SetImportCache(TimeSpan.Zero, -1));
      Say("kept");
      return 0;
    }

    static void Ways(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long seam;
      using (GpuMemory memory = Shareable(device))
      using (GpuMemory small = device.AllocateDevice(64))
      using (PinnedMemory<int> pinned = device.AllocatePinned<int>(1024))
      using (AddressRange range = TwoBlocks(device, out seam))
      using (GrowableBuffer buffer = device.CreateBuffer(1 << 20, new BufferOptions { HandleTypes = HandleTypes.PosixFd }))
      {
        foreach (ShareWay way in new[] { ShareWay.Legacy, ShareWay.PosixFd, ShareWay.Fabric })
        {
          foreach (GpuRange one in new GpuRange[] { memory, small, pinned, range.Slice(seam, 1), buffer.Range })
          {
            ShareWayInfo said = instance.GetShareWay(one, way);
            Status done = Status.Success;
            try
            {
              instance.Revoke(instance.Export(one, new ExportOptions { Way = way }));
            }
            catch (GpuMemException problem)
            {
              done = problem.Status;
            }
            Check.Equal(done, said.Status, way + " of " + one + ": " + said);
            Check.That(said.IsPossible == (done == Status.Success) && (said.IsPossible || said.Message.Length != 0), said.ToString());
          }
        }
        ShareWayInfo container = instance.GetShareWay(range.Slice(seam, 1), ShareWay.PosixFd, SharePeer.Container);
        Check.That(container.IsPossible && container.NeedsSocket && container.DescriptorCount == 2, container.ToString());
        Check.Fails(Status.InvalidArgument, () => instance.GetShareWay(memory, ShareWay.Any));
        Check.Fails(Status.InvalidArgument, () => instance.GetShareWay(memory, ShareWay.Legacy, (SharePeer)77));
        // What lies beside small memory would be shown. The host backend cannot share it at all.
        var neighbours = new ExportOptions { Flags = ExportFlags.Neighbours };
        if (Scope.IsHost) Check.Fails(Status.Unsupported, () => instance.Export(small, neighbours));
        else Check.Equal(64L, instance.Export(small, neighbours).Info.Size, "size");
        ShareHandle share = instance.Export(buffer.Range);
        buffer.Dispose();
        Check.Fails(Status.NotFound, () => instance.Revoke(share));
      }
    }

    static void DmaBuf(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (GpuMemory memory = Shareable(device))
      {
        if (device.GetCapability(Capability.ShareDmaBuf).IsAvailable)
        {
          using (FileDescriptorHandle descriptor = device.Instance.ExportDmaBuf(memory, DmaBufFlags.PreferPcie))
          {
            Check.That(Libc.fcntl(descriptor.Descriptor, 1) == 1, "it is not closed on exec");
          }
        }
        else
        {
          Check.Fails(Status.Unsupported, () => device.Instance.ExportDmaBuf(memory, DmaBufFlags.PreferPcie));
        }
      }
    }

    static void NoSockets(Scope scope)
    {
      GpuInstance instance = scope.Open();
      using (GpuMemory memory = Shareable(instance.GetDevice(0)))
      using (var file = new FileDescriptorHandle(Libc.open("/dev/null", 2)))
      {
        ShareHandle share = instance.Export(memory);
        Check.Fails(Status.InvalidArgument, () => instance.Send(share, file));
        Check.Fails(Status.InvalidArgument, () => instance.Receive(file));
        file.Dispose();
        Check.Throws<ObjectDisposedException>(() => instance.Send(share, file));
      }
    }

    static void DisposedSocket(Scope scope)
    {
      GpuInstance instance = scope.Open();
      string name = "gpumem-tests-" + Guid.NewGuid().ToString("N");
      using (GpuMemory memory = Shareable(instance.GetDevice(0)))
      using (FileDescriptorHandle listening = Listen(name))
      {
        ShareHandle share = instance.Export(memory);
        Socket friend = Connect(name);
        new FileDescriptorHandle(Libc.accept(listening.Descriptor, IntPtr.Zero, IntPtr.Zero)).Dispose();
        friend.Dispose();
        // Its number, which this one may get, must not be used.
        using (Socket stranger = Connect(name))
        using (var accepted = new FileDescriptorHandle(Libc.accept(listening.Descriptor, IntPtr.Zero, IntPtr.Zero)))
        {
          Check.Throws<ObjectDisposedException>(() => instance.Send(share, friend));
          Check.Throws<ObjectDisposedException>(() => instance.Receive(friend, TimeSpan.Zero));
          Check.That(instance.Receive(accepted, TimeSpan.Zero) == null, "something came");
        }
        Check.Throws<ArgumentNullException>(() => instance.Send(share, (Socket)null));
      }
    }

    static void Names(Scope scope)
    {
      GpuInstance instance = scope.Open();
      long seam;
      string path = Address("names");
      var options = new HubOptions
      {
        Path = path, Name = "batches", Token = Encoding.ASCII.GetBytes("open sesame"), Mode = 0x180, NamesMax = 2, LinksMax = 2,
        Users = new uint[] { 12345 }, Groups = new uint[] { 23456 }, Timeout = TimeSpan.FromSeconds(9),
      };
      using (AddressRange range = TwoBlocks(instance.GetDevice(0), out seam))
      using (AddressRange otherRange = TwoBlocks(instance.GetDevice(0), out seam))
      using (Hub hub = instance.OpenHub(options))
      using (var other = new Other("names", path))
      {
        Check.Fails(Status.AlreadyExists, () => instance.OpenHub(path));
        Check.Throws<ArgumentException>(() => instance.OpenHub(new HubOptions { Path = Address("unset"), Token = new byte[0] }));
        Check.Throws<ArgumentException>(() => instance.Connect(new LinkOptions { Path = path, Token = new byte[0] }));
        Check.Equal(instance, hub.Instance, "instance");
        ShareHandle share = instance.Export(range.Slice(seam, 16));
        other.Expect("connected");
        Check.Equal(1L, hub.Publish("weights", share), "version");
        other.Expect("1,2,3,4");
        HubInfo info = hub.Info;
        Check.Equal(path, info.Path, "path");
        Check.Equal("batches", info.Name, "name");
        Check.That(info.LinkCount == 1 && info.NameCount == 1 && info.VersionCount == 1 && info.DescriptorCount == 2, info.ToString());
        Check.That(info.RefusedCount > 0, info.ToString());
        // The next version is other memory.
        share = instance.Export(otherRange.Slice(seam, 16));
        var next = new PublishOptions
        {
          Version = 5, Keep = 3, Access = Access.ReadWrite, Fingerprint = Enumerable.Repeat((byte)9, 32).ToArray(),
        };
        Check.Equal(5L, hub.Publish("weights", share, next), "version");
        Check.Fails(Status.AlreadyExists, () => hub.Publish("weights", share, next));
        hub.Publish("more", share);
        Check.Fails(Status.LimitExceeded, () => hub.Publish("most", share));
        foreach (string bad in new[] { "", "a/b", "a\nb", new string('n', 64) })
        {
          Check.Fails(Status.InvalidArgument, () => hub.Publish(bad, share));
        }
        Check.Throws<ArgumentException>(() => hub.Publish("a", share, new PublishOptions { Fingerprint = new byte[31] }));
        Check.Throws<ArgumentNullException>(() => hub.Publish(null, share));
        other.Say("published");
        other.Expect("seen");
        hub.Withdraw("weights", 1);
        hub.Withdraw("more");
        Check.Fails(Status.NotFound, () => hub.Withdraw("more"));
        other.Expect("withdrawn");
        hub.Dispose();
        Check.That(hub.IsDisposed, "the hub is not disposed");
        other.Expect("1,2,3,4");
        other.End();
      }
    }

    // Each version is withdrawn as soon as the next one is there, mostly between the steps of the reader that waits.
    static void Replaced(Scope scope)
    {
      const int Last = 300;
      GpuInstance ours = scope.Open(), theirs = scope.Open();
      string path = Address("replaced");
      using (Hub hub = ours.OpenHub(path))
      using (Link link = theirs.Connect(path))
      {
        Task reader = Task.Run(() =>
        {
          for (long seen = 0; seen < Last;)
          {
            HubEntry entry;
            using (ImportedMemory memory = link.ImportNext("batch", seen, TimeSpan.FromSeconds(60), out entry))
            {
              Check.That(entry.Version > seen, entry + " after " + seen);
              seen = entry.Version;
              Check.Equal(seen + ",2,3,4", Read(memory), "content");
            }
          }
        });
        GrowableBuffer before = null;
        for (int version = 1; version <= Last; ++version)
        {
          GrowableBuffer memory = ours.GetDevice(0).CreateBuffer(16, new BufferOptions { HandleTypes = HandleTypes.PosixFd });
          memory.CopyFrom(0, new[] { version, 2, 3, 4 });
          hub.Publish("batch", ours.Export(memory));
          // Its export ends with it.
          if (before != null) before.Dispose();
          before = memory;
        }
        reader.Wait();
        before.Dispose();
      }
    }

    static int FollowName(GpuInstance instance, string path)
    {
      Check.Fails(Status.PermissionDenied, () => instance.Connect(path));
      var options = new LinkOptions { Path = path, Token = Encoding.ASCII.GetBytes("open sesam"), Timeout = TimeSpan.FromSeconds(9) };
      Check.Fails(Status.PermissionDenied, () => instance.Connect(options));
      Check.Fails(Status.NotFound, () => instance.Connect(Address("nobody")));
      options.Token = Encoding.ASCII.GetBytes("open sesame");
      using (Link link = instance.Connect(options))
      {
        LinkInfo info = link.Info;
        Check.That(info.Connected && !info.Keeper && info.Process > 0 && info.Path == path, info.ToString());
        Check.Equal(0, link.GetEntries().Count, "entries");
        Check.That(link.Wait("weights", 0, TimeSpan.FromMilliseconds(5)) == null, "there is a version");
        HubEntry next;
        Check.That(link.ImportNext("weights", 0, TimeSpan.FromMilliseconds(5), out next) == null && next == null, "it came");
        Check.Fails(Status.InvalidArgument, () => link.ImportNext("a/b", 0, TimeSpan.Zero, out next));
        Check.Fails(Status.NotFound, () => link.Fetch("weights"));
        WaysOf(instance, link);
        Say("connected");
        HubEntry entry = link.Wait("weights");
        Check.Equal("weights", entry.Name, "name");
        Check.Equal(1L, entry.Version, "version");
        Check.That(entry.Type == ShareType.Memory && entry.Way == ShareWay.PosixFd, entry.ToString());
        // Descriptors are for reading unless the publisher says otherwise.
        Check.That(entry.Access == Access.Read && !entry.PublisherGone && entry.PublisherProcess == info.Process && entry.PublisherUser == info.User, entry.ToString());
        Check.That(entry.Fingerprint.All(one => one == 0), "fingerprint");
        using (ImportedMemory first = instance.Import(link.Fetch("weights")))
        {
          Check.Equal(Access.Read, first.Info.Access, "access");
          Say(Read(first));
          Wait("published");
          HubEntry second = link.Wait("weights", 1, TimeSpan.FromSeconds(60));
          Check.That(second.Version == 5 && second.Access == Access.ReadWrite, second.ToString());
          var reading = new ImportOptions { Access = Access.Read };
          using (ImportedMemory newest = link.ImportNext("weights", 1, TimeSpan.FromSeconds(60), out next, reading))
          {
            Check.Equal(5L, next.Version, "version that was imported");
            Check.Equal(Access.Read, newest.Info.Access, "access that was asked for");
          }
          Check.Equal("more 1, weights 1, weights 5", string.Join(", ", link.GetEntries().Select(one => one.Name + " " + one.Version)),
                      "entries");
          Check.Equal(Access.Read, AccessOf(instance, link, new FetchOptions { Version = 1 }), "access of the first version");
          Check.Equal(Access.ReadWrite, AccessOf(instance, link, new FetchOptions { Fingerprint = second.Fingerprint }), "access");
          Check.Fails(Status.NotFound, () => link.Fetch("weights", new FetchOptions { Version = 2 }));
          Check.Fails(Status.NotFound, () => link.Fetch("weights", new FetchOptions { Fingerprint = Enumerable.Repeat((byte)8, 32).ToArray() }));
          // It is no keeper.
          ShareHandle share = link.Fetch("weights");
          Check.Fails(Status.Unsupported, () => link.Publish("mine", share));
          Check.Fails(Status.Unsupported, () => link.Withdraw("weights"));
          Say("seen");
          Check.Eventually(() => first.Info.State == ImportState.Withdrawn, "the version is withdrawn");
          Say("withdrawn");
          Check.Eventually(() => !link.Info.Connected, "the hub ends");
          Check.Fails(Status.PeerGone, () => link.GetEntries());
          // What is not kept is asked.
          using (GpuMemory memory = Shareable(instance.GetDevice(0)))
          {
            ShareWayInfo gone = link.GetShareWay(memory, ShareWay.Legacy);
            Check.That(gone.Status == Status.PeerGone && gone.Message.Length != 0, gone.ToString());
          }
          Say(Read(first));
        }
      }
      return 0;
    }

    // What the process of the hub answers.
    static void WaysOf(GpuInstance instance, Link link)
    {
      long seam;
      using (AddressRange range = TwoBlocks(instance.GetDevice(0), out seam))
      {
        GpuRange memory = range.Slice(seam, 1);
        ShareWayInfo same = link.GetShareWay(memory, ShareWay.PosixFd);
        Check.That(same.IsPossible && same.DescriptorCount == 2 && !same.NeedsSocket && !same.IsSlow && same.Message == "",
                   same.ToString());
        ShareWayInfo across = link.GetShareWay(memory, ShareWay.PosixFd, SharePeer.OtherDevice);
        Check.That(across.IsPossible && across.IsSlow && across.Message.Contains("on another device"), across.ToString());
        // Nobody opens a dma-buf, which could be exported.
        ShareWayInfo none = link.GetShareWay(memory, ShareWay.DmaBuf);
        Check.That(none.Status == Status.Unsupported && none.DescriptorCount == 0 && !none.IsSlow &&
                   none.Message.Contains("opens none"), none.ToString());
        Check.Fails(Status.InvalidArgument, () => link.GetShareWay(memory, ShareWay.Any));
      }
    }

    static Access AccessOf(GpuInstance instance, Link link, FetchOptions options)
    {
      using (ImportedMemory imported = instance.Import(link.Fetch("weights", options))) return imported.Info.Access;
    }

    static void WokenByDispose(Scope scope)
    {
      GpuInstance instance = scope.Open();
      using (Hub hub = instance.OpenHub(Address("woken")))
      {
        // Whether the wait has begun is not seen. If it had not, the link was disposed before the call.
        Check.Eventually(() => DisposedInWait(hub, instance).Message.StartsWith("it was disposed during the call"),
                         "what was disposed during the call says so");
      }
    }

    static ObjectDisposedException DisposedInWait(Hub hub, GpuInstance instance)
    {
      Link link = instance.Connect(Address("woken"));
      Exception thrown = null;
      var waiting = new Thread(() =>
      {
        try
        {
          link.Wait("never");
        }
        catch (Exception problem)
        {
          thrown = problem;
        }
      });
      waiting.Start();
      Check.Eventually(() => hub.Info.LinkCount == 1, "the link is connected");
      Thread.Sleep(20);
      link.Dispose();
      Check.That(waiting.Join(TimeSpan.FromSeconds(60)), "the thread still waits");
      Check.That(thrown is ObjectDisposedException, "thrown: " + thrown);
      return (ObjectDisposedException)thrown;
    }

    static void Keeper(Scope scope)
    {
      GpuInstance instance = scope.Open();
      string path = Address("keeper");
      var options = new HubOptions { Path = path, Flags = HubFlags.Keeper, VersionsMax = 4, DescriptorsMax = 64, BytesMax = 1L << 30 };
      using (Hub hub = instance.OpenHub(options))
      using (Link link = instance.Connect(path))
      using (var other = new Other("keeper", path))
      {
        Check.That(link.Info.Keeper, link.Info.ToString());
        other.Expect("published");
        HubEntry entry = link.Wait("state");
        other.Kill();
        Check.Eventually(() => link.GetEntries().Single().PublisherGone, "the publisher ends");
        using (ImportedMemory imported = instance.Import(link.Fetch("state")))
        {
          Check.Equal("1,2,3,4", Read(imported), "what it left");
          link.Withdraw("state", entry.Version);
          Check.Fails(Status.NotFound, () => link.Withdraw("state"));
          Check.Equal("1,2,3,4", Read(imported), "what it left");
        }
        Check.Equal(0, hub.Info.NameCount, "names");
      }
    }

    static int PublishAndWait(GpuInstance instance, string path)
    {
      GpuDevice device = instance.GetDevice(0);
      long seam;
      using (Link link = instance.Connect(path))
      using (AddressRange range = TwoBlocks(device, out seam))
      using (GpuMemory memory = Shareable(device))
      {
        ShareHandle legacy = instance.Export(memory);
        Check.Fails(Status.Unsupported, () => link.Publish("state", legacy));
        Check.Equal(1L, link.Publish("state", instance.Export(range.Slice(seam, 16)), new PublishOptions { Access = Access.ReadWrite }),
                    "version");
        Say("published");
        Wait("never");
      }
      return 0;
    }
  }
}
