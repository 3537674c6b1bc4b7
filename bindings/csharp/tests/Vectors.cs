// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Runs the shared sequences of calls, whose language tests/bindings/README.md of the source tree describes.

using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;

namespace GpuMem.Tests
{
  static class Vectors
  {
    internal static void Run()
    {
      string name = null;
      var steps = new List<string>();
      foreach (string line in File.ReadAllLines(Environment.GetEnvironmentVariable("GPUMEM_VECTORS")).Concat(new[] { "case" }))
      {
        if (line.Trim().Length == 0 || line.StartsWith("#")) continue;
        if (!line.StartsWith("case"))
        {
          steps.Add(line);
          continue;
        }
        if (name != null)
        {
          string[] own = steps.ToArray();
          Tap.Run("vectors: " + name, scope => new Case().Run(own));
        }
        name = line.Substring(4).Trim();
        steps.Clear();
      }
    }
  }

  sealed class Step
  {
    internal readonly string Result, Operation, Status = "SUCCESS";
    internal readonly List<string> Arguments = new List<string>();
    internal readonly Dictionary<string, string> Options = new Dictionary<string, string>();

    internal Step(string line)
    {
      List<string> words = line.Split(new[] { ' ' }, StringSplitOptions.RemoveEmptyEntries).ToList();
      if (words.Count > 2 && words[1] == "=")
      {
        Result = words[0];
        words.RemoveRange(0, 2);
      }
      if (words.Count > 2 && words[words.Count - 2] == "->")
      {
        Status = words[words.Count - 1];
        words.RemoveRange(words.Count - 2, 2);
      }
      Operation = words[0];
      foreach (string word in words.Skip(1))
      {
        int equals = word.IndexOf('=');
        if (equals < 0) Arguments.Add(word);
        else Options[word.Substring(0, equals)] = word.Substring(equals + 1);
      }
    }

    internal static ulong Number(string text)
    {
      if (text.StartsWith("-")) return (ulong)long.Parse(text, CultureInfo.InvariantCulture);
      if (text.StartsWith("0x")) return ulong.Parse(text.Substring(2), NumberStyles.HexNumber, CultureInfo.InvariantCulture);
      return ulong.Parse(text, CultureInfo.InvariantCulture);
    }

    internal bool Has(string name) { return Options.ContainsKey(name); }

    internal string Text(string name) { return Has(name) ? Options[name] : null; }

    /// <summary>A number. One from 2^63 on is negative here, which the binding refuses as the library does.</summary>
    internal long Value(string name, long otherwise = 0) { return Has(name) ? unchecked((long)Number(Options[name])) : otherwise; }

    /// <summary>A number, or comma-separated names of an enumeration.</summary>
    internal ulong Named<TEnum>(string name, ulong otherwise = 0)
    {
      return Has(name) ? Words<TEnum>(Options[name]) : otherwise;
    }

    internal static ulong Words<TEnum>(string words)
    {
      ulong sum = 0;
      foreach (string word in words.Split(','))
      {
        sum |= char.IsLetter(word[0])
            ? Convert.ToUInt64(Enum.Parse(typeof(TEnum), word.Replace("_", ""), true))
            : Number(word);
      }
      return sum;
    }
  }

  sealed unsafe class Case
  {
    sealed class Block
    {
      internal IntPtr Pointer;
      internal IntPtr Unaligned;
    }

    sealed class TemporaryFile : IDisposable
    {
      internal readonly FileStream File, Given;

      internal TemporaryFile(byte[] content, bool onlyRead)
      {
        File = new FileStream(Path.GetTempFileName(), FileMode.Open, FileAccess.ReadWrite,
                              FileShare.ReadWrite | FileShare.Delete, 4096, System.IO.FileOptions.DeleteOnClose);
        File.Write(content, 0, content.Length);
        File.Flush();
        Given = onlyRead ? Again() : File;
      }

      FileStream Again()
      {
        return new FileStream(File.Name, FileMode.Open, FileAccess.Read, FileShare.ReadWrite | FileShare.Delete);
      }

      internal byte[] Content()
      {
        using (FileStream again = Again())
        {
          var content = new byte[again.Length];
          for (int done = 0; done < content.Length;) done += again.Read(content, done, content.Length - done);
          return content;
        }
      }

