// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A small test runner. It prints a line of TAP for each test, and checks that each test leaves nothing behind.

using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Threading;

namespace GpuMem.Tests
{
  sealed class TestFailure : Exception
  {
    public TestFailure(string message) : base(message) { }
  }

  /// <summary>Thrown by a test that cannot run here.</summary>
  sealed class TestSkipped : Exception
  {
    public TestSkipped(string reason) : base(reason) { }
  }

  static class Tap
  {
    static int count;
    static int failures;

    /// <summary>Part of the names of the tests to run.</summary>
    internal static string Only = "";

    internal static void Run(string name, Action<Scope> test)
    {
      if (!name.Contains(Only)) return;
      ++count;
      // On a stack of its own: Mono's collector takes what earlier tests left on this one for references.
      var thread = new Thread(() => RunHere(name, test));
      thread.Start();
      thread.Join();
    }

    static void RunHere(string name, Action<Scope> test)
    {
      string line = count + " - " + name.Replace("#", "no. ");
      try
      {
        var scope = new Scope();
        try
        {
          test(scope);
        }
        catch
        {
          scope.Abandon();
          throw;
        }
        scope.Finish();
        Console.WriteLine("ok " + line);
      }
      catch (TestSkipped skipped)
      {
        Console.WriteLine("ok " + line + " # SKIP " + skipped.Message);
      }
      catch (Exception problem)
      {
        ++failures;
        foreach (string text in problem.ToString().Split('\n')) Console.WriteLine("# " + text);
        Console.WriteLine("not ok " + line);
      }
      Console.Out.Flush();
    }

    internal static int Finish()
    {
      Console.WriteLine("1.." + count);
      return failures == 0 && count != 0 ? 0 : 1;
    }
  }

  /// <summary>The instances of a test. Nothing in them may live at its end.</summary>
  sealed class Scope
  {
    readonly List<GpuInstance> instances = new List<GpuInstance>();

    internal static Backend Backend
    {
      get { return Environment.GetEnvironmentVariable("GPUMEM_TEST_BACKEND") == "cuda" ? Backend.Cuda : Backend.Host; }
    }

    internal static bool IsHost { get { return Backend == Backend.Host; } }

    internal static void HostOnly()
    {
      if (!IsHost) throw new TestSkipped("only the host backend can do it");
    }

    internal GpuInstance Open(InstanceOptions options = null)
    {
      options = options ?? new InstanceOptions();
      if (options.Backend == Backend.Any) options.Backend = Backend;
      GpuInstance instance = GpuInstance.Open(options);
      instances.Add(instance);
      return instance;
    }

    internal GpuDevice Device() { return Open().GetDevice(0); }

    internal void Finish()
    {
      GpuMemDiagnostics.ReleaseWaiting();
      Check.Equal(0, GpuMemDiagnostics.WaitingObjects, "objects that wait to be freed");
      foreach (GpuInstance instance in instances)
      {
        if (instance.IsClosed) continue;
        Check.Equal("nothing lives\n", instance.Report().TrimEnd() + "\n", "report");
        Check.Equal(0L, instance.Stats.LiveObjects, "live objects");
        instance.Close(CloseMode.Check);
      }
    }

    internal void Abandon()
    {
      foreach (GpuInstance instance in instances)
      {
        try
        {
          if (!instance.IsClosed) instance.Close(CloseMode.Force);
        }
        catch (Exception problem)
        {
          Console.WriteLine("# closing failed as well: " + problem.Message);
        }
      }
      GpuMemDiagnostics.ReleaseWaiting();
    }
  }

  static class Check
  {
    internal static void That(bool condition, string what)
    {
      if (!condition) throw new TestFailure(what);
    }

    internal static void Equal<T>(T expected, T found, string what)
    {
      if (!EqualityComparer<T>.Default.Equals(expected, found))
      {
        throw new TestFailure(what + ": expected " + expected + ", found " + found);
      }
    }

    internal static TException Throws<TException>(Action action) where TException : Exception
    {
      try
      {
        action();
      }
      catch (TException expected)
      {
        return expected;
      }
      catch (Exception other)
      {
        throw new TestFailure("expected " + typeof(TException).Name + ", found " + other);
      }
      throw new TestFailure("expected " + typeof(TException).Name + ", found none");
    }

    internal static GpuMemException Fails(Status status, Action action)
    {
      var problem = Throws<GpuMemException>(action);
      if (problem.Status != status) throw new TestFailure("expected " + status + ", found " + problem);
      return problem;
    }

    /// <summary>Waits for another thread or the collector. Only a failing test waits for the whole time.</summary>
    internal static void Eventually(Func<bool> condition, string what)
    {
      Stopwatch time = Stopwatch.StartNew();
      for (int i = 0; time.Elapsed < TimeSpan.FromSeconds(120); ++i)
      {
        if (condition()) return;
        Collect();
        Thread.Sleep(i < 100 ? 1 : 20);
      }
      throw new TestFailure("it never came: " + what);
    }

    /// <summary>Number of finalized objects, once no more are found.</summary>
    internal static long FinalizedObjects()
    {
      long count = GpuMemDiagnostics.FinalizedObjects;
      for (int same = 0; same < 5; )
      {
        Collect();
        long now = GpuMemDiagnostics.FinalizedObjects;
        same = now == count ? same + 1 : 0;
        count = now;
      }
      return count;
    }

    internal static void Collect()
    {
      GC.Collect();
      GC.WaitForPendingFinalizers();
    }

    /// <summary>
    /// Runs an action on another thread, so that the stack of this one does not refer to its garbage. Mono's collector
    /// scans stacks conservatively.
    /// </summary>
    internal static void Elsewhere(Action action)
    {
      Exception problem = null;
      var thread = new Thread(() =>
      {
        try
        {
          action();
        }
        catch (Exception caught)
        {
          problem = caught;
        }
      });
      thread.Start();
      thread.Join();
      if (problem != null) throw new TestFailure("on the other thread: " + problem);
    }
  }

  /// <summary>Runs this program again in another process.</summary>
  static class Child
  {
    internal static string Run(string arguments, int expectedExit = 0, Action<IDictionary<string, string>> environment = null,
                               string program = null)
    {
      string runtime = Process.GetCurrentProcess().MainModule.FileName;
      program = program ?? Assembly.GetEntryAssembly().Location;
      var start = new ProcessStartInfo(runtime, "\"" + program + "\" " + arguments)
      {
        UseShellExecute = false,
        RedirectStandardOutput = true,
        RedirectStandardError = true,
      };
      if (environment != null) environment(start.Environment);
      using (Process process = Process.Start(start))
      {
        var errors = new StringWriter();
        process.ErrorDataReceived += (sender, line) => { if (line.Data != null) lock (errors) errors.WriteLine(line.Data); };
        process.BeginErrorReadLine();
        string output = process.StandardOutput.ReadToEnd();
        process.WaitForExit();
        string text;
        lock (errors) text = errors.ToString();
        if (process.ExitCode != expectedExit || text.Length != 0)
        {
          throw new TestFailure(arguments + ": exit status " + process.ExitCode + "\n" + output + text);
        }
        return output;
      }
    }
  }
}
