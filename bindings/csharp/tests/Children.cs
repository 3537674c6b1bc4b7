// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests that need a process of their own: loading the library, the end of the process, and fork.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Threading;

namespace GpuMem.Tests
{
  static unsafe class Children
  {
    // Each is the first call of a process in which only the environment variable leads to the library.
    static readonly Dictionary<string, Action> FirstCalls = new Dictionary<string, Action>
    {
      { "load", () => GpuMemLibrary.Load() },
      { "version", () => GC.KeepAlive(GpuMemLibrary.Version) },
      { "version-text", () => GC.KeepAlive(GpuMemLibrary.VersionText) },
      { "supports", () => GpuMemLibrary.Supports(Feature.BackendHost) },
      { "status-name", () => StatusInfo.NameOf(Status.Busy) },
      { "status-info", () => StatusInfo.Of(Status.Busy) },
      { "statuses", () => StatusInfo.All() },
      { "capabilities", () => GpuDevice.Capabilities() },
      { "default", () => GC.KeepAlive(GpuInstance.Default) },
      { "probe", () => GpuInstance.Probe(Backend.Host) },
      { "open", () => GpuInstance.Open(Backend.Host).Dispose() },
      { "log", () => GpuMemLog.SetFunction(null, LogLevel.Error) },
      { "share-info", () => ReadNoHandle() },
      { "current-device", () => HostSimulation.SetCurrentDevice(-1) },
    };

    const int FirstTypeReference = 0x01000001;  // a token of metadata

    internal static int Run(string[] arguments)
    {
      switch (arguments[1])
      {
        case "first": return First(arguments[2]);
        case "path": return WithPath(arguments[2]);
        case "refused": return Refused();
        case "mended": return Mended(arguments[2]);
        case "own-resolution": return OwnResolution();
        case "alive": return EndAlive(arguments[2]);
        case "fork": return Fork();
        case "fabric": return Ranges.Fabric();
        case "partner": return Sharing.Partner(arguments[2], arguments.Length > 3 ? arguments[3] : null);
        case "import": return Ranges.Import(arguments[2], long.Parse(arguments[3]));
        default: return 9;
      }
    }

    internal static void RunAll()
    {
      string library = Environment.GetEnvironmentVariable("GPUMEM_LIBRARY");
      Tap.Run("loading: this runtime has every type that the assembly refers to", scope =>
      {
        Module module = typeof(GpuInstance).Module;
        int token = FirstTypeReference;
        try
        {
          while (true) module.ResolveType(token++);
        }
        catch (ArgumentOutOfRangeException)
        {
          Check.That(token > FirstTypeReference + 1, "it refers to none");  // this is behind the last one
        }
      });
      foreach (string call in FirstCalls.Keys)
      {
        Tap.Run("loading: by the first call, " + call, scope =>
            Check.Equal(library, Child.Run("child first " + call, 0, Away).Trim(), "what was loaded"));
      }
      Tap.Run("loading: the program's path comes first", scope => Check.Equal(library,
          Child.Run("child path \"" + library + "\"", 0, list => { Away(list); list["GPUMEM_LIBRARY"] = "/nonexistent"; }).Trim(),
          "what was loaded"));
      Tap.Run("loading: beside the application", scope => FromFolder(library, ""));
      Tap.Run("loading: in the folder of a package", scope => FromFolder(library, "runtimes/linux-x64/native"));
      Tap.Run("loading: where the system looks", scope => Check.Equal(GpuMemLibrary.FileName,
          Child.Run("child first load", 0, list => list.Remove("GPUMEM_LIBRARY")).Trim(), "what was loaded"));
      Tap.Run("loading: the runtime's own way", scope => Child.Run("child own-resolution", 0, list => list.Remove("GPUMEM_LIBRARY")));
      foreach (string pair in (Environment.GetEnvironmentVariable("GPUMEM_TEST_BAD_LIBRARIES") ?? "").Split(';'))
      {
        string[] parts = pair.Split('=');
        Tap.Run("loading: a library that is refused, " + parts[0], scope =>
        {
          if (parts.Length != 2) throw new TestSkipped("there is no C compiler to make one");
          string said = Child.Run("child refused", 0, list => { Away(list); list["GPUMEM_LIBRARY"] = parts[1]; });
          Check.That(said.Contains(parts[1]), "the message does not name the file: " + said);
          Check.That(said.Contains(parts[0]), "the message does not say why: " + said);
        });
      }
      Tap.Run("loading: the last number of a version does not count", scope =>
      {
        MethodInfo fits = typeof(GpuMemLibrary).GetMethod("Fits", BindingFlags.NonPublic | BindingFlags.Static);
        // 1.2.3 is needed.
        foreach (string version in "1.2.0 1.2.2 1.2.3 1.2.4 1.3.0 0.2.3 0.9.9 1.1.3 1.1.4095 2.0.0 2.2.3".Split(' '))
        {
          Version each = new Version(version);
          bool expected = each.Major == 1 && each.Minor >= 2;
          uint number = (uint)each.Major << 22 | (uint)each.Minor << 12 | (uint)each.Build;
          Check.Equal(expected, (bool)fits.Invoke(null, new object[] { number, 1u << 22 | 2u << 12 | 3u }), version);
        }
      });
      Tap.Run("loading: no library at all", scope =>
      {
        string said = Child.Run("child refused", 0, list => { Away(list); list.Remove("GPUMEM_LIBRARY"); });
        Check.That(said.Contains(GpuMemLibrary.FileName) && said.Contains("GPUMEM_LIBRARY or GpuMemLibrary.Path to its file"), said);
        Child.Run("child refused", 0, list => { Away(list); list["GPUMEM_LIBRARY"] = "/nonexistent/libgpumem.so.0"; });
      });
      Tap.Run("loading: a failure is not remembered", scope =>
          Child.Run("child mended \"" + library + "\"", 0, list => { Away(list); list.Remove("GPUMEM_LIBRARY"); }));
      foreach (string how in new[] { "return", "exit", "thread", "busy", "pool" })
      {
        Tap.Run("the process ends with objects alive: " + how, scope =>
            Check.Equal("end", Child.Run("child alive " + how).Trim(), "output"));
      }
      Tap.Run("a failure loads no assembly", scope =>
      {
        if (Type.GetType("Mono.Runtime") == null) throw new TestSkipped("the class library of .NET is many assemblies");
        Check.Equal("", Child.Run("child assemblies").Trim(), "assemblies that were loaded");
      });
      Tap.Run("a forked child is refused what is its parent's", scope =>
      {
        if (Type.GetType("Mono.Runtime") == null) throw new TestSkipped("a fork of .NET has no threads of the runtime");
        Check.Equal("refused", Child.Run("child fork").Trim(), "output");
      });
    }