      public void Dispose()
      {
        Given.Dispose();
        File.Dispose();
      }
    }

    enum Condition { Geq, Eq, And, Nor }

    enum PoolFlag : ulong
    {
      InternalDependencies = PoolFlags.AllowInternalDependencies,
      Debug = PoolFlags.Debug,
      FromDriver = PoolFlags.FromDriver,
    }

    // The binding does not refuse to dispose such a group; it destroys the group after its buffers.
    sealed class GroupInUse : Exception { }

    readonly Dictionary<string, object> objects = new Dictionary<string, object>();
    readonly List<GpuInstance> instances = new List<GpuInstance>();

    internal void Run(string[] lines)
    {
      try
      {
        foreach (string line in lines)
        {
          if (!line.StartsWith("only "))
          {
            RunStep(line);
          }
          else if (Step.Words<Backend>(line.Substring(5)) != (ulong)Scope.Backend)
          {
            break;
          }
        }
      }
      finally
      {
        foreach (GpuInstance instance in instances) if (!instance.IsClosed) instance.Close(CloseMode.Force);
        foreach (IDisposable one in objects.Values.OfType<IDisposable>()) one.Dispose();
        foreach (Block block in objects.Values.OfType<Block>()) Marshal.FreeHGlobal(block.Unaligned);
      }
    }

    void RunStep(string line)
    {
      var step = new Step(line);
      string status = "SUCCESS";
      try
      {
        status = Do(step) ? "SUCCESS" : "NOT_READY";
      }
      catch (GpuMemException problem)
      {
        status = problem.StatusName.Replace("GPUMEM_ERROR_", "").Replace("GPUMEM_", "");
        Check.That(problem.Message.Length != 0 && problem.Function.StartsWith("gpumem_"), line + ": no detail: " + problem);
      }
      // The binding itself refuses a range that leaves its memory, and memory that was disposed.
      catch (ArgumentOutOfRangeException)
      {
        status = "INVALID_ARGUMENT";
      }
      catch (ObjectDisposedException)
      {
        status = "STALE_HANDLE";
      }
      catch (GroupInUse)
      {
        status = "BUSY";
      }
      catch (Exception problem)
      {
        throw new TestFailure(line + ": " + problem);
      }
      Check.Equal(step.Status, status, line);
    }

    T Get<T>(string name)
    {
      object found;
      if (!objects.TryGetValue(name, out found) || !(found is T)) throw new TestFailure("no such object: " + name);
      return (T)found;
    }

    bool Keep(Step step, object made)
    {
      objects[step.Result] = made;
      return true;
    }

    IntPtr Address(string text)
    {
      if (text == "null") return IntPtr.Zero;
      string[] parts = text.Split('+');
      long offset = parts.Length > 1 ? unchecked((long)Step.Number(parts[1])) : 0;
      object found = Get<object>(parts[0]);
      IntPtr first = found is Block ? ((Block)found).Pointer
          : found is IntPtr ? (IntPtr)found
          : found is GrowableBuffer ? ((GrowableBuffer)found).Pointer
          : ((GpuMemory)found).Range.Pointer;
      return (IntPtr)unchecked((long)first + offset);
    }

    GpuStream StreamOf(Step step) { return step.Has("stream") ? Get<GpuStream>(step.Text("stream")) : null; }

    GpuRange RangeAt(string text, long size) { return new GpuRange(Address(text), size); }

    MemoryOptions OptionsOf(Step step)
    {
      return new MemoryOptions
      {
        Alignment = step.Value("alignment"),
        Require = (MemoryFlags)step.Named<MemoryFlags>("require"),
        Prefer = (MemoryFlags)step.Named<MemoryFlags>("prefer"),
        NumaNode = (int)step.Value("numa_node"),
        Name = step.Text("name"),
      };
    }

    bool Do(Step step)
    {
      List<string> a = step.Arguments;
      switch (step.Operation)
      {
        case "open": return Open(step);
        case "close":
          Get<GpuInstance>(a[0]).Close((CloseMode)step.Named<CloseMode>("mode"));
          return true;
        case "device": return Keep(step, Get<GpuInstance>(a[0]).GetDevice((int)Step.Number(a[1])));
        case "create":
          return Keep(step, Get<GpuDevice>(a[0]).Create(
              (MemoryKind)(int)(long)step.Named<MemoryKind>("kind"), step.Value("size"), OptionsOf(step)));
        case "register":
          return Keep(step, Get<GpuDevice>(a[0]).Register(Address(a[1]), step.Value("size"), new RegisterOptions
          {
            Require = (MemoryFlags)step.Named<MemoryFlags>("require"),
            Prefer = (MemoryFlags)step.Named<MemoryFlags>("prefer"),
            Name = step.Text("name"),
          }));
        case "buffer": return Keep(step, MakeBlock((long)Step.Number(a[0])));
        case "malloc":
          return Keep(step, Get<GpuDevice>(a[0]).Allocate((MemoryKind)step.Named<MemoryKind>("kind"), step.Value("size")));
        case "free":
          Get<GpuInstance>(a[0]).Free(Address(a[1]));
          return true;
        case "register_pointer":
          Get<GpuDevice>(a[0]).RegisterPointer(
              Address(a[1]), step.Value("size"), (MemoryFlags)step.Named<MemoryFlags>("require"));
          return true;
        case "unregister_pointer":
          Get<GpuInstance>(a[0]).UnregisterPointer(Address(a[1]));
          return true;
        case "stream": return Keep(step, Get<GpuDevice>(a[0]).CreateStream((int)(long)step.Value("priority")));
        case "event": return Keep(step, Get<GpuDevice>(a[0]).CreateEvent((EventFlags)step.Named<EventFlags>("flags")));
        case "growable":
          return Keep(step, Get<GpuDevice>(a[0]).CreateBuffer(step.Value("size"), new BufferOptions
          {
            Reserve = step.Value("reserve"),
            Flags = (BufferFlags)step.Named<BufferFlags>("flags"),
            Name = step.Text("name"),
            Group = step.Has("group") ? Get<BufferGroup>(step.Text("group")) : null,
            Tag = step.Text("tag"),
            HandleTypes = (HandleTypes)step.Named<HandleTypes>("handle_types"),
          }));
        case "group": return Keep(step, Get<GpuInstance>(a[0]).CreateGroup(step.Text("name")));
        case "resize":
          Get<GrowableBuffer>(a[0]).Resize(unchecked((long)Step.Number(a[1])));
          return true;
        case "set_capacity":
          Get<GrowableBuffer>(a[0]).SetCapacity(unchecked((long)Step.Number(a[1])));
          return true;
        case "note": return Keep(step, Get<GrowableBuffer>(a[0]).NoteRegistration(a[1]));
        case "forget":
          Get<GrowableBuffer>(a[0]).ForgetRegistration(Get<BufferRegistration>(a[1]));
          return true;
        case "sleep": return Sleep(step);
        case "wake": return Wake(step);
        case "prepare": return Prepare(step);
        case "buffer_info": return CompareBuffer(step, Get<GrowableBuffer>(a[0]).Info);
        case "group_info": return CompareGroup(step, Get<BufferGroup>(a[0]).GetInfo(step.Text("tag")));
        case "pool":
          return Keep(step, Get<GpuDevice>(a[0]).CreatePool(new PoolOptions
          {
            Kind = (MemoryKind)(int)(long)step.Named<MemoryKind>("kind"),
            Flags = (PoolFlags)step.Named<PoolFlag>("flags"),
            Limit = step.Value("limit"),
            ReleaseThreshold = step.Value("threshold"),
            InitialSize = step.Value("initial"),
            Name = step.Text("name"),
            HandleTypes = (HandleTypes)step.Named<HandleTypes>("handle_types"),
          }));
        case "alloc":
          return Keep(step, Get<MemoryPool>(a[0]).AllocatePointer(
              unchecked((long)Step.Number(a[1])), StreamOf(step), step.Value("alignment")));
        case "free_block":
          Get<MemoryPool>(a[0]).Free(Address(a[1]), StreamOf(step));
          return true;
        case "free_pointer":
          Get<GpuInstance>(a[0]).FreePoolBlock(Address(a[1]), StreamOf(step));
          return true;
        case "record_use":
          Get<MemoryPool>(a[0]).RecordUse(Address(a[1]), StreamOf(step));
          return true;
        case "trim":
          Get<MemoryPool>(a[0]).Trim(step.Value("keep"));
          return true;
        case "set_limit":
          Get<MemoryPool>(a[0]).SetLimit(unchecked((long)Step.Number(a[1])));
          return true;
        case "set_threshold":
          Get<MemoryPool>(a[0]).SetReleaseThreshold(unchecked((long)Step.Number(a[1])));
          return true;
        case "pool_info": return ComparePool(step, Get<MemoryPool>(a[0]).Info);
        case "block_info": return CompareBlock(step);
        case "capturing":
          HostSimulation.SetCapturing(Get<GpuStream>(a[0]), Step.Number(a[1]) != 0);
          return true;
        case "capture":
          long capture = Get<GpuStream>(a[0]).CaptureId;
          if (step.Has("is")) Check.Equal(step.Value("is") != 0, capture != 0, "that there is one");
          return Keep(step, capture);
        case "release_capture":
          Get<MemoryPool>(a[0]).ReleaseCapture(Get<long>(a[1]), StreamOf(step));
          return true;
        case "file": return Keep(step, new TemporaryFile(Bytes(a[0]), step.Has("access")));
        case "expect_file":
          Check.Equal(BitConverter.ToString(Bytes(a[1])), BitConverter.ToString(Get<TemporaryFile>(a[0]).Content()), "the file");
          return true;
        case "read_file":
        case "write_file": return CopyFile(step);
        case "destroy":
          if (objects[a[0]] is BufferGroup && Get<BufferGroup>(a[0]).Info.BufferCount != 0) throw new GroupInUse();
          Get<IDisposable>(a[0]).Dispose();
          return true;
        case "record":
          Get<GpuEvent>(a[0]).Record(Get<GpuStream>(a[1]));
          return true;
        case "wait":
          Get<GpuStream>(a[0]).Wait(Get<GpuEvent>(a[1]));
          return true;
        case "query":
          return objects[a[0]] is GpuStream ? Get<GpuStream>(a[0]).Query() : Get<GpuEvent>(a[0]).Query();
        case "synchronize": return Synchronize(step);
        case "elapsed":
          long? time = Get<GpuEvent>(a[0]).GetElapsedNanoseconds(Get<GpuEvent>(a[1]));
          Check.That(time == null || time >= 0, "the time is negative");
          return time != null;
        case "copy": return Copy(step);
        case "copy_2d": return Copy2D(step);
        case "copy_regions": return CopyRegions(step);
        case "fill": return Fill(step);
        case "fill_2d": return Fill2D(step);
        case "write_value":
          Get<GpuStream>(a[0]).WriteValue(RangeAt(a[1], step.Value("size")), (ulong)step.Value("value"));
          return true;
        case "wait_value":
          Get<GpuStream>(a[0]).WaitValue(RangeAt(a[1], step.Value("size")), (ulong)step.Value("value"),
                                         (WaitCondition)step.Named<Condition>("condition"));
          return true;
        case "set":
          byte[] bytes = Bytes(a[1]);
          Marshal.Copy(bytes, 0, Address(a[0]), bytes.Length);
          return true;
        case "expect":
          byte[] found = new byte[a[1].Length / 2];
          Marshal.Copy(Address(a[0]), found, 0, found.Length);
          Check.Equal(BitConverter.ToString(Bytes(a[1])), BitConverter.ToString(found), "content");
          return true;
        case "info": return CompareInfo(step, Get<GpuMemory>(a[0]).QueryInfo());
        case "pointer": return ComparePointer(step);
        case "access": return CompareAccess(step, Get<GpuInstance>(a[0]), Address(a[1]));
        case "count": return CompareCounts(step, Get<GpuInstance>(a[0]));
        case "capability":
          Check.That(Get<GpuDevice>(a[0]).GetCapability((Capability)Step.Number(a[1])).Name.Length != 0, "no name");
          return true;
        case "peer": return Peer(Get<GpuDevice>(a[0]), Get<GpuDevice>(a[1]), a[2]);
        case "export": return Keep(step, Get<GpuInstance>(a[0]).Export(new GpuRange(Address(a[1]), 0), new ExportOptions
          {
            Way = (ShareWay)step.Named<ShareWay>("way"),
            Access = (Access)step.Named<Access>("access"),
            Flags = (ExportFlags)step.Named<ExportFlags>("flags"),
          }));
        case "export_event": return Keep(step, Get<GpuEvent>(a[0]).Export());
        case "handle": return Keep(step, new ShareHandle(new byte[ShareHandle.Size]));
        case "damage":
          byte[] damaged = Get<ShareHandle>(a[0]).ToArray();
          damaged[(int)Step.Number(a[1])] ^= 0xff;
          objects[a[0]] = new ShareHandle(damaged);
          return true;
        case "same":
          Check.That(Get<ShareHandle>(a[0]).Equals(Get<ShareHandle>(a[1])), "the handles differ");
          return true;
        case "share_info": return CompareShare(step, Get<ShareHandle>(a[0]).Info);
        case "descriptors":
          FileDescriptorHandle[] descriptors = Get<GpuInstance>(a[0]).GetDescriptors(Get<ShareHandle>(a[1]));
          foreach (FileDescriptorHandle one in descriptors) one.Dispose();
          Check.Equal((int)Step.Number(a[2]), descriptors.Length, "descriptors");
          return true;
        case "revoke":
          Get<GpuInstance>(a[0]).Revoke(Get<ShareHandle>(a[1]));
          return true;
        case "import":
          return Keep(step, Get<GpuInstance>(a[0]).Import(
              Get<ShareHandle>(a[1]), new ImportOptions { Access = (Access)step.Named<Access>("access") }));
        case "import_event": return Keep(step, Get<GpuDevice>(a[0]).ImportEvent(Get<ShareHandle>(a[1])));
        case "way":
          ShareWayInfo way = Get<GpuInstance>(a[0]).GetShareWay(
              new GpuRange(Address(a[1]), 0), (ShareWay)Step.Words<ShareWay>(a[2]), (SharePeer)Step.Words<SharePeer>(a[3]));
          string answer = StatusInfo.NameOf(way.Status).Replace("GPUMEM_ERROR_", "").Replace("GPUMEM_", "");
          if (step.Has("is")) Check.Equal(step.Text("is"), answer, "the way");
          if (step.Has("descriptors")) Check.Equal((int)step.Value("descriptors"), way.DescriptorCount, "descriptors");
          Check.That(way.IsPossible || way.Message.Length != 0, "no reason");
          return true;
        case "cache":
          Get<GpuInstance>(a[0]).SetImportCache(TimeSpan.FromTicks(step.Value("idle") / 100), step.Value("bytes"));
          return true;
        case "flush_cache":
          Get<GpuInstance>(a[0]).FlushImportCache();
          return true;
        case "status_name":
          Check.Equal(a[1], StatusInfo.NameOf((Status)(int)(long)Step.Number(a[0])), "name");
          return true;
        default: throw new TestFailure("no such operation: " + step.Operation);
      }
    }