    /// <summary>Removes the library from the search path of the system.</summary>
    static void Away(IDictionary<string, string> environment)
    {
      environment["LD_LIBRARY_PATH"] = "";
      environment["GPUMEM_BACKEND"] = "host";
    }

    static void FromFolder(string library, string place)
    {
      string folder = Path.Combine(Path.GetTempPath(), "gpumem-" + Guid.NewGuid().ToString("N"));
      Directory.CreateDirectory(Path.Combine(folder, place));
      try
      {
        string program = Assembly.GetEntryAssembly().Location;
        foreach (string file in Directory.GetFiles(Path.GetDirectoryName(program)))
        {
          if (!Path.GetFileName(file).StartsWith("libgpumem")) File.Copy(file, Path.Combine(folder, Path.GetFileName(file)));
        }
        string copy = Path.Combine(folder, place, GpuMemLibrary.FileName);
        File.Copy(library, copy);
        string said = Child.Run("child first load", 0, list => { Away(list); list.Remove("GPUMEM_LIBRARY"); },
                                Path.Combine(folder, Path.GetFileName(program)));
        Check.Equal(copy, said.Trim(), "what was loaded");
        // The program's path takes precedence over a copy beside the assembly.
        said = Child.Run("child path \"" + library + "\"", 0, Away, Path.Combine(folder, Path.GetFileName(program)));
        Check.Equal(library, said.Trim(), "what was loaded");
      }
      finally
      {
        Directory.Delete(folder, true);
      }
    }

    static int First(string call)
    {
      FirstCalls[call]();
      Console.WriteLine(GpuMemLibrary.LoadedPath);
      // Only that file was bound.
      string[] mapped = File.ReadAllLines("/proc/self/maps").Where(line => line.Contains("libgpumem"))
          .Select(line => line.Substring(line.IndexOf('/'))).Distinct().ToArray();
      return mapped.Length == 1 ? 0 : 3;
    }

    static void ReadNoHandle()
    {
      try
      {
        GC.KeepAlive(new ShareHandle(new byte[ShareHandle.Size]).Info);
      }
      catch (GpuMemException)
      {
        // The library has read it.
      }
    }

    static int WithPath(string path)
    {
      GpuMemLibrary.Path = path;
      int result = First("open");
      try
      {
        GpuMemLibrary.Path = null;
        return 4;
      }
      catch (InvalidOperationException)
      {
        return result;
      }
    }

    // Every call fails with the same message, and none with a TypeInitializationException.
    static int Refused()
    {
      string first = null;
      foreach (string call in FirstCalls.Keys)
      {
        try
        {
          FirstCalls[call]();
          Console.WriteLine(call + " worked");
          return 3;
        }
        catch (GpuMemLibraryException problem)
        {
          first = first ?? problem.Message;
          if (problem.Message != first) return 4;
        }
      }
      Console.WriteLine(first);
      return GpuMemLibrary.LoadedPath == null ? 0 : 5;
    }

    static int Mended(string path)
    {
      try
      {
        StatusInfo.NameOf(Status.Busy);
        return 3;
      }
      catch (GpuMemLibraryException)
      {
        GpuMemLibrary.Path = path;
        return StatusInfo.NameOf(Status.Busy) == "GPUMEM_ERROR_BUSY" ? 0 : 4;
      }
    }