    bool Sleep(Step step)
    {
      var options = new SleepOptions
      {
        Content = (Content)step.Named<Content>("content"),
        Directory = step.Text("directory"),
        Tag = step.Text("tag"),
      };
      object target = Get<object>(step.Arguments[0]);
      if (target is BufferGroup) ((BufferGroup)target).Sleep(options);
      else ((GrowableBuffer)target).Sleep(options);
      return true;
    }

    bool Wake(Step step)
    {
      ulong keep = step.Has("keep") ? Step.Number(step.Text("keep")) : 0;
      var options = new WakeOptions { Keep = (long)Math.Min(keep, long.MaxValue), Tag = step.Text("tag") };
      object target = Get<object>(step.Arguments[0]);
      if (target is BufferGroup) ((BufferGroup)target).Wake(options);
      else ((GrowableBuffer)target).Wake(options);
      return true;
    }

    bool Prepare(Step step)
    {
      var options = new PrepareOptions
      {
        Content = (Content)step.Named<Content>("content"),
        Directory = step.Text("directory"),
        Tag = step.Text("tag"),
      };
      object target = Get<object>(step.Arguments[0]);
      if (target is BufferGroup) ((BufferGroup)target).Prepare(options);
      else ((GrowableBuffer)target).Prepare(options);
      return true;
    }

    static bool CompareBuffer(Step step, BufferInfo info)
    {
      if (step.Has("state")) Check.Equal((BufferState)step.Named<BufferState>("state"), info.State, "state");
      if (step.Has("name")) Check.Equal(step.Text("name"), info.Name, "name");
      if (step.Has("tag")) Check.Equal(step.Text("tag"), info.Tag, "tag");
      return CompareNumbers(step, new Dictionary<string, long>
      {
        { "size", info.Size }, { "generation", info.Generation }, { "stored", info.StoredSize },
        { "registrations", info.Registrations },
      });
    }

    static bool CompareGroup(Step step, BufferGroupInfo info)
    {
      return CompareNumbers(step, new Dictionary<string, long>
      {
        { "buffers", info.BufferCount }, { "awake", info.AwakeCount }, { "asleep", info.AsleepCount }, { "size", info.Size },
        { "stored", info.StoredSize },
      });
    }

    static bool ComparePool(Step step, PoolInfo info)
    {
      if (step.Has("kind")) Check.Equal((MemoryKind)step.Named<MemoryKind>("kind"), info.Kind, "kind");
      if (step.Has("name")) Check.Equal(step.Text("name"), info.Name, "name");
      return CompareNumbers(step, new Dictionary<string, long>
      {
        { "limit", info.Limit }, { "threshold", info.ReleaseThreshold }, { "live", info.LiveCount },
        { "captures", info.CaptureCount },
      });
    }