    static int OwnResolution()
    {
      GpuMemLibrary.UseResolver = false;
      return GpuMemLibrary.Version >= new Version(0, 1, 0) ? 0 : 3;
    }

    static int EndAlive(string how)
    {
      GpuMemLog.SetFunction((level, message) => { }, LogLevel.Warning);
      GpuDevice device = GpuInstance.Open(Scope.Backend).GetDevice(0);
      GpuStream stream = device.CreateStream();
      GpuMemory memory = device.AllocateDevice(4096);
      PinnedMemory<int> pinned = device.AllocatePinned<int>(1024);
      GpuMemory registered = device.Register(new byte[4096]);
      GpuEvent gpuEvent = device.CreateEvent();
      Stream view = pinned.OpenView();
      stream.Copy(memory, pinned);
      gpuEvent.Record(stream);
      // Mono does not end while a foreign thread lives that has run a managed function, so dispose that stream first.
      using (GpuStream other = device.CreateStream())
      {
        other.Launch(() => { });
        other.Synchronize();
      }
      device.AllocateDevice(1);
      if (how != "busy") stream.Synchronize();
      Console.WriteLine("end");
      switch (how)
      {
        case "exit":
          Environment.Exit(0);
          break;
        case "thread":
          var thread = new Thread(() =>
          {
            while (true) stream.Query();
          });
          thread.IsBackground = true;
          thread.Start();
          break;
        case "busy":
          pinned[0] = 0;
          stream.WaitValue(pinned.Slice(0, 1), 1, WaitCondition.Equal);
          stream.Copy(memory, new byte[4096]);
          break;
        case "pool":
          PoolBlock block;
          using (MemoryPool pool = device.CreatePool()) block = pool.Allocate(4096, stream);
          stream.Fill(block, 1);
          stream.Synchronize();
          break;
      }
      GC.KeepAlive(view);
      GC.KeepAlive(registered);
      return 0;
    }

    // The child has only this thread and must not wait for another one. So the parent makes the same calls first, and the
    // child ends without the runtime.
    static int Fork()
    {
      GpuDevice device = GpuInstance.Open(Backend.Host).GetDevice(0);
      GpuMemory memory = device.AllocateDevice(4096);
      GpuStream stream = device.CreateStream();
      if (Refusals(device, memory, stream) != 0) return 3;
      int child = Libc.fork();
      if (child == 0) Libc._exit(Refusals(device, memory, stream) == 5 ? 0 : 1);
      int status = -1;
      if (child < 0) return 6;
      if (Libc.waitpid(child, &status, 0) != child || status != 0) return 4;
      // The parent is not affected.
      stream.Synchronize();
      memory.Dispose();
      stream.Dispose();
      device.Instance.Close(CloseMode.Check);
      Console.WriteLine("refused");
      return 0;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Refusals(GpuDevice device, GpuMemory memory, GpuStream stream)
    {
      int refusals = 0;
      for (int call = 0; call < 5; ++call)
      {
        try
        {
          if (call == 0) memory.QueryInfo();
          if (call == 1) stream.Query();
          if (call == 2) GC.KeepAlive(device.Instance.Info);
          if (call == 3) device.AllocateDevice(1).Dispose();
          if (call == 4) stream.Synchronize();
        }
        catch (GpuMemException problem)
        {
          if (problem.Status == Status.Forked) ++refusals;
        }
      }
      return refusals;
    }
  }

  /// <summary>
  /// Prints the assemblies that failures have loaded, which takes memory and a descriptor, when these may be what is short. A
  /// class of its own, because the other children need more assemblies themselves.
  /// </summary>
  static class Failures
  {
    internal static int Run()
    {
      GpuInstance instance = GpuInstance.Open(Scope.Backend);
      GpuDevice device = instance.GetDevice(0);
      GpuMemory memory = device.AllocateDevice(64), disposed = device.AllocateDevice(64);
      disposed.Dispose();
      int failures = 0;
      for (int call = 0; call < 6; ++call)
      {
        try
        {
          if (call == 0) device.Create(MemoryKind.Registered, 64);
          if (call == 1) device.AllocateDevice(long.MaxValue);
          if (call == 2) instance.Copy(memory, memory, new CopyOptions { Direction = (Direction)99 });
          if (call == 3) instance.Close(CloseMode.Check);
          if (call == 4) disposed.QueryInfo();
          if (call == 5) instance.Revoke(null);
        }
        catch (Exception problem)
        {
          failures += problem.ToString().Length == 0 ? 0 : 1;
        }
      }
      int causes = StatusInfo.Of(Status.Busy).ToString().Length, lines = instance.Report().Length;
      foreach (Assembly one in AppDomain.CurrentDomain.GetAssemblies())
      {
        if (one != typeof(object).Assembly && one != typeof(GpuInstance).Assembly && one != typeof(Failures).Assembly)
        {
          Console.WriteLine(one.FullName);
        }
      }
      memory.Dispose();
      instance.Close(CloseMode.Check);
      return failures == 6 && causes > 0 && lines > 0 ? 0 : 3;
    }
  }
}