    bool CompareBlock(Step step)
    {
      IntPtr address = Address(step.Arguments[1]);
      PoolBlockInfo info = Get<GpuInstance>(step.Arguments[0]).GetPoolBlock(address);
      return CompareNumbers(step, new Dictionary<string, long>
      {
        { "offset", (long)address - (long)info.Base }, { "requested", info.RequestedSize },
      });
    }

    static bool CompareNumbers(Step step, Dictionary<string, long> known)
    {
      foreach (KeyValuePair<string, long> pair in known)
      {
        if (step.Has(pair.Key)) Check.Equal(step.Value(pair.Key), pair.Value, pair.Key);
      }
      return true;
    }

    static bool CompareShare(Step step, ShareInfo info)
    {
      if (step.Has("type")) Check.Equal((ShareType)step.Named<ShareType>("type"), info.Type, "type");
      if (step.Has("way")) Check.Equal((ShareWay)step.Named<ShareWay>("way"), info.Way, "way");
      if (step.Has("access")) Check.Equal((Access)step.Named<Access>("access"), info.Access, "access");
      return CompareNumbers(step, new Dictionary<string, long>
      {
        { "size", info.Size }, { "offset", info.Offset }, { "descriptors", info.DescriptorCount },
      });
    }

    bool Open(Step step)
    {
      GpuInstance made = GpuInstance.Open(new InstanceOptions
      {
        Backend = (Backend)step.Named<Backend>("backend", (ulong)Scope.Backend),
        PinBudget = step.Value("pin_budget"),
      });
      instances.Add(made);
      return Keep(step, made);
    }

    static Block MakeBlock(long size)
    {
      const long Page = 4096;
      long bytes = (size + Page - 1) / Page * Page;
      IntPtr all = Marshal.AllocHGlobal((IntPtr)(bytes + Page));
      long first = ((long)all + Page - 1) / Page * Page;
      for (long i = 0; i < bytes; ++i) ((byte*)first)[i] = 0;
      return new Block { Pointer = (IntPtr)first, Unaligned = all };
    }

    bool Synchronize(Step step)
    {
      object target = objects[step.Arguments[0]];
      if (!step.Has("timeout"))
      {
        if (target is GpuStream) ((GpuStream)target).Synchronize();
        else ((GpuEvent)target).Synchronize();
        return true;
      }
      TimeSpan timeout = TimeSpan.FromTicks(step.Value("timeout") / 100);
      return target is GpuStream ? ((GpuStream)target).Synchronize(timeout) : ((GpuEvent)target).Synchronize(timeout);
    }

    bool Copy(Step step)
    {
      GpuRange destination = RangeAt(step.Arguments[1], step.Value("size"));
      GpuRange source = RangeAt(step.Arguments[2], step.Value("size"));
      var options = new CopyOptions
      {
        Direction = (Direction)step.Value("direction"),
        SourceOrder = (SourceOrder)step.Value("source_order"),
      };
      if (step.Has("stream")) Get<GpuStream>(step.Text("stream")).Copy(destination, source, options);
      else Get<GpuInstance>(step.Arguments[0]).Copy(destination, source, options);
      return true;
    }

    bool Copy2D(Step step)
    {
      GpuRange destination = RangeAt(step.Arguments[1], long.MaxValue), source = RangeAt(step.Arguments[2], long.MaxValue);
      long width = step.Value("width"), height = step.Value("height");
      long destinationPitch = step.Value("dpitch"), sourcePitch = step.Value("spitch");
      if (step.Has("stream"))
      {
        Get<GpuStream>(step.Text("stream")).Copy2D(destination, destinationPitch, source, sourcePitch, width, height);
      }
      else
      {
        Get<GpuInstance>(step.Arguments[0]).Copy2D(destination, destinationPitch, source, sourcePitch, width, height);
      }
      return true;
    }

    bool CopyRegions(Step step)
    {
      var regions = new List<CopyRegion>();
      int? failed = null;
      try
      {
        for (long i = 0; i < step.Value("count", 1); ++i) regions.Add(Region(step, i * step.Value("step")));
        if (step.Has("stream")) Get<GpuStream>(step.Text("stream")).CopyRegions(regions.ToArray());
        else Get<GpuInstance>(step.Arguments[0]).CopyRegions(regions.ToArray());
      }
      catch (GpuMemException problem)
      {
        failed = problem.FailedRegion;
        throw;
      }
      catch (Exception problem) when (problem is ArgumentOutOfRangeException || problem is ObjectDisposedException)
      {
        failed = regions.Count;
        throw;
      }
      finally
      {
        Check.Equal(step.Has("failed") ? (int)step.Value("failed") : (int?)null, failed, "failed");
      }
      return true;
    }

    CopyRegion Region(Step step, long distance)
    {
      return new CopyRegion(Operand(step, step.Arguments[1], distance, step.Value("dpitch"), step.Value("dslice")),
                            Operand(step, step.Arguments[2], distance, step.Value("spitch"), step.Value("sslice")),
                            step.Value("width"), step.Value("height"), step.Value("depth"))
      {
        Options = new CopyOptions
        {
          Direction = (Direction)step.Value("direction"),
          SourceOrder = (SourceOrder)step.Value("source_order"),
        },
      };
    }

    /// <summary>"@m+N" is the part of the memory m that the box needs, all else an address.</summary>
    CopyOperand Operand(Step step, string text, long distance, long rowPitch, long slicePitch)
    {
      long width = step.Value("width");
      long height = Math.Max(step.Value("height"), 1), depth = Math.Max(step.Value("depth"), 1);
      long row = rowPitch == 0 ? width : rowPitch, slice = slicePitch == 0 ? height * row : slicePitch;
      long size = (depth - 1) * slice + (height - 1) * row + width;
      if (text.StartsWith("@"))
      {
        string[] parts = text.Substring(1).Split('+');
        long offset = parts.Length > 1 ? (long)Step.Number(parts[1]) : 0;
        return new CopyOperand(Get<GpuMemory>(parts[0]).Slice(offset + distance, size), rowPitch, slicePitch);
      }
      IntPtr first = Address(text);
      if (first != IntPtr.Zero) first = (IntPtr)((long)first + (long)distance);
      return new CopyOperand(new GpuRange(first, size), rowPitch, slicePitch);
    }

    bool CopyFile(Step step)
    {
      var instance = Get<GpuInstance>(step.Arguments[0]);
      GpuRange range = RangeAt(step.Arguments[1], step.Value("size"));
      SafeHandle file = Get<TemporaryFile>(step.Arguments[2]).Given.SafeFileHandle;
      long offset = step.Value("offset");
      var options = new FileCopyOptions();
      if (step.Has("cancel")) options.Progress = (done, total) => false;
      long? copied = null;
      try
      {
        copied = (step.Operation == "read_file" ? instance.ReadFile(range, file, offset, options)
                                                : instance.WriteFile(file, range, offset, options)).Size;
      }
      catch (GpuMemException problem)
      {
        copied = problem.Copied;
        throw;
      }
      finally
      {
        if (step.Has("copied")) Check.Equal(step.Value("copied"), copied ?? -1, "copied");
      }
      return true;
    }

    bool Fill(Step step)
    {
      GpuRange destination = RangeAt(step.Arguments[1], step.Value("size"));
      uint value = (uint)step.Value("value");
      int width = (int)step.Value("width");
      if (step.Has("stream")) Get<GpuStream>(step.Text("stream")).Fill(destination, value, width);
      else Get<GpuInstance>(step.Arguments[0]).Fill(destination, value, width);
      return true;
    }

    bool Fill2D(Step step)
    {
      GpuRange destination = RangeAt(step.Arguments[1], long.MaxValue);
      long pitch = step.Value("pitch"), width = step.Value("size_x"), height = step.Value("size_y");
      uint value = (uint)step.Value("value");
      int size = (int)step.Value("width");
      if (step.Has("stream")) Get<GpuStream>(step.Text("stream")).Fill2D(destination, pitch, width, height, value, size);
      else Get<GpuInstance>(step.Arguments[0]).Fill2D(destination, pitch, width, height, value, size);
      return true;
    }

    static byte[] Bytes(string hex)
    {
      return Enumerable.Range(0, hex.Length / 2).Select(i => Convert.ToByte(hex.Substring(2 * i, 2), 16)).ToArray();
    }

    static bool CompareInfo(Step step, MemoryInfo info)
    {
      if (step.Has("kind")) Check.Equal(step.Named<MemoryKind>("kind"), (ulong)info.Kind, "kind");
      if (step.Has("size")) Check.Equal(step.Value("size"), info.Size, "size");
      if (step.Has("alignment")) Check.Equal(step.Value("alignment"), info.Alignment, "alignment");
      if (step.Has("name")) Check.Equal(step.Text("name"), info.Name, "name");
      ulong granted = step.Named<MemoryFlags>("granted");
      Check.Equal(granted, (ulong)info.GrantedFlags & granted, "granted");
      return true;
    }

    bool ComparePointer(Step step)
    {
      IntPtr address = Address(step.Arguments[1]);
      PointerInfo info = Get<GpuInstance>(step.Arguments[0]).GetPointerInfo(address);
      if (step.Has("kind")) Check.Equal(step.Named<MemoryKind>("kind"), (ulong)info.Kind, "kind");
      if (step.Has("size")) Check.Equal(step.Value("size"), info.Size, "size");
      if (step.Has("offset")) Check.Equal(step.Value("offset"), (long)address - (long)info.Base, "offset");
      return true;
    }

    static bool CompareAccess(Step step, GpuInstance instance, IntPtr address)
    {
      Access access = step.Has("device")
          ? instance.GetDevice((int)step.Value("device")).GetAccess(address)
          : instance.GetHostAccess(address);
      if (step.Has("is")) Check.Equal(step.Named<Access>("is"), (ulong)access, "access");
      return true;
    }

    static bool CompareCounts(Step step, GpuInstance instance)
    {
      InstanceStats stats = instance.Stats;
      foreach (KeyValuePair<string, string> option in step.Options)
      {
        long live = option.Key == "live" ? stats.LiveCount
            : option.Key == "bytes" ? stats.LiveBytes
            : option.Key == "reserved" ? stats.ReservedBytes
            : option.Key == "streams" ? stats.Streams
            : option.Key == "events" ? stats.Events
            : instance.GetStats((MemoryKind)Enum.Parse(typeof(MemoryKind), option.Key, true)).LiveCount;
        Check.Equal((long)Step.Number(option.Value), live, option.Key);
      }
      return true;
    }

    static bool Peer(GpuDevice device, GpuDevice peer, string word)
    {
      switch (word)
      {
        case "query":
          device.CanAccessPeer(peer);
          return true;
        case "enable":
          device.EnablePeerAccess(peer);
          return true;
        case "disable":
          device.DisablePeerAccess(peer);
          return true;
        default: throw new TestFailure("no such word: " + word);
      }
    }
  }
}
